"""Ends a worker process whose event loop is stuck.

The heartbeat schedules a callback in the event loop and stores the time when it ran in memory that the host can read.
The time stops for a blocked loop, a held interpreter lock and a frozen process alike, and while a watched loop of the
worker, such as a fetcher, is silent. `faulthandler` then prints the stack of each thread and ends the process without
the interpreter. If the process does not end, the host kills it.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import mmap
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Final

from orchestrator.core.log import get_logger
from orchestrator.services import WAIT_REPORTED_EVERY_S

if TYPE_CHECKING:
    import asyncio

    from orchestrator.core.turns import LoopTurns

FORCE_EXIT_AFTER_S: Final = 5.0
"""Time for the handlers of a drained worker to end, before the process exits without them."""

_STDERR: Final = 2
_TURN: Final = struct.Struct("d")
_COUNTS: Final = struct.Struct("di")
_FLAGS: Final = _TURN.size + _COUNTS.size
_RETIRED, _REGISTERED, _REACHABLE = range(_FLAGS, _FLAGS + 3)
_log = get_logger(__name__)


class LoopWatchdog:
    """Shares the time of the last turn between a worker, which writes it, and its host, which made it before the fork.

    It also shares what the host tells the service manager: whether the worker has registered, whether it reaches Redis,
    and how many attempts it holds.

    Args:
        stuck_after_s: time without a turn after which the loop counts as stuck.
    """

    def __init__(self, stuck_after_s: float) -> None:
        self.stuck_after_s = stuck_after_s
        self._shared = mmap.mmap(-1, _REACHABLE + 1)
        self._force_exit: threading.Timer | None = None

    def record_turn(self) -> None:
        """In the worker: record a turn and restart the timer."""
        _TURN.pack_into(self._shared, 0, time.monotonic())
        # By file number, because a handler may have closed or replaced `sys.stderr`.
        faulthandler.dump_traceback_later(self.stuck_after_s, exit=True, file=_STDERR)

    def disarm(self) -> None:
        """In the worker: stop watching, because the process is about to end."""
        _TURN.pack_into(self._shared, 0, 0.0)
        faulthandler.cancel_dump_traceback_later()

    def force_exit_later(self) -> None:
        """In the worker: exit in `FORCE_EXIT_AFTER_S` although handlers ignore their cancellation; all is stored."""

        def leave() -> None:
            _log.error("shutdown_forced")
            os._exit(0)

        self._force_exit = threading.Timer(FORCE_EXIT_AFTER_S, contextvars.copy_context().run, [leave])
        self._force_exit.daemon = True
        self._force_exit.start()

    def retire(self) -> None:
        """In the worker: tell the host not to replace it."""
        self._shared[_RETIRED] = 1

    @property
    def retired(self) -> bool:
        """In the host: whether it must not replace this worker."""
        return self._shared[_RETIRED] == 1

    def note_wait(self) -> None:
        """In the worker: record that it waits for Redis at its start."""
        _COUNTS.pack_into(self._shared, _TURN.size, time.monotonic(), 0)

    def mark_registered(self) -> None:
        """In the worker: record that it is in the registry and fetches tasks."""
        self._shared[_REGISTERED] = self._shared[_REACHABLE] = 1

    def share_load(self, held: int, *, reachable: bool) -> None:
        """In the worker: record the number of attempts that it holds, and whether Redis answers."""
        _COUNTS.pack_into(self._shared, _TURN.size, 0.0, held)
        self._shared[_REACHABLE] = reachable

    @property
    def registered(self) -> bool:
        """In the host: True if the worker has registered."""
        return self._shared[_REGISTERED] == 1

    @property
    def reachable(self) -> bool:
        """In the host: True if the worker has registered and Redis answered its last heartbeat."""
        return self._shared[_REACHABLE] == 1

    @property
    def held(self) -> int:
        """In the host: attempts that the worker holds."""
        return int(_COUNTS.unpack_from(self._shared, _TURN.size)[1])

    def waits_for_redis(self) -> bool:
        """In the host: True if the worker has reported lately that it waits for Redis at its start."""
        (at_s, _) = _COUNTS.unpack_from(self._shared, _TURN.size)
        return bool(at_s) and time.monotonic() - at_s < WAIT_REPORTED_EVERY_S * 2

    def cancel_force_exit(self) -> None:
        """In the worker: all handlers have ended."""
        if self._force_exit is not None:
            self._force_exit.cancel()

    def silent_s(self) -> float:
        """In the host: seconds since the last callback ran; 0 before the first one and after `disarm`."""
        (at_s,) = _TURN.unpack_from(self._shared, 0)
        return time.monotonic() - at_s if at_s else 0.0

    def close(self) -> None:
        """Free the shared memory."""
        self._shared.close()


class LoopProbe:
    """Measures how long the event loop takes to run a callback.

    Args:
        loop: to measure.
        watchdog: gets the time of each callback, unless a watched loop of the worker is silent.
        turns: the watched loops of the worker; gets the event loop as one more.
        silent_after_s: time without a callback after which the event loop counts as silent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watchdog: LoopWatchdog | None,
        turns: LoopTurns,
        *,
        silent_after_s: float,
    ) -> None:
        self._loop, self._watchdog, self._turns = loop, watchdog, turns
        self._turn = turns.loop("event_loop", silent_after_s)
        self._logged: set[str] = set()
        self._asked_s: float | None = None
        self._closed = False

    def unanswered_s(self) -> float:
        """Schedule a callback unless one is pending, and return the seconds since it was scheduled."""
        asked_s = self._asked_s
        if asked_s is None:
            asked_s = self._asked_s = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._answer)
        return time.monotonic() - asked_s

    def close(self) -> None:
        """Stop storing times."""
        self._closed = True
        self._turn.close()

    def _answer(self) -> None:
        self._asked_s = None
        self._turn.record()
        if self._closed:
            return
        silent = self._turns.silent()
        for turn in silent:
            if turn.name not in self._logged:
                _log.error("loop_silent", loop=turn.name, silent_s=round(turn.silent_s()))
        self._logged = {turn.name for turn in silent}
        if self._watchdog is not None and not silent:
            self._watchdog.record_turn()
