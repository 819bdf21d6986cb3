"""Renders the report as one HTML page with inline style and pictures, without scripts or fetched files."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Final

from orchestrator.workers.demo.charts import graph_svg, histogram_svg, timeline_svg
from orchestrator.workers.demo.markup import Child, Markup, el, join, raw
from orchestrator.workers.demo.review import COMPLEXITY_LIMIT, NESTING_LIMIT
from orchestrator.workers.demo.summary import AGENTS, colour_of, describe_repeats, describe_retry
from orchestrator.workers.demo.text_format import count, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.workers.demo.models import Audit, ChangeLogRow, Cycle, Remark
    from orchestrator.workers.demo.summary import AuditSummary

OPEN_FILES: Final = 5
MAX_ROWS: Final = 15
MAX_CYCLES: Final = 8
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Forbids scripts and requests, in case foreign text gets into the page."""


def render_page(audit: Audit, summary: AuditSummary) -> str:
    """Render the whole document."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"Audit of {summary.name}"),
        el("style", _style()),
    )
    main = el(
        "main",
        _header(audit, summary),
        _review(audit),
        _imports(audit, summary),
        _complexity(summary),
        _docstrings(summary),
        _unmeasured(summary),
        _making(audit, summary),
        _sharing(audit),
        _footer(),
    )
    return f"<!doctype html>\n{el('html', head, el('body', main), lang='en')}\n"


@cache
def _style() -> Markup:
    return raw(files("orchestrator.workers.demo").joinpath("style.css").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------------------ head


def _header(audit: Audit, summary: AuditSummary) -> Markup:
    when = datetime.fromtimestamp(summary.started, UTC)
    complex_ones = summary.more_complex_than(COMPLEXITY_LIMIT)
    return el(
        "header",
        el("h1", f"Audit of {summary.name}"),
        el(
            "p",
            el("code", audit.tree.root),
            el("br"),
            f"{when:%Y-%m-%d %H:%M} UTC · {count(summary.tasks, 'task')} by {count(len(summary.agents), 'agent')} "
            f"on {count(summary.workers, 'worker process', 'worker processes')} in {seconds(summary.seconds)}",
            class_="lead",
        ),
        el(
            "dl",
            _tile("Files", f"{summary.files:,}", f"{summary.lines:,} lines"),
            _tile("Lines of code", f"{summary.code_lines:,}", "without blanks, comments, docstrings"),
            _tile("Functions", f"{summary.functions:,}", f"{complex_ones:,} above complexity {COMPLEXITY_LIMIT}"),
            _tile("Highest complexity", summary.complexity_max, _worst_name(summary)),
            _tile("Docstrings", percent(summary.documented, summary.public), f"of {summary.public:,} public names"),
            _tile(
                "Import cycles",
                len(summary.cycles),
                count(sum(len(cycle.members) for cycle in summary.cycles), "module") + " involved",
                alarm=bool(summary.cycles),
            ),
            class_="tiles",
        ),
    )


def _tile(name: str, value: Child, note: Child, *, alarm: bool = False) -> Markup:
    return el("div", el("dt", name), el("dd", value, el("small", note)), class_="tile alarm" if alarm else "tile")


def _worst_name(summary: AuditSummary) -> Markup:
    if not summary.worst_functions:
        return join("no functions")
    return join(*summary.worst_functions[0][1].name.split("."), separator=el("wbr") + ".")


# ---------------------------------------------------------------------------------------------------------- review


def _review(audit: Audit) -> Markup:
    if not audit.remarks:
        return _section("Review", "Nothing stands out: no file exceeds a limit.")
    groups = [(path, list(group)) for path, group in groupby(audit.remarks, key=lambda remark: remark.path)]
    return _section(
        "Review",
        f"The {count(len(groups), 'file')} that need attention most, the worst first. "
        "Each remark shows its measured number and the limit.",
        el(
            "div",
            *(_reviewed_file(path, r, opened=n < OPEN_FILES) for n, (path, r) in enumerate(groups)),
            class_="review",
        ),
    )


def _reviewed_file(path: str, remarks: Sequence[Remark], *, opened: bool) -> Markup:
    return el(
        "details",
        el("summary", el("code", path), el("span", count(len(remarks), "remark"), class_="soft")),
        el("ul", *map(_remark, remarks), class_="remarks"),
        open="" if opened else None,
    )


def _remark(remark: Remark) -> Markup:
    beyond = remark.measured / remark.limit if remark.limit else 3.0
    far = "far" if beyond > 2 else "near" if beyond <= 1.3 else "beyond"
    limit = el("small", f" / {remark.limit:,}") if remark.limit else None
    return el(
        "li",
        el("span", f"line {remark.line}", class_="where"),
        el("span", remark.rule, el("b", f"{remark.measured:,}", class_=far), limit, class_="badge"),
        el("span", _sentence(remark.text), class_="text"),
    )


def _sentence(text: str) -> Markup:
    """Render a sentence with `code` in backticks."""
    return join(*(el("code", part) if at % 2 else part for at, part in enumerate(text.split("`"))))


# ---------------------------------------------------------------------------------------------------- import graph


def _imports(audit: Audit, summary: AuditSummary) -> Markup:
    graph = audit.graph
    at_import = sum(edge.when == "import" for edge in graph.edges)
    others = len(graph.edges) - at_import
    told = (
        f"{count(len(graph.modules), 'module')} import each other {count(at_import, 'time')} when they are loaded"
        + (f", and {count(others, 'time')} only inside functions or for the type checker" if others else "")
        + (f" ({graph.edges_left_out:,} further ones were left out)" if graph.edges_left_out else "")
        + "."
    )
    picture = (
        _figure(
            graph_svg(graph, package=audit.tree.package),
            "A module stands above those it imports; at most 60 are drawn, the best connected. In a dashed frame "
            "every module reaches every other one. Imports that others imply show when you point at a module.",
            _key("imports the module below", "--c:var(--edge)", "key line"),
            _key("import inside a knot", "--c:var(--alarm-soft)", "key line"),
            _key("a shortest way round", "--c:var(--alarm)", "key line"),
            _key("module in a cycle", "--c:var(--alarm)", "key joins"),
        )
        if at_import
        else None
    )
    return _section("Imports", told, picture, *_cycles(audit, summary))


def _cycles(audit: Audit, summary: AuditSummary) -> list[Markup]:
    said = [el("h3", "Import cycles"), *_cycle_list(audit, summary.cycles)]
    if not summary.cycles:
        said.append(el("p", "None: every module can be imported first."))
    if summary.deferred:
        said.append(el("h3", "Loops that deferred imports keep open"))
        said.append(
            el(
                "p",
                "These close only through imports inside functions or under ",
                el("code", "TYPE_CHECKING"),
                ", which do not run when a module is imported.",
                class_="soft",
            )
        )
        said += _cycle_list(audit, summary.deferred)
    return said


def _cycle_list(audit: Audit, cycles: Sequence[Cycle]) -> list[Markup]:
    said = [_cycle(audit, cycle) for cycle in cycles[:MAX_CYCLES]]
    if len(cycles) > MAX_CYCLES:
        said.append(el("p", f"And {len(cycles) - MAX_CYCLES:,} more; REPORT.md has them all.", class_="soft"))
    return said


def _cycle(audit: Audit, cycle: Cycle) -> Markup:
    graph = audit.graph
    way = join(*(el("code", name) for name in graph.loop_names(cycle)), separator=" → ")
    places = join(
        *(el("code", f"{graph.modules[edge.importer].path}:{edge.line}") for edge in cycle.loop), separator=", "
    )
    more = len(cycle.members) > len(cycle.loop)
    knot = f"A shortest way round a knot of {len(cycle.members)} modules. " if more else ""
    return el(
        "div",
        el("p", way),
        el("p", f"{knot}Imports at ", places, class_="soft"),
        class_="cycle deferred" if cycle.deferred else "cycle",
    )


# ----------------------------------------------------------------------------------------------------- measurements


def _complexity(summary: AuditSummary) -> Markup | None:
    if not summary.functions:
        return None
    rows = [
        (
            el("code", function.name),
            el("code", f"{file.path}:{function.line}"),
            function.complexity,
            function.nesting,
            function.lines or None,
        )
        for file, function in summary.worst_functions[:MAX_ROWS]
    ]
    share = percent(summary.more_complex_than(COMPLEXITY_LIMIT), summary.functions)
    return _section(
        "Complexity",
        f"{share} of {count(summary.functions, 'function')} exceed {COMPLEXITY_LIMIT}; beyond that a function is hard "
        "to test path by path.",
        _figure(
            histogram_svg(summary.histogram),
            "Number of functions by complexity. Heights grow with the square root of the number, so that the few "
            "complex ones can be seen beside the many simple ones.",
            _key("simple, up to 5", "--c:var(--calm)"),
            _key("up to 10", "--c:var(--warm)"),
            _key("up to 20", "--c:var(--hot)"),
            _key("more", "--c:var(--burning)"),
        ),
        el("h3", "Most complex functions"),
        _table(("function", "where", "#complexity", f"#nesting (limit {NESTING_LIMIT})", "#lines"), rows),
    )


def _docstrings(summary: AuditSummary) -> Markup | None:
    if not summary.public:
        return None
    rows = [
        (
            el("code", file.path),
            join(
                _meter(file.undocumented_count, file.public),
                f"{file.undocumented_count:,} of {file.public:,}",
            ),
            join(*(join(el("code", m.name), f" line {m.line}") for m in file.undocumented[:3]), separator=", "),
        )
        for file in summary.least_documented[:MAX_ROWS]
    ]
    rest = len(summary.least_documented) - len(rows)
    return _section(
        "Docstrings",
        f"{summary.documented:,} of {count(summary.public, 'public name')} have one: modules, and classes, functions "
        "and methods whose name does not begin with an underscore.",
        _table(("file", "without docstring", "first of them"), rows) if rows else None,
        el("p", f"And {count(rest, 'more file')}; REPORT.md goes on.", class_="soft") if rest else None,
    )


def _meter(part: int, whole: int) -> Markup:
    return el("span", el("i", style=f"width:{100 * part / max(1, whole):.0f}%"), class_="meter")


def _unmeasured(summary: AuditSummary) -> Markup | None:
    if not summary.unmeasured:
        return None
    rows = [(el("code", path), reason) for path, reason in summary.unmeasured]
    return _section(
        "Not measured", "What could not be read as Python is listed, not counted.", _table(("path", "why"), rows)
    )


# ---------------------------------------------------------------------------------------------------------- making


def _making(audit: Audit, summary: AuditSummary) -> Markup | None:
    if not audit.spans:
        return None
    rows = [
        (
            join(_swatch(share.name), share.name),
            f"{share.tasks:,}",
            f"{share.attempts:,}",
            seconds(share.working_s),
            share.workers,
        )
        for share in summary.agents
    ]
    retried = [el("p", _sentence(describe_retry(span, planted=audit.planted))) for span in summary.retried]
    return _section(
        "Who worked when",
        f"{summary.effort}. The reviewer is limited to {audit.review_rate} over all workers together, which is why its "
        "bars come in groups.",
        *retried,
        _figure(
            timeline_svg(audit.spans),
            "Each bar is the last attempt of one task, each band a worker process; point at one to read of it.",
            *(_key(share.name, "", f"key {colour_of(share.name)}") for share in summary.agents),
            _key("waits for its children", "--c:var(--soft)", "key joins"),
            el("li", el("b", "↻ 2", class_="far"), "second attempt") if retried else None,
        ),
        _table(("agent", "#tasks", "#attempts", "#working", "#workers"), rows),
    )


def _swatch(agent: str) -> Markup:
    return el("span", class_=f"key {colour_of(agent)}", style="display:inline-block;margin-right:.6rem")


# --------------------------------------------------------------------------------------------------------- sharing


def _sharing(audit: Audit) -> Markup | None:
    """Render the event log of the session, folded by `details` and filtered by the style sheet."""
    change_log = audit.change_log
    if not change_log.changes:
        return None
    agents: Counter[str] = Counter()
    for change_count in change_log.change_counts:
        agents[change_count.agent if change_count.agent in AGENTS else "others"] += change_count.changes
    counters = ", ".join(f"{name} {number:,}" for name, number in sorted(change_log.counters.items()))
    return _section(
        "What they shared",
        f"Findings went to the workspace of session {change_log.session}, and this page shows one snapshot of it. "
        f"Its {count(change_log.changes, 'change')} are numbered in the order in which they were made. "
        f"{describe_repeats(audit.spans)}",
        el("p", f"Counted there: {counters}.", class_="soft") if counters else None,
        el(
            "details",
            el("summary", "Event log", el("span", count(change_log.changes, "change"), class_="soft")),
            el(
                "ul",
                _choice("all", change_log.changes, kind="all", checked=True),
                *(_choice(agent, number, kind=colour_of(agent)) for agent, number in agents.items()),
                class_="legend choices",
            ),
            _table(
                ("#revision", "#after", "agent", "change", "#version", "to"),
                [_change(row, change_log.rows[0].at) for row in change_log.rows],
                kinds=[colour_of(row.agent) for row in change_log.rows],
            ),
            el("p", f"And {change_log.left_out:,} more in between.", class_="soft") if change_log.left_out else None,
            class_="change-log",
        ),
    )


def _choice(agent: str, changes: int, *, kind: str, checked: bool = False) -> Markup:
    """Build a button that shows the rows of one agent; without style support all rows stay."""
    button = el("input", type="radio", name="by", value=kind, checked="" if checked else None)
    swatch = None if kind == "all" else el("span", class_=f"key {kind}")
    return el("li", el("label", button, swatch, agent, el("small", f"{changes:,}")))


def _change(row: ChangeLogRow, began: float) -> tuple[Child, ...]:
    return (
        f"{row.revision:,}",
        seconds(row.at - began),
        join(_swatch(row.agent), row.agent or "nobody"),
        join(f"{row.kind} ", el("code", row.name)),
        f"{row.version:,}",
        row.description,
    )


def _footer() -> Markup:
    return el(
        "footer",
        el(
            "p",
            "Complexity is McCabe's number: 1, and 1 more for each if, elif, for, while, except, case, conditional "
            "expression, further operand of and/or, and for and if of a comprehension. An import cycle counts when all "
            "of its imports may run while the modules are loaded. Imports with computed names cannot be seen. Nothing "
            "that was audited was run.",
        ),
    )


# ---------------------------------------------------------------------------------------------------------- pieces


def _section(title: str, told: str, *content: Child) -> Markup:
    return el("section", el("h2", title), el("p", told, class_="soft"), *content)


def _figure(picture: Markup, caption: str, *keys: Markup | None) -> Markup:
    return el("figure", el("ul", *keys, class_="legend"), picture, el("figcaption", caption))


def _key(name: str, style: str, kind: str = "key") -> Markup:
    return el("li", el("span", class_=kind, style=style or None), name)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Child]], *, kinds: Sequence[str] = ()) -> Markup:
    """Build a table. A head that begins with `#` is over numbers; `kinds` are classes of the rows."""
    columns = ["number" if head.startswith("#") else None for head in heads]
    head_row = el("tr", *(el("th", h.lstrip("#"), class_=k, scope="col") for h, k in zip(heads, columns, strict=True)))
    body = [
        el("tr", *(el("td", cell, class_=k) for cell, k in zip(row, columns, strict=True)), class_=kind)
        for row, kind in zip(rows, kinds or repeat(None, len(rows)), strict=True)
    ]
    return el("div", el("table", el("thead", head_row), el("tbody", *body)), class_="scroll")
