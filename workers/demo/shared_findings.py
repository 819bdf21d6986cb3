"""Reads and writes the findings in the workspace of the session.

Every change has an operation id of its task, so that a retried attempt changes nothing twice. Workspaces remember these
ids for `workspace.dedup_s`, ten minutes, which is also the time limit of an audit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator import Reject
from orchestrator.core.errors import StateConflict
from orchestrator.workers.demo.models import FileMeasure, Remark
from orchestrator.workspace.model import Applied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator import TaskContext
    from orchestrator.workers.demo.models import Tree, Value
    from orchestrator.workspace.model import LogEntry

STAGE: Final = "audit"
"""State machine of the session: the stage of the audit, and its task id."""

MEASURES: Final = "measures"
GRAPHS: Final = "graphs"
REMARKS: Final = "remarks"

FILES_MEASURED: Final = "files_measured"
FILES_REVIEWED: Final = "files_reviewed"


async def begin(ctx: TaskContext, stage: str) -> None:
    """Claim the session for this audit, so that it does not mix with the findings of another.

    Raises:
        Reject: there is no session, or another audit has it.
    """
    if ctx.session is None:
        raise Reject("an audit keeps its findings in a session; submit it with session=, a new one for each audit")
    try:
        await ctx.workspace.transition(STAGE, to=stage, expect=(), data=ctx.task_id, op_id=f"{ctx.task_id}/{stage}")
    except StateConflict:
        owner = (await ctx.workspace.states(STAGE))[STAGE].value
        if owner != ctx.task_id:  # an earlier attempt of this task has the session
            raise Reject(
                f"session {ctx.session!r} belongs to the audit in task {owner}; submit with another session="
            ) from None


async def enter(ctx: TaskContext, stage: str) -> None:
    """Enter the next stage of the audit."""
    await ctx.workspace.transition(STAGE, to=stage, data=ctx.task_id, op_id=f"{ctx.task_id}/{stage}")


async def share(ctx: TaskContext, log: str, findings: Iterable[Value], *, counter: str = "") -> int:
    """Append findings to a log and count the task.

    Returns:
        The number of these changes that an earlier attempt had made already.
    """
    items, answers = list(findings), list[Applied]()
    if items:
        answers.append(await ctx.workspace.append(log, *items, op_id=f"{ctx.task_id}/{log}"))
    if counter:
        answers.append(await ctx.workspace.incr(counter, op_id=f"{ctx.task_id}/{counter}"))
    return sum(answer.duplicate for answer in answers)


def read_measures(log: Iterable[LogEntry], tree: Tree, unmeasured: Iterable[FileMeasure]) -> tuple[FileMeasure, ...]:
    """Return the measure of each file of the tree, in path order.

    Args:
        log: entries of the analysts.
        tree: the files.
        unmeasured: files whose task failed.
    """
    known = {file.path: file for file in unmeasured}
    known |= {entry.value["path"]: FileMeasure.model_validate(entry.value) for entry in log}
    lost = "its measure is gone from the log: workspace.max_log is smaller than the tree"
    return tuple(known.get(path) or FileMeasure(path=path, problem=lost) for path in tree.files)


def read_remarks(log: Iterable[LogEntry], reviewed: Iterable[str]) -> tuple[Remark, ...]:
    """Return all remarks by file, in the order given."""
    by_path: dict[str, list[Remark]] = {path: [] for path in reviewed}
    for entry in log:
        remark = Remark.model_validate(entry.value)
        by_path.setdefault(remark.path, []).append(remark)
    return tuple(remark for remarks in by_path.values() for remark in remarks)
