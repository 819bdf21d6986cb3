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
    """The watched loops of one process."""

    def __init__(self) -> None:
        self._loops: list[LoopTurn] = []

    def loop(self, name: str, silent_after_s: float = SILENT_AFTER_S) -> LoopTurn:
        """Watch a loop until `close`; the result is a context manager.

        Args:
            name: in the log and in the status of the process.
            silent_after_s: must be longer than one turn, the waits for Redis included.
        """
        turn = LoopTurn(self, name, silent_after_s)
        self._loops.append(turn)
        return turn

    def silent(self) -> tuple[LoopTurn, ...]:
        """Return the loops that have been silent for longer than their limits."""
        return tuple(turn for turn in tuple(self._loops) if turn.silent_s() > turn.silent_after_s + turn.waits_s())

    def remove(self, turn: LoopTurn) -> None:
        """Stop watching a loop; see `LoopTurn.close`."""
        if turn in self._loops:
            self._loops.remove(turn)
