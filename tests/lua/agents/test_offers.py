"""lua/includes/registry.lua: what an agent offers follows its workers, at the same cost for any number of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from orchestrator.agents.model import SkillVersion
from tests.lua.pool import Team

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

ALIVE_S = 20


def derived(pool: Pool, agent: str = "ed") -> dict[str, str]:
    """What an agent offers, from the rows of its workers: the definition, without counts."""
    rows = [(w.decode(), row.decode().split(" ")) for w, row in _pairs(pool, pool.keys.agent_workers(agent))]
    live = [(worker, row) for worker, row in rows if row[0] != "0"]
    leases = {worker.decode(): int(ms) for worker, ms in _pairs(pool, pool.keys.leases(agent))}
    skills = [set(row[2:]) - {""} for _, row in live]
    versions: set[str] = set()
    for worker, _ in live:
        versions |= set((pool.execute("HGET", pool.keys.worker(worker), f"versions:{agent}") or b"").decode().split())
    facts = {
        "slots": str(sum(int(row[0]) for _, row in live)),
        "backlog": str(min([int(row[1]) for _, row in live], default=0)),
        "skills": " ".join(sorted(set.intersection(*skills))) if skills else "",
        "versions": " ".join(sorted(versions)),
    }
    if rows:
        longest = max(leases[worker] for worker, _ in rows)
        shortest = min([leases[worker] for worker, _ in live], default=longest)
        facts |= {"lease_ms": str(longest), "shortest_lease_ms": str(shortest)}
    return facts


def _pairs(pool: Pool, key: str) -> list[tuple[bytes, bytes]]:
    flat = pool.execute("HGETALL", key)
    return list(zip(flat[::2], flat[1::2], strict=True))


def stored(pool: Pool, agent: str = "ed") -> dict[str, str]:
    """What the registry says that an agent offers."""
    found = pool.agent(agent)
    return {
        name: found[name].lstrip("0") if name == "shortest_lease_ms" else found[name] for name in derived(pool, agent)
    }


def old_program(pool: Pool, change: Callable[[], object]) -> None:
    """Change a row as a program without counts does: it derives the agent from all rows."""
    counts = pool.execute("HGETALL", pool.keys.offers("ed"))
    change()
    pool.execute("DEL", pool.keys.offers("ed"))
    if counts:
        pool.execute("HSET", pool.keys.offers("ed"), *counts)
        pool.execute("EXPIRE", pool.keys.offers("ed"), 86_400)
    fields = derived(pool)
    pool.execute("HSET", pool.keys.agent("ed"), *[part for pair in fields.items() for part in pair])
    skills = set(fields["skills"].split())
    for skill in "abc":
        pool.execute("ZADD" if skill in skills else "ZREM", pool.keys.skill(skill), *["0"][: skill in skills], "ed")


def fall_silent(pool: Pool) -> None:
    """Time passes, and a supervisor forgets the workers that sent no heartbeat."""
    pool.sleep(8000)
    pool.expire(alive_s=ALIVE_S)


@pytest.mark.parametrize("old_share", [0.0, 0.3], ids=["new-programs", "mixed-programs"])
def test_follows_its_workers(pool: Pool, old_share: float) -> None:
    """Workers come, change, drain, go and fall silent, some of them in older programs: the agent is their sum."""
    for seed in range(4):
        pool.start_afresh()
        dice = random.Random(seed)
        for _ in range(60):
            worker = f"w{dice.randrange(6)}"
            version = SkillVersion(f"d{dice.randrange(3)}", ("text",))
            team = Team(
                skills=frozenset(dice.sample("abc", dice.randrange(4))) | {"sum"},
                lease_ms=dice.choice([5000, 15_000, 30_000]),
                version=version,
            )
            slots, backlog = dice.randrange(4), dice.randrange(2)
            steps: list[Callable[[], object]] = [
                lambda: pool.register(worker, team, slots=slots, backlog=backlog),  # noqa: B023
                lambda: pool.heartbeat(worker, ("ed", backlog)),  # noqa: B023
                lambda: pool.deregister(worker),  # noqa: B023
                lambda: fall_silent(pool),
            ]
            step = dice.choices(steps, [4, 4, 1, 1])[0]
            if dice.random() < old_share:
                old_program(pool, step)
                continue
            step()
            if pool.execute("EXISTS", pool.keys.agent("ed")):
                rows = pool.execute("HKEYS", pool.keys.agent_workers("ed"))
                if old_share == 0.0 or worker.encode() in rows:
                    assert stored(pool) == derived(pool)
        if old_share == 0.0:
            assert pool.repair_registry(("agent", "ed")) == []


def test_cost_does_not_grow(pool: Pool) -> None:
    """A registration, a wish, a drain and a leave cost the same beside 3 and beside 300 workers of the agent."""
    costs: list[list[int]] = []
    known = 0
    for count in (3, 300):
        for i in range(known, count):
            pool.register(f"w{i}", slots=2)
        known = count
        pool.register("changing")
        costs.append([])
        for change in (
            lambda: pool.register("changing", slots=3),
            lambda: pool.heartbeat("changing", ("ed", 1)),
            lambda: pool.register("changing", slots=0),
            lambda: pool.deregister("changing"),
            lambda: pool.register("changing"),
        ):
            before = pool.commands()
            change()
            costs[-1].append(pool.commands() - before)
        pool.deregister("changing")
    assert costs[0] == costs[1]


def test_a_wish_that_changes_nothing_wakes_nobody(pool: Pool) -> None:
    """While one worker wishes no backlog, the wishes of the others change nothing, and supervisors sleep on."""
    pool.register("w1")
    pool.register("w2")
    pool.notifications()
    pool.heartbeat("w1", ("ed", 1))
    assert (pool.agent()["backlog"], pool.notifications()) == ("0", [])
    pool.heartbeat("w2", ("ed", 1))
    assert (pool.agent()["backlog"], pool.notifications()) == ("1", ["agent:ed"])
