"""The scanner: finds the files of a tree and submits one measuring task per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import Agent, Reject, TaskContext
from orchestrator.core.errors import InvalidInput, NotFound, TaskFailed
from orchestrator.workers.demo.analyst import measure
from orchestrator.workers.demo.models import FileMeasure, Found, Span, Surveyed
from orchestrator.workers.demo.source import check_tree, scan_tree
from orchestrator.workers.demo.timing import Stopwatch

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle

scanner = Agent("scanner", concurrency=4)


@scanner.skill
async def scan(ctx: TaskContext, path: str) -> Found:
    """Find the Python files below a folder."""
    watch = Stopwatch(ctx, "the tree")
    try:
        tree = scan_tree(check_tree(path))
    except (InvalidInput, NotFound) as wrong:
        raise Reject(str(wrong)) from None  # a retry cannot help
    ctx.log.info("tree_scanned", files=len(tree.files), skipped=len(tree.skipped))
    return Found(tree=tree, span=watch.span())


@scanner.skill
async def survey(ctx: TaskContext, root: str, files: list[str]) -> Surveyed:
    """Submit a measuring task per file and wait for all of them."""
    watch = Stopwatch(ctx, f"{len(files)} files from {files[0]}", joins=True)
    handles = [await ctx.submit(measure, {"root": root, "path": path}) for path in files]
    joined = [await _join(handle, path) for handle, path in zip(handles, files, strict=True)]
    return Surveyed(
        unmeasured=tuple(one for one in joined if isinstance(one, FileMeasure)),
        spans=(watch.span(), *(one for one in joined if isinstance(one, Span))),
    )


async def _join(handle: TaskHandle[Span], path: str) -> Span | FileMeasure:
    try:
        return await handle.result()
    except TaskFailed as failed:  # one failed file must not fail the audit
        return FileMeasure(path=path, problem=f"its task failed: {failed.reason}"[:200])
