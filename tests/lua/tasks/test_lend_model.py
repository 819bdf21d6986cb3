"""Random trees of tasks that share children, on agents with few slots: each ends, whatever waits for what.

A scheduler in plain Python plays the workers: it reads entries, submits children, waits and goes on as they do. The
scripts decide what starts (protocol rule 32).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator.tasks.model import Verdict, VerdictKind
from tests.lua.pool import Team, row

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

AGENTS: Final = ("ed", "ann")


@dataclass(eq=False)
class Node:
    """One task of a random graph: it awaits nodes with a greater number only, so that no wait is a cycle."""

    number: int
    agent: str
    children: list[int]
    id: str = ""
    depth: int = 0
    ended: bool = False


@dataclass(eq=False)
class Running:
    """An attempt in a worker.

    Attributes:
        waits: the nodes that it awaits.
    """

    node: Node
    held: Delivery
    waits: set[int] = field(default_factory=set)
    lends: bool = False


class Workers:
    """One worker per agent that follows protocol rule 32."""

    def __init__(self, pool: Pool, dice: random.Random, *, slots: int, nodes: list[Node]) -> None:
        self.pool, self.dice, self.slots, self.nodes = pool, dice, slots, nodes
        self.running: dict[str, list[Running]] = {agent: [] for agent in AGENTS}
        for agent in AGENTS:
            pool.register(f"w {agent}", Team(agent, skills=frozenset({agent})), slots=slots, backlog=0)

    def submit(self, node: Node, parent: Running | None) -> None:
        """Submit a node; one that is known is found by its key, as a real client finds it."""
        if node.id:
            return
        node.depth = 0 if parent is None else parent.node.depth + 1
        fields: dict[str, Any] = {"depth": node.depth} if node.depth else {}
        if parent is not None:
            fields |= {"parent": parent.held.task_id, "parent_generation": parent.held.generation}
        (node.id,) = self.pool.put(row(queue=f"agent:{node.agent}", skill=node.agent, **fields))

    def free(self, agent: str) -> int:
        """Slots that no handler has."""
        return self.slots - sum(not one.lends for one in self.running[agent])

    def state(self, *changed: Running) -> None:
        """Tell the waits of these attempts, and the lent slots of all."""
        for agent in AGENTS:
            counts = Counter(self.depth(one) for one in self.running[agent] if one.lends)
            text = " ".join(f"{depth}={number}" for depth, number in sorted(counts.items()))
            waits = [
                (one.held, " ".join(self.nodes[number].id for number in sorted(one.waits)))
                for one in changed
                if one.node.agent == agent
            ]
            for one, recorded in zip(
                [one for one in changed if one.node.agent == agent],
                self.pool.lend(f"w {agent}", *waits, **{agent: text}).recorded,
                strict=True,
            ):
                assert not recorded.cycle
                assert recorded.depth is not None
                one.node.depth = max(one.node.depth, recorded.depth)

    def repeat(self) -> None:
        """Tell all waits again."""
        self.state(*[one for agent in AGENTS for one in self.running[agent] if one.lends])

    @staticmethod
    def depth(one: Running) -> int:
        """The depth that its worker states."""
        return one.node.depth

    def turn(self) -> bool:
        """Do one thing somewhere; return whether anything could be done."""
        steps = [(self.read, agent) for agent in AGENTS] + [(self.go_on, agent) for agent in AGENTS]
        self.dice.shuffle(steps)
        return any(step(agent) for step, agent in steps)

    def read(self, agent: str) -> bool:
        """Read one entry, and let its handler run until it waits or ends."""
        if self.free(agent) == 0:
            return False
        found = self.pool.deliver(f"w {agent}", agent=agent, limit=1)
        for held in found:
            node = next(node for node in self.nodes if node.id == held.task_id)
            one = Running(node, held)
            self.running[agent].append(one)
            assert sum(not other.lends for other in self.running[agent]) <= self.slots
            self.proceed(one)
        return bool(found)

    def go_on(self, agent: str) -> bool:
        """Give a slot back to the deepest attempt whose wait is over."""
        over = [one for one in self.running[agent] if one.lends and not self.missing(one)]
        if not over or self.free(agent) == 0:
            return False
        one = max(over, key=self.depth)
        one.lends, one.waits = False, set()
        self.state(one)
        self.proceed(one)
        return True

    def missing(self, one: Running) -> set[int]:
        """The awaited nodes that have not ended."""
        return {number for number in one.waits if not self.nodes[number].ended}

    def proceed(self, one: Running) -> None:
        """Submit and await some children that are left, or end."""
        node = one.node
        if left := [number for number in node.children if not self.nodes[number].ended]:
            some = left[: self.dice.randint(1, len(left))]
            for number in some:
                self.submit(self.nodes[number], one)
            one.waits, one.lends = set(some), True
            self.state(one)
            return
        self.running[node.agent].remove(one)
        self.pool.finish((one.held, Verdict(VerdictKind.SUCCEEDED, b"1")))
        node.ended = True


def graph(dice: random.Random, size: int, *, shared: bool) -> list[Node]:
    """A random graph whose first node is the root; a tree, unless nodes are shared."""
    nodes = [Node(number, dice.choice(AGENTS), []) for number in range(size)]
    for node in nodes[1:]:
        for _ in range(dice.choice([1, 1, 1, 2, 3]) if shared else 1):
            above = nodes[dice.randrange(node.number)]
            if node.number not in above.children:
                above.children.append(node.number)
    return nodes


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_graph_ends(pool: Pool, seed: int, *, shared: bool) -> None:
    """Tasks that await tasks of both agents, shared ones too, end, although the queues begin with other tasks.

    In a tree an agent holds no more tasks of one depth than it has slots.
    """
    dice = random.Random(seed)
    nodes = graph(dice, dice.choice([5, 15, 40]), shared=shared)
    workers = Workers(pool, dice, slots=dice.choice([1, 1, 2]), nodes=nodes)
    workers.submit(nodes[0], None)
    started = workers.read(nodes[0].agent)
    assert started
    for agent in AGENTS * 3:
        # Tasks of the same queues that come before all others.
        urgent = Node(len(nodes), agent, [])
        (urgent.id,) = pool.put(row(queue=f"agent:{agent}", skill=agent, priority=0))
        nodes.append(urgent)
    while not nodes[0].ended:
        if not workers.turn():
            # What a worker repeats every second.
            workers.repeat()
            assert workers.turn(), f"seed {seed}: nothing can go on"
        for agent in AGENTS:
            held = Counter(one.node.depth for one in workers.running[agent])
            assert shared or max(held.values(), default=0) <= workers.slots
