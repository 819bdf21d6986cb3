"""Worker processes that are killed, stopped, frozen; their host killed; a supervisor killed beside another."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.helpers import subprocesses
from tests.helpers.end_state import counters, find_violations
from tests.helpers.subprocesses import alive
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import redis

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog


@dataclass(slots=True)
class Pool:
    """A supervisor, a host with worker processes, and a client of this process."""

    orc: Orchestrator
    host: ActorProcess
    settings: Settings
    keys: PoolKeys
    direct: redis.Redis
    attempt_log: AttemptLog

    def workers(self) -> dict[str, int]:
        """Registered workers with their process ids."""
        return subprocesses.workers_of(self.direct, self.keys)

    async def hold(self, count: int, gate: Path) -> list[TaskHandle[Any]]:
        """Let `count` tasks run that end when the gate opens."""
        handles = [await self.orc.submit("hold", {"gate": str(gate)}) for _ in range(count)]
        await wait_for(lambda: len(self.attempt_log.notes("begun")) >= count, "all to run", 10)
        return handles

    def check(self) -> None:
        """No attempt ran twice, nothing is left behind."""
        assert self.attempt_log.attempts_run_twice() == []
        assert find_violations(self.direct, self.keys) == []


@pytest.fixture
def open_pool(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> Callable[..., Any]:
    """Give what opens a pool; its arguments are those of the host."""

    @asynccontextmanager
    async def pool(
        *, processes: int, lease_s: float = 15.0, slots: int = 20, drain_s: float = 10.0
    ) -> AsyncIterator[Pool]:
        settings = make_settings(redis_server.url, prefix, drain_s=drain_s, leader_lease_s=1.0)
        with ExitStack() as stack:
            direct = stack.enter_context(redis_server.client())
            stack.enter_context(subprocesses.supervisor(settings))
            host = stack.enter_context(
                subprocesses.host(settings, attempt_log, processes=processes, lease_s=lease_s, slots=slots)
            )
            async with Orchestrator(settings=settings) as orc:
                opened = Pool(orc, host, settings, pool_keys(settings), direct, attempt_log)
                await wait_for(
                    lambda: len(opened.workers()) == processes, lambda: host.describe("its workers to register"), 15
                )
                await wait_for(lambda: direct.exists(opened.keys.leader), "a supervisor that leads", 15)
                yield opened

    return pool


async def test_a_killed_worker_process_costs_milliseconds(open_pool: Callable[..., Any], gate: Path) -> None:
    """After kill -9 its host gives its tasks back at once, each with one death, and replaces it; no lease passes."""
    async with open_pool(processes=2, lease_s=30.0, slots=8) as pool:
        handles = await pool.hold(12, gate)
        before = pool.workers()
        victim = pool.attempt_log.notes("begun")[0].pid
        hit = {note.task for note in pool.attempt_log.notes("begun") if note.pid == victim}
        assert 0 < len(hit) < 12, "both workers should have had some"
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        await wait_for(
            lambda: sum(pool.attempt_log.runs()[task] > 1 for task in hit), "the first of them to run again", 5
        )
        took_s = time.monotonic() - killed_s
        assert took_s < 3, "milliseconds on a quiet machine, and a fraction of the lease on any"
        await anyio.Path(gate).touch()
        assert [await handle.result(timeout=20) for handle in handles] == ["held"] * 12
        assert pool.attempt_log.runs() == {handle.id: 1 + (handle.id in hit) for handle in handles}
        for handle in handles:
            assert len((await handle.info()).deaths) == (handle.id in hit)
        # The registration of the killed one may stay for a moment.
        await wait_for(lambda: len(pool.workers()) == 2 and pool.workers() != before, "a replacement", 10)
        assert counters(pool.direct, pool.keys)["succeeded"] == 12
        pool.check()


@pytest.mark.parametrize("dies", ["worker", "host"])
async def test_a_hundred_tasks_in_flight(open_pool: Callable[..., Any], gate: Path, dies: str) -> None:
    """A killed worker's run again at once, those of a whole killed host after their lease; each ends once."""
    lease_s = 30.0 if dies == "worker" else 1.5
    async with open_pool(processes=1, lease_s=lease_s, slots=100) as pool:
        handles = await pool.hold(100, gate)
        (pid,) = pool.workers().values()
        killed_s = time.monotonic()
        if dies == "worker":
            os.kill(pid, signal.SIGKILL)
            bound_s = 3.0  # milliseconds on a quiet machine; benchmarks/ measures it
        else:
            pool.host.kill()
            os.kill(pid, signal.SIGKILL)
            bound_s = lease_s + 5
        await anyio.Path(gate).touch()
        with ExitStack() as stack:
            if dies == "host":
                stack.enter_context(
                    subprocesses.host(pool.settings, pool.attempt_log, processes=1, lease_s=lease_s, slots=100)
                )
            assert [await handle.result(timeout=20) for handle in handles] == ["held"] * 100
            assert time.monotonic() - killed_s < bound_s
            assert set(pool.attempt_log.runs().values()) == {2}, "each died once and ran once more"
            assert counters(pool.direct, pool.keys)["succeeded"] == 100
            pool.check()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_counts_of_a_worker_that_ends(open_pool: Callable[..., Any], gate: Path, number: signal.Signals) -> None:
    """A killed worker loses the counts since its last heartbeat and no others; a stopped one loses none."""
    async with open_pool(processes=1) as pool:
        await anyio.Path(gate).touch()

        async def run(count: int) -> None:
            handles = [await pool.orc.submit("hold", {"gate": str(gate)}) for _ in range(count)]
            assert [await handle.result(timeout=20) for handle in handles] == ["held"] * count

        async def counted() -> int:
            return sum(one.timings.attempts for one in await pool.orc.stats())

        async def first_counted() -> bool:
            return await counted() == 5

        await run(5)
        await wait_for(first_counted, "a heartbeat")
        await run(5)
        (pid,) = pool.workers().values()
        os.kill(pid, number)
        await wait_for(lambda: pid not in pool.workers().values(), "its end", 10)
        found = await counted()
        assert (5 <= found <= 10) if number is signal.SIGKILL else (found == 10)


async def test_a_task_that_kills_its_workers_becomes_a_dead_letter(open_pool: Callable[..., Any], gate: Path) -> None:
    """After `max_deaths` deaths it is dead, and says which workers died with it."""
    async with open_pool(processes=1, lease_s=30.0) as pool:
        (handle,) = await pool.hold(1, gate)
        for death in (1, 2):
            await wait_for(lambda: len(pool.attempt_log.notes("begun")) == death, "it to run", 10)  # noqa: B023
            os.kill(pool.attempt_log.notes("begun")[-1].pid, signal.SIGKILL)
        await wait_for(lambda: pool.direct.hget(pool.keys.task(handle.id), "state") == b"dead", "its end", 10)
        info = await handle.info()
        assert len(info.deaths) == 2
        assert all("SIGKILL" in death for death in info.deaths)
        pool.check()


async def test_sigterm_lets_running_tasks_finish(open_pool: Callable[..., Any], gate: Path) -> None:
    """Those that run finish, what waits stays in its queue, and the host ends with 0."""
    async with open_pool(processes=2, slots=2) as pool:
        running = await pool.hold(4, gate)
        waiting = [await pool.orc.submit("echo", {"n": n}) for n in range(6)]
        pool.host.terminate()
        await wait_for(lambda: "worker_stop_requested" in pool.host.output, "the drain to begin")
        await anyio.Path(gate).touch()
        assert [await handle.result(timeout=10) for handle in running] == ["held"] * 4
        assert await anyio.to_thread.run_sync(pool.host.wait_exit) == 0, pool.host.output
        assert pool.workers() == {}
        assert all(count == 1 for count in pool.attempt_log.runs().values())
        for handle in waiting:
            state = pool.direct.hget(pool.keys.task(handle.id), "state")
            assert (handle.id in pool.attempt_log.runs()) == (state == b"succeeded")
            assert state in {b"ready", b"assigned", b"succeeded"}, "the rest waits for the next worker"
        with subprocesses.host(pool.settings, pool.attempt_log, processes=1):
            assert [await handle.result(timeout=10) for handle in waiting] == list(range(6))
        pool.check()


@pytest.mark.slow
async def test_a_second_sigterm_ends_at_once(open_pool: Callable[..., Any], gate: Path) -> None:
    """Tasks that run are given back without an attempt counted, long before the drain would end."""
    async with open_pool(processes=2, drain_s=60.0) as pool:
        handles = await pool.hold(4, gate)
        pool.host.terminate()
        await wait_for(lambda: "worker_stop_requested" in pool.host.output, "the drain to begin")
        assert pool.host.returncode is None, "a drain waits"
        asked_s = time.monotonic()
        pool.host.terminate()
        assert await anyio.to_thread.run_sync(pool.host.wait_exit) == 0, pool.host.output
        assert time.monotonic() - asked_s < 5
        assert len(pool.attempt_log.notes("cancelled")) == 4
        for handle in handles:
            record: Any = pool.direct.hgetall(pool.keys.task(handle.id))
            assert record[b"state"] in {b"ready", b"assigned"}, "in its queue, or unread in the inbox"
            assert b"fails" not in record
            assert b"deaths" not in record
        await anyio.Path(gate).touch()
        with subprocesses.host(pool.settings, pool.attempt_log, processes=1):
            assert [await handle.result(timeout=10) for handle in handles] == ["held"] * 4
        pool.check()


@pytest.mark.slow
async def test_sigterm_before_a_worker_listens_is_an_orderly_end(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """Told to stop in the middle of its start, whenever that is, a host ends with 0."""
    settings = make_settings(redis_server.url, prefix)
    with redis_server.client() as direct:
        for pause_s in (0.0, 0.02, 0.05, 0.1):
            with subprocesses.host(settings, attempt_log, processes=2) as host:
                await wait_for(lambda: _children(host.pid), "its children", 10)
                await anyio.sleep(pause_s)
                host.terminate()
                assert await anyio.to_thread.run_sync(host.wait_exit) == 0, host.output
        assert direct.exists(pool_keys(settings).task("x")) == 0


async def test_a_frozen_worker_loses_its_tasks_and_notices(open_pool: Callable[..., Any], gate: Path) -> None:
    """SIGSTOP for longer than the lease: a peer adopts; thawed, it cancels what it lost, and changes nothing."""
    async with open_pool(processes=2, lease_s=1.0, slots=6) as pool:
        handles = await pool.hold(8, gate)
        # The one that has more of them: the other one has free slots.
        frozen = Counter(note.pid for note in pool.attempt_log.notes("begun")).most_common(1)[0][0]
        hit = {note.task for note in pool.attempt_log.notes("begun") if note.pid == frozen}
        os.kill(frozen, signal.SIGSTOP)
        try:
            await wait_for(
                lambda: any(pool.attempt_log.runs()[task] > 1 for task in hit), "the peer to adopt one of them", 10
            )
        finally:
            os.kill(frozen, signal.SIGCONT)
        lost = {note.task for note in pool.attempt_log.notes("begun") if note.pid != frozen} & hit
        await wait_for(
            lambda: {note.task for note in pool.attempt_log.notes("cancelled") if note.pid == frozen} >= lost,
            "the thawed worker to notice", 5,
        )  # fmt: skip
        assert "lease_lost" in pool.host.output
        await anyio.Path(gate).touch()
        assert [await handle.result(timeout=20) for handle in handles] == ["held"] * 8
        assert counters(pool.direct, pool.keys)["succeeded"] == 8
        pool.check()


@pytest.mark.slow
async def test_a_host_that_was_stopped_goes_on(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> None:
    """Stopped for longer than it would have slept, it still watches its workers, and ends in order when told to."""
    settings = make_settings(redis_server.url, prefix, stuck_after_s=5.0)
    keys = pool_keys(settings)
    with redis_server.client() as direct, subprocesses.host(settings, attempt_log, processes=1) as host:
        await wait_for(lambda: subprocesses.workers_of(direct, keys), "a worker", 15)
        for _ in range(3):
            host.freeze()
            await anyio.sleep(0.7)  # it sleeps for half a second at most
            host.thaw()
        (pid,) = subprocesses.workers_of(direct, keys).values()
        os.kill(pid, signal.SIGKILL)
        await wait_for(lambda: pid not in _children(host.pid) and _children(host.pid), "a replacement", 10)
        host.terminate()
        assert await anyio.to_thread.run_sync(host.wait_exit) == 0, host.output


async def test_workers_end_by_themselves_when_their_host_is_killed(open_pool: Callable[..., Any], gate: Path) -> None:
    """After kill -9 of the host its workers drain and end as if told to."""
    async with open_pool(processes=2) as pool:
        pids = set(pool.workers().values())
        handles = await pool.hold(4, gate)
        pool.host.kill()
        await anyio.Path(gate).touch()
        assert [await handle.result(timeout=10) for handle in handles] == ["held"] * 4
        await wait_for(lambda: not any(alive(pid) for pid in pids), "the orphans to end", 10)
        assert pool.workers() == {}, pool.host.output
        pool.check()


@pytest.mark.slow
async def test_a_standby_takes_over_from_a_killed_supervisor(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """After kill -9 of the leader the other one assigns before much more than its lease has passed."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, sweep_s=1.0)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        leader = stack.enter_context(subprocesses.supervisor(settings, name="leader"))
        await wait_for(lambda: direct.get(keys.leader), "a leader", 10)
        stack.enter_context(subprocesses.supervisor(settings, name="standby"))
        stack.enter_context(subprocesses.host(settings, attempt_log, processes=1))
        await wait_for(lambda: subprocesses.workers_of(direct, keys), "a worker", 10)
        async with Orchestrator(settings=settings) as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=5) == 1
            before = direct.get(keys.leader)
            killed_s = time.monotonic()
            leader.kill()
            assert await (await orc.submit("echo", {"n": 2})).result(timeout=5) == 2
            assert time.monotonic() - killed_s < 2.5
            assert direct.get(keys.leader) != before
        assert find_violations(direct, keys) == []


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
