"""Tells once that Redis does not answer this process, and once that it answers again.

All stores of an endpoint share what is noted here, so that a process with many loops and connections writes two lines
about an outage. `Logger.failure` writes the lines of the loops at debug meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ServerUnavailable
from orchestrator.core.log import get_logger, hush_outages

if TYPE_CHECKING:
    from orchestrator.core.errors import StoreError
    from orchestrator.store.locator import Address

SETTLES_S: Final = 5.0
"""Time after an outage for which failures of calls that it interrupted are still written at debug."""
_log = get_logger(__name__)


class ClosedHere(ConnectionError):
    """This process has closed the connection itself."""


class Outage:
    """State of the connection to an address: whether Redis answers there.

    Attributes:
        is_away: whether a line has told that it does not.
        losses: number of outages so far.
    """

    def __init__(self) -> None:
        self.is_away = self._has_answered = False
        self._since_s, self.losses = 0.0, 0
        self._lock = threading.Lock()

    def note_failure(self, failure: StoreError, cause: BaseException, address: Address) -> StoreError:
        """Note that a connection failed, and return the failure; tells the first one after an answer."""
        if not isinstance(failure, ServerUnavailable) or isinstance(cause, ClosedHere):
            return failure
        with self._lock:
            # A process that starts while Redis is away says so itself, and waits.
            if self.is_away or not self._has_answered:
                return failure
            self.is_away, self._since_s, self.losses = True, time.monotonic(), self.losses + 1
        _set_away(self, away=True)
        _log.warning("redis_lost", address=str(address), error=str(failure))
        return failure

    def note_answer(self, address: Address, *, losses: int) -> None:
        """Note that Redis has answered what was sent after so many losses.

        The answer to what was sent before the last one may still have been on its way.
        """
        with self._lock:
            if losses != self.losses:
                return
            was_away, self.is_away, self._has_answered = self.is_away, False, True
        if was_away:
            _set_away(self, away=False)
            _log.info("redis_back", address=str(address), away_s=round(time.monotonic() - self._since_s, 1))

    @property
    def expects_answer(self) -> bool:
        """Return whether the next answer must be noted."""
        return self.is_away or not self._has_answered


class Outages:
    """The outages of one endpoint: one for all addresses, or one for each node of a cluster."""

    def __init__(self, *, by_address: bool) -> None:
        self._by_address = by_address
        self._found: dict[str, Outage] = {}

    def of(self, address: Address) -> Outage:
        """Return the outage of an address."""
        return self._found.setdefault(str(address) if self._by_address else "", Outage())


_away: Final[set[Outage]] = set()
_away_lock: Final = threading.Lock()


def _set_away(outage: Outage, *, away: bool) -> None:
    with _away_lock:
        (_away.add if away else _away.discard)(outage)
        hush_outages(math.inf if _away else time.monotonic() + SETTLES_S)
