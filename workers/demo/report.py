"""Writes the reports of an audit: REPORT.md and report.html."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final

from orchestrator.workers.demo.models import AuditResult
from orchestrator.workers.demo.page import render_page
from orchestrator.workers.demo.review import COMPLEXITY_LIMIT
from orchestrator.workers.demo.summary import AuditSummary, describe_repeats, describe_retry
from orchestrator.workers.demo.text_format import code, count, percent, printable, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from orchestrator.workers.demo.models import Audit, Cycle, FileMeasure, Remark

MARKDOWN: Final = "REPORT.md"
HTML: Final = "report.html"
MAX_ROWS: Final = 15
MAX_MISSING: Final = 40


def write_report(audit: Audit, out: Path) -> AuditResult:
    """Write both reports into `out`, each replaced in one step."""
    summary = AuditSummary(audit)
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    _replace(out / MARKDOWN, render_markdown(audit, summary))
    _replace(out / HTML, render_page(audit, summary))
    return AuditResult(
        markdown=str(out / MARKDOWN),
        html=str(out / HTML),
        files=summary.files,
        functions=summary.functions,
        cycles=len(summary.cycles),
        remarks=len(audit.remarks),
        tasks=summary.tasks,
        attempts=summary.attempts,
        changes=audit.change_log.changes,
        seconds=summary.seconds,
    )


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


# -------------------------------------------------------------------------------------------------------- markdown


def render_markdown(audit: Audit, summary: AuditSummary) -> str:
    """Render the report as Markdown."""
    sections = [
        _head(audit, summary),
        _remarks(audit),
        _cycles(audit, summary),
        _functions(summary),
        _docstrings(summary),
        _unmeasured(summary),
        _making(audit, summary),
        _sharing(audit),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(audit: Audit, summary: AuditSummary) -> str:
    when = datetime.fromtimestamp(summary.started, UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = [
        ("files", f"{summary.files:,}"),
        ("lines", f"{summary.lines:,}, of which {summary.code_lines:,} code"),
        ("functions", f"{summary.functions:,}"),
        ("highest complexity", f"{summary.complexity_max}"),
        (f"functions above complexity {COMPLEXITY_LIMIT}", f"{summary.more_complex_than(COMPLEXITY_LIMIT):,}"),
        (
            "public names with a docstring",
            f"{summary.documented:,} of {summary.public:,} ({percent(summary.documented, summary.public)})",
        ),
        ("import cycles", f"{len(summary.cycles)}"),
    ]
    return f"# Audit of {code(summary.name)}\n\n{code(audit.tree.root)}, {when}\n\n" + _table(("", ""), rows)


def _remarks(audit: Audit) -> str:
    if not audit.remarks:
        return "## Review\n\nNothing stands out: no file exceeds a limit."
    parts = [f"## Review\n\nThe {count(len(audit.reviewed), 'file')} that need attention most, the worst first."]
    parts.extend(
        f"### {code(path)}\n\n" + "\n".join(f"- {code(f'{path}:{r.line}')} {prose(r.text)}" for r in remarks)
        for path, remarks in by_file(audit.remarks)
    )
    return "\n\n".join(parts)


def _cycles(audit: Audit, summary: AuditSummary) -> str:
    if not audit.graph.modules:
        return ""
    said = ["## Import cycles"]
    said.append(
        "\n".join(_cycle(audit, cycle) for cycle in summary.cycles)
        if summary.cycles
        else "None: every module can be imported first."
    )
    if summary.deferred:
        said.append(
            "Deferred imports keep these loops open: they close only through imports inside functions or under "
            "`TYPE_CHECKING`, which do not run when a module is imported."
        )
        said.append("\n".join(_cycle(audit, cycle) for cycle in summary.deferred))
    return "\n\n".join(said)


def _cycle(audit: Audit, cycle: Cycle) -> str:
    modules = audit.graph.modules
    way = " → ".join(code(name) for name in audit.graph.loop_names(cycle))
    places = ", ".join(code(f"{modules[edge.importer].path}:{edge.line}") for edge in cycle.loop)
    more = len(cycle.members) - len(cycle.loop)
    knot = f"; the knot holds {count(len(cycle.members), 'module')} in all" if more else ""
    return f"- {way} (imports at {places}{knot})"


def _functions(summary: AuditSummary) -> str:
    if not summary.worst_functions:
        return ""
    rows = [
        (
            code(function.name),
            code(f"{file.path}:{function.line}"),
            function.complexity,
            function.nesting,
            function.lines or "",
        )
        for file, function in summary.worst_functions[:MAX_ROWS]
    ]
    heads = ("function", "where", "complexity", "nesting", "lines")
    return "## Most complex functions\n\n" + _table(heads, rows)


def _docstrings(summary: AuditSummary) -> str:
    if not summary.least_documented:
        return "## Docstrings\n\nEvery public name has one." if summary.public else ""
    rows = [
        (code(file.path), f"{file.undocumented_count:,} of {file.public:,}", _first_missing(file))
        for file in summary.least_documented[:MAX_MISSING]
    ]
    rest = len(summary.least_documented) - len(rows)
    more = f"\n\nAnd {count(rest, 'more file')}." if rest else ""
    return "## Missing docstrings\n\n" + _table(("file", "without", "first of them"), rows) + more


def _first_missing(file: FileMeasure) -> str:
    return ", ".join(f"{code(missing.name)} (line {missing.line})" for missing in file.undocumented[:3])


def _unmeasured(summary: AuditSummary) -> str:
    rows = [(code(path), prose(reason)) for path, reason in summary.unmeasured]
    return "## Not measured\n\n" + _table(("path", "why"), rows) if rows else ""


def _making(audit: Audit, summary: AuditSummary) -> str:
    pace = f"{seconds(summary.seconds)}. The reviewer is limited to {audit.review_rate} over all workers together."
    rows = [
        (code(share.name), f"{share.tasks:,}", f"{share.attempts:,}", seconds(share.working_s), share.workers)
        for share in summary.agents
    ]
    said = [
        "## How this was made",
        f"{summary.effort}; {pace}",
        _table(("agent", "tasks", "attempts", "working", "workers"), rows),
    ]
    said += [prose(describe_retry(span, planted=audit.planted)) for span in summary.retried]
    return "\n\n".join(said)


def _sharing(audit: Audit) -> str:
    change_log = audit.change_log
    if not change_log.changes:
        return ""
    rows = [
        (code(change_count.agent), change_count.kind, code(change_count.name), f"{change_count.changes:,}")
        for change_count in change_log.change_counts
    ]
    return "\n\n".join(
        [
            "## What they shared",
            f"{count(change_log.changes, 'change')} of the workspace of session {code(change_log.session)}. "
            + describe_repeats(audit.spans),
            _table(("agent", "what", "where", "changes"), rows),
        ]
    )


# --------------------------------------------------------------------------------------------------------- writing


def by_file(remarks: Iterable[Remark]) -> list[tuple[str, list[Remark]]]:
    """Group remarks by file, in the order given."""
    return [(path, list(group)) for path, group in groupby(remarks, key=lambda remark: remark.path)]


def prose(text: str) -> str:
    """Escape a sentence, in which only `code` in backticks is markup."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:  # odd number of backticks: no code
        return _plain("'".join(parts))
    return "".join(code(part) if at % 2 else _plain(part) for at, part in enumerate(parts))


def _plain(text: str) -> str:
    for special in "\\*_[]<>#&":
        text = text.replace(special, f"\\{special}")
    return text


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
