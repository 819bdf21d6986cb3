"""Large values are fields of their own in the record of their task; no script reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from orchestrator.core.errors import TaskFailed
from orchestrator.core.formats import Feature, Floor
from orchestrator.store.store import Store
from orchestrator.sync import Orchestrator as SyncOrchestrator
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.submission import Submission
from orchestrator.tasks.values import ROW_BYTES, ValueReader, is_apart
from orchestrator.views.backup import open_backup, save_pool
from orchestrator.views.tasks import read_task
from orchestrator.workers.agent import Agent
from tests.helpers.local_team import TIMEOUT_S, LocalTeam, local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    import redis

    from orchestrator.store.calls import Argument
    from tests.faultkit.servers import RedisServer

BIG = "x" * (2 * ROW_BYTES)


@pytest.fixture
async def team(redis_server: RedisServer, prefix: str) -> AsyncIterator[LocalTeam]:
    """A team with the usual settings."""
    async with run_local_team(local_settings(redis_server.url, prefix)) as running:
        yield running


def echoing() -> Agent:
    """An agent that returns its arguments, and one skill that fails at its first attempts."""
    agent = Agent("echo")
    failures = iter([True, True])

    @agent.skill
    async def echo(text: str) -> str:
        return text

    @agent.skill(max_attempts=3)
    async def fail_twice(text: str) -> str:
        if next(failures, False):
            raise ValueError("not yet")
        return text

    @agent.skill(max_attempts=1)
    async def fail(text: str) -> str:
        raise ValueError(text[:2])

    return agent


async def record_of(team: LocalTeam, id_: str) -> dict[bytes, bytes]:
    """Return the fields of a task."""
    flat = await team.services.store.execute("HGETALL", team.services.keys.task(id_))
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def test_large_values_pass_no_script(team: LocalTeam) -> None:
    """Arguments and result arrive whole; envelope, inbox entry, result and reply are short."""
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": BIG})
    assert await handle.result(TIMEOUT_S) == BIG
    assert await team.orc.task(handle.id).result(TIMEOUT_S) == BIG
    fields = await record_of(team, handle.id)
    (field,) = [name for name in fields if name.startswith(b"result:")]
    assert len(fields[field]) == len(BIG) + 2
    assert is_apart(fields[b"result"])
    assert sum(len(value) for name, value in fields.items() if name not in {field, b"args"}) < 500


async def test_small_values_stay_in_rows(team: LocalTeam) -> None:
    """The twin: what is small has no field of its own."""
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": "x" * 1000})
    assert await handle.result(TIMEOUT_S) == "x" * 1000
    fields = await record_of(team, handle.id)
    assert b"args" not in fields
    assert not is_apart(fields[b"result"])


async def test_many_at_once_and_of_both_kinds(team: LocalTeam) -> None:
    """Bulk submits, options and small tasks between large ones."""
    await team.work(echoing())
    texts = [BIG, "small", BIG + "y", "", BIG]
    tasks = [Submission("echo", {"text": text}, priority="high", session=f"s{at}") for at, text in enumerate(texts)]
    handles = await team.orc.submit_many(tasks)
    assert [await handle.result(TIMEOUT_S) for handle in handles] == texts
    again = await team.orc.submit_many([Submission("echo", {"text": BIG}, key="k") for _ in range(2)])
    assert again[0].id == again[1].id


async def test_retries_keep_the_arguments(team: LocalTeam) -> None:
    """An attempt that failed, and a retry of a dead letter, find the arguments."""
    await team.work(echoing())
    assert await (await team.orc.submit("fail_twice", {"text": BIG})).result(TIMEOUT_S) == BIG
    dead = await team.orc.submit("fail", {"text": BIG})
    with pytest.raises(TaskFailed):
        await dead.result(TIMEOUT_S)
    info = await read_task(team.services, dead.id)
    assert (info.state, len(info.args)) == (TaskState.DEAD, len(BIG) + 11)
    await dead.retry()
    with pytest.raises(TaskFailed):
        await dead.result(TIMEOUT_S)
    assert len((await read_task(team.services, dead.id)).errors) == 2


async def test_views_show_them(team: LocalTeam) -> None:
    """`orc tasks show` has arguments and result as if they were small."""
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": BIG})
    await handle.result(TIMEOUT_S)
    info = await read_task(team.services, handle.id)
    assert info.result == f'"{BIG}"'.encode()
    assert (info.stored_args, info.stored_result) == (None, None)


async def test_values_that_redis_refuses_travel_in_rows(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of older rights cannot write fields; submits and verdicts then take the script."""
    pipeline = Store.pipeline

    async def refusing(store: Store, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        kept = [command for command in commands if command[0] not in {"MULTI", "HSETNX", "EXPIRE", "EXEC"}]
        return [None] * (len(commands) - len(kept)) + await pipeline(store, kept)

    monkeypatch.setattr(Store, "pipeline", refusing)
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": BIG})
    assert await handle.result(TIMEOUT_S) == BIG
    fields = await record_of(team, handle.id)
    assert b"args" not in fields
    assert fields[b"result"] == f'"{BIG}"'.encode()


async def test_older_programs_get_values_in_rows(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the pool admits programs that know no references, large values take the rows."""
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.VALUES_APART)
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": BIG})
    assert await handle.result(TIMEOUT_S) == BIG
    assert b"args" not in await record_of(team, handle.id)


async def test_blocking_client_and_other_processes(team: LocalTeam) -> None:
    """The blocking client reads large results too, also of a task that another client submitted."""
    await team.work(echoing())
    handle = await team.orc.submit("echo", {"text": BIG})
    settings = team.settings

    def ask() -> Any:
        with SyncOrchestrator(settings=settings) as orc:
            return orc.task(handle.id).result(TIMEOUT_S), orc.submit("echo", {"text": BIG}).result(TIMEOUT_S)

    assert await anyio.to_thread.run_sync(ask) == (BIG, BIG)


async def test_readers_share_a_round_trip(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of one turn of the event loop make one pipeline; one that is cancelled takes no other with it."""
    store, keys = team.services.store, team.services.keys
    for number in range(5):
        await store.pipeline(
            [("HSET", keys.task(f"t{number}"), "args", number), ("EXPIRE", keys.task(f"t{number}"), 9)]
        )
    sent: list[int] = []
    pipeline = Store.pipeline

    async def counted(store: Store, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        if commands and commands[0][0] == "HGET":
            sent.append(len(commands))
        return await pipeline(store, commands)

    monkeypatch.setattr(Store, "pipeline", counted)
    reader, found, first = ValueReader(store), dict[int, bytes | None](), anyio.CancelScope()

    async def read(number: int) -> None:
        with first if number == 0 else anyio.CancelScope():
            found[number] = await reader.read(f"t{number}", b"\x02args 1")

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(read, number)
    assert (sent, found) == ([5], {number: b"%d" % number for number in range(5)})
    found.clear()
    first = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(read, number)
        await checkpoint()
        first.cancel()
    assert found == {number: b"%d" % number for number in range(1, 5)}
    assert await reader.read("unknown", b"\x02args 1") is None


async def test_backups_have_them(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str, tmp_path: Path
) -> None:
    """An ended and a queued task come back from a backup with result and arguments."""
    settings, path = local_settings(redis_server.url, prefix), tmp_path / "pool.orc.gz"
    async with run_local_team(settings) as team:
        await team.work(echoing())
        done = await team.orc.submit("echo", {"text": BIG})
        await done.result(TIMEOUT_S)
        waiting = await team.orc.submit("nobody", {"text": BIG})
        await save_pool(team.services, path)
    redis_client.unlink(*redis_client.scan_iter(f"{{{prefix}*"), *redis_client.scan_iter(f"{prefix}*"))
    await (await open_backup(path)).restore(settings)
    async with run_local_team(settings) as team:
        assert await team.orc.task(done.id).result(TIMEOUT_S) == BIG
        assert len((await team.orc.task(waiting.id).info()).args) == len(BIG) + 11
