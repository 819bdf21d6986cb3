"""What a plain task costs the server: so many commands within the scripts, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import Verdict, VerdictKind
from tests.lua.pool import USUAL_TTL_S, row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lua.pool import Pool

pytestmark = pytest.mark.both_servers


def life(pool: Pool, count: int) -> dict[str, int]:
    """Commands of each step in the life of plain tasks that go through it together."""
    costs: dict[str, int] = {}

    def step(name: str, work: Callable[[], object]) -> None:
        before = pool.commands()
        work()
        costs[name] = pool.commands() - before

    step("submit", lambda: pool.put(*[row(reply="c1", ttl_s=USUAL_TTL_S) for _ in range(count)]))
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
