"""Tells the service manager what the supervisor does, and feeds its watchdog while all loops turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from orchestrator.core.notify import Notifier
    from orchestrator.core.turns import LoopTurns

CHECK_EVERY_S: Final = 10.0
"""Interval of the check for silent loops without a watchdog; then it only logs them."""
_log = get_logger(__name__)


async def watch_loops(notifier: Notifier, turns: LoopTurns) -> None:
    """Log loops that have stopped, and ping the watchdog while there are none, until cancelled.

    It runs in the event loop of the loops that it watches: a blocked event loop sends no ping either.
    """
    logged: set[str] = set()
    while True:
        silent = turns.silent()
        for turn in silent:
            if turn.name not in logged:
                _log.error("loop_silent", loop=turn.name, silent_s=round(turn.silent_s()))
        logged = {turn.name for turn in silent}
        if silent:
            names = ", ".join(sorted(logged))
            notifier.status(f"hung: no turn of {names} for {max(turn.silent_s() for turn in silent):.0f} s")
        else:
            notifier.ping()
        # The next ping may be due a moment later than that.
        every_s = notifier.watchdog_every_s or CHECK_EVERY_S
        await anyio.sleep(min(every_s, CHECK_EVERY_S))
