"""The reviewer: remarks on the worst files, under a rate limit over all workers."""

from __future__ import annotations

from orchestrator import Agent, TaskContext
from orchestrator.workers.demo.models import FileMeasure, Loop, Span  # noqa: TC001 - read from the annotations
from orchestrator.workers.demo.review import remarks_on
from orchestrator.workers.demo.shared_findings import FILES_REVIEWED, REMARKS, share
from orchestrator.workers.demo.timing import Stopwatch

RATE = "6/s"
"""Stands for the quota of a model or a service."""

reviewer = Agent("reviewer", concurrency=4, rate=RATE)


@reviewer.skill
async def review(ctx: TaskContext, file: FileMeasure, loop: Loop | None = None) -> Span:
    """Review one file and append the remarks to the session."""
    watch = Stopwatch(ctx, file.path)
    repeated = await share(ctx, REMARKS, remarks_on(file, loop), counter=FILES_REVIEWED)
    return watch.span(repeated=repeated)
