"""Trees of tasks on an agent with one slot per worker, while workers are killed and drained (protocol rule 32)."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from orchestrator import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import redis

    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

AGENTS: Final = "tests.fault.family_agents:family"
LEVELS, WIDTH = 5, 2
TASKS: Final = 2**LEVELS - 1


@dataclass(slots=True)
class Pool:
    """A client, and the keys of its pool."""

    orc: Orchestrator
    direct: redis.Redis
    keys: PoolKeys

    def workers(self) -> dict[str, int]:
        """Registered workers with their process ids."""
        return subprocesses.workers_of(self.direct, self.keys, "family")

    def lending(self) -> list[str]:
        """The workers that state lent slots."""
        return [name for name in self.workers() if self.direct.hexists(self.keys.worker(name), "lent:family")]

    async def check(self) -> None:
        """Nothing is lent, and nothing is left behind."""
        await wait_for(lambda: not self.direct.exists(self.keys.lent("family")), "nothing to be lent", 10)
        assert find_violations(self.direct, self.keys) == []


@pytest.fixture
def open_pool(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> Callable[[int], AbstractAsyncContextManager[Pool]]:
    """Give what opens a pool with so many worker processes."""

    @asynccontextmanager
    async def pool(processes: int) -> AsyncIterator[Pool]:
        settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, drain_s=30.0)
        with ExitStack() as stack:
            direct = stack.enter_context(redis_server.client())
            stack.enter_context(subprocesses.supervisor(settings))
            host = subprocesses.host(settings, attempt_log, processes=processes, agents=AGENTS)
            stack.enter_context(host)
            async with Orchestrator(settings=settings) as orc:
                opened = Pool(orc, direct, pool_keys(settings))
                await wait_for(lambda: len(opened.workers()) == processes, "the workers to register", 15)
                yield opened

    return pool


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_killed_worker(open_pool: Callable[[int], AbstractAsyncContextManager[Pool]], processes: int) -> None:
    """Parents of a killed worker wait again for the same children; the tree ends, and each task has one result."""
    async with open_pool(processes) as pool:
        tree = {"levels": LEVELS, "width": WIDTH, "sleep_s": 0.02}
        handle = await pool.orc.submit("grow", tree)
        await wait_for(lambda: pool.direct.hlen(pool.keys.lent("family")) >= 3, "parents to wait", 10)
        os.kill(pool.workers()[pool.lending()[0]], signal.SIGKILL)
        assert await handle.result(timeout=60) == TASKS
        await pool.check()


async def test_a_drained_worker(open_pool: Callable[[int], AbstractAsyncContextManager[Pool]]) -> None:
    """Parents of a drained worker wait for their children, which run in the other worker; no attempt is lost."""
    async with open_pool(2) as pool:
        handle = await pool.orc.submit("grow", {"levels": LEVELS, "width": WIDTH, "sleep_s": 0.02})
        await wait_for(lambda: len(pool.lending()) > 0, "a parent to wait", 10)
        name = pool.lending()[0]
        sent = await pool.orc.admin.drain_worker(name)
        assert sent.id
        assert await handle.result(timeout=60) == TASKS
        await pool.check()
