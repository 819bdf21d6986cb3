"""What a task waits for when a process dies or stands still; and once it goes on, the task runs."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Cause, Why
from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.helpers import subprocesses
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import redis

    from orchestrator.client.handle import TaskHandle
    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

LEASE_S = 1.2


class Shop:
    """A supervisor and hosts with one worker each, all in processes of their own."""

    def __init__(
        self, server: RedisServer, prefix: str, attempt_log: AttemptLog, stack: ExitStack, orc: Orchestrator
    ) -> None:
        self.orc, self.settings = orc, orc.services.settings
        self.keys, self._attempt_log, self._stack = pool_keys(self.settings), attempt_log, stack
        self.direct: redis.Redis = stack.enter_context(server.client())
        self.supervisor: ActorProcess = stack.enter_context(subprocesses.supervisor(self.settings))

    async def open(self, *, slots: int = 1) -> dict[str, int]:
        """Start a host; its worker with the process id."""
        before = self.workers()
        agents = "tests.fault.crashing_agents:crasher"
        host = subprocesses.host(
            self.settings, self._attempt_log, processes=1, lease_s=LEASE_S, slots=slots, agents=agents
        )
        self._stack.enter_context(host)
        await wait_for(lambda: self.workers().keys() - before, lambda: host.describe("its worker"), 15)
        return {id_: pid for id_, pid in self.workers().items() if id_ not in before}

    def workers(self) -> dict[str, int]:
        """The registered workers with their process ids."""
        return subprocesses.workers_of(self.direct, self.keys, "crasher")

    async def comes_to(self, handle: TaskHandle[Any], cause: Cause, words: str = "") -> Why:
        """Wait until a task waits for this, in these words."""
        seen: list[Why] = []

        async def is_there() -> bool:
            seen.append((await handle.status()).detail)
            return seen[-1].cause is cause and words in seen[-1].text

        await wait_for(is_there, lambda: f"{cause} {words}; it is {seen[-1]}", 10)
        return seen[-1]


@pytest.fixture
async def shop(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> AsyncIterator[Shop]:
    """A supervisor that leads, and nobody else yet."""
    settings = make_settings(redis_server.url, prefix, heartbeat_s=0.4, leader_lease_s=20.0, sweep_s=1.5)
    with ExitStack() as stack:
        async with Orchestrator(settings=settings) as orc:
            shop = Shop(redis_server, prefix, attempt_log, stack, orc)
            leads = shop.supervisor.describe
            await wait_for(lambda: shop.direct.exists(shop.keys.leader), lambda: leads("to lead"), 15)
            yield shop


@pytest.mark.slow
async def test_silent_worker(shop: Shop, gate: Path) -> None:
    """A task whose worker stands still is in silent hands until its lease runs out; then another worker has it."""
    ((worker, pid),) = (await shop.open()).items()
    handle = await shop.orc.submit("hold", {"gate": str(gate)})
    await shop.comes_to(handle, Cause.RUNNING)
    os.kill(pid, signal.SIGSTOP)
    found = await shop.comes_to(handle, Cause.WORKER_SILENT, "agent 'crasher' has no other worker, start one with")
    assert (found.worker, found.pid, found.agent) == (worker, pid, "crasher")
    assert found.seen is not None
    assert found.until is not None
    # The time that everybody gets after a gap in the looks may be added: a lease.
    assert timedelta(seconds=LEASE_S - 0.5) < found.until - found.seen < timedelta(seconds=2 * LEASE_S + 0.5)
    os.kill(pid, signal.SIGCONT)
    await shop.comes_to(handle, Cause.RUNNING)
    ((other, _),) = (await shop.open()).items()
    os.kill(pid, signal.SIGSTOP)
    found = await shop.comes_to(handle, Cause.WORKER_SILENT, "another worker of agent 'crasher' takes it")
    running = await shop.comes_to(handle, Cause.RUNNING)
    assert running.worker == other
    assert running.attempt is not None
    assert running.attempt > 1
    assert found.until is not None
    assert running.since is not None
    assert timedelta() <= running.since - found.until < timedelta(seconds=LEASE_S)
    await anyio.Path(gate).touch()
    assert await handle.result(10) == "held"


async def test_cancelled_on_a_silent_worker(shop: Shop, gate: Path) -> None:
    """A task that is cancelled while its worker stands still says that it ends with the lease; if not before."""
    ((worker, pid),) = (await shop.open()).items()
    handle = await shop.orc.submit("hold", {"gate": str(gate)})
    await shop.comes_to(handle, Cause.RUNNING)
    os.kill(pid, signal.SIGSTOP)
    assert await handle.cancel("too slow") == "signalled"
    found = await shop.comes_to(handle, Cause.CANCELLING, "it ends when its lease has run out at ")
    assert (found.reason, found.worker) == ("too slow", worker)
    assert found.until is not None
    os.kill(pid, signal.SIGCONT)
    found = await shop.comes_to(handle, Cause.ENDED)
    assert found.text.endswith("ago): too slow")


@pytest.mark.slow
async def test_nobody_reads_the_inbox(shop: Shop, gate: Path) -> None:
    """A task in an inbox whose workers stand still is unread; once they are gone it is back in its queue."""
    ((worker, pid),) = (await shop.open(slots=2)).items()
    os.kill(pid, signal.SIGSTOP)
    # The read that the worker was frozen in may swallow one.
    swallowed = await shop.orc.submit("hold", {"gate": str(gate)})
    await wait_for(lambda: shop.direct.xlen(shop.keys.inbox("crasher")) == 1, "the first one to be assigned")
    handle = await shop.orc.submit("hold", {"gate": str(gate)})
    found = await shop.comes_to(handle, Cause.UNREAD)
    assert (found.agent, found.slots) == ("crasher", 2)
    assert found.since is not None
    assert datetime.now(UTC) - found.since < timedelta(seconds=5)
    await shop.comes_to(handle, Cause.UNREAD, "its workers are silent, the last sign of life came ")
    await shop.comes_to(handle, Cause.NO_AGENT)
    assert worker not in shop.workers()
    await shop.open(slots=2)
    await shop.comes_to(handle, Cause.RUNNING)
    await anyio.Path(gate).touch()
    for one in (swallowed, handle):
        assert await one.result(10) == "held"


async def test_recovering(shop: Shop) -> None:
    """From the second death on a task pauses, and says who died with it, how often, and how often that may happen."""
    await shop.open()
    handle = await shop.orc.submit("deadly", {"deaths": 3})
    found = await shop.comes_to(handle, Cause.RECOVERING)
    assert found.deaths is not None
    assert found.deaths >= 2
    assert (found.max_deaths, found.reason) == (6, (await handle.info()).deaths[found.deaths - 1].partition(" ")[2])
    assert found.text.startswith(f"{found.deaths} workers of at most 6 died with it, the last one: ")
    assert found.until is not None
    assert found.until > datetime.now(UTC) - timedelta(seconds=1)
    assert await handle.result(30) == 4


async def test_its_turn(shop: Shop, gate: Path) -> None:
    """A task that nothing holds waits for the supervisor alone, which is named; when that goes on, the task runs."""
    await shop.open()
    shop.supervisor.freeze()
    first, second = [await shop.orc.submit("hold", {"gate": str(gate)}) for _ in range(2)]
    found = await shop.comes_to(second, Cause.TURN)
    assert found.ahead == 1
    assert found.supervisor is not None
    assert (
        found.text
        == f"nothing holds it back, 1 task stands before it; supervisor {found.supervisor} assigns it in its turn"
    )
    due = await shop.orc.submit("hold", {"gate": str(gate)}, delay=0.1)
    assert "it is due" in (await shop.comes_to(due, Cause.TURN)).text
    shop.supervisor.signal(signal.SIGCONT)
    await shop.comes_to(first, Cause.RUNNING)
    await shop.comes_to(due, Cause.NO_ROOM)
    await anyio.Path(gate).touch()
    for handle in (first, second, due):
        assert await handle.result(10) == "held"
