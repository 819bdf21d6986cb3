"""Times one attempt for the timeline of the report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator.workers.demo.models import Span

if TYPE_CHECKING:
    from orchestrator import TaskContext


class Stopwatch:
    """Starts when it is created.

    Args:
        ctx: the attempt.
        what: the subject of the work, for the report.
        joins: the attempt mostly waits for children.
    """

    def __init__(self, ctx: TaskContext, what: str, *, joins: bool = False) -> None:
        self._ctx, self._what, self._joins, self._started_s = ctx, what, joins, time.time()

    def span(self, *, repeated: int = 0) -> Span:
        """Return the time span until now.

        Args:
            repeated: workspace changes that an earlier attempt had made already.
        """
        ctx = self._ctx
        return Span(
            agent=ctx.agent,
            worker=ctx.worker,
            task=ctx.task_id,
            what=self._what,
            started=self._started_s,
            ended=time.time(),
            attempt=ctx.attempt,
            joins=self._joins,
            repeated=repeated,
        )
