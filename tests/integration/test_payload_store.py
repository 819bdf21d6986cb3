"""Large arguments and results go to a payload store, and Redis keeps references."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tracemalloc
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator.core.errors import (
    InvalidInput,
    KeyConflict,
    PayloadChanged,
    PayloadMissing,
    PayloadStoreUnavailable,
    QueueFull,
    SubmitRefused,
    TaskFailed,
    UpgradeUnfinished,
)
from orchestrator.core.formats import OLDEST_FORMAT, Feature, Floor
from orchestrator.core.ids import new_task_id
from orchestrator.core.payload import encode_json
from orchestrator.payloads.compression import compress, decompress
from orchestrator.payloads.folder import FolderStore
from orchestrator.payloads.reference import folder_of, is_reference, name_of
from orchestrator.store.store import Store
from orchestrator.supervisor.payload_sweeper import PayloadSweeper
from orchestrator.sync import Orchestrator as SyncOrchestrator
from orchestrator.tasks.flows import Flow
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from orchestrator.views.backup import open_backup, save_pool
from orchestrator.views.tasks import load_values
from orchestrator.workers.agent import Agent
from orchestrator.workers.context import TaskContext  # noqa: TC001 - the worker reads the annotation
from tests.helpers.local_team import LocalTeam, local_settings, run_local_team
from tests.helpers.process_handlers import shout_twice
from tests.integration.doctor.doctor_runs import run_doctor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import redis

    from tests.faultkit.servers import RedisServer

BIG = "x" * 2_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the payload store."""
    return tmp_path / "payloads"


@pytest.fixture
async def team(redis_server: RedisServer, prefix: str, folder: Path) -> AsyncIterator[LocalTeam]:
    """A team with a payload store."""
    async with run_local_team(local_settings(redis_server.url, prefix, payload__store=folder.as_uri())) as running:
        yield running


def echoing() -> Agent:
    """An agent that returns its arguments, also through a child."""
    agent = Agent("echo")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    @agent.skill
    async def size(text: str) -> int:
        return len(text)

    @agent.skill
    async def through_child(ctx: TaskContext, text: str) -> int:
        child = await ctx.submit("echo", {"text": text})
        return len(await child.result())

    return agent


def objects(folder: Path) -> list[Path]:
    """The files of the store."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def folders(folder: Path) -> list[Path]:
    """The folders of the store."""
    return [path for path in (folder, *folder.rglob("*")) if path.is_dir()]


async def test_large_values_travel_outside_redis(team: LocalTeam, folder: Path) -> None:
    """Arguments and result arrive whole, Redis has no byte of them, and the files are the user's alone."""
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": BIG})
    assert await handle.result(4) == BIG
    assert await team.orc.task(handle.id).result(4) == BIG
    record = await team.services.store.execute("HGETALL", team.services.keys.task(handle.id))
    assert sum(map(len, record)) < 2000
    assert handle.outcome is not None
    assert is_reference(handle.outcome.result)
    files = objects(folder)
    assert [file.name.partition("-")[0] for file in files] == ["args", "result"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in folders(folder)} == {0o700}


async def test_small_values_stay_in_redis(team: LocalTeam, folder: Path) -> None:
    """The twin: what is below the limit makes no object."""
    await team.work(echoing())
    assert await (await team.orc.submit("echo", {"text": "x" * 1000})).result(4) == "x" * 1000
    assert objects(folder) == []


async def test_children_many_and_processes(team: LocalTeam) -> None:
    """Children, `submit_many` and handlers in processes use the store too."""
    agent = echoing()
    agent.skill(process=True)(shout_twice)
    await team.work(agent)
    assert await (await team.orc.submit("through_child", {"text": BIG})).result(10) == len(BIG)
    texts = [BIG, "small", BIG + "y"]
    handles = await team.orc.submit_many([Submission("size", {"text": text}) for text in texts])
    assert [await handle.result(4) for handle in handles] == [len(text) for text in texts]
    assert await (await team.orc.submit("shout_twice", {"text": BIG})).result(20) == BIG.upper() * 2


async def test_flows(team: LocalTeam, folder: Path) -> None:
    """Results pass from task to task by their references, also to processes; a refused flow leaves no file."""
    agent = echoing()
    agent.skill(process=True)(shout_twice)
    await team.work(agent)
    flow = Flow("large")
    text = flow.task("echo", {"text": BIG})
    flow.task("size", {"text": text.result})
    flow.task("shout_twice", {"text": text.result})
    found = await (await team.orc.submit_flow(flow)).results(20)
    assert (found["size"], found["shout_twice"]) == (len(BIG), BIG.upper() * 2)
    before = objects(folder)
    flow.task("size", {"text": "x"}, budget="none")
    with pytest.raises(SubmitRefused, match="budget 'none'"):
        await team.orc.submit_flow(flow)
    assert objects(folder) == before


async def test_an_older_pool_gets_no_files(team: LocalTeam, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large arguments are not stored for a submit that an older pool refuses."""
    flow = Flow("large")
    flow.task("size", {"text": BIG}, budget="b")
    for feature in (Feature.FLOWS, Feature.BUDGETS):
        monkeypatch.setattr(Floor, "admits", lambda _, asked, feature=feature: asked is not feature)
        with pytest.raises(UpgradeUnfinished):
            await team.orc.submit_flow(flow)
    with pytest.raises(UpgradeUnfinished):
        await team.orc.submit("size", {"text": BIG}, budget="b")
    with pytest.raises(UpgradeUnfinished):
        await team.orc.submit_many([Submission("size", {"text": BIG}, budget="b")])
    assert objects(folder) == []


async def test_a_repeat_leaves_no_orphan(team: LocalTeam, folder: Path) -> None:
    """A repeated submit with a key finds the first task by its value; another value is refused. Neither keeps files."""
    first = await team.orc.submit("echo", {"text": BIG}, key="one")
    again = await team.orc.submit("echo", {"text": BIG}, key="one")
    assert again.id == first.id
    with pytest.raises(KeyConflict):
        await team.orc.submit("echo", {"text": BIG + "y"}, key="one")
    assert [file.parent.name for file in objects(folder)] == [first.id]


async def test_a_refused_submit_leaves_no_orphan(redis_server: RedisServer, prefix: str, folder: Path) -> None:
    """Arguments of a task that Redis refuses are deleted, of one and of many."""
    settings = local_settings(redis_server.url, prefix, payload__store=folder.as_uri(), queue__max_tasks=1)
    async with run_local_team(settings, supervised=False) as team:
        kept = await team.orc.submit("echo", {"text": BIG})
        with pytest.raises(QueueFull):
            await team.orc.submit("echo", {"text": BIG})
        with pytest.raises(Exception, match="not accepted"):
            await team.orc.submit_many([Submission("echo", {"text": BIG})])
        assert [file.parent.name for file in objects(folder)] == [kept.id]


async def test_changed_and_missing_results(team: LocalTeam, folder: Path) -> None:
    """A result that was changed, or is gone, is a clear error and no value."""
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": BIG})
    assert await handle.result(4) == BIG
    result = objects(folder)[1]
    whole = result.read_bytes()
    for other, how in ((whole[:-2] + b'y"', "SHA-256"), (whole + b" ", "more than"), (whole[:-1], "bytes")):
        result.write_bytes(other)
        with pytest.raises(PayloadChanged, match=how):
            await handle.result(4)
    result.unlink()
    with pytest.raises(PayloadMissing, match=handle.id):
        await handle.result(4)
    folder.rename(folder.with_name("unmounted"))  # noqa: ASYNC240 - at once
    with pytest.raises(PayloadStoreUnavailable, match="is mounted"):
        await handle.result(4)


async def test_missing_arguments_fail_the_attempt(team: LocalTeam, folder: Path) -> None:
    """An attempt whose arguments cannot be read fails, and the task is retried by its policy."""
    handle = await team.orc.submit("echo", {"text": BIG}, max_attempts=2)
    objects(folder)[0].unlink()
    await team.work(echoing())
    with pytest.raises(TaskFailed, match="PayloadMissing") as failed:
        await handle.result(4)
    assert len(failed.value.errors) == 2


async def test_an_unwritable_store(team: LocalTeam, folder: Path) -> None:
    """A result waits for a store that does not take it; arguments are refused at once, and nothing is sent."""
    started = 0
    agent = Agent("writer")

    @agent.skill
    async def write() -> str:
        nonlocal started
        started += 1
        return BIG

    folder.write_text("in the way")  # noqa: ASYNC240 - at once
    with pytest.raises(PayloadStoreUnavailable, match="cannot write"):
        await team.orc.submit("echo", {"text": BIG})
    await team.work(agent)
    handle = await team.orc.submit("write")
    with pytest.raises(TimeoutError):
        await handle.result(0.5)
    folder.unlink()  # noqa: ASYNC240 - at once
    assert await handle.result(10) == BIG
    assert started == 1


async def test_old_programs_in_the_pool(
    team: LocalTeam, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Below the version floor nothing is stored: a submit is refused, and a result waits for the end of the upgrade."""
    agent = Agent("writer")

    @agent.skill
    async def write() -> str:
        return BIG

    require, raised = Store.require, False

    async def lower(store: Store, feature: Feature) -> None:
        if not raised:
            store.floor.value = OLDEST_FORMAT
            store.floor.check(feature)
        await require(store, feature)

    monkeypatch.setattr(Store, "require", lower)
    orc = await team.client()
    with pytest.raises(UpgradeUnfinished, match="a value in the payload store needs programs of format 3"):
        await orc.submit("echo", {"text": BIG})
    await team.work(agent)
    handle = await team.orc.submit("write")
    await wait_for(lambda: "result_not_stored" in caplog.text, "the worker to try")
    assert objects(folder) == []
    raised = True
    assert await handle.result(10) == BIG


async def test_the_cap_of_the_store(redis_server: RedisServer, prefix: str, folder: Path) -> None:
    """Above `payload.max_bytes` a value is refused, and without a store above the cap of Redis."""
    settings = local_settings(redis_server.url, prefix, payload__store=folder.as_uri(), payload__max_bytes=1_500_000)
    async with run_local_team(settings, supervised=False) as team:
        with pytest.raises(InvalidInput, match="1500000 allowed"):
            await team.orc.submit("echo", {"text": BIG})
        plain = await team.client()
        assert plain.services.payloads.store is not None
    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        with pytest.raises(InvalidInput, match="262144 allowed"):
            await team.orc.submit("echo", {"text": BIG})


async def test_forged_references_are_text(team: LocalTeam) -> None:
    """A user's value that looks like a reference is a text like any other."""
    await team.work(echoing())
    forged = "\x01\x95\xa4args"
    assert await (await team.orc.submit("echo", {"text": forged})).result(4) == forged


async def test_deleting_a_task_deletes_its_objects(team: LocalTeam, folder: Path) -> None:
    """What a deleted task had in the store is deleted with it; other tasks keep theirs."""
    from orchestrator.client.task_actions import delete_tasks

    await team.work(echoing())
    gone, kept = [await team.orc.submit("echo", {"text": BIG}) for _ in range(2)]
    for handle in (gone, kept):
        assert await handle.result(4) == BIG
    await delete_tasks(team.services, [gone.id])
    assert {file.parent.name for file in objects(folder)} == {kept.id}


async def test_the_sweep(team: LocalTeam, folder: Path) -> None:
    """The sweep deletes what belongs to no task, and keeps young objects and those of living tasks."""
    await team.work(echoing())
    done = await team.orc.submit("echo", {"text": BIG})
    assert await done.result(4) == BIG
    lost, store = "00000000-0000-7000-8000-000000000001", team.services.payloads.store
    assert isinstance(store, FolderStore)
    waiting = await team.orc.submit("nobody", {"text": BIG})
    # An attempt that lost its task had stored its result.
    day = objects(folder)[0].parent.parent
    (day / done.id / "result-1").write_bytes(b"1")
    (day / done.id / ".unfinished-1").write_bytes(b"1")
    await store.put(f"19700101/{lost}/args", b"{}")
    kept = {
        file for file in objects(folder) if file.name not in {"result-1", ".unfinished-1"} and lost not in str(file)
    }
    assert await PayloadSweeper(team.services).sweep() == 0
    for file in objects(folder):
        os.utime(file, (0, 0))
    assert await PayloadSweeper(team.services).sweep() == 3
    assert set(objects(folder)) == kept
    assert waiting.id in str(kept)
    # A success that has dropped its envelope needs its arguments no longer.
    await team.services.store.execute("HDEL", team.services.keys.task(done.id), "env")
    assert await PayloadSweeper(team.services).sweep() == 1
    assert [file.name.partition("-")[0] for file in objects(folder) if file.parent.name == done.id] == ["result"]


@pytest.mark.parametrize(("field", "garbage"), [("gen", b"x"), ("gen", b""), ("state", b"\xff"), ("env", b"\xc1")])
async def test_objects_of_a_damaged_record(team: LocalTeam, folder: Path, field: str, garbage: bytes) -> None:
    """What cannot be read says nothing about the objects: they stay, and the sweep deletes those of other tasks."""
    await team.work(echoing())
    done = await team.orc.submit("echo", {"text": BIG})
    assert await done.result(4) == BIG
    kept, store = objects(folder), team.services.payloads.store
    assert len(kept) == 2
    assert isinstance(store, FolderStore)
    await store.put("19700101/00000000-0000-7000-8000-000000000001/args", b"{}")
    for file in objects(folder):
        os.utime(file, (0, 0))
    await team.services.store.execute("HSET", team.services.keys.task(done.id), field, garbage)
    assert await PayloadSweeper(team.services).sweep() == 1
    assert objects(folder) == kept


async def test_compressed_objects(redis_server: RedisServer, prefix: str, folder: Path) -> None:
    """With `payload.compression`, objects are smaller; programs without it read them, and refuse changed ones."""
    settings = local_settings(redis_server.url, prefix, payload__store=folder.as_uri(), payload__compression="zstd")
    noise = os.urandom(1_000_000).hex()
    async with run_local_team(settings) as team:
        await team.work(echoing())
        handle = await team.orc.submit("echo", {"text": BIG})
        assert await handle.result(4) == BIG
        assert all(file.stat().st_size < len(BIG) / 100 for file in objects(folder))
        plain = await team.client(payload__store=folder.as_uri())
        assert await plain.task(handle.id).result(4) == BIG
        other = await plain.submit("echo", {"text": noise})
        assert await other.result(4) == noise
        info = await other.info()
        assert info.stored_args is not None
        assert info.stored_args.size == len(noise) + 11
        result = next(file for file in objects(folder) if file.parent.name == handle.id and file.name != "args")
        result.write_bytes(result.read_bytes()[:-1] + b"?")
        with pytest.raises(PayloadChanged):
            await plain.task(handle.id).result(4)


def test_a_small_object_that_holds_much() -> None:
    """An object is unpacked to the size that its reference names, and no further."""
    packed = compress(bytes(100_000_000))
    assert packed is not None
    assert len(packed) < 20_000
    tracemalloc.start()
    try:
        for size in (10, 1_000_000):
            with pytest.raises(ValueError, match=f"does not hold {size} bytes"):
                decompress(packed, size)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    few = compress(b"x" * 1000)
    assert few is not None
    assert decompress(few, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="does not hold"):
        decompress(few, 1001)
    with pytest.raises(ValueError, match="does not hold"):
        decompress(few[:-1], 1000)


_SUBMITTER = """
import os, signal, sys, anyio
from orchestrator import Orchestrator
from orchestrator.client.large_arguments import LargeArguments

put = LargeArguments.put

async def put_and_die(self, id_, packed):
    await put(self, id_, packed)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with Orchestrator() as orc:
        await orc.submit("nobody", {"text": "x" * 2_000_000})

if sys.argv[1] == "die":
    LargeArguments.put = put_and_die
anyio.run(main)
"""


@pytest.mark.parametrize("how", ["die", "live"])
async def test_a_client_killed_between_put_and_submit(
    team: LocalTeam, redis_server: RedisServer, prefix: str, folder: Path, how: str
) -> None:
    """Arguments without a task are swept when they are old enough; those of a task that arrived are not."""
    environ = os.environ | {
        "ORC_REDIS__URL": redis_server.url, "ORC_PREFIX": prefix, "ORC_PAYLOAD__STORE": folder.as_uri(),
    }  # fmt: skip
    ended = await anyio.run_process([sys.executable, "-c", _SUBMITTER, how], env=environ, check=False)
    assert ended.returncode == (-signal.SIGKILL if how == "die" else 0)
    (left,) = objects(folder)
    assert left.stat().st_size > len(BIG)
    assert await PayloadSweeper(team.services).sweep() == 0
    os.utime(left, (0, 0))
    assert await PayloadSweeper(team.services).sweep() == (how == "die")
    assert objects(folder) == ([] if how == "die" else [left])


_WRITER = """
import resource, sys, anyio
from orchestrator.core.ids import new_task_id
from orchestrator.payloads.folder import FolderStore
from orchestrator.payloads.reference import name_of

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = FolderStore(sys.argv[1], ("pool",))
anyio.run(store.put, name_of(new_task_id(), "args"), b"x" * int(sys.argv[2]))
"""


@pytest.mark.parametrize("size", [1_000_000, 1000])
async def test_a_full_disk(folder: Path, size: int) -> None:
    """A value that does not fit is a clear error and leaves no half file; one that fits is stored."""
    command = [sys.executable, "-c", _WRITER, str(folder), str(size)]
    ended = await anyio.run_process(command, check=False)
    if size > 100_000:
        assert ended.returncode == 1
        assert b"PayloadStoreUnavailable" in ended.stderr
        assert b"free space" in ended.stderr
        assert objects(folder) == []
    else:
        assert ended.returncode == 0
        assert [file.stat().st_size for file in objects(folder)] == [size]


async def test_links_do_not_lead_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    """A link in the store to another folder is refused, and so is a name that is no object."""
    store, task = FolderStore(str(folder), ("pool",)), new_task_id()
    await store.put(name_of(task, "args"), b"{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "args").write_bytes(b"{}")
    other = new_task_id()
    (folder / "pool" / folder_of(other)).symlink_to(outside)
    with pytest.raises(PayloadStoreUnavailable, match="leads out"):
        await store.get(name_of(other, "args"), max_bytes=9)
    for name in ("../args", f"20200101/{task}/args", f"{folder_of(task)}/../../args"):
        with pytest.raises(PayloadStoreUnavailable, match="no name"):
            await store.get(name, max_bytes=9)


async def test_the_doctor_tries_the_store(team: LocalTeam, folder: Path) -> None:
    """The doctor writes and reads an object, and says when it cannot."""
    found = await run_doctor(team.settings)
    assert (found["payload-store"].severity, found["payload-orphans"].found) == ("ok", "no orphans among all objects")
    assert objects(folder) == []
    shutil.rmtree(folder)
    folder.write_text("in the way")  # noqa: ASYNC240 - at once
    assert (await run_doctor(team.settings))["payload-store"].severity == "problem"


async def test_the_blocking_client_and_views(team: LocalTeam, redis_server: RedisServer, prefix: str) -> None:
    """The blocking client loads values; `info` names them and loads nothing; a view loads them on request."""
    await team.work(echoing())

    def submit() -> tuple[str, object]:
        with SyncOrchestrator(settings=team.settings) as orc:
            handle = orc.submit("echo", {"text": BIG})
            return handle.id, handle.result(timeout=10)

    task, result = await anyio.to_thread.run_sync(submit)
    assert result == BIG
    info = await team.orc.task(task).info()
    assert (info.args, info.result) == (b"null", b"null")
    assert info.stored_result is not None
    assert info.stored_result.size == len(BIG) + 2
    loaded = await load_values(team.services, info)
    assert loaded.result == encode_json("", BIG, max_bytes=10**9, max_depth=9)
    assert b"xxx" in loaded.args


async def test_erasing_a_person_deletes_the_objects(team: LocalTeam, folder: Path) -> None:
    """The values of the tasks of an assigned session go with them, also those of lost attempts."""
    await team.work(echoing())
    await team.orc.subjects.assign("ann", session="s-1")
    handle = await team.orc.submit("echo", {"text": BIG}, session="s-1")
    other = await team.orc.submit("echo", {"text": BIG})
    assert [await one.result(4) for one in (handle, other)] == [BIG, BIG]
    report = await team.orc.subjects.erase("ann", asked_by="ticket 7")
    assert report.tasks == 1
    assert {file.parent.name for file in objects(folder)} == {other.id}


async def test_a_backup_keeps_references(
    redis_server: RedisServer, prefix: str, redis_client: redis.Redis, folder: Path, tmp_path: Path
) -> None:
    """A restored pool reads arguments and results from the store, which a backup of the pool does not contain."""
    settings = local_settings(redis_server.url, prefix, payload__store=folder.as_uri())
    path = tmp_path / "pool.orc.gz"
    async with run_local_team(settings) as team:
        await team.work(echoing())
        done = await team.orc.submit("echo", {"text": BIG})
        assert await done.result(4) == BIG
        await team.stop_workers()
        waiting = await team.orc.submit("size", {"text": BIG})
        await save_pool(team.services, path)
    assert path.stat().st_size < 100_000
    redis_client.unlink(*redis_client.scan_iter(f"{{{prefix}*"), *redis_client.scan_iter(f"{prefix}*"))
    await (await open_backup(path)).restore(settings)
    async with run_local_team(settings) as team:
        assert await team.orc.task(done.id).result(4) == BIG
        loaded = await load_values(team.services, await team.orc.task(waiting.id).info())
        assert loaded.args == encode_json("", {"text": BIG}, max_bytes=10**9, max_depth=9)


@pytest.mark.slow
async def test_fifty_megabytes(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A result of 50 MB arrives without a byte in Redis and without blocking the event loop, as the loop guard sees."""
    agent = Agent("maker")

    @agent.skill
    async def make(megabytes: int) -> str:
        return "artefact" * (megabytes * 125_000)

    await team.work(agent)
    peak_bytes = int(redis_client.info("memory")["used_memory_peak"])
    tracemalloc.start()
    try:
        handle = await team.orc.submit("make", {"megabytes": 50})
        assert len(await handle.result(50)) == 50_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The text, its JSON and the bytes that were read, of two programs in one process.
    assert peak < 6 * 50_000_000
    assert int(redis_client.info("memory")["used_memory_peak"]) - peak_bytes < 2_000_000
