"""Durability of submits: each level on real servers, what the handle says, and submits that miss their level."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.client.client import Orchestrator
from orchestrator.client.task_actions import delete_tasks
from orchestrator.core.durability import Durability
from orchestrator.core.errors import (
    ConfigError,
    InvalidInput,
    NotDurable,
    QueueFull,
    ServerUnavailable,
    SubmitRefused,
    UpgradeUnfinished,
)
from orchestrator.core.formats import Feature, Floor
from orchestrator.sync import Orchestrator as BlockingOrchestrator
from orchestrator.sync import TaskHandle as BlockingHandle
from orchestrator.tasks.flows import Flow
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for, wait_until
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.server_matrix import REDIS_7, VALKEY, binary_of
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    import redis

    from orchestrator.core.durability import Level
    from orchestrator.core.settings import Settings

PREFIX = "durable:test:t"
FILE = {"appendonly": "yes", "appendfsync": "always"}
REACHED: dict[Level, Durability] = {
    "fsync": Durability("fsync", "fsync", fsyncs=1),
    "replicated": Durability("replicated", "replicated", replicas=1),
}


class Pair:
    """A master with an append-only file, and its replica."""

    def __init__(self, stack: ExitStack) -> None:
        quick = {"repl-diskless-sync-delay": "0"}
        self.master = stack.enter_context(RedisServer(port=0, options=FILE | quick))
        self.replica = stack.enter_context(RedisServer(port=0, options=quick))
        self.direct: redis.Redis = stack.enter_context(self.master.client())
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", str(self.master.port))
        wait_until(lambda: self.direct.wait(1, 10) == 1 and self._listed(), "a replica in step")

    def _listed(self) -> bool:
        return bool(self.direct.info("replication").get("connected_slaves"))

    def settings(self, **changed: Any) -> Settings:
        """Settings of a client of the master."""
        return local_settings(self.master.url, PREFIX, **changed)


@pytest.fixture(scope="module")
def started() -> Iterator[Pair]:
    """The servers of this file."""
    with ExitStack() as stack:
        yield Pair(stack)


@pytest.fixture
def pair(started: Pair) -> Iterator[Pair]:
    """The servers, without data."""
    started.direct.flushall()
    yield started
    started.replica.process.thaw()


def counters_of(pair: Pair) -> dict[str, int]:
    """The counters of durable submits."""
    found: Any = pair.direct.hgetall(f"{PREFIX}:{{pool:default}}:durability")
    return {name.decode(): int(value) for name, value in found.items()}


async def test_each_level_is_reached_and_reported(pair: Pair) -> None:
    """The handle says what the server confirmed; a submit without a level asks for nothing."""
    async with Orchestrator(settings=pair.settings()) as orc:
        assert (await orc.submit("work")).durability is None
        assert (await orc.submit("work", durability="default")).durability is None
        assert counters_of(pair) == {}
        for level, reached in REACHED.items():
            assert (await orc.submit("work", durability=level)).durability == reached
            many = await orc.submit_many([Submission("work", durability=level) for _ in range(600)])
            assert {handle.durability for handle in many} == {reached}
            assert len({handle.id for handle in many}) == 600
        mixed = await orc.submit_many([
            Submission("work"), Submission("work", durability="fsync"), Submission("work", durability="replicated")
        ])  # fmt: skip
        assert [handle.durability and handle.durability.reached for handle in mixed] == [None, "fsync", "replicated"]
        with pytest.raises(InvalidInput, match="durability 'disk' is not known; use default, fsync, replicated"):
            await orc.submit("work", durability="disk")  # type: ignore[call-overload]
    assert counters_of(pair) == {"fsync:asked": 602, "replicated:asked": 602}


async def test_large_arguments(pair: Pair, tmp_path: Path) -> None:
    """Arguments in the payload store are stored before the task is, at each level; those of a refused task go again."""
    text = "x" * 1_200_000

    def stored() -> int:
        return sum(path.is_file() for path in tmp_path.rglob("*"))

    async with Orchestrator(settings=pair.settings(payload__store=tmp_path.as_uri(), queue__max_tasks=1)) as orc:
        for level, reached in REACHED.items():
            handle = await orc.submit("work", {"text": text}, durability=level)
            assert (handle.durability, stored()) == (reached, 1)
            with pytest.raises(QueueFull):
                await orc.submit("work", {"text": text}, durability=level)
            assert stored() == 1
            await handle.cancel()
            await delete_tasks(orc.services, [handle.id])
            assert stored() == 0


async def test_flows(pair: Pair) -> None:
    """A flow is as durable as the settings say, in one call; a refused one is not stored."""
    flow = Flow("durable")
    flow.task("work", after=[flow.task("work") for _ in range(300)])
    async with Orchestrator(settings=pair.settings(queue__durability="fsync")) as orc:
        handle = await orc.submit_flow(flow)
        assert {one.durability for one in handle.handles} == {REACHED["fsync"]}
        flow.task("work", budget="none")
        with pytest.raises(SubmitRefused, match="work-302"):
            await orc.submit_flow(flow)
        await handle.cancel()


@pytest.mark.parametrize("level", ["default", "fsync"])
async def test_a_flow_without_an_answer(pair: Pair, level: Level) -> None:
    """The error names all tasks of the flow, because they are stored together."""
    flow = Flow("durable")
    for _ in range(3):
        flow.task("work")
    settings = pair.settings(queue__durability=level, redis__command_timeout_s=0.3, queue__durable_within_s=0.2)
    async with Orchestrator(settings=settings) as orc:
        await orc.submit("work")
        pair.master.process.freeze()
        try:
            with pytest.raises(ServerUnavailable, match="3 tasks may have arrived") as lost:
                await orc.submit_flow(flow)
        finally:
            pair.master.process.thaw()
        assert len(set(lost.value.task_ids)) == 3


async def test_what_older_programs_do_not_know(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that admits older programs refuses durable tasks, too, that these would not understand."""
    flow = Flow("durable")
    flow.task("work")
    async with Orchestrator(settings=pair.settings(queue__durability="fsync")) as orc:
        submits: dict[Feature, Callable[[], Awaitable[object]]] = {
            Feature.FLOWS: lambda: orc.submit_flow(flow),
            Feature.FAIR_SHARES: lambda: orc.submit("work", fair="acme"),
            Feature.BUDGETS: lambda: orc.submit_many([Submission("work", budget="acme")]),
        }
        for feature, submit in submits.items():
            monkeypatch.setattr(Floor, "admits", lambda _, asked, feature=feature: asked is not feature)
            with pytest.raises(UpgradeUnfinished):
                await submit()
        assert not await orc.tasks.find()


async def test_concurrent_submits_share_a_wait(pair: Pair) -> None:
    """A hundred submits at once are one pipeline."""
    async with Orchestrator(settings=pair.settings()) as orc:
        await orc.submit("work", durability="replicated")
        before = pair.direct.info("commandstats")["cmdstat_wait"]["calls"]
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(lambda: orc.submit("work", durability="replicated"))
        assert pair.direct.info("commandstats")["cmdstat_wait"]["calls"] == before + 1


async def test_the_level_of_the_pool(pair: Pair) -> None:
    """The setting holds for submits and children that name no level; an option overrides it."""
    agent = Agent("parent")
    levels: list[str] = []

    @agent.skill
    async def ask(ctx: TaskContext) -> None:
        for child in (await ctx.submit("other"), await ctx.submit("other", durability="fsync")):
            assert child.durability is not None
            levels.append(child.durability.reached)

    async with run_local_team(pair.settings(queue__durability="replicated")) as team:
        await team.work(agent)
        handle = await team.orc.submit("ask")
        await handle.result(timeout=4)
        assert handle.durability == REACHED["replicated"]
        assert levels == ["replicated", "fsync"]
        assert (await team.orc.submit("ask", durability="default")).durability is None


async def test_a_frozen_replica_is_reported(pair: Pair) -> None:
    """The submit raises with the handle of a task that exists; with a live replica the same submit is confirmed."""
    async with Orchestrator(settings=pair.settings(queue__durable_within_s=0.1)) as orc:
        pair.replica.process.freeze()
        with pytest.raises(NotDurable, match=r"was accepted without durability 'replicated': no replica") as missed:
            await orc.submit("work", key="k", durability="replicated")
        handle = missed.value.handle
        assert handle.durability == missed.value.durability
        assert (handle.durability.reached, handle.durability.replicas) == ("default", 0)
        assert (await handle.status()).state == "ready"
        with pytest.raises(NotDurable, match="2 of 3 tasks were") as many:
            await orc.submit_many([Submission("work", durability="replicated")] * 2 + [Submission("work")])
        assert len({each.id for each in many.value.handles}) == 3
        assert counters_of(pair) == {"replicated:asked": 3, "replicated:missed": 3}
        # A repeat writes nothing of the task, and WAIT after no write of its connection answers 1 at once.
        async with Orchestrator(settings=pair.settings(queue__durable_within_s=0.1)) as other:
            with pytest.raises(NotDurable):
                await other.submit("work", key="k", durability="replicated")
            assert pair.direct.wait(1, 100) == 0, "the replica is not frozen"
            pair.replica.process.thaw()
            again = await other.submit("work", key="k", durability="replicated")
        assert (again.id, again.durability) == (handle.id, REACHED["replicated"])


async def test_each_row_has_the_wait_of_its_own_pipeline(pair: Pair) -> None:
    """A row that was sent again with a crowded lane is confirmed; the row of the first pipeline was not."""
    async with Orchestrator(settings=pair.settings(queue__durable_within_s=0.3)) as orc:
        await orc.submit_many([Submission("work", lane="x")] * 600)
        pair.replica.process.freeze()

        async def thaw() -> None:
            await wait_for(lambda: counters_of(pair).get("replicated:asked") == 3, "the crowded row once more")
            pair.replica.process.thaw()

        async with anyio.create_task_group() as group:
            group.start_soon(thaw)
            with pytest.raises(NotDurable, match="no replica confirmed it") as missed:
                await orc.submit_many([
                    Submission("work", durability="replicated"),
                    Submission("work", durability="replicated", lane="x", on_busy="replace"),
                ])  # fmt: skip
    reached = [handle.durability and handle.durability.reached for handle in missed.value.handles]
    assert reached == ["default", "replicated"]
    assert counters_of(pair) == {"replicated:asked": 3, "replicated:missed": 1}


async def test_a_server_without_the_scripts(pair: Pair) -> None:
    """The first durable submit at a server sends its rows once, and once more after a new connection has no scripts."""
    async with Orchestrator(settings=pair.settings()) as orc:
        for _ in range(2):
            pair.direct.script_flush()
            pair.direct.client_kill_filter(_type="normal", skipme=True)
            pair.direct.config_resetstat()
            await orc.submit("work", durability="replicated")
            assert pair.direct.info("commandstats")["cmdstat_wait"]["calls"] == 1
    assert counters_of(pair) == {"replicated:asked": 2}


async def test_a_refusal_beside_a_miss(pair: Pair) -> None:
    """`SubmitRefused` has the accepted task that missed its level, and the refused one."""
    async with Orchestrator(settings=pair.settings(queue__durable_within_s=0.1, queue__max_tasks=1)) as orc:
        pair.replica.process.freeze()
        with pytest.raises(SubmitRefused, match="1 of 2 tasks were not accepted") as refused:
            await orc.submit_many([Submission("work", durability="replicated")] * 2)
    missed, full = refused.value.outcomes
    assert isinstance(missed, NotDurable)
    assert isinstance(full, QueueFull)
    assert pair.direct.exists(f"{PREFIX}:{{pool:default}}:task:{missed.handle.id}")


async def test_the_blocking_client_and_the_command_line(pair: Pair, tmp_path: Path) -> None:
    """Both give the caller the task that missed its level."""
    settings = pair.settings(queue__durable_within_s=0.1)

    def submit() -> None:
        with BlockingOrchestrator(settings=settings) as orc:
            assert orc.submit("work", durability="replicated").durability == REACHED["replicated"]
            pair.replica.process.freeze()
            with pytest.raises(NotDurable) as missed:
                orc.submit("work", durability="replicated")
            assert isinstance(missed.value.handle, BlockingHandle)
            assert missed.value.handle.status().state == "ready"
            with pytest.raises(NotDurable) as many:
                orc.submit_many([Submission("work", durability="replicated")])
            assert [type(handle) for handle in many.value.handles] == [BlockingHandle]
        terminal = Terminal(
            tmp_path, ORC_REDIS__URL=pair.master.url, ORC_PREFIX=PREFIX, ORC_QUEUE__DURABLE_WITHIN_S="0.1"
        )
        missed_one = terminal.orc("tasks", "submit", "work", "--durability", "replicated")
        assert (missed_one.code, "without durability 'replicated'" in missed_one.err) == (75, True)
        pair.replica.process.thaw()
        assert pair.direct.exists(f"{PREFIX}:{{pool:default}}:task:{missed_one.out.strip()}")
        assert terminal.orc("tasks", "submit", "work", "--durability", "replicated").code == 0

    await anyio.to_thread.run_sync(submit)


async def test_a_connection_that_ends_before_the_wait_does(pair: Pair) -> None:
    """The submit is repeated on a new connection, finds its task, and waits again."""
    async with FaultProxy(pair.master.url) as proxy:
        settings = local_settings(proxy.url, PREFIX, queue__durable_within_s=4)
        async with Orchestrator(settings=settings) as orc, anyio.create_task_group() as group:
            pair.replica.process.freeze()
            handles: list[Any] = []

            async def submit() -> None:
                handles.append(await orc.submit("work", durability="replicated"))

            group.start_soon(submit)
            await wait_for(lambda: pair.direct.info("clients")["blocked_clients"], "the client to wait")
            assert proxy.cut()
            await wait_for(lambda: len(proxy.commands("WAIT")) == 2, "the submit to be repeated")
            pair.replica.process.thaw()
        assert handles[0].durability == REACHED["replicated"]
    assert counters_of(pair) == {"replicated:asked": 2}
    assert pair.direct.hget(f"{PREFIX}:{{pool:default}}:stats:TOTAL", "submitted") == b"1"


@pytest.mark.every_server
async def test_fsync_without_a_file_is_refused(redis_server: RedisServer, prefix: str) -> None:
    """Nothing is stored by a submit that the server cannot confirm."""
    settings = local_settings(redis_server.url, prefix)
    async with Orchestrator(settings=settings) as orc:
        with pytest.raises(ConfigError, match="'fsync' needs an append-only file; set appendonly yes"):
            await orc.submit("work", durability="fsync")
        with pytest.raises(ConfigError, match="needs an append-only file"):
            await orc.submit_many([Submission("work", durability="fsync")])
        assert await orc.tasks.find() == ()


@pytest.mark.parametrize(
    ("which", "why"), [(REDIS_7, r"Redis 7\.0\.\d+ has none"), (VALKEY, "that of Valkey .* confirms writes too early")]
)
async def test_fsync_without_waitaof(prefix: str, which: str, why: str) -> None:
    """Some servers confirm the disk only with `appendfsync always`, and a change of that is noticed at once."""
    with RedisServer(binary_of(which), options={"appendonly": "yes"}) as server, server.client() as direct:
        async with Orchestrator(settings=local_settings(server.url, prefix)) as orc:
            with pytest.raises(ConfigError, match=f"{why}; install Redis 7\\.2 or newer, or set appendfs"):
                await orc.submit("work", durability="fsync")
            direct.config_set("appendfsync", "always")
            assert (await orc.submit("work", durability="fsync")).durability == REACHED["fsync"]
            direct.config_set("appendfsync", "everysec")
            with pytest.raises(NotDurable, match="no longer has appendonly yes and appendfsync always"):
                await orc.submit("work", durability="fsync")
            direct.config_set("appendfsync", "always")
            # The users of config/acl.conf have no CONFIG GET, which shows passwords, too.
            direct.acl_setuser("client", enabled=True, passwords=["+pw"], keys="*", channels="*", commands=["+@all"])
            direct.execute_command("ACL", "SETUSER", "client", "-config")
            limited = server.url.replace("unix://", "unix://client:pw@")
            async with Orchestrator(settings=local_settings(limited, prefix)) as other:
                with pytest.raises(ConfigError, match=r"this user may not read appendfsync \(CONFIG GET\); install"):
                    await other.submit("work", durability="fsync")


async def test_fsync_without_flushes_is_refused(prefix: str) -> None:
    """With `appendfsync no` the system flushes when it wants, so the submit does not wait for it in vain."""
    with RedisServer(options={"appendonly": "yes", "appendfsync": "no"}) as server, server.client() as direct:
        async with Orchestrator(settings=local_settings(server.url, prefix)) as orc:
            with pytest.raises(ConfigError, match="not reached with appendfsync no; set appendfsync everysec or alw"):
                await orc.submit("work", durability="fsync")
            assert await orc.tasks.find() == ()
            direct.config_set("appendfsync", "always")
            assert (await orc.submit("work", durability="fsync")).durability == REACHED["fsync"]
