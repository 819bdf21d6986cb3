"""The editor: runs an audit and writes the report; the other agents do the work.

Measures and remarks are in the workspace of the session and are read in one snapshot. Everything that only one task
needs (the tree, the graph, the time spans) is a result of a child.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator import Agent, Reject, TaskContext
from orchestrator.core.errors import TaskFailed
from orchestrator.workers.demo.change_log import read_change_log
from orchestrator.workers.demo.linker import link, linker
from orchestrator.workers.demo.models import Audit, AuditResult, FileMeasure, Loop, Span
from orchestrator.workers.demo.report import write_report
from orchestrator.workers.demo.review import worst_files
from orchestrator.workers.demo.reviewer import RATE, review
from orchestrator.workers.demo.scanner import scan, survey
from orchestrator.workers.demo.shared_findings import MEASURES, REMARKS, begin, enter, read_measures, read_remarks
from orchestrator.workers.demo.source import MAX_FILES
from orchestrator.workers.demo.timing import Stopwatch

BATCH = 50
"""Files per survey: small, so that surveys end one after another."""
REVIEWS = 20
STAGES = 3
"""Stages of an audit: scan, measure and link, review."""

editor = Agent("editor", concurrency=2)


@editor.skill(timeout=600)
async def audit(ctx: TaskContext, path: str, out: str, *, plant_failure: bool = True) -> AuditResult:
    """Audit the Python source below a folder and write REPORT.md and report.html.

    The audit submits children in a fixed order, so that a retry finds the same children again. An agent waits only for
    other agents, never for its own tasks, so audits cannot block each other. Each audit needs its own session.

    Args:
        ctx: the attempt.
        path: the folder to audit.
        out: the folder of the reports; created if missing.
        plant_failure: let the linker fail once on purpose.
    """
    watch = Stopwatch(ctx, "the audit", joins=True)
    await begin(ctx, "scanning")
    scanning = await ctx.submit(scan, {"path": path})
    try:
        found = await scanning.result()
    except TaskFailed as failed:
        raise Reject(f"nothing was audited: {failed.reason}") from None
    tree = found.tree

    await enter(ctx, "measuring")
    linking = await ctx.submit(link, {"tree": tree.model_dump(mode="json"), "plant_failure": plant_failure})
    surveys = [await ctx.submit(survey, {"root": tree.root, "files": batch}) for batch in tree.batches(BATCH)]
    await ctx.progress(1, STAGES, f"{len(tree.files)} files are measured and linked")
    surveyed = [await handle.result() for handle in surveys]
    linked = await linking.result()

    await enter(ctx, "reviewing")
    unmeasured = [file for batch in surveyed for file in batch.unmeasured]
    measured = read_measures(await ctx.workspace.log(MEASURES, last=MAX_FILES), tree, unmeasured)
    loops = linked.graph.loops()
    worst = worst_files(measured, loops, most=REVIEWS)
    reviews = [await ctx.submit(review, _request(file, loops.get(file.path))) for file in worst]
    reviewed: list[Span] = []
    for handle in reviews:
        done = len(reviewed)
        await ctx.progress(2 + done / len(reviews), STAGES, f"{done} of the {len(reviews)} worst files are reviewed")
        reviewed.append(await handle.result())

    await enter(ctx, "reporting")
    shared = await ctx.workspace.snapshot()
    reviewed_paths = tuple(file.path for file in worst)
    spans = (
        watch.span(),
        found.span,
        *(span for batch in surveyed for span in batch.spans),
        *linked.spans,
        *reviewed,
    )
    return write_report(
        Audit(
            tree=tree,
            files=read_measures(shared.logs.get(MEASURES, ()), tree, unmeasured),
            graph=linked.graph,
            remarks=read_remarks(shared.logs.get(REMARKS, ()), reviewed_paths),
            reviewed=reviewed_paths,
            review_rate=RATE,
            planted=linker.name if plant_failure else "",
            spans=spans,
            change_log=await read_change_log(ctx.workspace, shared),
        ),
        Path(out),
    )


def _request(file: FileMeasure, loop: Loop | None) -> dict[str, object]:
    return {"file": file.model_dump(mode="json"), "loop": loop and loop.model_dump(mode="json")}
