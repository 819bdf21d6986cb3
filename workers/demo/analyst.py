"""The analyst: measures files and lists their imports, many at a time.

Measures go to a log of the session, which all analysts append to. Import lists are results, because only the linker
needs them. Parsing runs in a thread, so that it does not block the event loop of other handlers.
"""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread

from orchestrator import Agent, TaskContext
from orchestrator.workers.demo.imports import read_imports
from orchestrator.workers.demo.measure import Unparsable, measure_text, parse
from orchestrator.workers.demo.models import FileMeasure, ImportList, Listed, Span
from orchestrator.workers.demo.shared_findings import FILES_MEASURED, MEASURES, share
from orchestrator.workers.demo.source import Unreadable, read_source
from orchestrator.workers.demo.timing import Stopwatch

analyst = Agent("analyst", concurrency=2)


@analyst.skill
async def measure(ctx: TaskContext, root: str, path: str) -> Span:
    """Measure one file and append the result to the session. A file that cannot be parsed is a finding."""
    watch = Stopwatch(ctx, path)
    file = await to_thread.run_sync(_measure, Path(root), path)
    repeated = await share(ctx, MEASURES, [file], counter=FILES_MEASURED)
    return watch.span(repeated=repeated)


@analyst.skill
async def list_imports(ctx: TaskContext, root: str, files: list[str]) -> Listed:
    """List the import statements of a batch of files for the linker."""
    watch = Stopwatch(ctx, f"imports of {len(files)} files from {files[0]}")
    lists = await to_thread.run_sync(lambda: tuple(_imports(Path(root), path) for path in files))
    return Listed(files=lists, span=watch.span())


def _measure(root: Path, path: str) -> FileMeasure:
    try:
        return measure_text(path, read_source(root, path))
    except Unreadable as reason:
        return FileMeasure(path=path, problem=str(reason))


def _imports(root: Path, path: str) -> ImportList:
    try:
        return ImportList(path=path, imports=read_imports(parse(read_source(root, path))))
    except (Unreadable, Unparsable):
        return ImportList(path=path)  # `measure` reports the problem
