"""Reports code that blocks the event loop of a worker, from a thread and while it blocks.

The thread looks at the loop a few times a second. Unless the loop waits for events, it asks the loop to run a callback,
and reports the stack of the loop's thread when that has taken a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import sys
import threading
import time
from asyncio import base_events, runners
from typing import TYPE_CHECKING, Final

from orchestrator.core.log import bind_context, get_logger
from orchestrator.workers.runtime.executor import Executor
from orchestrator.workers.runtime.places import stack_of

if TYPE_CHECKING:
    from types import FrameType

    from orchestrator.workers.runtime.attempt import Attempt

BLOCKED_AFTER_S: Final = 1.0
LOOK_EVERY_S: Final = 0.25
FROZEN_S: Final = 0.5
"""Delay of a look above which the process may have been frozen, or had no processor."""
AGAIN_S: Final = 60.0
"""Time in which a line of code is reported once."""
MOST_PLACES: Final = 100
END_TIMEOUT_S: Final = 1.0

_ATTEMPT: Final = Executor._attempt.__code__  # noqa: SLF001 - its frame has the attempt
_log = get_logger(__name__)


class LoopWatcher:
    """Watches the event loop in which it is made.

    Attributes:
        note: `SECONDS COUNT PLACE` for the registry: of the last block, and how many there were; empty without one.
    """

    def __init__(self, *, worker: str) -> None:
        self._loop, self._worker = asyncio.get_running_loop(), worker
        self.note = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-watcher", daemon=True)
        self._loop_thread, self._native_id = threading.get_ident(), threading.get_native_id()
        self._starved_s = 0.0
        """Time for which the thread of the loop had waited for a processor when the loop was asked."""
        self._asked_s: float | None = None
        """Time at which the loop was asked to run a callback; None when it has."""
        self._reported: tuple[float, str] | None = None
        """The `_asked_s` and the place of the last block that was reported."""
        self._count = 0
        self._told_s: dict[str, float] = {}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(END_TIMEOUT_S)

    def _run(self) -> None:
        bind_context(worker=self._worker)
        looked_s, used_s = time.monotonic(), time.process_time()
        while not self._stopping.wait(LOOK_EVERY_S):
            late_s = time.monotonic() - looked_s - LOOK_EVERY_S
            worked_s = time.process_time() - used_s
            looked_s, used_s = time.monotonic(), time.process_time()
            if late_s > FROZEN_S and worked_s < late_s / 2 and self._asked_s is not None:
                # Code that holds the interpreter lock would have worked; this process was frozen as a whole.
                self._asked_s, self._starved_s = looked_s, _starved_s(self._native_id)
            self._look(looked_s)

    def _look(self, now_s: float) -> None:
        asked_s = self._asked_s
        if asked_s is None:
            frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - there is no other way
            if frame is not None and not _waits_for_events(frame):
                self._asked_s, self._starved_s = now_s, _starved_s(self._native_id)
                with contextlib.suppress(RuntimeError):  # the loop has closed
                    self._loop.call_soon_threadsafe(self._answer)
        elif not self._is_reported(asked_s) and (blocked_s := now_s - asked_s) >= BLOCKED_AFTER_S:
            starved_s = _starved_s(self._native_id) - self._starved_s
            if blocked_s - starved_s >= BLOCKED_AFTER_S / 2:  # else it would run if other programs let it
                self._report(asked_s, blocked_s, sys._current_frames().get(self._loop_thread))  # noqa: SLF001

    def _is_reported(self, asked_s: float) -> bool:
        return self._reported is not None and self._reported[0] == asked_s

    def _report(self, asked_s: float, blocked_s: float, frame: FrameType | None) -> None:
        where, stack = stack_of(frame)
        attempt = _attempt_on(frame)
        # With the time, because the loop may have answered while the stack was read.
        self._reported, self._count = (asked_s, where), self._count + 1
        self._keep(blocked_s, where)
        told_s, now_s = self._told_s.pop(where, None), time.monotonic()
        self._told_s[where] = now_s if told_s is None or now_s - told_s >= AGAIN_S else told_s
        if len(self._told_s) > MOST_PLACES:
            del self._told_s[next(iter(self._told_s))]
        if self._told_s[where] != now_s:
            return
        seconds = round(blocked_s, 1)
        if attempt is None:
            _log.warning("event_loop_blocked", blocked_s=seconds, where=where, stack=stack)
            return
        task = attempt.delivery
        _log.warning(
            "event_loop_blocked", blocked_s=seconds, where=where, stack=stack,
            task=task.task_id, agent=task.agent, skill=attempt.envelope.skill,
        )  # fmt: skip

    def _keep(self, blocked_s: float, where: str) -> None:
        self.note = f"{blocked_s:.1f} {self._count} {where}"

    def _answer(self) -> None:
        """In the event loop: note that it runs."""
        asked_s, reported = self._asked_s, self._reported
        if asked_s is not None and reported is not None and reported[0] == asked_s:
            blocked_s, where = time.monotonic() - asked_s, reported[1]
            self._keep(blocked_s, where)
            _log.info("event_loop_unblocked", blocked_s=round(blocked_s, 1), where=where)
        self._asked_s = None


def _waits_for_events(frame: FrameType) -> bool:
    """Return whether the innermost Python frame is that in which a loop waits: of asyncio, or of uvloop.

    Code that blocks may wait in `selectors` too, as `subprocess.run` does, and is called by another module.
    """
    file, caller = frame.f_code.co_filename, frame.f_back
    if file == selectors.__file__:
        return caller is not None and caller.f_code.co_filename == base_events.__file__
    return file == runners.__file__


def _starved_s(native_id: int) -> float:
    """Return how long a thread has waited for a processor so far; 0 where the system does not tell."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as file:  # noqa: PTH123 - often called
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _attempt_on(frame: FrameType | None) -> Attempt | None:
    """Return the attempt whose handler is on a stack."""
    while frame is not None:
        if frame.f_code is _ATTEMPT:
            attempt: Attempt | None = frame.f_locals.get("attempt")
            return attempt
        frame = frame.f_back
    return None
