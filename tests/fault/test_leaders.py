"""Several supervisors: leaders that are frozen, killed, away altogether; limits hold and nothing is assigned twice."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.helpers.end_state import find_violations, records
from tests.helpers.forked_actors import ForkedActors
from tests.helpers.small_workload import GRANTS, WINDOW_S, granted_ms
from tests.helpers.subprocesses import alive, supervisor
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

LEASE_S = 0.6
FREEZES = 6
TIMINGS = {"leader_lease_s": LEASE_S, "sweep_s": 0.5, "heartbeat_s": 0.3}


async def start_worker(forked_actors: ForkedActors, server: RedisServer, prefix: str, attempt_log: AttemptLog) -> int:
    """Start a worker of the small story; its process id."""
    start = partial(forked_actors.start, "worker", "worker", url=server.url, prefix=prefix)
    return await to_thread.run_sync(partial(start, attempt_log=attempt_log.path, timings=TIMINGS))


@pytest.mark.slow
async def test_leaders_are_frozen_again_and_again(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, tmp_path: Path
) -> None:
    """Under load, whoever leads is frozen beyond its lease: every task is assigned once, no window is exceeded."""
    settings = make_settings(redis_server.url, prefix, **TIMINGS)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        forked_actors = stack.enter_context(ForkedActors(tmp_path))
        pair = [stack.enter_context(supervisor(settings, name=name)) for name in ("one", "other")]
        await start_worker(forked_actors, redis_server, prefix, attempt_log)
        async with Orchestrator(settings=settings) as orc:
            ids: list[str] = []

            async def load() -> None:
                for n in range(2000):
                    skill = "stamp" if n % 10 == 0 and n < 200 else "quick"
                    ids.append((await orc.submit(skill, {"n": n})).id)
                    await anyio.sleep(0.002)

            leaders: list[bytes] = []
            async with anyio.create_task_group() as group:
                group.start_soon(load)
                for _ in range(FREEZES):
                    await wait_for(lambda: direct.get(keys.leader) not in {None, *leaders[-1:]}, "a new leader", 5)
                    stored = direct.get(keys.leader)
                    assert isinstance(stored, bytes)
                    leaders.append(stored)
                    frozen = _who(pair, stored)
                    frozen.freeze()
                    asked_s = time.monotonic()
                    await wait_for(lambda: direct.get(keys.leader) not in {None, stored}, "a replacement", 5)  # noqa: B023
                    assert time.monotonic() - asked_s < LEASE_S * 1.5 + 0.5, "it took longer than the lease"
                    frozen.thaw()
            results = [await orc.task(id_).result(timeout=30) for id_ in ids]
            assert results == list(range(2000))
        assert len(set(leaders)) == 2, "only one of them ever led"
        assert attempt_log.runs().most_common(1)[0][1] == 1, "a task was assigned twice"
        assert len(attempt_log.runs()) == 2000
        granted = granted_ms(attempt_log)
        assert len(granted) == 20
        too_near = [b - a for a, b in zip(granted, granted[GRANTS:], strict=False) if b - a < WINDOW_S * 1000 - 1]
        assert too_near == []
        assert not any(b"deaths" in record for record in records(direct, keys).values())
        assert find_violations(direct, keys) == []


def _who(pair: list[ActorProcess], leader: bytes) -> ActorProcess:
    """Whose lease it is: a supervisor's id has its process id."""
    pid = int(leader.decode().split(":")[1])
    return next(one for one in pair if one.pid == pid)


@pytest.mark.slow
async def test_workers_go_on_without_any_supervisor(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, tmp_path: Path
) -> None:
    """What is assigned runs and ends; what must be assigned again waits, and goes on as soon as one comes back."""
    settings = make_settings(redis_server.url, prefix, **TIMINGS)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        forked_actors = stack.enter_context(ForkedActors(tmp_path))
        only = stack.enter_context(supervisor(settings, name="only"))
        pid = await start_worker(forked_actors, redis_server, prefix, attempt_log)
        async with Orchestrator(settings=settings) as orc:
            assert await (await orc.submit("quick", {"n": 0})).result(timeout=10) == 0
            lasting = [await orc.submit("chatty", {"n": n}) for n in range(4)]
            again = await orc.submit("flaky", {"n": 7})
            await wait_for(lambda: len(attempt_log.runs()) == 6, "all to run", 5)
            only.kill()
            waiting = await orc.submit("quick", {"n": 1})
            assert [await handle.result(timeout=5) for handle in lasting] == [0, 1, 2, 3]
            await anyio.sleep(3 * LEASE_S)
            assert direct.hget(keys.task(waiting.id), "state") == b"ready"
            assert direct.hget(keys.task(again.id), "state") in {b"scheduled", b"ready"}
            assert alive(pid)
            stack.enter_context(supervisor(settings, name="next"))
            assert await waiting.result(timeout=10) == 1
            assert await again.result(timeout=10) == 7
        assert attempt_log.attempts_run_twice() == []
        assert find_violations(direct, keys) == []
