"""The usual life of a pool on three masters, named by `redis+cluster://`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Message, Record, TaskContext
from orchestrator.doctor.findings import Severity
from orchestrator.doctor.runner import run_server_checks
from orchestrator.testing.waiting import wait_for
from orchestrator.views.backup import open_backup, save_pool
from orchestrator.views.keys import check_keys, count_keys
from orchestrator.views.status import read_status
from orchestrator.views.tasks import list_tasks
from orchestrator.workers.demo.editor import audit
from orchestrator.workers.demo.team import team as demo_agents
from orchestrator.workers.testing import Team
from tests.faultkit.clusters import run_cluster
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orchestrator.core.settings import Settings
    from tests.faultkit.clusters import Cluster
    from tests.helpers.local_team import LocalTeam

SESSIONS = [f"s {number}" for number in range(6)]


@pytest.fixture(scope="module")
def three_masters() -> Iterator[Cluster]:
    """Three masters."""
    with run_cluster() as running:
        yield running


@pytest.fixture
def cluster(three_masters: Cluster) -> Iterator[Cluster]:
    """The same, empty afterwards, and all scripts forgotten."""
    yield three_masters
    three_masters.clear()
    for node in three_masters.masters():
        three_masters.ask(node, "SCRIPT", "FLUSH")


@pytest.fixture
def settings(cluster: Cluster, prefix: str) -> Settings:
    """Settings of a pool there."""
    return local_settings(cluster.url, prefix)


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A supervisor, and workers that a test starts."""
    async with run_local_team(settings) as running:
        yield running


async def fill(team: LocalTeam) -> None:
    """Give each session a workspace, a chat and an answer, and the agents memories."""
    orc = team.orc
    for number, session in enumerate(SESSIONS):
        async with orc.locks(f"session:{session}").hold("n", wait=0):
            pass
        await orc.chat(session).append([Message({"role": "user", "content": f"hello {number}"})])
        await orc.memory(f"agent{number}").store(Record(step=1, kind="state", content=session))
        await orc.agents.set_state(f"agent{number}", {"status": "idle"})
        await orc.submit("later", {"n": number}, session=session, delay=3600)
    await orc.board("mine").add("ada", 3)


async def test_the_demo(cluster: Cluster, prefix: str, tmp_path: Path) -> None:
    """An audit with its children, their results, its workspace and its reports."""
    (tmp_path / "shop").mkdir()
    for name in ("cart", "price"):
        (tmp_path / "shop" / f"{name}.py").write_text(f'"""{name}."""\n\n\ndef total(n):\n    return n\n')
    async with Team(*demo_agents, url=cluster.url, prefix=prefix, workers=2) as team:
        args = {"path": str(tmp_path / "shop"), "out": str(tmp_path / "out")}
        result = await team.run(audit, args, session="s", skip_time=True)
        assert result.files == 2
        assert {str(task.state) for task in team.submitted()} == {"succeeded"}
    assert (tmp_path / "out" / "report.html").exists()


async def test_scopes_spread(cluster: Cluster, team: LocalTeam) -> None:
    """Sessions, agents and boards are at all masters; the pool is at one. Scripts are loaded where they are needed."""
    for node in cluster.masters():
        cluster.ask(node, "SCRIPT", "FLUSH")
    await fill(team)
    places: dict[str, set[str]] = {}
    for number, node in enumerate(cluster.masters()):
        with node.client() as client:
            for name in client.scan_iter(f"{team.settings.prefix}:*"):
                scope = name.decode().split("{")[1].split("}")[0]
                places.setdefault(scope, set()).add(str(number))
    assert all(len(nodes) == 1 for nodes in places.values())
    spread = {next(iter(nodes)) for scope, nodes in places.items() if scope.startswith(("session:", "agent:"))}
    assert spread == {"0", "1", "2"}
    for node in cluster.masters():
        with node.client() as client:
            assert client.info("memory")["number_of_cached_scripts"] > 0


async def test_children_and_output(team: LocalTeam) -> None:
    """A parent in one session collects its children in others; its output is followed live."""
    agent = Agent("ada", concurrency=8)

    @agent.skill
    async def child(n: int) -> int:
        return n * n

    @agent.skill
    async def parent(ctx: TaskContext) -> int:
        handles = [await ctx.submit("child", {"n": n}, session=f"s {n}") for n in range(5)]
        total = 0
        for handle in handles:
            total += await handle.result(TIMEOUT_S)
            await ctx.emit(total)
        return total

    await team.work(agent)
    handle = await team.orc.submit("parent", session="s")
    heard = [entry.data async for entry in handle.output()]
    assert heard == [0, 1, 5, 14, 30]
    assert await handle.result(TIMEOUT_S) == 30


async def test_a_stop_is_acknowledged(team: LocalTeam) -> None:
    """Every worker answers, and nothing starts before the start command."""
    agent = Agent("ada")

    @agent.skill
    async def work() -> int:
        return 1

    await team.work(agent)
    sent = await team.orc.admin.stop(reason="for a test")
    receipts = await sent.receipts(timeout=TIMEOUT_S)
    assert receipts.complete
    await team.orc.admin.start()
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == 1


async def test_a_waiter_of_a_lock(team: LocalTeam) -> None:
    """A lock of each session goes to the waiter that blocks where the session is."""
    other = await team.client()
    for session in SESSIONS[:4]:
        entered = anyio.Event()

        async def wait(scope: str, entered: anyio.Event) -> None:
            async with other.locks(scope).hold("n", wait=30):
                entered.set()

        async with anyio.create_task_group() as group:
            async with team.orc.locks(f"session:{session}").hold("n", wait=0):
                group.start_soon(wait, f"session:{session}", entered)
                locks = team.orc.locks(f"session:{session}")

                async def waits(locks: Any = locks) -> bool:
                    return any(lock.waiting for lock in await locks.list())

                await wait_for(waits, "the waiter")
            with anyio.fail_after(2):
                await entered.wait()


async def test_backup_and_restore(cluster: Cluster, settings: Settings, prefix: str, tmp_path: Path) -> None:
    """All that is at any master is in the file, and restored to its place."""
    path, target = tmp_path / "pool.orc.gz", local_settings(cluster.url, f"{prefix}-copy")
    async with run_local_team(settings, supervised=False) as team:
        await fill(team)
        assert await check_keys(team.services) == []
        saved = await save_pool(team.services, path)
        names = {name.removeprefix(prefix) for name in cluster.names(f"{prefix}:*")}
    await (await open_backup(path)).restore(target)
    async with run_local_team(target, supervised=False) as copy:
        assert len(await list_tasks(copy.services)) == len(SESSIONS) == saved.counts["tasks"]
        for number, session in enumerate(SESSIONS):
            (message,) = await copy.orc.chat(session).page(2)
            assert message.data == {"role": "user", "content": f"hello {number}"}
            (record,) = await copy.orc.memory(f"agent{number}").recent()
            assert record.content == session
        assert await check_keys(copy.services) == []
    sessions = {name for name in names if "{session:" in name and ":chat:" in name}
    assert {f"{prefix}-copy{name}" for name in sessions} <= cluster.names(f"{prefix}-copy:*")


async def test_status_doctor_and_keys(cluster: Cluster, team: LocalTeam, tmp_path: Path) -> None:
    """Each names all masters or counts the keys of all of them."""
    await fill(team)
    status = await read_status(team.services)
    pool = cluster.owner(team.services.keys.root)
    others = {f"127.0.0.1:{node.port}" for node in cluster.masters() if node is not pool}
    assert set(status.other_servers) == others
    assert all(info.cluster for info in status.other_servers.values())
    report = await run_server_checks(team.settings)
    found = [finding for finding in report.findings if finding.code == "redis-cluster"]
    assert [finding.severity for finding in found] == [Severity.OK]
    assert f"127.0.0.1:{pool.port}" in found[0].found
    memory = [finding.found for finding in report.findings if finding.code == "redis-memory"]
    assert len(memory) == 3
    assert {text.split(": ")[0] for text in memory if ": " in text} == others
    counts = await count_keys(team.services)
    assert sum(kind.keys for kind in counts.kinds) == len(cluster.names(f"{team.settings.prefix}:*"))
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)
    done = await anyio.to_thread.run_sync(partial(terminal.orc, "status"))
    assert all(place in done.out for place in others)


async def test_a_master_that_evicts_is_named(cluster: Cluster, team: LocalTeam) -> None:
    """The supervisor does not start while any master may evict keys; the doctor says which."""
    evicting = next(node for node in cluster.masters() if node is not cluster.owner(team.services.keys.root))
    with evicting.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(Exception, match=f"Redis at 127.0.0.1:{evicting.port} may evict keys"):
            await team.services.store.check_server(allow_eviction=False)
        report = await run_server_checks(team.settings)
        (found,) = [one for one in report.findings if one.code == "redis-eviction" and one.severity is Severity.PROBLEM]
        assert found.found.startswith(f"127.0.0.1:{evicting.port}: maxmemory-policy allkeys-lru")
    finally:
        with evicting.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
