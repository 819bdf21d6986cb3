"""Keeps exported counters from stepping back when Redis has lost its last writes.

After a failover that lost writes a counter of the pool is a little lower. Prometheus takes each decrease as a reset and
adds the whole count, so that alerts on increases would fire. A much lower count is that of another database.
"""

from __future__ import annotations

from operator import lt
from typing import TYPE_CHECKING, Final

from orchestrator.agents.timings import RECENT_RUNS, WAITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FREELY_LOST: Final = 1000
"""Losses up to this number are a step back unless they are more than half of the count."""
_NOT_COUNTED: Final = slice(RECENT_RUNS, WAITS)
"""Cells that may fall: the recent mean running time."""


class CounterMarks:
    """Remembers the highest value of each counter of a pool."""

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}

    def raise_to(self, counts: Mapping[str, int]) -> bool:
        """Take the counters of a reading, and return whether they are those of another database."""
        before, lost = sum(self._marks.values()), sum(self._marks.values()) - sum(counts.values())
        is_reset = lost > before / 2 or lost > max(FREELY_LOST, before / 10)
        if is_reset:
            self._marks.clear()
        for name, count in counts.items():
            self._marks[name] = max(count, self._marks.get(name, 0))
        return is_reset

    def __getitem__(self, name: str) -> int:
        """Return the highest value of a counter."""
        return self._marks.get(name, 0)


def raise_cells(marks: Sequence[int], cells: list[int]) -> list[int]:
    """Return the cells of a pair of agent and skill, none of them lower than its mark; the marks may be empty."""
    if marks and any(map(lt, cells, marks)):
        recent = cells[_NOT_COUNTED]
        cells = list(map(max, cells, marks))
        cells[_NOT_COUNTED] = recent
    return cells
