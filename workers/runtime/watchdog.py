"""Ends a worker process whose event loop is stuck.

The heartbeat schedules a callback in the event loop and stores the time when it ran in memory that the host can read.
The time stops for a blocked loop, a held interpreter lock and a frozen process alike, and while a watched loop of the
worker, such as a fetcher, is silent. The host then sends `DUMP_SIGNAL`, on which `faulthandler` prints the stack of
each thread and ends the process without the interpreter. If the process does not end, the host kills it.

The host judges, because a timer of the worker would end it after a freeze of the whole machine, which a host notices by
its own silence. So the timer of a worker with a host only ends a stuck worker that has lost its host. A worker without
a host has nothing but the timer: it ends when it continues after a freeze that was longer than the limit.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import os
import signal
import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from orchestrator.core.log import get_logger
from orchestrator.monitoring.catalogue import LAG_BUCKETS_S
from orchestrator.services import WAIT_REPORTED_EVERY_S, count_cache_loads, count_cached_bytes, count_reconnects
from orchestrator.workers.runtime.host_memory import HostMemory

if TYPE_CHECKING:
    import asyncio

    from orchestrator.core.turns import LoopTurns
    from orchestrator.workers.runtime.host_memory import WorkerCell

FORCE_EXIT_AFTER_S: Final = 5.0
"""Time for the handlers of a drained worker to end, before the process exits without them."""

DUMP_SIGNAL: Final = signal.SIGVTALRM
"""Its default action ends a process without a core dump."""
WITHOUT_HOST: Final = 5
"""Multiple of the limit after which a stuck worker that has lost its host ends itself."""
_STDERR: Final = 2
LAG_FADES: Final = 0.8
"""Share of the recent delay of timers that is left at the next measurement."""
_log = get_logger(__name__)


class LoopWatchdog:
    """Shares the time of the last turn between a worker, which writes it, and its host, which made it before the fork.

    It also shares what the host tells the service manager and its health server: whether the worker has registered,
    whether it reaches Redis, how many attempts it holds.

    Args:
        stuck_after_s: time without a turn after which the loop counts as stuck.
        cell: of the worker in the memory of the host; by default one of its own.
    """

    def __init__(self, stuck_after_s: float, cell: WorkerCell | None = None) -> None:
        self.stuck_after_s = stuck_after_s
        self.cell = cell if cell is not None else HostMemory(1).take()
        self._timer_s = stuck_after_s
        self._force_exit: threading.Timer | None = None

    def obey_host(self) -> None:
        """In the worker: end with the stacks of all threads when the host says so."""
        self._timer_s = self.stuck_after_s * WITHOUT_HOST
        faulthandler.register(DUMP_SIGNAL, file=_STDERR, all_threads=True, chain=True)

    def record_turn(self) -> None:
        """In the worker: record a turn and restart the timer."""
        self.cell.turned_s = time.monotonic()
        # By file number, because a handler may have closed or replaced `sys.stderr`.
        faulthandler.dump_traceback_later(self._timer_s, exit=True, file=_STDERR)

    def disarm(self) -> None:
        """In the worker: stop watching, because the process is about to end."""
        self.cell.turned_s = 0.0
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
        self.cell.retired = True

    @property
    def retired(self) -> bool:
        """In the host: whether it must not replace this worker."""
        return self.cell.retired

    def note_wait(self) -> None:
        """In the worker: record that it waits for Redis at its start."""
        self.cell.waits_since_s = time.monotonic()

    def mark_registered(self, slots: int) -> None:
        """In the worker: record that it is in the registry and fetches tasks for so many slots."""
        self.cell.slots = slots
        self.cell.registered = self.cell.reachable = True

    def mark_draining(self) -> None:
        """In the worker: record that it takes no more tasks."""
        self.cell.draining = True

    def record_lag(self, delay_s: float) -> None:
        """In the worker: count a delay of a timer of the event loop."""
        self.cell.lag_counts[bisect_left(LAG_BUCKETS_S, delay_s)] += 1
        self.cell.lag_sum_s += delay_s
        self.cell.recent_lag_s = max(delay_s, self.cell.recent_lag_s * LAG_FADES)

    def share_load(self, held: int, *, reachable: bool) -> None:
        """In the worker: record the number of attempts that it holds, and whether Redis answers."""
        self.cell.waits_since_s, self.cell.held, self.cell.reachable = 0.0, held, reachable
        self.cell.reconnects = count_reconnects()
        self.cell.cached_bytes, self.cell.cache_loads = count_cached_bytes(), count_cache_loads()

    @property
    def registered(self) -> bool:
        """In the host: True if the worker has registered."""
        return self.cell.registered

    @property
    def reachable(self) -> bool:
        """In the host: True if the worker has registered and Redis answered its last heartbeat."""
        return self.cell.reachable

    @property
    def held(self) -> int:
        """In the host: attempts that the worker holds."""
        return self.cell.held

    def waits_for_redis(self) -> bool:
        """In the host: True if the worker has reported lately that it waits for Redis at its start."""
        at_s = self.cell.waits_since_s
        return bool(at_s) and time.monotonic() - at_s < WAIT_REPORTED_EVERY_S * 2

    def cancel_force_exit(self) -> None:
        """In the worker: all handlers have ended."""
        if self._force_exit is not None:
            self._force_exit.cancel()

    def silent_s(self) -> float:
        """In the host: seconds since the last callback ran; 0 before the first one and after `disarm`."""
        at_s = self.cell.turned_s
        return time.monotonic() - at_s if at_s else 0.0


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
