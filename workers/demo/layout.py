"""Places a directed graph in rows, importing modules above imported ones, by Sugiyama's steps.

Modules of a cycle stay together as one item. Each item goes one row above everything that it imports; then the rows are
sorted so that few edges cross.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.workers.demo.cycles import strong_components

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Arrow = tuple[int, int]
SWEEPS: Final = 12


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows from top to bottom.

    Attributes:
        rows: items from left to right; an item is one node, or the nodes of a cycle.
        implied: arrows between items that other arrows imply.
    """

    rows: list[list[list[int]]]
    implied: frozenset[Arrow]


def place(nodes: Iterable[int], arrows: Iterable[Arrow]) -> Placed:
    """Find a row and a position for every node."""
    arrows = sorted(set(arrows))
    targets: dict[int, list[int]] = {node: [] for node in nodes}
    for importer, imported in arrows:
        targets[importer].append(imported)
    items = strong_components(targets)  # each item comes after everything that it imports
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
    """Assign rows by the longest path from below; targets have smaller numbers."""
    height: list[int] = []
    for number in range(count):
        height.append(1 + max((height[target] for target in down.get(number, ())), default=-1))
    rows: list[list[int]] = [[] for _ in range(max(height, default=-1) + 1)]
    for number in range(count):
        rows[-1 - height[number]].append(number)
    return rows


def _sorted_rows(rows: list[list[int]], down: Mapping[int, set[int]]) -> list[list[int]]:
    """Move each item to the mean position of its neighbours, row by row (barycentre method)."""
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
    """Return the arrows whose end another path from the same start reaches."""
    below: list[set[int]] = []
    implied: set[Arrow] = set()
    for number in range(count):
        targets = down.get(number, set())
        through = set[int]().union(*(below[target] for target in targets))
        implied.update((number, target) for target in targets & through)
        below.append(through | targets)
    return implied
