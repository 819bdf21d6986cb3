"""What a task costs the server: so many commands within the scripts, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.rates import ANY_STARTS, Rate
from orchestrator.limits import scripts as limit_scripts
from orchestrator.limits.providers import ProviderLimit
from orchestrator.limits.shared import keys_of
from orchestrator.tasks.model import Verdict, VerdictKind
from tests.lua.pool import USUAL_TTL_S, Team, row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def life(pool: Pool, count: int, **fields: Any) -> dict[str, int]:
    """Commands of each step in the life of tasks that go through it together; plain ones without `fields`."""
    costs: dict[str, int] = {}

    def step(name: str, work: Callable[[], object]) -> None:
        before = pool.commands()
        work()
        costs[name] = pool.commands() - before

    step("submit", lambda: pool.put(*[row(reply="c1", ttl_s=USUAL_TTL_S, **fields) for _ in range(count)]))
    step("assign", pool.assign)
    taken = [(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in pool.read()]
    assert len(taken) == count
    step("finish", lambda: pool.finish(*taken))
    return costs


def test_commands_of_a_plain_task(pool: Pool) -> None:
    """Submit stores and sets the lifetime; assign reads, counts fields, appends, notes; finish reads, counts, ends."""
    pool.register(slots=100)
    life(pool, 10)  # now the server knows the scripts
    few, many = life(pool, 10), life(pool, 60)
    assert {name: (many[name] - few[name]) / 50 for name in few} == {"submit": 2, "assign": 4, "finish": 4}


def test_commands_of_a_call_with_one_plain_task(pool: Pool) -> None:
    """Such a submit looks once for what there rarely is, counts its queue once, and looks whether the queue is listed.

    A queue that was empty is listed and notifies supervisors.
    """
    pool.put(row(ttl_s=USUAL_TTL_S))
    before = pool.commands()
    pool.put(row(ttl_s=USUAL_TTL_S))
    assert pool.commands() - before == 10


def test_commands_of_a_task_of_a_session(pool: Pool) -> None:
    """Beside others it costs no more than a plain one; a call adds 3 commands to submit, 1 to assign, 2 to the end.

    Assign and finish ask which fields the first such task has. A new session adds seven to submit: it also looks for
    sessions that have expired.
    """
    pool.register(slots=100)
    life(pool, 10, session="s")
    few, many = life(pool, 10, session="s"), life(pool, 60, session="s")
    assert {name: (many[name] - few[name]) / 50 for name in few} == {"submit": 2, "assign": 4, "finish": 4}
    plain, known, new = life(pool, 2), life(pool, 2, session="s"), life(pool, 2, session="t")
    assert {name: known[name] - plain[name] for name in plain} == {"submit": 3, "assign": 1, "finish": 2}
    assert {name: new[name] - plain[name] for name in plain} == {"submit": 7, "assign": 1, "finish": 2}


def test_commands_of_a_task_with_tags(pool: Pool) -> None:
    """Beside others it costs no more than a plain task; a call adds two commands to submit for each tag."""
    pool.register(slots=1000)
    life(pool, 10, tags=("a", "b"))
    few, many = life(pool, 10, tags=("a", "b")), life(pool, 30, tags=("a", "b"))
    assert {name: (many[name] - few[name]) / 20 for name in few} == {"submit": 2, "assign": 4, "finish": 4}
    plain, two = life(pool, 2), life(pool, 2, tags=("a", "b"))
    assert {name: two[name] - plain[name] for name in plain} == {"submit": 4, "assign": 0, "finish": 0}


def test_commands_of_a_child(pool: Pool) -> None:
    """Submit looks at the parent for each child; a call adds two commands for the list of the children."""
    pool.register(slots=100)
    pool.put()
    parent = pool.one()
    child = {"parent": parent.task_id, "parent_generation": parent.generation}
    life(pool, 10, **child)
    few, many = life(pool, 10, **child), life(pool, 60, **child)
    assert {name: (many[name] - few[name]) / 50 for name in few} == {"submit": 3, "assign": 4, "finish": 4}
    plain, two = life(pool, 2), life(pool, 2, **child)
    assert {name: two[name] - plain[name] for name in plain} == {"submit": 4, "assign": 0, "finish": 0}


def test_commands_of_an_agent_with_a_limit(pool: Pool) -> None:
    """A call of assign looks once per limit whether its provider is blocked; without a rate it counts no starts."""
    costs = []
    for name, rate in (("", None), ("rated", Rate(1000, 60_000_000)), ("open", ANY_STARTS)):
        known = ((name, rate),) if rate else ()
        team = Team(agent=f"a{name}", limits=(name,) if rate else (), known_limits=known)
        pool.register(f"w{name}", team, slots=100)
        pool.put(*[row(queue=f"agent:a{name}") for _ in range(20)])
        assert pool.assign(team.agent, limit=10).count == 10
        before = pool.commands()
        assert pool.assign(team.agent, limit=10).count == 10
        costs.append(pool.commands() - before)
    none, rated, open_ = costs
    # Definition, pause, block and window; then definition, last start, start, trim and lifetime.
    assert (rated - none, open_ - none) == (9, 4)


def test_commands_of_a_call_of_a_provider(pool: Pool) -> None:
    """A call of a shared provider costs no more than one of the pool, which reads its list, too."""
    for shared, expected in ((False, (16, 8)), (True, (15, 8))):
        limit = ProviderLimit(100, 60_000_000, 9000, 60_000_000, 50, shared=shared)
        keys, costs = keys_of(pool.keys, "gpt", shared=shared), []
        for call in "ab":
            begun = pool.commands()
            taken = limit_scripts.take(keys, name="gpt", call=call, tokens=9, definition=limit, lease_ms=1000, by="ed")
            assert pool.call(taken).status == "taken"
            runs = pool.commands()
            settled = limit_scripts.settle(
                keys, name="gpt", call=call, used=5, tokens_us=60_000_000, outcome="ok", shared=shared
            )
            assert pool.call(settled).status == "settled"
            costs.append((runs - begun, pool.commands() - runs))
        # The first call lists the provider.
        assert costs[-1] == expected


def test_commands_of_a_task_with_a_budget(pool: Pool) -> None:
    """A call reads each budget once, for any number of tasks; the end of an attempt looks for what it holds."""
    pool.set_budget(usd=1)
    # A pool that has had a command looks for stops, for tasks with and without a budget.
    pool.execute("DEL", pool.keys.desired)
    pool.register(slots=100)
    life(pool, 10, budget="b")
    few, many = life(pool, 10, budget="b"), life(pool, 60, budget="b")
    assert {name: (many[name] - few[name]) / 50 for name in few} == {"submit": 2, "assign": 4, "finish": 5}


def test_commands_of_suspects_with_a_budget(pool: Pool) -> None:
    """Suspects that find no room cost two commands each: their budget is read once per call."""
    pool.set_budget(usd=0)
    pool.register(slots=100)
    costs: list[int] = []
    for count in (2, 12):
        ids = pool.put(*[row(budget="b") for _ in range(count)])
        for id_ in ids:
            pool.execute("HSET", pool.keys.task(id_), "group", "1")
        pool.assign()
        before = pool.commands()
        assert pool.take_suspects() == []
        costs.append(pool.commands() - before)
        pool.cancel(*ids)
    assert (costs[1] - costs[0]) / 10 == 2
