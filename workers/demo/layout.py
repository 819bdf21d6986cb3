"""Places a directed graph in rows: what imports stands above what it imports. Pure geometry, no drawing.

Nodes that import each other have no above and below: they stay together as a knot. Then the steps are Sugiyama's: each
knot or single node goes one row above all that it imports, and the rows are sorted so that few edges cross.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.demo.cycles import strong_components

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Arrow = tuple[int, int]
SWEEPS: Final = 12


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows from top to bottom.

    Attributes:
        rows: each from left to right; an item is a knot (several nodes) or one node alone.
        implied: arrows between items that other arrows imply; a picture is clearer without them.
    """

    rows: list[list[list[int]]]
    implied: frozenset[Arrow]


def place(nodes: Iterable[int], arrows: Iterable[Arrow]) -> Placed:
    """Find a row, and a place in it, for every node."""
    arrows = sorted(set(arrows))
    targets: dict[int, list[int]] = {node: [] for node in nodes}
    for importer, imported in arrows:
        targets[importer].append(imported)
    items = strong_components(targets)  # each item comes after all that it imports
    home = {node: number for number, item in enumerate(items) for node in item}
    down: dict[int, set[int]] = defaultdict(set)
    for importer, imported in arrows:
        if home[importer] != home[imported]:
            down[home[importer]].add(home[imported])
    hidden = _implied(len(items), down)
    rows = _sorted_rows(_rows(len(items), down), down)
    return Placed(
        [[items[number] for number in row] for row in rows],
        frozenset(arrow for arrow in arrows if (home[arrow[0]], home[arrow[1]]) in hidden),
    )


def _rows(count: int, down: Mapping[int, set[int]]) -> list[list[int]]:
    """Longest path from below; targets have smaller numbers."""
    height: list[int] = []
    for number in range(count):
        height.append(1 + max((height[target] for target in down.get(number, ())), default=-1))
    rows: list[list[int]] = [[] for _ in range(max(height, default=-1) + 1)]
    for number in range(count):
        rows[-1 - height[number]].append(number)
    return rows


def _sorted_rows(rows: list[list[int]], down: Mapping[int, set[int]]) -> list[list[int]]:
    """Move each item to the middle of its neighbours, row by row, until most edges run straight (barycentres)."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for importer, imported in ((a, b) for a, targets in sorted(down.items()) for b in sorted(targets)):
        neighbours[importer].append(imported)
        neighbours[imported].append(importer)
    position = {number: (at + 0.5) / len(row) for row in rows for at, number in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            centre = {n: _mean([position[m] for m in neighbours[n]], position[n]) for n in row}
            row.sort(key=lambda number: (centre[number], number))
            position.update({number: (at + 0.5) / len(row) for at, number in enumerate(row)})
    return rows


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _implied(count: int, down: Mapping[int, set[int]]) -> set[Arrow]:
    """Arrows whose end can be reached through another arrow from the same start."""
    below: list[set[int]] = []
    implied: set[Arrow] = set()
    for number in range(count):
        targets = down.get(number, set())
        through = set[int]().union(*(below[target] for target in targets))
        implied.update((number, target) for target in targets & through)
        below.append(through | targets)
    return implied
