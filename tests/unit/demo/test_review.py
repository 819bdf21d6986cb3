"""The reviewer's remarks: only what was measured, with the line and the number."""

from __future__ import annotations

from collections import Counter
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workers.demo.measure import measure_text
from orchestrator.workers.demo.models import FileMeasure, FunctionMeasure, Loop, Undocumented
from orchestrator.workers.demo.review import (
    COMPLEXITY_LIMIT,
    FILE_LINES_LIMIT,
    FUNCTION_LINES_LIMIT,
    NESTING_LIMIT,
    PARAMETERS_LIMIT,
    remarks_on,
    worst_files,
)

DOC = '"""Documented."""\n'


def function(name: str = "f", line: int = 3, **measured: int) -> FunctionMeasure:
    """A function that exceeds nothing but what is given."""
    plain = FunctionMeasure(name=name, line=line, lines=5, complexity=1, nesting=0, parameters=0)
    return plain.model_copy(update=measured)


def file_with(*functions: FunctionMeasure) -> FileMeasure:
    """A file of these functions."""
    return FileMeasure(
        path="x.py",
        histogram=dict(Counter(one.complexity for one in functions)),
        nesting=max((one.nesting for one in functions), default=0),
        worst=functions,
    )


@pytest.mark.parametrize(
    ("rule", "limit", "measured", "says"),
    [
        ("complexity", COMPLEXITY_LIMIT, {"complexity": 11}, "`f` has a complexity of 11: "),
        ("nesting", NESTING_LIMIT, {"nesting": 5}, "`f` nests 5 blocks deep: "),
        ("parameters", PARAMETERS_LIMIT, {"parameters": 11}, "`f` takes 11 parameters: "),
        ("length", FUNCTION_LINES_LIMIT, {"lines": 81}, "`f` runs over 81 lines: "),
    ],
)
def test_each_limit_has_its_remark(rule: str, limit: int, measured: dict[str, int], says: str) -> None:
    """One above a limit is a remark with the place, the number and the limit; the limit itself is none."""
    (remark,) = remarks_on(file_with(function().model_copy(update=measured)), None)
    (number,) = measured.values()
    assert (remark.path, remark.line, remark.rule, remark.measured, remark.limit) == ("x.py", 3, rule, number, limit)
    assert remark.text.startswith(says)
    assert (
        remarks_on(file_with(function().model_copy(update={name: value - 1 for name, value in measured.items()})), None)
        == []
    )


def test_advice_is_given_once_per_file() -> None:
    """What was said of one function goes for the next of its kind; further facts are told."""
    first, second = remarks_on(
        file_with(function("g", 30, complexity=25, lines=90), function("f", 3, complexity=22, lines=85)), None
    )
    assert (first.line, second.line) == (3, 30)
    assert first.text.startswith("`f` has a complexity of 22 and runs over 85 lines: ")
    assert second.text == "The same goes for `g`: it has a complexity of 25 and runs over 90 lines."


def test_code_outside_functions_is_called_so() -> None:
    """The module's own code has no name of its own in a sentence."""
    (remark,) = remarks_on(file_with(function("<module>", 1, complexity=12)), None)
    assert remark.text.startswith("The code outside functions has a complexity of 12: ")


def test_size_docstrings_and_loops_are_remarked() -> None:
    """A large, undocumented file in an import cycle hears about all three, in line order."""
    file = FileMeasure(
        path="a.py",
        code_lines=FILE_LINES_LIMIT + 1,
        public=5,
        undocumented=(
            Undocumented(kind="module", name="<module>", line=1),
            Undocumented(kind="class", name="A", line=7),
        ),
        undocumented_count=3,
    )
    size, loop, docstrings = remarks_on(file, Loop(names=("a", "b", "a"), line=4))
    assert (size.rule, size.line, size.measured) == ("size", 1, 1001)
    assert (loop.rule, loop.line, loop.measured) == ("cycle", 4, 2)
    assert "a cycle of 2 modules, a → b → a" in loop.text
    assert (docstrings.rule, docstrings.line, docstrings.measured, docstrings.limit) == ("docstrings", 7, 3, 2)
    assert docstrings.text.startswith("3 of 5 public names have no docstring")
    assert docstrings.text.endswith("start with `A`.")


@pytest.mark.parametrize(
    ("public", "missing", "remarked"), [(4, 2, 0), (4, 3, 1), (100, 25, 0), (100, 26, 1), (1, 1, 1)]
)
def test_many_names_need_a_larger_share_of_docstrings(public: int, missing: int, remarked: int) -> None:
    """Half of a few may lack one, a quarter of many."""
    first = (Undocumented(kind="function", name="f", line=2),)
    file = FileMeasure(path="x.py", public=public, undocumented=first, undocumented_count=missing)
    assert len(remarks_on(file, None)) == remarked


def test_the_worst_come_first_and_the_good_not_at_all() -> None:
    """Files are ranked by how far they are beyond limits; what cannot be parsed is not reviewed."""
    bad, worse = file_with(function(complexity=12)), file_with(function(complexity=30))
    files = [
        bad.model_copy(update={"path": "bad.py"}),
        worse.model_copy(update={"path": "worse.py"}),
        file_with(function()).model_copy(update={"path": "good.py"}),
        FileMeasure(path="broken.py", problem="line 1: invalid syntax", lines=9),
        FileMeasure(path="looped.py"),
    ]
    loops = {"looped.py": Loop(names=("a", "b", "a"), line=1)}
    assert [file.path for file in worst_files(files, loops, most=9)] == ["worse.py", "looped.py", "bad.py"]
    assert [file.path for file in worst_files(files, {}, most=1)] == ["worse.py"]


LOOPS = {"x.py": Loop(names=("a", "b", "a"), line=1)}
sizes = st.integers(0, 200)
functions = st.builds(
    FunctionMeasure,
    name=st.just("f"),
    line=st.just(3),
    lines=sizes,
    complexity=sizes,
    nesting=sizes,
    parameters=sizes,
)


@given(functions, st.tuples(sizes, sizes), st.integers(0, 3000), st.sampled_from([{}, LOOPS]))
def test_who_is_reviewed_hears_something(
    one: FunctionMeasure, names: tuple[int, int], code_lines: int, loops: dict[str, Loop]
) -> None:
    """A file is among the worst exactly when there is a remark on it, and each remark quotes its number."""
    missing, public = sorted(names)
    file = file_with(one).model_copy(
        update={
            "code_lines": code_lines,
            "public": public,
            "undocumented": (Undocumented(kind="function", name="f", line=2),) * min(missing, 3),
            "undocumented_count": missing,
        }
    )
    remarks = remarks_on(file, loops.get("x.py"))
    assert bool(worst_files([file], loops, most=1)) == bool(remarks)
    for remark in remarks:
        assert remark.measured > remark.limit
        assert f"{remark.measured:,}" in remark.text
        assert remark.text.endswith(".")


def test_measured_source_leads_to_the_expected_words() -> None:
    """From text to sentence: a long constructor is told about its parameters."""
    names = ", ".join(f"p{number}" for number in range(14))
    file = measure_text("big.py", dedent(DOC) + f"class A:\n    {DOC}    def __init__(self, {names}):\n        pass\n")
    (remark,) = remarks_on(file, None)
    assert (remark.line, remark.rule, remark.measured) == (4, "parameters", 14)
    assert remark.text.startswith("`A.__init__` takes 14 parameters: such a call is easy to get wrong")
