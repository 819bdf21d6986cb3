"""What the editor makes of the logs of its session, and how the report tells their events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.workers.demo.change_log import MAX_DESCRIPTION, describe_event
from orchestrator.workers.demo.models import ChangeLogRow, FileMeasure, GraphSummary, Remark, Tree
from orchestrator.workers.demo.shared_findings import read_measures, read_remarks
from orchestrator.workspace.model import Change, LogEntry, WorkspaceEvent

AT = datetime.fromtimestamp(1_750_000_000, UTC)


def entries(*values: Any) -> list[LogEntry]:
    """A log of them."""
    return [LogEntry(number, value.model_dump(mode="json"), "analyst", AT) for number, value in enumerate(values, 1)]


def remark(path: str, line: int) -> Remark:
    """A remark on a line."""
    return Remark(path=path, line=line, rule="size", measured=2000, limit=1000, text="Long.")


def event(kind: str, *changes: Change, **detail: Any) -> ChangeLogRow:
    """A change by an analyst, as it is told."""
    return describe_event(WorkspaceEvent("1-1", kind, 7, "analyst", changes, detail, AT))


def test_measures_come_in_the_order_of_the_tree() -> None:
    """Whoever was first: the files are in path order; what failed or is gone is named, and what was measured counts."""
    tree = Tree(root="/r", package="", files=("a.py", "b.py", "c.py", "d.py"))
    failed = [FileMeasure(path=path, problem="its task failed") for path in ("b.py", "c.py")]
    log = entries(FileMeasure(path="c.py", lines=3, histogram={1: 2}), FileMeasure(path="a.py", lines=1))
    files = read_measures(log, tree, failed)
    assert [(file.path, file.lines) for file in files] == [("a.py", 1), ("b.py", 0), ("c.py", 3), ("d.py", 0)]
    assert files[1] == failed[0]
    assert files[2].histogram == {1: 2}
    assert "workspace.max_log" in files[3].problem


def test_remarks_come_in_the_order_of_their_files() -> None:
    """The worst file is first, whichever reviewer was first; remarks on one file keep their order."""
    log = entries(remark("b.py", 1), remark("a.py", 1), remark("b.py", 2))
    assert [(one.path, one.line) for one in read_remarks(log, ["a.py", "x.py", "b.py"])] == [
        ("a.py", 1), ("b.py", 1), ("b.py", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (event("transition", Change("audit", 2, "t", "t"), state="b", previous_state="a"), "a → b"),
        (event("transition", Change("audit", 1, "t", None), state="a", previous_state=None), "a"),
        (event("patch", Change("files_measured", 2, 2, 1)), "1 → 2"),
        (event("patch", Change("files_measured", 1, 1, None)), "1"),
        (event("append", Change("measures", 1, None, None, told=False)), "a value too large for an event"),
        (
            event("append", Change("measures", 1, FileMeasure(path="a", lines=3, histogram={1: 2}).model_dump(), None)),
            "a: 3 lines, 2 functions",
        ),
        (event("append", Change("measures", 1, FileMeasure(path="a", problem="no").model_dump(), None)), "a: no"),
        (
            event("append", *[Change("remarks", line, remark("a", line).model_dump(), None) for line in (1, 2)]),
            "a:1: size 2,000; 1 more",
        ),
        (
            event("append", Change("graphs", 1, GraphSummary(modules=1, imports=2, cycles=0).model_dump(), None)),
            "1 module, 2 imports, 0 cycles",
        ),
        (event("append", Change("other", 1, {"ä": [1]}, None)), '{"ä": [1]}'),
        (event("add", Change("set", 0, "member", None)), '"member"'),
        (event("clear"), ""),
    ],
)
def test_events_are_told_in_a_line(row: ChangeLogRow, told: str) -> None:
    """Each kind of change has a line that says what it came to."""
    assert (row.revision, row.agent, row.description) == (7, "analyst", told)


def test_what_is_told_fits_into_a_row() -> None:
    """Long paths and values are cut, and what cannot be printed is spelled out."""
    row = event("append", Change("measures", 3, FileMeasure(path="x/" * 500, problem="\x1b" * 100).model_dump(), None))
    assert len(row.description) <= MAX_DESCRIPTION
    assert row.description.isprintable()
    assert row.version == 3
