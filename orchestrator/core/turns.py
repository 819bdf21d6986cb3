"""Records the turns of long-lived loops, so that the process can report a loop that has stopped.

A loop records a turn whenever it comes round, also when Redis does not answer. The systemd watchdog and the health
server report a process as hung when a loop has been silent for longer than its limit. The records use the monotonic
clock and need no event loop, and a thread may read them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

SILENT_AFTER_S: Final = 30.0
LATE_AFTER_S: Final = 1.0
"""Delay of the watcher above which it counts as paused together with all loops."""


class LoopTurn:
    """The last turn of one loop. It counts as silent from its creation, and is no longer watched after `close`.

    Attributes:
        name: unique in the process among the loops that run.
        silent_after_s: seconds without a turn after which the loop counts as silent.
        waits_s: returns seconds that the limit has in addition, because the settings of now make the loop wait.
    """

    __slots__ = ("_at_s", "_turns", "name", "silent_after_s", "waits_s")

    def __init__(self, turns: LoopTurns, name: str, silent_after_s: float) -> None:
        self._turns, self.name, self.silent_after_s = turns, name, silent_after_s
        self.waits_s: Callable[[], float] = lambda: 0.0
        self._at_s = time.monotonic()

    def record(self) -> None:
        """Record a turn."""
        self._at_s = time.monotonic()

    def silent_s(self) -> float:
        """Return the seconds since the last turn."""
        return time.monotonic() - self._at_s

    def excuse(self, paused_s: float) -> None:
        """Do not count a time in which the whole process was paused."""
        self._at_s = min(time.monotonic(), self._at_s + paused_s)

    def close(self) -> None:
        """Stop watching the loop, because it ends."""
        self._turns.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LoopTurns:
    """The watched loops of one process.

    A process that was frozen (SIGSTOP, a pause of its container or machine) has loops that were silent and do not hang.
    The watcher was silent too: its delay does not count.
    """

    def __init__(self) -> None:
        self._loops: list[LoopTurn] = []
        self._watcher_due_s: float | None = None

    def loop(self, name: str, silent_after_s: float = SILENT_AFTER_S) -> LoopTurn:
        """Watch a loop until `close`; the result is a context manager.

        Args:
            name: in the log and in the status of the process.
            silent_after_s: must be longer than one turn, the waits for Redis included.
        """
        turn = LoopTurn(self, name, silent_after_s)
        self._loops.append(turn)
        return turn

    def watch(self, again_in_s: float) -> tuple[LoopTurn, ...]:
        """Return `silent()` to the watcher of the loops.

        Args:
            again_in_s: when the watcher calls this again. A later call shows that the process was paused.
        """
        silent = self.silent()
        self._watcher_due_s = time.monotonic() + again_in_s
        return silent

    def silent(self) -> tuple[LoopTurn, ...]:
        """Return the loops that have been silent for longer than their limits."""
        now_s = time.monotonic()
        if self._watcher_due_s is not None and (paused_s := now_s - self._watcher_due_s) > LATE_AFTER_S:
            # Only the watcher sets it again: one that hangs excuses the loops once.
            self._watcher_due_s = None
            for turn in tuple(self._loops):
                turn.excuse(paused_s)
        return tuple(turn for turn in tuple(self._loops) if turn.silent_s() > turn.silent_after_s + turn.waits_s())

    def remove(self, turn: LoopTurn) -> None:
        """Stop watching a loop; see `LoopTurn.close`."""
        if turn in self._loops:
            self._loops.remove(turn)

    def of_pool(self, pool: str) -> LoopTurns:
        """Return the loops of one of several pools of the process; their names begin with that of the pool."""
        return _PoolTurns(self, pool)


class _PoolTurns(LoopTurns):
    """Passes the loops of one pool on to those of the process."""

    def __init__(self, process: LoopTurns, pool: str) -> None:
        super().__init__()
        self._process, self._opening = process, f"{pool}/"

    def loop(self, name: str, silent_after_s: float = SILENT_AFTER_S) -> LoopTurn:
        return self._process.loop(f"{self._opening}{name}", silent_after_s)

    def silent(self) -> tuple[LoopTurn, ...]:
        return tuple(turn for turn in self._process.silent() if turn.name.startswith(self._opening))
