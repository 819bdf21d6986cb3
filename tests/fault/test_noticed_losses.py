"""Redis loses writes that it had confirmed: the pool says so. Failovers and restarts without a loss raise no alarm."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.agents import scripts as registry
from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import TaskExpired
from orchestrator.services import open_services
from orchestrator.store.script_files import all_scripts
from orchestrator.supervisor.leader import Leader
from orchestrator.supervisor.loss_check import LossCheck
from orchestrator.tasks.losses import read_losses
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import local_settings
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.embedded.server_binary import ServerBinary
    from orchestrator.tasks.losses import LostWrites


QUICK = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


class Pair:
    """A master and its replica."""

    def __init__(self, stack: ExitStack, binary: ServerBinary) -> None:
        self.master = stack.enter_context(RedisServer(binary, port=0, options=QUICK))
        self.replica = stack.enter_context(RedisServer(binary, port=0, options=QUICK))
        self.direct: redis.Redis = stack.enter_context(self.master.client())
        self.successor: redis.Redis = stack.enter_context(self.replica.client())

    async def join(self) -> None:
        """Attach the replica and wait until it is in step."""
        self.successor.replicaof("127.0.0.1", str(self.master.port))
        await wait_for(
            lambda: self.successor.info("replication").get("master_link_status") == "up", "the replica in step"
        )

    def cut_off(self) -> None:
        """Let the replica miss what comes; it keeps what it has."""
        self.successor.replicaof("127.0.0.1", "1")

    async def fail_over(self, *proxies: FaultProxy) -> None:
        """Kill the master and let its address lead to the replica."""
        self.successor.replicaof("NO", "ONE")
        for proxy in proxies:
            proxy.redirect(self.replica.url)
        await anyio.to_thread.run_sync(self.master.kill)


@pytest.fixture
def pair(binary: ServerBinary) -> Iterator[Pair]:
    """Two servers of one version."""
    with ExitStack() as stack:
        yield Pair(stack, binary)


async def losses_of(settings: Settings) -> LostWrites | None:
    """What the pool says that it has lost."""
    async with open_services(settings, name="test") as services:
        return await read_losses(services.store)


async def lead(settings: Settings) -> None:
    """Request the leader's lease until cancelled, three times per lease."""

    async def nothing() -> None:
        await anyio.sleep_forever()

    async with open_services(settings, name="supervisor") as services:
        await Leader(services, supervisor="s").run(nothing)


def count_requests(direct: redis.Redis, prefix: str) -> int:
    """How many requests for the lease a server knows."""
    found: Any = direct.hget(f"{prefix}:{{pool:default}}:durability", "lease_requests")
    return int(found or 0)


@pytest.mark.parametrize("loses", [True, False], ids=["behind", "in-step"])
async def test_a_client_notices_a_failover_that_lost_its_tasks(
    pair: Pair, prefix: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, *, loses: bool
) -> None:
    """It counts them, the pool shows them, and the handle of a lost one says why. In step nothing is reported."""
    await pair.join()
    async with FaultProxy(pair.master.url) as proxy:
        settings = local_settings(proxy.url, prefix)
        async with Orchestrator(settings=settings) as orc:
            kept = await orc.submit("work")
            assert await anyio.to_thread.run_sync(pair.direct.wait, 1, 2000) == 1
            if loses:
                pair.cut_off()
            later = [await orc.submit("work") for _ in range(3)]
            await anyio.to_thread.run_sync(pair.direct.wait, 1, 200)
            await pair.fail_over(proxy)
            assert (await kept.status()).state == "ready"
            # Other tasks arrive at once: a counter of the pool would have caught up.
            for _ in range(5):
                await orc.submit("work")
            if not loses:
                await wait_for(lambda: looked(proxy), "a look for the tasks")
                assert await losses_of(settings) is None
                assert [(await handle.status()).state for handle in later] == ["ready"] * 3
                return
            await wait_for(lambda: "writes_lost" in caplog.text, "a word about it")
            found = await losses_of(settings)
            assert found is not None
            assert (found.submits, found.reports) == (3, 1)
            with pytest.raises(TaskExpired, match=r"Redis has lost writes .*submit it again"):
                await later[0].result(timeout=0)
        terminal = Terminal(tmp_path, ORC_REDIS__URL=pair.replica.url, ORC_PREFIX=prefix)
        status = await anyio.to_thread.run_sync(terminal.orc, "status")
        assert "3 submits that Redis had confirmed" in status.out
        doctor = await anyio.to_thread.run_sync(terminal.orc, "doctor")
        assert "lost-writes" in doctor.out


def looked(proxy: FaultProxy) -> bool:
    """Whether the client behind a proxy has looked for its tasks."""
    sha = all_scripts()["tasks/find_lost"].sha.encode()
    return any(sha.startswith(record.arguments[0]) for record in proxy.commands("EVALSHA"))


@pytest.mark.parametrize("loses", [True, False], ids=["behind", "in-step"])
async def test_a_supervisor_notices_a_failover_that_lost_writes(
    pair: Pair, prefix: str, caplog: pytest.LogCaptureFixture, *, loses: bool
) -> None:
    """The clients that submitted are gone; the lease was renewed meanwhile."""
    await pair.join()
    async with FaultProxy(pair.master.url) as proxy, anyio.create_task_group() as group:
        settings = local_settings(proxy.url, prefix, supervisor__leader_lease_s=0.3)
        group.start_soon(lead, settings)
        await wait_for(lambda: count_requests(pair.direct, prefix) > 1, "a leader")
        assert await anyio.to_thread.run_sync(pair.direct.wait, 1, 2000) == 1
        if loses:
            pair.cut_off()
        async with Orchestrator(settings=local_settings(pair.master.url, prefix)) as orc:
            await orc.submit_many([Submission("work")] * 7)
        seen = count_requests(pair.direct, prefix)
        await wait_for(lambda: count_requests(pair.direct, prefix) > seen + 1, "two requests")
        await anyio.to_thread.run_sync(pair.direct.wait, 1, 300)
        await pair.fail_over(proxy)
        before = count_requests(pair.successor, prefix)
        await wait_for(lambda: count_requests(pair.successor, prefix) > before + 2, "requests at the new master")
        found = await losses_of(settings)
        if loses:
            assert found is not None
            assert (found.submits, found.reports) == (7, 1)
        else:
            assert found is None
        assert ("writes_lost" in caplog.text) is loses
        group.cancel_scope.cancel()


@pytest.mark.parametrize("loses", [True, False], ids=["behind", "in-step"])
async def test_one_of_two_supervisors_renewed_after_the_lost_writes(
    pair: Pair, prefix: str, caplog: pytest.LogCaptureFixture, *, loses: bool
) -> None:
    """It notices the loss, although the other one asks the new master first; the loss is reported once."""
    await pair.join()
    async with FaultProxy(pair.master.url) as proxy:
        settings = local_settings(proxy.url, prefix)
        async with open_services(settings, name="supervisor") as services:
            checks = {name: LossCheck(services) for name in ("a", "b")}

            async def ask(name: str) -> None:
                call = registry.lead(services.keys, supervisor=name, lease_ms=15_000, last=checks[name].last)
                await checks[name].compare(await services.store.call(call, retry_for_s=10))

            await ask("a")
            await ask("b")
            assert await anyio.to_thread.run_sync(pair.direct.wait, 1, 2000) == 1
            if loses:
                pair.cut_off()
            async with Orchestrator(settings=local_settings(pair.master.url, prefix)) as orc:
                await orc.submit_many([Submission("work")] * 7)
            await ask("b")
            await anyio.to_thread.run_sync(pair.direct.wait, 1, 300)
            await pair.fail_over(proxy)
            for name in "abab":
                await ask(name)
        found = await losses_of(settings)
        assert (found and (found.submits, found.reports)) == ((7, 1) if loses else None)
        assert caplog.text.count("writes_lost") == loses


@pytest.mark.parametrize("fsync", ["always", "lost"])
async def test_a_restart(binary: ServerBinary, prefix: str, caplog: pytest.LogCaptureFixture, fsync: str) -> None:
    """A restart with all of its file is no loss; one without a file lost everything."""
    options = {"appendonly": "yes", "appendfsync": "always"} if fsync == "always" else {}
    with RedisServer(binary, options=options) as server:
        settings = local_settings(server.url, prefix, supervisor__leader_lease_s=0.3)
        async with Orchestrator(settings=settings) as orc, anyio.create_task_group() as group:
            group.start_soon(lead, settings)
            await orc.submit("work")
            with server.client() as direct:
                await wait_for(lambda: count_requests(direct, prefix) > 1, "a leader")
            await anyio.to_thread.run_sync(server.restart)
            await orc.submit("work")
            with server.client() as direct:
                seen = count_requests(direct, prefix)
                await wait_for(lambda: count_requests(direct, prefix) > seen + 2, "requests after the restart")
            found = await losses_of(settings)
            if fsync == "always":
                assert found is None
            else:
                await wait_for(lambda: caplog.text.count("writes_lost") == 2, "both observers to notice")
                found = await losses_of(settings)
                assert found is not None
                assert (found.submits, found.reports) == (1, 2)
            group.cancel_scope.cancel()
