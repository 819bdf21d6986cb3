"""The linker: asks the analysts for all imports, builds the graph of who imports whom, and finds its cycles."""

from __future__ import annotations

from workers import Agent, Retry, TaskContext
from workers.demo.analyst import list_imports
from workers.demo.imports import build_graph
from workers.demo.models import GraphSummary, Linked, Tree
from workers.demo.shared_findings import GRAPHS, share
from workers.demo.timing import Stopwatch

BATCH = 25
"""Files per task: so many import lists of the largest kind fit into one result (1 MiB)."""

linker = Agent("linker", concurrency=2)


@linker.skill
async def link(ctx: TaskContext, tree: Tree, *, plant_failure: bool = False) -> Linked:
    """Build the import graph of a tree.

    The graph is a result: it has one author and one reader, and may be larger than a value that agents share. What
    they share is what it comes to.

    Args:
        ctx: the attempt.
        tree: what the scanner found.
        plant_failure: fail once on purpose, to show what a retry looks like. The second attempt asks for the same
            children as the first and finds their results: nothing is read twice. What it shares, the first attempt
            has shared already: it is there once.
    """
    watch = Stopwatch(ctx, "the import graph", joins=True)
    handles = [await ctx.submit(list_imports, {"root": tree.root, "files": batch}) for batch in tree.batches(BATCH)]
    listed = [await handle.result() for handle in handles]
    graph = build_graph(tree, [file for batch in listed for file in batch.files])
    repeated = await share(ctx, GRAPHS, [GraphSummary.of(graph)])
    if plant_failure and ctx.attempt == 1:
        raise Retry(delay=0.5, reason="planted failure: shows what a retry looks like")
    return Linked(graph=graph, spans=(watch.span(repeated=repeated), *(batch.span for batch in listed)))
