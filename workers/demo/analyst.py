"""The analyst: reads one file at a time and says what it measures. Many may work at once; none knows of another."""

from __future__ import annotations

from pathlib import Path

from workers import Agent, TaskContext
from workers.demo.imports import read_imports
from workers.demo.measure import Unparsable, measure_text, parse
from workers.demo.models import FileMeasure, ImportList, Listed, Measured
from workers.demo.source import Unreadable, read_source
from workers.demo.timing import Stopwatch

analyst = Agent("analyst", concurrency=4)


@analyst.skill
async def measure(ctx: TaskContext, root: str, path: str) -> Measured:
    """Measure one file. A file that cannot be read or parsed is a finding, not a failure."""
    watch = Stopwatch(ctx, path)
    try:
        file = measure_text(path, read_source(Path(root), path))
    except Unreadable as reason:
        file = FileMeasure(path=path, problem=str(reason))
    return Measured(file=file, span=watch.span())


@analyst.skill
async def list_imports(ctx: TaskContext, root: str, files: list[str]) -> Listed:
    """List the import statements of a batch of files, for the linker."""
    watch = Stopwatch(ctx, f"imports of {len(files)} files from {files[0]}")
    return Listed(files=tuple(_imports_of(Path(root), path) for path in files), span=watch.span())


def _imports_of(root: Path, path: str) -> ImportList:
    try:
        return ImportList(path=path, imports=read_imports(parse(read_source(root, path))))
    except (Unreadable, Unparsable):
        return ImportList(path=path)  # `measure` reports what is wrong with it
