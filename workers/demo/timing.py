"""Times one attempt, so that the report can show who worked when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from workers.demo.models import Span

if TYPE_CHECKING:
    from workers import TaskContext


class Stopwatch:
    """Runs from where it is made to where its span is asked for.

    Args:
        ctx: the attempt.
        what: the subject of its work, for people.
        joins: the attempt will mostly wait for its children.
    """

    def __init__(self, ctx: TaskContext, what: str, *, joins: bool = False) -> None:
        self._ctx, self._what, self._joins, self._started_s = ctx, what, joins, time.time()

    def span(self, *, repeated: int = 0) -> Span:
        """The attempt until now, as a value that travels.

        Args:
            repeated: changes of the workspace that an attempt before this one had made.
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
