"""What must hold after every test: no forgotten task, no blocked loop, no key that would stay for ever."""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Final

from orchestrator.store.key_kinds import is_permanent

if TYPE_CHECKING:
    from types import FrameType

    import redis

BLOCKED_S: Final = 0.5
_BEAT_S: Final = 0.05


class LoopWatch:
    """Notices an event loop that does not turn, and keeps what it was doing.

    A thread counts its own looks since the last beat of the loop. A machine that stands still as a whole stops the
    looks too, so that only a loop that is blocked while others run is reported.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._stack = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id: int | None = None
        self._native_id = 0
        self._starved_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        self._thread.start()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch this loop, which runs in the calling thread, until `stop`."""
        self._stack, self._loop = "", loop
        self._thread_id, self._native_id = threading.get_ident(), threading.get_native_id()
        self._beat(loop)

    def stop(self) -> str:
        """Stop watching and give the stack of the longest block seen, or nothing."""
        self._thread_id = None
        return self._stack

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looks, self._starved_s = 0, _starved_s(self._native_id)
        if self._thread_id is not None:
            loop.call_later(_BEAT_S, self._beat, loop)

    def _look(self) -> None:
        while not self._stopped.wait(_BEAT_S):
            thread_id, loop = self._thread_id, self._loop
            if loop is None or not loop.is_running():
                self._looks = 0  # a fixture without a loop may take its time
                continue
            self._looks = self._looks + 1 if thread_id is not None else 0
            if thread_id is not None and self._looks > BLOCKED_S / _BEAT_S:
                starved_s = _starved_s(self._native_id) - self._starved_s
                if self._looks * _BEAT_S - starved_s < BLOCKED_S:
                    continue  # it would run if others let it
                frame: FrameType | None = sys._current_frames().get(thread_id)
                if frame is not None and frame.f_code.co_filename == selectors.__file__:
                    continue  # it waits for the system, which is busy with others
                self._stack = "".join(traceback.format_stack(frame)) if frame else "unknown"


def _starved_s(native_id: int) -> float:
    """How long a thread has waited for a processor so far; 0 where the system does not tell."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as file:  # noqa: PTH123 - hot
            return int(file.read().split()[1]) / 1e9
    except OSError:
        return 0.0


def running_tasks() -> set[asyncio.Task[object]]:
    """Give the unfinished tasks of the running loop, without those in which the test runner itself works."""
    tasks = {task for task in asyncio.all_tasks() if not task.done()}
    return {task for task in tasks if not getattr(task.get_coro(), "__qualname__", "").startswith("TestRunner.")}


def describe_tasks(tasks: set[asyncio.Task[object]]) -> str:
    """Name tasks and the line each waits at."""
    return "\n".join(f"{task!r}, waiting in {task.get_stack(limit=1)}" for task in tasks)


def keys_of(client: redis.Redis, prefix: str) -> list[str]:
    """List all keys of one namespace, sorted."""
    return sorted(key.decode() for key in client.scan_iter(match=f"{prefix}:*", count=1000))


def keys_without_ttl(client: redis.Redis, keys: list[str]) -> list[str]:
    """List those of the keys that have no time to live although they are not on the list of permanent ones."""
    if not keys:
        return []
    asked = client.pipeline(transaction=False)
    for key in keys:
        asked.pttl(key)
    return [key for key, left_ms in zip(keys, asked.execute(), strict=True) if left_ms == -1 and not is_permanent(key)]
