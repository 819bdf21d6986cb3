"""Tasks that kill their workers: noticed, named, survived; those that died along with them go on."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orchestrator import Orchestrator, TaskFailed, TaskState
from orchestrator.services import pool_keys
from orchestrator.tasks.model import CancelStatus
from orchestrator.testing.waiting import wait_for
from orchestrator.why.model import Cause
from tests.fault.poison_agents import MEMORY_VARIABLE
from tests.helpers import subprocesses
from tests.helpers.end_state import find_violations
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings
    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

GOOD = 100
SLOTS = 20


@asynccontextmanager
async def poison_team(
    settings: Settings, attempt_log: AttemptLog, *, processes: int = 1
) -> AsyncIterator[tuple[Orchestrator, ActorProcess]]:
    """A supervisor, a host with workers of the poison agent, and a client."""
    with ExitStack() as stack:
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(
            subprocesses.host(
                settings,
                attempt_log,
                processes=processes,
                lease_s=10.0,
                slots=SLOTS,
                agents="tests.fault.poison_agents:poison",
            )
        )
        async with Orchestrator(settings=settings) as orc:
            await wait_for(
                lambda: orc.services.store.execute("EXISTS", pool_keys(settings).agent("poison")),
                lambda: host.describe("its worker to register"),
                15,
            )
            yield orc, host


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told"),
    [("exits", "exit status 3"), ("crashes", "signal SIGSEGV"), ("blocks", "stuck: its event loop had not turned")],
)
async def test_every_kind_of_death_is_named(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, how: str, told: str
) -> None:
    """The dead letter says which workers died of it, when and how; the pool goes on."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, stuck_after_s=1.0, heartbeat_s=0.2)
    async with poison_team(settings, attempt_log) as (orc, host):
        handle = await orc.submit("deadly", {"how": how})
        with pytest.raises(TaskFailed, match="deaths"):
            await handle.result(timeout=30)
        deaths = (await handle.info()).deaths
        assert len(deaths) == 3, deaths
        assert all(told in death for death in deaths), deaths
        assert len({death.split()[1] for death in deaths}) == 3, "three workers"
        assert await (await orc.submit("good", {"seconds": 0})).result(timeout=10) == "good", host.output


async def test_memory_that_runs_out_is_a_failure(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a limit on the process makes itself felt as an exception, the attempt fails; the worker lives on."""
    monkeypatch.setitem(os.environ, MEMORY_VARIABLE, "400")
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    async with poison_team(settings, attempt_log) as (orc, _):
        handle = await orc.submit("greedy")
        with pytest.raises(TaskFailed, match="MemoryError"):
            await handle.result(timeout=20)
        info = await handle.info()
        assert (info.attempts, info.deaths) == (2, ())
        assert await (await orc.submit("good", {"seconds": 0})).result(timeout=10) == "good"
        assert len({note.pid for note in attempt_log.notes("begun")}) == 1


async def test_one_death_delays_no_task(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """A worker is killed: all its tasks run again at the same time, none waits for another of them."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    async with poison_team(settings, attempt_log, processes=2) as (orc, host):
        handles = [await orc.submit("good", {"seconds": 1.5}) for _ in range(SLOTS)]
        await wait_for(lambda: len(attempt_log.notes("begun")) == SLOTS, lambda: host.describe("all to begin"), 15)
        (victim, held), *_ = Counter(note.pid for note in attempt_log.notes("begun")).most_common()
        os.kill(victim, signal.SIGKILL)
        assert [await handle.result(timeout=30) for handle in handles] == ["good"] * SLOTS, host.output
        again = [note.what for note in attempt_log.notes() if note.attempt == 2]
        assert again == ["begun"] * held + ["ended"] * held, "some began only when others had ended"
        assert held >= SLOTS // 2


@pytest.mark.slow
async def test_suspects_hold_no_slot(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """While suspects wait, fresh tasks run; a suspect says what it waits for, and a cancel ends it at once."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    async with poison_team(settings, attempt_log) as (orc, host):
        good = [await orc.submit("good", {"seconds": 3}) for _ in range(SLOTS - 1)]
        poison = await orc.submit("deadly", {"how": "killed"})
        suspects = pool_keys(settings).suspects("skill:good")
        await wait_for(
            lambda: orc.services.store.execute("ZCARD", suspects),
            lambda: host.describe("two deaths, after which some tasks wait"),
            30,
        )
        (waits,) = await orc.services.store.execute("ZRANGE", suspects, -1, -1)
        handle = next(handle for handle in good if handle.id == waits.decode())
        assert await (await orc.submit("good", {"seconds": 0})).result(timeout=10) == "good", host.output
        status = await handle.status()
        assert (status.state, status.detail.cause) == (TaskState.READY, Cause.SUSPECTED), status.why
        assert status.detail.deaths == 2
        assert await handle.cancel("it takes too long") is CancelStatus.ENDED
        assert (await handle.status()).state is TaskState.CANCELLED
        others = [one for one in good if one is not handle]
        assert [await one.result(timeout=60) for one in others] == ["good"] * len(others), host.output
        with pytest.raises(TaskFailed, match="deaths"):
            await poison.result(timeout=30)
        assert await orc.services.store.execute("EXISTS", suspects) == 0


@pytest.mark.slow
async def test_the_innocent_outlive_the_poison(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """Two tasks that kill whoever runs them, among a hundred, twenty at a time: only those two become dead letters."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0)
    async with poison_team(settings, attempt_log) as (orc, host):
        good = [await orc.submit("good", {"seconds": 0.2}) for _ in range(GOOD // 2)]
        poison = [await orc.submit("deadly", {"how": "killed"}) for _ in range(2)]
        good += [await orc.submit("good", {"seconds": 0.2}) for _ in range(GOOD // 2)]
        assert [await handle.result(timeout=60) for handle in good] == ["good"] * GOOD, host.output
        for handle in poison:
            with pytest.raises(TaskFailed, match="deaths"):
                await handle.result(timeout=30)
            deaths = (await handle.info()).deaths
            assert 3 <= len(deaths) <= math.ceil(math.log2(SLOTS)) + 3
            assert ", with" in deaths[0]
            assert ", with" not in deaths[-1], "it did not run alone when it became a dead letter"
        died = [len((await handle.info()).deaths) for handle in good]
        assert sum(died) >= SLOTS // 2, "no task died beside the poison: the fault was not felt"
        assert attempt_log.attempts_run_twice() == []
        with redis_server.client() as direct:
            assert find_violations(direct, pool_keys(settings)) == []
