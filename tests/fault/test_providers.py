"""A worker that is killed inside calls of a provider: its places become free, and those of the living stay taken."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.fault.provider_agents import PROVIDER
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

pytestmark = pytest.mark.slow

AGENT = "tests.fault.provider_agents:caller"
WAIT_S = 30


async def test_a_dead_worker_frees_its_places(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """After `kill -9` inside two calls, the places are free when their leases end, and the tasks run again."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, sweep_s=0.5)
    limits = json.dumps({PROVIDER: {"at_once": 2}})
    keys = pool_keys(settings)
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        stack.enter_context(
            subprocesses.host(settings, attempt_log, processes=1, agents=AGENT, env={"ORC_LIMITS": limits})
        )
        direct = stack.enter_context(redis_server.client())
        async with Orchestrator(settings=settings) as orc:
            held = [await orc.submit("call", {"for_s": 600.0}) for _ in range(2)]
            await wait_for(lambda: len(attempt_log.notes("called")) == 2, "two calls", WAIT_S)
            # Longer than a lease, which the worker renews.
            began_s = time.monotonic()
            refused = await orc.submit("call")
            await wait_for(lambda: time.monotonic() > began_s + 2, "more than a lease", WAIT_S)
            assert direct.zcount(keys.provider_leases(PROVIDER), time.time() * 1e6, "+inf") == 2
            assert attempt_log.notes("called", task=refused.id) == []
            os.kill(attempt_log.notes("called")[0].pid, signal.SIGKILL)
            for handle in (*held, refused):
                assert await handle.result(WAIT_S) in {1, 2}
        # The two calls that died are kept for an hour, without a place.
        assert direct.zcount(keys.provider_leases(PROVIDER), time.time() * 1e6, "+inf") == 0
        assert direct.hlen(keys.provider_calls(PROVIDER)) <= 2
        assert find_violations(direct, keys) == []


async def test_a_dead_worker_frees_places_for_another_pool(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """After `kill -9` inside two calls, a call of another pool that shares the provider gets a place."""
    east = make_settings(redis_server.url, prefix, leader_lease_s=1.0, sweep_s=0.5)
    west = east.model_copy(update={"pool": "west"})
    env = {"ORC_LIMITS": json.dumps({PROVIDER: {"at_once": 2, "shared": True}})}
    with ExitStack() as stack:
        for settings in (east, west):
            stack.enter_context(subprocesses.supervisor(settings))
            stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENT, env=env))
        async with Orchestrator(settings=east) as orc, Orchestrator(settings=west) as other:
            held = [await orc.submit("call", {"for_s": 600.0}) for _ in range(2)]
            await wait_for(lambda: len(attempt_log.notes("called")) == 2, "two calls", WAIT_S)
            began_s = time.monotonic()
            refused = await other.submit("call")
            await wait_for(lambda: time.monotonic() > began_s + 2, "more than a lease", WAIT_S)
            assert attempt_log.notes("called", task=refused.id) == []
            os.kill(attempt_log.notes("called")[0].pid, signal.SIGKILL)
            for handle in (*held, refused):
                assert await handle.result(WAIT_S) in {1, 2}
