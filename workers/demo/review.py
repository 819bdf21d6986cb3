"""Reviews a file by rules over its measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.workers.demo.models import Remark
from orchestrator.workers.demo.text_format import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.workers.demo.models import FileMeasure, FunctionMeasure, Loop

COMPLEXITY_LIMIT: Final = 10
NESTING_LIMIT: Final = 4
PARAMETERS_LIMIT: Final = 10
FUNCTION_LINES_LIMIT: Final = 80
FILE_LINES_LIMIT: Final = 1000
UNDOCUMENTED_FEW: Final = 10
FUNCTIONS_PER_FILE: Final = 3


def worst_files(files: Sequence[FileMeasure], loops: Mapping[str, Loop], *, most: int) -> list[FileMeasure]:
    """Return the files that need a review most, the worst first, without files that have no remarks."""
    ranked = [(_badness(file, loops), file) for file in files if not file.problem]
    ranked = [item for item in ranked if item[0] > 0]
    return [file for _, file in sorted(ranked, key=lambda item: (-item[0], item[1].path))[:most]]


def remarks_on(file: FileMeasure, loop: Loop | None) -> list[Remark]:
    """Return all remarks on one file, in line order."""
    found = [*_on_functions(file), *_on_size(file), *_on_docstrings(file)]
    if loop is not None:
        found.append(_on_loop(file, loop))
    return sorted(found, key=lambda remark: (remark.line, remark.rule))


def _badness(file: FileMeasure, loops: Mapping[str, Loop]) -> float:
    """Rate how far the file exceeds the limits, to order the reviews."""
    complexity = sum(max(0, number - COMPLEXITY_LIMIT) * count for number, count in file.histogram.items())
    longest = max((function.lines for function in file.worst), default=0)
    widest = max((function.parameters for function in file.worst), default=0)
    return (
        complexity
        + 3 * max(0, file.nesting - NESTING_LIMIT)
        + max(0, longest - FUNCTION_LINES_LIMIT) / 20
        + max(0, widest - PARAMETERS_LIMIT) / 4
        + max(0, file.code_lines - FILE_LINES_LIMIT) / 100
        + max(0, file.undocumented_count - _docstring_limit(file)) / 4
        + (10 if file.path in loops else 0)
    )


# ------------------------------------------------------------------------------------------------------- functions


def _on_functions(file: FileMeasure) -> list[Remark]:
    """Return remarks on the functions furthest beyond a limit, in line order; the same advice appears once."""
    excess = {function: _excess(function) for function in file.worst}
    chosen = sorted(file.worst, key=lambda function: -max(excess[function].values()))[:FUNCTIONS_PER_FILE]
    remarks: list[Remark] = []
    given: set[str] = set()
    for function in sorted(chosen, key=lambda function: function.line):
        rule = max(excess[function], key=excess[function].__getitem__)
        if excess[function][rule] > 1:
            advice = _advice(function, rule)
            remarks.append(_on_function(file, function, rule, advice="" if advice in given else advice))
            given.add(advice)
    return remarks


def _excess(function: FunctionMeasure) -> dict[str, float]:
    """Return measured / limit of each rule."""
    return {
        "complexity": function.complexity / COMPLEXITY_LIMIT,
        "nesting": function.nesting / NESTING_LIMIT,
        "parameters": function.parameters / PARAMETERS_LIMIT,
        "length": function.lines / FUNCTION_LINES_LIMIT,
    }


def _on_function(file: FileMeasure, function: FunctionMeasure, rule: str, *, advice: str) -> Remark:
    facts = {
        "complexity": (function.complexity, COMPLEXITY_LIMIT, f"has a complexity of {function.complexity}"),
        "nesting": (function.nesting, NESTING_LIMIT, f"nests {function.nesting} blocks deep"),
        "parameters": (function.parameters, PARAMETERS_LIMIT, f"takes {function.parameters} parameters"),
        "length": (function.lines, FUNCTION_LINES_LIMIT, f"runs over {function.lines} lines"),
    }
    measured, limit, _ = facts[rule]
    name = "the code outside functions" if function.name == "<module>" else f"`{function.name}`"
    said = [facts[rule][2], *(told for other, (n, most, told) in facts.items() if other != rule and n > most)]
    sentence = f"{name} {_enumerate(said)}"
    text = f"{sentence}: {advice}." if advice else f"the same goes for {name}: it {_enumerate(said)}."
    return Remark(
        path=file.path, line=function.line, rule=rule, measured=measured, limit=limit, text=text[0].upper() + text[1:]
    )


def _advice(function: FunctionMeasure, rule: str) -> str:
    """Return advice that fits the numbers."""
    match rule:
        case "parameters":
            return "such a call is easy to get wrong; group related arguments into a named value"
        case "nesting":
            return "the innermost line depends on all of them; return early, or extract a function"
        case "length":
            return "it does not fit on a screen; split it into steps, one function each"
    if function.nesting > NESTING_LIMIT:
        return "branches inside branches; handle the simple cases first and return"
    if function.nesting <= 2:
        return "its branches are alternatives; a table of cases may replace them"
    if function.lines > FUNCTION_LINES_LIMIT:
        return "it does several jobs; make each a function that can be tested alone"
    return "too many paths to follow; extract the branches into named functions"


def _enumerate(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


# ----------------------------------------------------------------------------------------------------------- files


def _on_size(file: FileMeasure) -> list[Remark]:
    if file.code_lines <= FILE_LINES_LIMIT:
        return []
    advice = (
        "split it before adding to it"
        if file.code_lines > 2 * FILE_LINES_LIMIT
        else "it has more than one subject; split it into modules"
    )
    said = f"{file.code_lines:,} lines of code in one file, {count(file.functions, 'function')} in them: {advice}."
    return [Remark(path=file.path, line=1, rule="size", measured=file.code_lines, limit=FILE_LINES_LIMIT, text=said)]


def _docstring_limit(file: FileMeasure) -> int:
    """Return how many public names may lack a docstring: half of a few, a quarter of many."""
    return file.public // (4 if file.undocumented_count > UNDOCUMENTED_FEW else 2)


def _on_docstrings(file: FileMeasure) -> list[Remark]:
    missing, limit = file.undocumented_count, _docstring_limit(file)
    if missing <= limit:
        return []
    first = next((item for item in file.undocumented if item.kind != "module"), file.undocumented[0])
    if first.kind == "module":
        said = "The module has no docstring: say in a sentence what it is for."
    elif missing == file.public:
        said = f"None of its {count(missing, 'public name')} has a docstring; start with `{first.name}`."
    else:
        said = (
            f"{missing} of {count(file.public, 'public name')} have no docstring: readers must read the code to "
            f"learn what it does; start with `{first.name}`."
        )
    return [Remark(path=file.path, line=first.line, rule="docstrings", measured=missing, limit=limit, text=said)]


def _on_loop(file: FileMeasure, loop: Loop) -> Remark:
    round_trip = " → ".join(loop.names)
    said = (
        f"This import closes a cycle of {len(loop.names) - 1} modules, {round_trip}: one of them runs "
        "before another has loaded; move what they share into a module below, or import it where it is used."
    )
    return Remark(path=file.path, line=loop.line, rule="cycle", measured=len(loop.names) - 1, limit=0, text=said)
