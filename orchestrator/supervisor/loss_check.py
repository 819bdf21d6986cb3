"""Notices that Redis has lost confirmed writes: it lacks the supervisor's last requests for the leader's lease."""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks.losses import SUPERVISOR
from orchestrator.tasks.scripts import report_lost

if TYPE_CHECKING:
    from orchestrator.agents.scripts import LeadReply
    from orchestrator.services import Services

REMEMBERED: Final = 100
_log = get_logger(__name__)


class _Request(NamedTuple):
    """A request for the lease that Redis has confirmed."""

    number: int
    submitted: int
    ms: int


class LossCheck:
    """Compares each answer to a request for the lease with the answers before; `lead` numbers the requests."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._confirmed: deque[_Request] = deque(maxlen=REMEMBERED)

    @property
    def last(self) -> int:
        """Number of the last request that Redis has confirmed to this supervisor."""
        return self._confirmed[-1].number if self._confirmed else 0

    async def compare(self, answer: LeadReply) -> None:
        """Report a loss if Redis knew an older request of this supervisor than the last one that it confirmed."""
        lost = [request for request in self._confirmed if request.number > answer.stored_last]
        kept = [request for request in self._confirmed if request.number <= answer.stored_last]
        self._confirmed.clear()
        if answer.request:
            self._confirmed.extend([*kept, _Request(answer.request, answer.submitted, answer.now_ms)])
        if not lost or not answer.request:
            return
        submits = max(0, lost[-1].submitted - answer.submitted)
        from_ms = lost[0].ms
        _log.error("writes_lost", submits=submits, since_ms=from_ms)
        report = report_lost(
            self._services.keys,
            report=secrets.token_urlsafe(9),
            observer=SUPERVISOR,
            from_ms=from_ms,
            submits=submits,
        )
        try:
            await self._services.store.call(report)
        except StoreError as failure:
            _log.failure("loss_not_recorded", error=failure)
