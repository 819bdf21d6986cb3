"""Backups of pools in every state, restored into other prefixes and on other versions of Redis."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from orchestrator import (
    Agent,
    FormatMismatch,
    Message,
    Orchestrator,
    Record,
    Reject,
    RestoreRefused,
    Snooze,
    Stopped,
    TaskContext,
)
from orchestrator.backup import restoring, saving
from orchestrator.backup import target as targets
from orchestrator.backup.files import BackupFile, BackupReader
from orchestrator.backup.rows import KeyRow, SavedTask
from orchestrator.control.desired import read_desired
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import ConfigError, DamagedBackup, ServerRefused, ServerUnavailable
from orchestrator.repair import servers
from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.services import open_services
from orchestrator.store import scanning
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.flows import Flow
from orchestrator.tasks.selecting import TaskFilter
from orchestrator.tasks.submission import Submission
from orchestrator.testing.temporary_pool import new_prefix
from orchestrator.testing.waiting import wait_for
from orchestrator.views.backup import open_backup, save_pool
from orchestrator.views.keys import check_keys
from orchestrator.views.tasks import DEAD, list_tasks, select_tasks
from tests.faultkit.servers import RedisServer, cluster_server
from tests.helpers.guards import keys_of, keys_without_ttl
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.server_matrix import NEWEST, REDIS_7

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    import redis

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store
    from orchestrator.views.backup import RestoredPool
    from tests.helpers.local_team import LocalTeam

FAR_US = "9000000000000000"
"""A time by which every task is due."""
DAY_MS = 86_400_000
SESSION = "s \u00fc"


@pytest.fixture
def other_server(redis_server: RedisServer, running_server: Callable[[str], RedisServer]) -> RedisServer:
    """A server of the other version line."""
    newest = running_server(NEWEST)
    return running_server(REDIS_7) if redis_server is newest else newest


@pytest.fixture
def target(other_server: RedisServer) -> Iterator[Settings]:
    """A pool without data on the other server."""
    settings = local_settings(other_server.url, new_prefix())
    yield settings
    with other_server.client() as client:
        keys = keys_of(client, settings.prefix)
        immortal = keys_without_ttl(client, keys)
        if keys:
            client.unlink(*keys)
        assert immortal == []


async def restore(path: Path, settings: Settings, **options: Any) -> RestoredPool:
    """Restore a file."""
    return await (await open_backup(path)).restore(settings, **options)


async def ended(handle: TaskHandle[object]) -> bool:
    """Return whether a task has ended."""
    return (await handle.status()).state.final


async def wait_state(handle: TaskHandle[object], state: str) -> None:
    """Wait until a task is in a state."""

    async def is_there() -> bool:
        return (await handle.status()).state == state

    await wait_for(is_there, f"{state}")


class DrillAgent:
    """An agent whose tasks reach every state, and stay there until `gate` opens."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.runs: Counter[str] = Counter()
        self.agent = Agent("ada", concurrency=4)
        self.agent.skill(name="work", max_attempts=2, backoff=60.0)(self.work)
        self.agent.skill(name="ask")(self.ask)

    async def work(self, ctx: TaskContext, how: str = "") -> str:
        """Do what `how` says."""
        self.runs[ctx.task_id] += 1
        await ctx.emit({"how": how, "text": "\u00fc\U0001f600"})
        match how:
            case "hold":
                await self.gate.wait()
            case "reject":
                raise Reject("no \u00fc")
            case "retry" if ctx.attempt == 1:
                raise ValueError("again")
            case "snooze" if not self.gate.is_set():
                raise Snooze(delay=3600)
            case "share":
                await ctx.workspace.set("plan", {"a": 1})
                await ctx.workspace.append("log", "one")
                await ctx.scratch.set("own", [1, 2])
                await ctx.agent_state.set({"status": "busy"})
        return how * 2

    async def ask(self, ctx: TaskContext) -> object:
        """Wait for a person."""
        return await ctx.ask("which?", options=["a", "b"])


async def fill(team: LocalTeam, drill: DrillAgent) -> dict[str, TaskHandle[object]]:
    """Bring tasks into every state; the four that hold fill all slots in the end."""
    orc, later = team.orc, datetime.now(UTC) + timedelta(hours=1)
    await team.work(drill.agent)
    handles: dict[str, TaskHandle[object]] = {
        "succeeded": await orc.submit("work", {"how": "fine"}, key="k \u00fc"),
        "dead": await orc.submit("work", {"how": "reject"}),
        "retry": await orc.submit("work", {"how": "retry"}),
        "snooze": await orc.submit("work", {"how": "snooze"}),
        "share": await orc.submit("work", {"how": "share"}, session=SESSION),
        "ask": await orc.submit("ask"),
        "delayed": await orc.submit("work", delay=3600),
        "cancelled": await orc.submit("work", delay=3600),
    }
    await handles["cancelled"].cancel(reason="not needed")
    states = {"succeeded": "succeeded", "dead": "dead", "share": "succeeded"}
    states |= {"retry": "scheduled", "snooze": "scheduled", "ask": "awaiting_input"}
    for name, state in states.items():
        await wait_state(handles[name], state)
    handles |= {f"hold {n}": await orc.submit("work", {"how": "hold"}) for n in range(3)}
    handles["lane 1"] = await orc.submit("work", {"how": "hold"}, lane="l")
    for name in ("hold 0", "hold 1", "hold 2", "lane 1"):
        await wait_state(handles[name], "running")
    handles |= {
        "lane 2": await orc.submit("work", {"how": "second"}, lane="l"),
        "ready": await orc.submit("work", {"how": "r"}, priority="high", start_by=later),
        "ready 2": await orc.submit("work", {"how": "q"}, session=SESSION, tags=["t"]),
        "parked": await orc.submit("other", agent="ada"),
        "no agent": await orc.submit("nobody"),
        "held": await orc.submit("work", {"how": "h"}, session="held"),
    }
    await orc.admin.schedules.add("hourly", "work", {"how": "s"}, every=3600)
    await orc.admin.schedules.add("paused", "work", cron="0 6 * * *")
    await orc.admin.schedules.pause("paused")
    await orc.admin.pause_agent("bob", reason="holiday")
    await orc.admin.stop(session="held", reason="wait")
    await orc.admin.publish_config("model", "large")
    return handles


async def look(copy: LocalTeam, tasks: dict[str, TaskHandle[object]]) -> None:
    """Check what the copy has before it starts."""
    assert await check_keys(copy.services) == []
    assert "restored from pool.orc.gz" in (await tasks["ready"].status()).why
    info = await tasks["hold 0"].info()
    assert info.restored.startswith("running pool.orc.gz of ")
    assert [attempt.outcome for attempt in info.history] == ["interrupted"]
    assert info.attempts == 0
    assert await tasks["succeeded"].result(TIMEOUT_S) == "finefine"
    output = [event.data async for event in tasks["succeeded"].output()]
    assert output == [{"how": "fine", "text": "\u00fc\U0001f600"}]
    again = await copy.orc.submit("work", {"how": "fine"}, key="k \u00fc")
    assert again.id == tasks["succeeded"].id
    assert (await copy.orc.workspace(SESSION).snapshot()).paths["plan"].value == {"a": 1}
    assert await copy.orc.agents.states(["ada"], "status") == {"ada": {"status": "busy"}}
    schedules = {one.name: one.paused for one in await copy.orc.admin.schedules.list()}
    assert schedules == {"hourly": False, "paused": True}


async def finish(copy: LocalTeam, tasks: dict[str, TaskHandle[object]]) -> None:
    """Start the copy; every task ends as it should."""
    drill = DrillAgent()
    drill.gate.set()
    extra = Agent("bob")
    extra.skill(name="nobody")(lambda: "found")
    await copy.work(drill.agent)
    await copy.work(extra)
    assert drill.runs == {}  # stopped
    await copy.orc.admin.start()
    results = {"lane 2": "secondsecond", "ready": "rr", "ready 2": "qq", "lane 1": "holdhold"}
    results |= {f"hold {n}": "holdhold" for n in range(3)}
    assert {name: await tasks[name].result(TIMEOUT_S) for name in results} == results
    # The stop of a session and the pause of an agent are active as before.
    assert (await tasks["held"].status()).detail.cause == "stopped"
    assert (await tasks["no agent"].status()).detail.cause == "paused"
    await copy.orc.admin.start(session="held")
    await copy.orc.admin.resume_agent("bob")
    assert await tasks["held"].result(TIMEOUT_S) == "hh"
    assert await tasks["no agent"].result(TIMEOUT_S) == "found"
    await tasks["ask"].answer("b")
    assert await tasks["ask"].result(TIMEOUT_S) == "b"
    assert (await tasks["parked"].status()).detail.cause == "skill_missing"
    await tasks["dead"].retry("try again")
    await wait_for(lambda: ended(tasks["dead"]), "the second end")
    assert drill.runs[tasks["dead"].id] == 1
    assert await check_keys(copy.services) == []


@pytest.mark.every_server
async def test_drill(team: LocalTeam, target: Settings, tmp_path: Path, other_server: RedisServer) -> None:
    """A pool in every state is saved, restored on the other version of Redis, checked and started: every task ends."""
    drill = DrillAgent()
    handles = await fill(team, drill)
    path = tmp_path / "pool.orc.gz"
    saved = await save_pool(team.services, path)
    assert (saved.skipped, saved.counts["running"], saved.counts["tasks"]) == ((), 4, len(handles))
    runs_before = Counter(drill.runs)

    report = await restore(path, target)
    assert (report.tasks, report.interrupted, report.repeated, report.corrected) == (len(handles), 4, 0, {})
    with other_server.client() as client:
        assert states_of(client, target.prefix) == {
            "succeeded": 2, "dead": 1, "cancelled": 1, "scheduled": 3, "awaiting_input": 1, "ready": 9, "waiting": 1,
        }  # fmt: skip
    async with run_local_team(target) as copy:
        tasks: dict[str, TaskHandle[object]] = {name: copy.orc.task(handle.id) for name, handle in handles.items()}
        await look(copy, tasks)
        await finish(copy, tasks)
    assert drill.runs == runs_before
    drill.gate.set()


def states_of(client: redis.Redis, prefix: str) -> Counter[str]:
    """Count the tasks of a namespace by their stored state."""
    states: Counter[str] = Counter()
    for key in keys_of(client, prefix):
        if ":task:" in key:
            state: Any = client.hget(key, "state")
            states[state.decode()] += 1
    return states


@pytest.fixture
async def saved(team: LocalTeam, tmp_path: Path) -> Path:
    """A backup of a pool with 30 waiting tasks, and a workspace."""
    await team.orc.submit_many([Submission("work", {"n": n}) for n in range(30)])
    path = tmp_path / "pool.orc.gz"
    await team.orc.agents.set_state("bob", {"status": "idle"})
    await save_pool(team.services, path)
    return path


async def test_nothing_is_overwritten(
    saved: Path, team: LocalTeam, target: Settings, redis_client: redis.Redis
) -> None:
    """A target with any key of the pool, or with shared state, is refused; shared state alone can be left out."""
    before = keys_of(redis_client, team.settings.prefix)
    for settings in (team.settings, team.settings.model_copy(update={"pool": "other"})):
        with pytest.raises(RestoreRefused, match="the target is not empty: "):
            await restore(saved, settings)
        with pytest.raises(RestoreRefused, match="the target is not empty: "):
            await (await open_backup(saved)).check_target(settings)
    assert set(keys_of(redis_client, team.settings.prefix)) == set(before)
    # Another pool of the same prefix has the shared state already.
    other = team.settings.model_copy(update={"pool": "other"})
    assert (await restore(saved, other, shared=False)).tasks == 30
    with pytest.raises(RestoreRefused):
        await restore(saved, other, shared=False)
    assert (await restore(saved, target)).tasks == 30


async def test_a_program_that_comes_first(saved: Path, target: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that starts between the search and the mark keeps its pool; its floor returns."""

    async def not_found(_: object) -> list[str]:
        return []

    monkeypatch.setattr(targets.Target, "_find_keys", not_found)
    async with run_local_team(target, supervised=False) as copy:
        await copy.orc.submit("work")
        with pytest.raises(RestoreRefused, match="a program uses pool 'default'"):
            await restore(saved, target)
        await copy.orc.submit("work")
        async with Orchestrator(settings=target) as another:
            await another.submit("work")


def files_in(path: Path) -> list[str]:
    """Name the files of a folder."""
    return [each.name for each in path.iterdir()]


def flip_a_byte(path: Path) -> None:
    """Damage a file in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


async def no_check(_: object) -> bool:
    """Find nothing in a target."""
    return False


class Interrupted(Exception):
    """Ends a restore in the middle."""


async def test_an_interrupted_restore(
    saved: Path, team: LocalTeam, target: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No program starts in a pool that is restored in part; the same file goes on, another one is refused."""
    monkeypatch.setattr(restoring, "ROWS_AT_ONCE", 10)

    def interrupt(rows: int) -> None:
        if rows > 20:
            raise Interrupted

    with pytest.raises(Interrupted):
        await restore(saved, target, on_step=interrupt)
    with pytest.raises(FormatMismatch, match=r"a restore into pool 'default' has not finished; .* to go on"):
        await Orchestrator(settings=target).__aenter__()
    with pytest.raises(FormatMismatch):
        async with run_local_team(target):
            pass
    other = tmp_path / "other.orc"
    await save_pool(team.services, other, compress=False)
    with pytest.raises(RestoreRefused, match="holds a part of another backup"):
        await restore(other, target)
    with monkeypatch.context() as patch:
        # Both looked at the empty pool at the same moment.
        patch.setattr(targets.Target, "check", no_check)
        with pytest.raises(RestoreRefused, match="holds a part of another backup"):
            await restore(other, target)
    file = await open_backup(saved)
    assert await file.check_target(target)
    report = await file.restore(target)
    assert report.tasks + report.repeated == 30
    assert report.repeated > 0
    async with run_local_team(target) as copy:
        assert await check_keys(copy.services) == []


async def test_a_client_that_is_there_already(saved: Path, target: Settings) -> None:
    """A client that looked at the empty pool before the restore submits nothing into a half of it."""
    async with Orchestrator(settings=target) as orc:
        await orc.agents.active()

        async def submit(rows: int) -> None:
            with pytest.raises(Stopped, match="everything is stopped and refuses new tasks"):
                await orc.submit("work", {"rows": rows})

        file = await open_backup(saved)
        seen: list[int] = []
        original = restoring.Restorer.flush

        async def flush(self: restoring.Restorer) -> None:
            await original(self)
            if seen:
                await submit(seen[-1])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(restoring.Restorer, "flush", flush)
            await file.restore(target, on_step=seen.append)
        assert seen
        await orc.submit("work")  # it waits for `orc start`


async def test_damage_is_found_before_the_first_write(saved: Path, target: Settings, other_server: RedisServer) -> None:
    """The twin of the drill: with one flipped byte nothing is written."""
    flip_a_byte(saved)
    with pytest.raises(DamagedBackup):
        await restore(saved, target)
    with other_server.client() as client:
        assert keys_of(client, target.prefix) == []


async def test_signed_commands(settings: Settings, target: Settings, tmp_path: Path) -> None:
    """Commands are signed again for the target; without the secret the restore is refused, a false one is left out."""
    secret = {"control__secret": "right" * 8}
    url = settings.redis.url
    target_url = target.redis.url
    assert url is not None
    assert target_url is not None
    signed = local_settings(url.get_secret_value(), settings.prefix, **secret)
    path = tmp_path / "pool.orc.gz"
    async with run_local_team(signed, supervised=False) as team:
        await team.orc.admin.stop(agent="ed", reason="first")
        async with Orchestrator(settings=local_settings(url.get_secret_value(), settings.prefix)) as outsider:
            await outsider.admin.stop(agent="eve", reason="forged")
        await team.orc.admin.set_limit("x", "5/s")
        await save_pool(team.services, path)
    with pytest.raises(ConfigError, match=r"the commands in this backup are signed; set control\.secret"):
        await restore(path, target)
    to = local_settings(target_url.get_secret_value(), target.prefix, **secret)
    report = await restore(path, to)
    assert report.refused_commands == ("stop:agent:eve",)
    async with run_local_team(to) as copy:
        from orchestrator.views.control import list_commands

        stored = await copy.services.store.execute("HGETALL", copy.services.keys.desired)
        desired = read_desired(stored, signer_of(to, place=copy.services.keys.root))
        assert (desired.doubtful, desired.epoch) == (frozenset(), 1)
        assert set(desired.active) == {"stop:all", "stop:agent:ed", "limit:x"}
        agent = Agent("ed")
        agent.skill(name="work")(lambda: 1)
        await copy.work(agent)
        handle = await copy.orc.submit("work")
        await copy.orc.admin.start()
        detail = (await handle.status()).detail
        assert (detail.cause, detail.reason) == ("stopped", "first")
        given = {(one.kind, one.reason): one.state for one in await list_commands(copy.services)}
        assert given["stop", "first"] == "active"
        await copy.orc.admin.start(agent="ed")
        assert await handle.result(TIMEOUT_S) == 1


async def test_an_old_backup(team: LocalTeam, target: Settings, tmp_path: Path) -> None:
    """What had a day left lives for a day more, although the file lay for a year; fixed times stay what they are."""
    drill = DrillAgent()
    await team.work(drill.agent)
    shared = await team.orc.submit("work", {"how": "share"}, session=SESSION)
    dead = await team.orc.submit("work", {"how": "reject"})
    await wait_state(shared, "succeeded")
    await wait_state(dead, "dead")
    delayed = await team.orc.submit("work", delay=3600)
    await save_pool(team.services, tmp_path / "new")
    age(tmp_path / "new", tmp_path / "old", 400 * DAY_MS)
    await restore(tmp_path / "old", target)
    async with run_local_team(target, supervised=False) as copy:
        store, keys = copy.services.store, copy.services.keys
        meta, document = (keys.scope("session", SESSION).key(suffix) for suffix in ("meta", "ws:doc"))
        dies, now = int(await store.execute("HGET", meta, "dies")), time.time() * 1000
        assert abs(await store.execute("PEXPIRETIME", document) - dies) < 60_000
        before = await team.services.store.execute("PTTL", team.services.keys.scope("session", SESSION).key("meta"))
        assert abs(dies - now - before) < 60_000
        # A further change keeps the workspace.
        await copy.orc.agents.set_state("ada", {"status": "idle"})
        assert (await copy.orc.workspace(SESSION).snapshot()).paths["plan"].value == {"a": 1}
        assert await copy.orc.task(shared.id).result(TIMEOUT_S) == "shareshare"
        assert [task.id for task in (await select_tasks(copy.services, TaskFilter(), among=DEAD)).tasks] == [dead.id]
        listed: bytes = await store.execute("ZSCORE", keys.dead, dead.id)
        assert float(listed) > now - DAY_MS
        due: bytes = await store.execute("ZSCORE", keys.scheduled, delayed.id)
        assert float(due) < now


def age(new: Path, old: Path, by_ms: int) -> None:
    """Copy a backup as if it had been made long ago."""
    reader = BackupReader(new)
    rows: list[Any] = []
    for row in reader.rows():
        match row:
            case SavedTask(fields=fields):
                moved = {name: str(int(fields[name]) - by_ms) for name in ("ended", "due") if name in fields}
                rows.append(msgspec.structs.replace(row, fields=fields | moved))
            case KeyRow(suffix="meta", values=values):
                pairs = dict(zip(values[::2], values[1::2], strict=True))
                pairs |= {name: str(int(pairs[name]) - by_ms) for name in ("born", "fresh", "dies")}
                rows.append(msgspec.structs.replace(row, values=[text for pair in pairs.items() for text in pair]))
            case _:
                rows.append(row)
    assert reader.header is not None
    assert reader.end is not None
    with BackupFile(old, compress=True) as file:
        file.add([msgspec.structs.replace(reader.header, begun_ms=reader.header.begun_ms - by_ms), *rows])
        file.finish(reader.end.counts, ended_ms=reader.end.ended_ms - by_ms, skipped=[])


async def test_output_says_no_more_than_the_record(
    team: LocalTeam, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An entry of output that comes behind the read of the record is not saved: it may tell of the end of the task."""
    drill = DrillAgent()
    await team.work(drill.agent)
    handle = await team.orc.submit("work")
    await wait_state(handle, "succeeded")
    outputs = saving.PoolSaver._outputs
    length = await team.services.store.execute("XLEN", team.services.keys.out(handle.id))

    async def read(self: saving.PoolSaver, *arguments: Any) -> AsyncIterator[Any]:
        await team.services.store.execute("XADD", team.services.keys.out(handle.id), "*", "k", "late")
        async for row in outputs(self, *arguments):
            yield row

    monkeypatch.setattr(saving.PoolSaver, "_outputs", read)
    saved = await save_pool(team.services, tmp_path / "a")
    assert saved.counts["output entries"] == length


async def test_under_load(team: LocalTeam, target: Settings, tmp_path: Path) -> None:
    """While tasks with children run, end and come: the copy has no damage and no half task, and finishes all."""
    agent = family_agent()
    await team.work(agent)
    stopped = anyio.Event()

    async def submit() -> None:
        for _ in range(100):  # a slow machine would have more tasks than end in time
            await team.orc.submit_many([Submission("parent")] * 5)
            await anyio.sleep(0.01)
            if stopped.is_set():
                return

    path = tmp_path / "b"
    async with anyio.create_task_group() as group:
        group.start_soon(submit)
        await save_pool(team.services, tmp_path / "a")
        saved = await save_pool(team.services, path)
        stopped.set()
    report = await restore(path, target)
    assert report.tasks + report.repeated == saved.counts["tasks"] > 0
    async with run_local_team(target) as copy:
        assert await check_keys(copy.services) == []
        await copy.work(agent)
        await copy.orc.admin.start()

        async def all_succeeded() -> bool:
            # Tasks that had ended before are in no list, because a backup has no log of ends.
            return {str(row.state) for row in await list_tasks(copy.services, limit=10_000)} <= {"succeeded"}

        await wait_for(all_succeeded, "the end of all tasks", 20)
        assert await check_keys(copy.services) == []


def family_agent() -> Agent:
    """An agent whose tasks submit children and do not wait for them."""
    agent = Agent("ada", concurrency=8)

    @agent.skill(name="child")
    async def child() -> int:
        await anyio.sleep(0.01)  # so that some have not ended when they are saved
        return 1

    @agent.skill(name="parent")
    async def parent(ctx: TaskContext) -> list[str]:
        return [(await ctx.submit("child", lane=f"l{n % 2}")).id for n in range(3)]

    return agent


@pytest.mark.parametrize(("young_ms", "lost"), [(saving.YOUNG_MS, 0), (-saving.YOUNG_MS, 3)], ids=["read", "twin"])
async def test_no_saved_end_lacks_a_child(
    team: LocalTeam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, young_ms: int, lost: int
) -> None:
    """A parent ends behind SCAN, which saw no child: its children are read behind it. Without that they are lost."""
    await team.work(family_agent())
    handle = await team.orc.submit("parent", delay=3600)
    scan = servers.scan

    async def scan_before(store: Store, stem: str, **options: Any) -> AsyncIterator[list[bytes]]:
        names = [name async for found in scan(store, stem, **options) for name in found]
        await team.services.store.call(task_scripts.promote(team.services.keys, limit=9, now_us=FAR_US))
        await handle.result(TIMEOUT_S)
        yield names

    monkeypatch.setattr(saving, "scan", scan_before)
    monkeypatch.setattr(saving, "YOUNG_MS", young_ms)
    path = tmp_path / "a"
    saved = await save_pool(team.services, path)
    assert saved.counts["tasks"] == 4 - lost


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """One server that has all slots."""
    with cluster_server() as server:
        yield server


async def test_a_cluster(cluster: RedisServer, tmp_path: Path) -> None:
    """In cluster mode, where every session has a slot of its own, all of it is saved and restored."""
    path = tmp_path / "pool.orc.gz"
    names, idle = ["ada", "bob", "eve"], {"status": "idle"}
    async with run_local_team(local_settings(cluster.url, "c:test:t"), supervised=False) as team:
        await team.orc.submit("work", session="s")
        for name in names:
            await team.orc.agents.set_state(name, {"status": "idle"})
        await save_pool(team.services, path)
    await restore(path, local_settings(cluster.url, "c:test:u"))
    async with run_local_team(local_settings(cluster.url, "c:test:u"), supervised=False) as copy:
        assert await copy.orc.agents.states(names, "status") == dict.fromkeys(names, idle)
        assert [row.session for row in await list_tasks(copy.services)] == ["s"]


async def test_the_share_of_the_server(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A backup rests after each step, also while SCAN passes keys of other prefixes."""
    foreign = f"{team.settings.prefix}-other"
    redis_client.mset({f"{foreign}:{n}": "x" for n in range(20_000)})
    try:
        saver = saving.PoolSaver(team.services)
        started_s = time.monotonic()
        steps = [rows async for rows in saver.rows()]
        lasted_s = time.monotonic() - started_s
    finally:
        redis_client.unlink(*keys_of(redis_client, foreign))
    assert sum(not rows for rows in steps) >= 20_000 / servers.KEYS_AT_ONCE / 2
    assert 0 < saver.server_s <= saving.SHARE * lasted_s * 1.1


async def test_an_endless_chain(team: LocalTeam, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A task that submits its successor before each read of it does not keep the backup from ending."""
    monkeypatch.setattr(saving, "MOST_GENERATIONS", 5)
    submitted = [await team.orc.submit("work")]
    read = saving.PoolSaver._read_tasks

    async def read_tasks(self: saving.PoolSaver, ids: Sequence[str]) -> Sequence[Any]:
        new = await team.orc.submit("work")
        if ids:
            await team.services.store.execute("RPUSH", team.services.keys.children(ids[0]), new.id)
            await team.services.store.execute("EXPIRE", team.services.keys.children(ids[0]), 60)
        submitted.append(new)
        return await read(self, ids)

    monkeypatch.setattr(saving.PoolSaver, "_read_tasks", read_tasks)
    saved = await save_pool(team.services, tmp_path / "a")
    # A scan of several steps, beside keys of other pools, finds some of the later ones itself.
    assert 6 <= saved.counts["tasks"] <= len(submitted) < 50


async def test_an_outage_leaves_nothing(team: LocalTeam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup that loses Redis ends with the error of the outage, and leaves no file."""
    await team.orc.submit("work")

    async def unavailable(*_: object) -> list[object]:
        raise ServerUnavailable("gone")

    monkeypatch.setattr("orchestrator.backup.saving.PoolSaver._read_tasks", unavailable)
    with pytest.raises(ServerUnavailable):
        await save_pool(team.services, tmp_path / "a")
    assert files_in(tmp_path) == []


async def test_damaged_records_are_left_out(team: LocalTeam, tmp_path: Path, redis_client: redis.Redis) -> None:
    """A record that no script could read is named and left out; the other tasks are saved."""
    handles = [await team.orc.submit("work") for _ in range(30)]
    keys = team.services.keys
    redis_client.hset(keys.task(handles[3].id), "gen", "x")
    redis_client.delete(keys.task(handles[4].id))
    redis_client.set(keys.task(handles[4].id), "text", ex=60)
    saved = await save_pool(team.services, tmp_path / "a")
    assert set(saved.skipped) == {handles[3].id, handles[4].id}
    assert saved.counts["tasks"] == 28


async def test_a_flow_behind_a_deleted_task(team: LocalTeam, target: Settings, tmp_path: Path) -> None:
    """A follower is not cancelled in the copy because one of its predecessors was deleted after its success."""
    drill = DrillAgent()
    await team.work(drill.agent)
    flow = Flow("pages")
    done, late = flow.task("work", {"how": "fine"}), flow.task("work", delay=3600)
    last = flow.task("work", {"how": "last"}, after=[done, late])
    handle = await team.orc.submit_flow(flow)
    await wait_state(handle.task(done), "succeeded")
    store, deleted = team.services.store, handle.task(done).id
    await store.call(task_scripts.delete(team.services.keys, ids=[deleted]))
    await store.execute("HSET", team.services.keys.task(deleted), "result:7", "written by a late attempt")
    saved = await save_pool(team.services, tmp_path / "a")
    assert saved.counts["tasks"] == 2
    assert (await restore(tmp_path / "a", target)).tasks == 2
    async with run_local_team(target, supervised=False) as copy:
        assert (await copy.orc.task(handle.task(last).id).status()).state == "awaiting_tasks"


MANY = 4000


def read_ids(path: Path) -> set[str]:
    """Return the ids of the tasks in a file."""
    return {row.id for row in BackupReader(path).rows() if isinstance(row, SavedTask)}


@pytest.fixture
async def durable_pool() -> AsyncIterator[tuple[RedisServer, Settings]]:
    """A server that loses nothing when it restarts, and a pool of many tasks in it."""
    with RedisServer(port=0, options={"appendonly": "yes", "appendfsync": "always"}) as server:
        settings = local_settings(server.url, "a:b:c")
        async with Orchestrator(settings=settings) as orc:
            await orc.submit_many([Submission("work") for _ in range(MANY)])
        yield server, settings


@pytest.mark.parametrize("follows", [True, False], ids=["run_id", "twin"])
async def test_a_restart_of_redis(
    durable_pool: tuple[RedisServer, Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, follows: bool
) -> None:
    """Redis restarts in the middle of a backup, and no task is missing. A scan that keeps its cursor misses tasks."""
    server, settings = durable_pool
    if not follows:
        monkeypatch.setattr(scanning, "read_info", lambda _: SimpleNamespace(run_id="the same"))
    restarted = False

    def restart(tasks: int) -> None:
        nonlocal restarted
        if tasks > MANY / 4 and not restarted:
            restarted = True
            server.restart()

    path = tmp_path / "a"
    async with open_services(settings, name="test") as services:
        await save_pool(services, path, on_step=restart)
    assert restarted
    assert (len(read_ids(path)) == MANY) is follows
    if follows:
        # The file has some tasks twice.
        target = settings.model_copy(update={"prefix": "a:b:d"})
        assert (await restore(path, target)).tasks == MANY


@pytest.mark.parametrize("follows", [True, False], ids=["run_id", "twin"])
async def test_a_restart_during_a_check(
    durable_pool: tuple[RedisServer, Settings], monkeypatch: pytest.MonkeyPatch, *, follows: bool
) -> None:
    """`orc keys check` sees every task although Redis restarts meanwhile; with the old cursor it misses tasks."""
    server, settings = durable_pool
    if not follows:
        monkeypatch.setattr(scanning, "read_info", lambda _: SimpleNamespace(run_id="the same"))
    restarted = False
    seen: set[bytes] = set()
    scan_keys = PoolScan._scan_keys

    def note(self: PoolScan, names: Sequence[bytes]) -> AsyncIterator[Any]:
        seen.update(names)
        return scan_keys(self, names)

    monkeypatch.setattr(PoolScan, "_scan_keys", note)
    async with open_services(settings, name="test") as services:
        scan = PoolScan(services.store, KeyLifetimes.of(settings), repair=False)
        async with aclosing(scan.steps()) as steps:
            async for _ in steps:
                if len(seen) > MANY / 4 and not restarted:
                    restarted = True
                    server.restart()
                    with suppress(ServerUnavailable):  # finds the closed connection
                        await services.store.execute("PING")
    assert restarted
    assert (len(seen) >= MANY) is follows


async def test_missing_rights_are_no_damage(tmp_path: Path) -> None:
    """A backup without the right to read ends with the refusal; it does not call the records damaged."""
    with RedisServer(port=0) as server, server.client() as client:
        async with Orchestrator(settings=local_settings(server.url, "a:b:c")) as orc:
            await orc.submit("work")
        for command in ("lrange", "zscore"):
            user: Any = ("ACL", "SETUSER", command, "on", ">pw", "~*", "&*", "+@all", f"-{command}")
            client.execute_command(*user)
            url = server.url.replace("redis://", f"redis://{command}:pw@")
            with pytest.raises(ServerRefused, match="NOPERM"):
                async with open_services(local_settings(url, "a:b:c"), name="test") as services:
                    await save_pool(services, tmp_path / "a")
    assert files_in(tmp_path) == []


async def test_a_task_that_ends_behind_its_record(
    team: LocalTeam, tmp_path: Path, target: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker ends a task between the reads of its record and of its place: the copy says that it ran."""
    drill = DrillAgent()
    await team.work(drill.agent)
    handle = await team.orc.submit("work", {"how": "hold"})
    await wait_state(handle, "running")
    waits = await team.orc.submit("work", agent="bob")
    with_places = saving.PoolSaver._with_places

    async def read(self: saving.PoolSaver, rows: Sequence[SavedTask]) -> Sequence[SavedTask]:
        if any(row.id == handle.id for row in rows):
            drill.gate.set()
            await handle.result(TIMEOUT_S)
        return await with_places(self, rows)

    monkeypatch.setattr(saving.PoolSaver, "_with_places", read)
    saved = await save_pool(team.services, tmp_path / "a")
    assert saved.counts["running"] == 1
    assert (await restore(tmp_path / "a", target)).interrupted == 1
    async with run_local_team(target, supervised=False) as copy:
        assert (await copy.orc.task(handle.id).info()).restored.startswith("running ")
        assert not (await copy.orc.task(waits.id).info()).restored


async def test_a_late_run(saved: Path, target: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs that continue a restore, the later one ends it; the other one changes nothing in the live pool."""
    restore_commands = restoring.Restorer.restore_commands

    async def interrupt(_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(restoring.Restorer, "restore_commands", interrupt)
        with pytest.raises(Interrupted):
            await restore(saved, target)
    waits, over = anyio.Event(), anyio.Event()

    async def wait_first(self: restoring.Restorer) -> None:
        if not waits.is_set():
            waits.set()
            await over.wait()
        await restore_commands(self)

    monkeypatch.setattr(restoring.Restorer, "restore_commands", wait_first)

    async def late() -> None:
        with pytest.raises(RestoreRefused, match="another run of this restore has begun later"):
            await restore(saved, target)

    async with anyio.create_task_group() as group:
        group.start_soon(late)
        await waits.wait()
        await restore(saved, target)
        async with run_local_team(target, supervised=False) as copy:
            await copy.orc.admin.start()
            await copy.orc.submit("work")
            before = await copy.services.store.execute("HGETALL", copy.services.keys.desired)
            over.set()
    async with run_local_team(target, supervised=False) as copy:
        assert await copy.services.store.execute("HGETALL", copy.services.keys.desired) == before


async def test_large_members(
    team: LocalTeam, target: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key with large members has several rows in the file, each with few bytes, and is whole in the copy."""
    monkeypatch.setattr(saving, "PART_BYTES", 1000)
    agent = Agent("ada")

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        for n in range(20):
            await ctx.workspace.append("log", f"{n}" * 100)
            await ctx.workspace.set(f"path{n}", "x" * 300)

    await team.work(agent)
    await (await team.orc.submit("work", session="s")).result(TIMEOUT_S)
    workspace = team.orc.workspace("s")
    await save_pool(team.services, tmp_path / "a")
    rows = [row for row in BackupReader(tmp_path / "a").rows() if isinstance(row, KeyRow) and row.more]
    assert {row.type for row in rows} >= {"hash", "list"}
    assert all(sum(map(len, row.values)) <= 1000 for row in rows)
    await restore(tmp_path / "a", target)
    async with run_local_team(target, supervised=False) as copy:
        assert await copy.orc.workspace("s").snapshot() == await workspace.snapshot()
        assert await copy.orc.workspace("s").log("log") == await workspace.log("log")


async def test_the_floor_rises_during_a_backup(settings: Settings, tmp_path: Path, redis_client: redis.Redis) -> None:
    """The restore takes the floor of the end, which a task in the file may need."""
    async with run_local_team(settings, supervised=False) as team:
        floor = team.services.keys.format
        redis_client.set(floor, 2)

        def raise_floor(_: int) -> None:
            redis_client.set(floor, 3)

        await save_pool(team.services, tmp_path / "a", on_step=raise_floor)
    reader = BackupReader(tmp_path / "a")
    list(reader.rows())
    assert reader.header is not None
    assert reader.header.floor == 2
    view = (await open_backup(tmp_path / "a")).view
    assert view.floor == 3


@pytest.mark.every_server
async def test_chats_and_memories(
    team: LocalTeam, tmp_path: Path, target: Settings, other_server: RedisServer, redis_client: redis.Redis
) -> None:
    """On the other version line all reads give the same; the file has no index of them, and the restore makes each."""

    async def read(orc: Orchestrator) -> list[Any]:
        chats = [orc.chat(SESSION, source) for source in ("main", "a b")]
        memory, run = orc.memory("ada"), orc.simulation("run")
        return [
            *[await chat.hydrate() for chat in chats],
            sorted(await chats[0].sources()),
            *[[(one.id, one.step, one.content, one.version) for one in found] for found in (
                await memory.recent(50), await memory.of_kind("plan"), await memory.of_action("look"),
                await memory.important(3.0), await memory.near(5, 1, 3), await memory.between(3, 9),
            )],
            await run.states(), await run.near(2.0, 2.0, 5), await run.buffer("wolf"),
        ]  # fmt: skip

    orc = team.orc
    for source, count in (("main", 700), ("a b", 3)):
        for first in range(0, count, 100):
            size = min(100, count - first)
            messages = [
                Message({"role": "user", "content": "\u00fc" * 50, "n": n}, turn="t", tokens=n) for n in range(size)
            ]
            await orc.chat(SESSION, source).append(messages)
    await orc.chat(SESSION).set_meta({"title": "\u00fc"})
    await orc.chat(SESSION).set_summary("what was", upto=10, version=1)
    await orc.chat(SESSION).note_extracted("ada/extract", upto=5, rev=2**53 - 1)
    memory = orc.memory("ada")
    for tier in ("stm", "im"):
        await memory.store_many(
            [
                Record(
                    id=f"{tier}{n}", step=n % 40, kind=("plan", "see it")[n % 2], content={"n": n}, importance=n / 10,
                    action="look", position=(n, 1.0), subject="eve", simulation="run",
                )
                for n in range(90)
            ],
            tier=tier,
        )  # fmt: skip
    await memory.touch("stm3")
    await orc.simulation("run").push("wolf", 1, 2)
    before = await read(orc)
    path = tmp_path / "pool.orc"
    saved = await save_pool(team.services, path, compress=False)
    assert saved.skipped == ()
    text = path.read_text()
    assert [
        part
        for part in ('"stm:time"', '"im:imp"', '"stm:kind:', '"stm:exp"', '"chat:main:id"', '"chats"')
        if part in text
    ] == []
    report = await restore(path, target)
    assert report.corrected == {}
    async with run_local_team(target, supervised=False) as copy:
        assert await check_keys(copy.services) == []
        assert await read(copy.orc) == before
        assert (await copy.orc.chat(SESSION).head()).extracted == {"ada/extract": 5}
        with other_server.client() as client:
            copied, original = keys_of(client, target.prefix), keys_of(redis_client, team.settings.prefix)
            suffixes = [{key.partition("}:")[2] for key in keys} for keys in (original, copied)]
            assert {
                one for one in suffixes[0] - suffixes[1] if one.startswith(("chat", "stm", "im", "ltm", "buf"))
            } == set()
        assert (
            await copy.orc.chat(SESSION).append([Message({"role": "user"}, id=before[0].messages[0].id)])
        ).added == 0
        await copy.orc.memory("ada").store(Record(step=3, kind="plan", content=1))
        assert await check_keys(copy.services) == []
