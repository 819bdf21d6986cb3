"""Awaited tasks reach lent slots without a sweep, whatever other tasks the supervisor dispatches meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.store.calls import opaque
from tests.lua.pool import Team, envelope, row
from tests.lua.tasks.test_take_suspects import suspect

if TYPE_CHECKING:
    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool


class Supervision:
    """Reads the doorbell and assigns as the supervisor does: the entries of one read in order of their names."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def lose(self) -> None:
        """Lose the entries that are not read."""
        self.pool.notifications()

    def act(self) -> None:
        """Assign until no entry is left."""
        while new := self.pool.notifications():
            for name in sorted({text.removeprefix("queue:") for text in new}):
                if name.startswith("agent:"):
                    self.pool.assign(name.removeprefix("agent:"))
                elif name.startswith("skill:"):
                    self.pool.dispatch_all(name.removeprefix("skill:"))
                elif name == "agents":
                    for agent in self.pool.members(self.pool.keys.agents):
                        self.pool.assign(agent)

    def sweep(self) -> None:
        """Look at everything, as a new leader does."""
        for agent in self.pool.relist(*self.pool.members(self.pool.keys.agents)):
            self.pool.assign(agent)
        for queue in self.pool.members(self.pool.keys.queues):
            if queue.startswith("skill:"):
                self.pool.dispatch_all(queue.removeprefix("skill:"))
        self.act()


def child(pool: Pool, parent: Delivery) -> str:
    """Submit a child."""
    (id_,) = pool.put(row(parent=parent.task_id, parent_generation=parent.generation, depth=1))
    return id_


def parent_of(pool: Pool, supervision: Supervision) -> Delivery:
    """Start a task on the one agent."""
    supervision.act()
    pool.put()
    supervision.act()
    (parent,) = pool.read()
    return parent


def test_a_task_of_another_skill_delays_no_child(pool: Pool) -> None:
    """Dispatching the other skill meets a full agent, and keeps the mark that the next awaited task needs."""
    supervision = Supervision(pool)
    pool.register(team=Team(skills=frozenset({"sum", "other"})), slots=1)
    parent = parent_of(pool, supervision)
    first, second = child(pool, parent), child(pool, parent)
    supervision.act()
    pool.lend("w1", (parent, f"{first} {second}"), ed="0=1")
    supervision.act()
    (run,) = pool.read()
    assert run.task_id == first
    pool.put(row(queue="skill:other", envelope=opaque(envelope("other"))))
    supervision.act()
    pool.end(run)
    supervision.act()
    assert [one.task_id for one in pool.read()] == [second]


def test_a_queue_and_a_wait_in_one_read_delay_no_child(pool: Pool) -> None:
    """The supervisor reads of a new child and of the wait for it at once."""
    supervision = Supervision(pool)
    pool.register(slots=1)
    parent = parent_of(pool, supervision)
    first = child(pool, parent)
    supervision.act()
    pool.lend("w1", (parent, first), ed="0=1")
    supervision.act()
    (run,) = pool.read()
    second = child(pool, parent)
    pool.lend("w1", (parent, f"{first} {second}"), ed="0=1")
    supervision.act()
    pool.end(run)
    supervision.act()
    assert [one.task_id for one in pool.read()] == [second]


def test_a_new_leader_assigns_a_child_in_its_first_sweep(pool: Pool) -> None:
    """The notification of a wait was lost, as when the supervisor dies."""
    supervision = Supervision(pool)
    pool.register(slots=1)
    parent = parent_of(pool, supervision)
    awaited = child(pool, parent)
    pool.lend("w1", (parent, awaited), ed="0=1")
    supervision.lose()
    supervision.sweep()
    assert [one.task_id for one in pool.read()] == [awaited]


def test_a_suspect_delays_no_child(pool: Pool) -> None:
    """An agent that keeps a slot free for a suspect lends its other one."""
    supervision = Supervision(pool)
    pool.register(slots=2)
    parent = parent_of(pool, supervision)
    suspect(pool, row(), groups=(0,))
    supervision.act()
    awaited = child(pool, parent)
    pool.lend("w1", (parent, awaited), ed="0=1")
    supervision.lose()
    supervision.sweep()
    assert pool.state(awaited) == "assigned"
