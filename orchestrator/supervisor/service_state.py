"""Reports the state of the supervisor to the service manager, and feeds its watchdog while all loops turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.log import get_logger
from orchestrator.supervisor.leader import LEADS

if TYPE_CHECKING:
    from orchestrator.core.notify import Notifier
    from orchestrator.core.turns import LoopTurns

CHECK_EVERY_S: Final = 10.0
"""Interval of the check for silent loops without a watchdog; then it only logs them."""
CONNECTED: Final = "connected to Redis"
NAMED_POOLS: Final = 5
_log = get_logger(__name__)


class StatusReporter:
    """Composes the status of the supervisor: a silent loop comes before what the supervisor does.

    Args:
        notifier: of this process.
        turns: the watched loops.
    """

    def __init__(self, notifier: Notifier, turns: LoopTurns) -> None:
        self._notifier, self._turns = notifier, turns
        self._doing: dict[str, str] = {}
        self._hung = ""
        self._is_ready = False

    def does(self, text: str, *, pool: str = "") -> None:
        """Report what the supervisor does, for one of its pools if it has several."""
        self._doing[pool] = text
        self._report()

    def connected(self, pool: str) -> None:
        """Report that Redis has answered for a pool; the first one makes the service ready."""
        self._doing[pool] = CONNECTED
        if self._is_ready:
            self._report()
        else:
            self._is_ready = True
            self._notifier.ready(self._text())

    async def watch(self) -> None:
        """Log loops that have stopped, and ping the watchdog while there are none, until cancelled.

        It runs in the event loop of the loops that it watches: a blocked event loop sends no ping either.
        """
        logged: set[str] = set()
        # The next ping may be due a moment later than that.
        every_s = min(self._notifier.watchdog_every_s or CHECK_EVERY_S, CHECK_EVERY_S)
        while True:
            silent = self._turns.watch(every_s)
            for turn in silent:
                if turn.name not in logged:
                    _log.error("loop_silent", loop=turn.name, silent_s=round(turn.silent_s()))
            logged = {turn.name for turn in silent}
            if silent:
                names = ", ".join(sorted(logged))
                self._hung = f"hung: no turn of {names} for {max(turn.silent_s() for turn in silent):.0f} s"
            else:
                self._hung = ""
                self._notifier.ping()
            self._report()
            await anyio.sleep(every_s)

    def _report(self) -> None:
        if text := self._hung or self._text():
            self._notifier.status(text)

    def _text(self) -> str:
        """Describe what the supervisor does, the pools that it leads last."""
        pools_by_text: dict[str, list[str]] = {}
        for pool, text in sorted(self._doing.items()):
            pools_by_text.setdefault(text, []).append(pool)
        if len(self._doing) == 1:
            return next(iter(pools_by_text))
        states = sorted(pools_by_text.items(), key=lambda state: (state[0] == LEADS, len(state[1]), state[0]))
        return "; ".join(f"{text} ({_names(pools)})" for text, pools in states)


def _names(pools: list[str]) -> str:
    if len(pools) <= NAMED_POOLS:
        return ", ".join(pools)
    return f"{len(pools)} pools"
