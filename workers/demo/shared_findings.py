"""What the team keeps in the workspace of its session: the names there, how findings get there once, how they are read.

Every change is named after its task, so an attempt that repeats what one before it had written changes nothing. The
names hold for `workspace.dedup_s`, ten minutes, which is also the longest that an audit may take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StateConflict
from orchestrator.workspace.model import Applied
from workers import Reject
from workers.demo.models import FileMeasure, Remark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.workspace.model import LogEntry
    from workers import TaskContext
    from workers.demo.models import Tree, Value

STAGE: Final = "audit"
"""The state machine of the session: at which stage the audit is, and whose task it is."""

MEASURES: Final = "measures"
GRAPHS: Final = "graphs"
REMARKS: Final = "remarks"

FILES_MEASURED: Final = "files_measured"
FILES_REVIEWED: Final = "files_reviewed"


async def begin(ctx: TaskContext, stage: str) -> None:
    """Take the session for this audit: what two of them had found in one session could not be told apart.

    Raises:
        Reject: it has no session, or one that another audit has.
    """
    if ctx.session is None:
        raise Reject("an audit keeps its findings in a session; submit it with session=, a new one for each audit")
    try:
        await ctx.workspace.transition(STAGE, to=stage, expect=(), data=ctx.task_id, op_id=f"{ctx.task_id}/{stage}")
    except StateConflict:
        owner = (await ctx.workspace.states(STAGE))[STAGE].value
        if owner != ctx.task_id:  # else an attempt before this one has begun
            raise Reject(
                f"session {ctx.session!r} is that of the audit in task {owner}; submit with another session="
            ) from None


async def enter(ctx: TaskContext, stage: str) -> None:
    """Note that the audit goes on to its next stage."""
    await ctx.workspace.transition(STAGE, to=stage, data=ctx.task_id, op_id=f"{ctx.task_id}/{stage}")


async def share(ctx: TaskContext, log: str, findings: Iterable[Value], *, counter: str = "") -> int:
    """Append what a task has found to a log, and count the task.

    Answers how many of these changes an attempt before this one had made; they were not made again.
    """
    items, answers = list(findings), list[Applied]()
    if items:
        answers.append(await ctx.workspace.append(log, *items, op_id=f"{ctx.task_id}/{log}"))
    if counter:
        answers.append(await ctx.workspace.incr(counter, op_id=f"{ctx.task_id}/{counter}"))
    return sum(answer.duplicate for answer in answers)


def read_measures(log: Iterable[LogEntry], tree: Tree, unmeasured: Iterable[FileMeasure]) -> tuple[FileMeasure, ...]:
    """The measure of each file of the tree, in its order; the log is in the order in which analysts came to an end.

    Args:
        log: what analysts have appended.
        tree: what was to be measured.
        unmeasured: files that no analyst could finish.
    """
    known = {file.path: file for file in unmeasured}
    known |= {entry.value["path"]: FileMeasure.model_validate(entry.value) for entry in log}
    lost = "its measure is gone from the log: workspace.max_log is smaller than the tree"
    return tuple(known.get(path) or FileMeasure(path=path, problem=lost) for path in tree.files)


def read_remarks(log: Iterable[LogEntry], reviewed: Iterable[str]) -> tuple[Remark, ...]:
    """All remarks, file by file in the order given."""
    by_path: dict[str, list[Remark]] = {path: [] for path in reviewed}
    for entry in log:
        remark = Remark.model_validate(entry.value)
        by_path.setdefault(remark.path, []).append(remark)
    return tuple(remark for remarks in by_path.values() for remark in remarks)
