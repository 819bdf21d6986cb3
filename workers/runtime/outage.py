"""Whether an attempt failed because the pool's own Redis was unavailable: then it is put off, and costs nothing.

A Redis of the handler's own that does not answer is a failure like any other. And a task that meets a Redis which never
answers it, though its verdicts arrive, must not go on for ever: it is put off so often, then its failures count.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from orchestrator.core.errors import ServerFull, ServerUnavailable

MAX_OUTAGE_RETRIES: Final = 10
"""A task is put off so often by one worker for want of an answer; for want of memory without end."""
REMEMBERED: Final = 10_000


class OutageRetries:
    """How often each task was put off by this worker; forgets the oldest of very many."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, int] = OrderedDict()

    def count(self, task_id: str) -> bool:
        """Count a task that is to be put off, unless it has been too often."""
        times = self._times.pop(task_id, 0) + 1
        if times > MAX_OUTAGE_RETRIES:
            return False
        self._times[task_id] = times
        if len(self._times) > REMEMBERED:
            self._times.popitem(last=False)
        return True


class OutagePolicy(msgspec.Struct, frozen=True):
    """What one attempt is to be judged by.

    Attributes:
        ours: whether the pool's Redis was full, or did not answer this worker, while the attempt ran.
    """

    task_id: str
    ours: bool
    retries: OutageRetries

    def exempts(self, failure: BaseException) -> bool:
        """Whether `failure` is about the pool's Redis and costs no attempt."""
        if not self.ours:
            return False
        if isinstance(failure, ServerFull):
            return True
        return isinstance(failure, ServerUnavailable) and self.retries.count(self.task_id)
