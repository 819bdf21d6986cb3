"""Finds the cycles of the import graph: groups of modules that import each other, each with a shortest cycle."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from orchestrator.workers.demo.models import Cycle, Edge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Arrows = dict[int, list[int]]


def find_cycles(edges: Sequence[Edge]) -> list[Cycle]:
    """Find the groups of modules that import each other, the largest first.

    An import inside a function or under `TYPE_CHECKING` does not run when the module is imported, so a cycle through
    one is safe. It is listed as deferred, after the others, unless its modules are in an import-time cycle already.
    """
    immediate = [edge for edge in edges if edge.when == "import"]
    cycles = _knots(immediate, deferred=False)
    knotted = {member for cycle in cycles for member in cycle.members}
    held = [cycle for cycle in _knots(edges, deferred=True) if knotted.isdisjoint(cycle.members)]
    return cycles + held


def strong_components(arrows: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Return the strongly connected components (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open: set[int] = set()
    components: list[list[int]] = []
    for start in sorted(arrows):
        if start in index:
            continue
        work = [(start, iter(arrows[start]))]
        index[start] = low[start] = len(index)
        open_nodes.append(start)
        is_open.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    open_nodes.append(target)
                    is_open.add(target)
                    work.append((target, iter(arrows.get(target, ()))))
                    break
                if target in is_open:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(open_nodes.pop())
                    is_open.difference_update(component)
                    components.append(sorted(component))
    return components


def shortest_loop(members: Sequence[int], arrows: Mapping[int, Sequence[int]]) -> list[int]:
    """Return a shortest cycle among the members, starting at its smallest, or nothing."""
    inside = set(members)
    best: list[int] = []
    for start in sorted(members):
        found = _way_back(start, arrows, inside, shorter_than=len(best) or len(inside) + 1)
        best = found or best
        if len(best) == 2:  # no cycle is shorter, because no module imports itself
            break
    return best


def _knots(edges: Sequence[Edge], *, deferred: bool) -> list[Cycle]:
    arrows: Arrows = {}
    by_ends: dict[tuple[int, int], Edge] = {}
    for edge in edges:
        arrows.setdefault(edge.importer, []).append(edge.imported)
        by_ends[edge.importer, edge.imported] = edge
    for targets in arrows.values():
        targets.sort()
    cycles = []
    for members in strong_components(arrows):
        if len(members) > 1:
            loop = shortest_loop(members, arrows)
            steps = zip(loop, [*loop[1:], loop[0]], strict=True)
            cycles.append(Cycle(members=tuple(members), loop=tuple(by_ends[step] for step in steps), deferred=deferred))
    return sorted(cycles, key=lambda cycle: (-len(cycle.members), cycle.members))


def _way_back(start: int, arrows: Mapping[int, Sequence[int]], inside: set[int], *, shorter_than: int) -> list[int]:
    """Search breadth first from `start` back to itself, through larger members, in fewer steps than given."""
    came_from = {start: start}
    queue = deque([(start, 1)])
    while queue:
        node, length = queue.popleft()
        if length >= shorter_than:
            return []
        for target in arrows.get(node, ()):
            if target == start:
                way = [node]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if target in inside and target > start and target not in came_from:
                came_from[target] = node
                queue.append((target, length + 1))
    return []
