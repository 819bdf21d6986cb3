"""The linker: collects imports from the analysts, builds the import graph and finds its cycles."""

from __future__ import annotations

from orchestrator import Agent, Retry, TaskContext
from orchestrator.workers.demo.analyst import list_imports
from orchestrator.workers.demo.imports import build_graph
from orchestrator.workers.demo.models import GraphSummary, Linked, Tree
from orchestrator.workers.demo.shared_findings import GRAPHS, share
from orchestrator.workers.demo.timing import Stopwatch

BATCH = 25
"""Files per task: their import lists fit into one result (1 MiB)."""

linker = Agent("linker", concurrency=2)


@linker.skill
async def link(ctx: TaskContext, tree: Tree, *, plant_failure: bool = False) -> Linked:
    """Build the import graph of a tree.

    The graph is a result, because only the editor reads it and it may exceed the size of a shared value; the linker
    shares a summary.

    Args:
        ctx: the attempt.
        tree: the files.
        plant_failure: fail once on purpose, to show a retry. The second attempt finds the results of the first one's
            children, and its repeated append changes nothing.
    """
    watch = Stopwatch(ctx, "the import graph", joins=True)
    handles = [await ctx.submit(list_imports, {"root": tree.root, "files": batch}) for batch in tree.batches(BATCH)]
    listed = [await handle.result() for handle in handles]
    graph = build_graph(tree, [file for batch in listed for file in batch.files])
    repeated = await share(ctx, GRAPHS, [GraphSummary.of(graph)])
    if plant_failure and ctx.attempt == 1:
        raise Retry(delay=0.5, reason="planted failure: shows what a retry looks like")
    return Linked(graph=graph, spans=(watch.span(repeated=repeated), *(batch.span for batch in listed)))
