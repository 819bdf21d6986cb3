"""Knots and shortest loops against brute force over all small graphs that Hypothesis thinks of."""

from __future__ import annotations

import sys
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workers.demo.cycles import find_cycles, shortest_loop, strong_components
from orchestrator.workers.demo.layout import place
from orchestrator.workers.demo.models import Edge, When

NODES = 7
WHEN: list[When] = ["import", "lazy", "typing"]

arrow_sets = st.sets(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)).filter(lambda arrow: arrow[0] != arrow[1]),
    max_size=20,
)


def targets_of(arrows: set[tuple[int, int]]) -> dict[int, list[int]]:
    """Arrows as lists of targets, every node named."""
    return {node: sorted(b for a, b in arrows if a == node) for node in range(NODES)}


def reachable(arrows: set[tuple[int, int]]) -> list[list[bool]]:
    """Warshall's closure."""
    reach = [[a == b or (a, b) in arrows for b in range(NODES)] for a in range(NODES)]
    for via in range(NODES):
        for a in range(NODES):
            for b in range(NODES):
                reach[a][b] = reach[a][b] or (reach[a][via] and reach[via][b])
    return reach


@given(arrow_sets)
def test_components_are_those_of_brute_force(arrows: set[tuple[int, int]]) -> None:
    """Two nodes share a component exactly when each reaches the other; a component follows all that it reaches."""
    components = strong_components(targets_of(arrows))
    home = {node: number for number, component in enumerate(components) for node in component}
    reach = reachable(arrows)
    assert sorted(node for component in components for node in component) == list(range(NODES))
    for a in range(NODES):
        for b in range(NODES):
            assert (home[a] == home[b]) == (reach[a][b] and reach[b][a])
            assert not reach[a][b] or home[a] >= home[b]


@given(arrow_sets)
def test_the_loop_is_real_and_none_is_shorter(arrows: set[tuple[int, int]]) -> None:
    """The loop of a component follows its arrows, and no cycle of fewer nodes exists in it."""
    for component in strong_components(targets_of(arrows)):
        if len(component) == 1:
            assert shortest_loop(component, targets_of(arrows)) == []
            continue
        loop = shortest_loop(component, targets_of(arrows))
        assert len(set(loop)) == len(loop) >= 2
        assert set(loop) <= set(component)
        assert all(step in arrows for step in zip(loop, [*loop[1:], loop[0]], strict=True))
        for length in range(2, len(loop)):
            for way in permutations(component, length):
                assert not all(step in arrows for step in zip(way, [*way[1:], way[0]], strict=True))


@given(arrow_sets, st.data())
def test_a_loop_that_needs_a_deferred_import_is_deferred(arrows: set[tuple[int, int]], data: st.DataObject) -> None:
    """Import-time cycles use import-time edges alone; a deferred one cannot do without another edge."""
    edges = [Edge(a, b, 1, data.draw(st.sampled_from(WHEN))) for a, b in sorted(arrows)]
    for cycle in find_cycles(edges):
        assert set(cycle.loop) <= set(edges)
        assert cycle.deferred == any(edge.when != "import" for edge in cycle.loop)


@given(arrow_sets)
def test_the_layout_puts_importers_above(arrows: set[tuple[int, int]]) -> None:
    """Every node has one place; an arrow between knots points down; an implied one has a longer way round."""
    placed = place(range(NODES), arrows)
    row = {node: at for at, line in enumerate(placed.rows) for item in line for node in item}
    home = {node: tuple(item) for line in placed.rows for item in line for node in item}
    assert sorted(row) == list(range(NODES))
    for a, b in arrows:
        assert home[a] == home[b] or row[a] < row[b]
    reach = reachable(arrows - placed.implied)
    for a, b in placed.implied:
        assert reach[a][b]


def test_a_chain_longer_than_the_stack_is_no_problem() -> None:
    """Tarjan's walk keeps a stack of its own."""
    many = 2 * sys.getrecursionlimit()
    ring = [Edge(n, (n + 1) % many, 1, "import") for n in range(many)]
    (cycle,) = find_cycles(ring)
    assert len(cycle.members) == len(cycle.loop) == many
    assert find_cycles(ring[:-1]) == []
