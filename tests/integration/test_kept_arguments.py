"""The arguments of a task go with its success, unless a setting keeps them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

from orchestrator.core.errors import TaskFailed
from orchestrator.core.formats import FORMAT, Feature
from orchestrator.payloads.reference import is_reference
from orchestrator.supervisor.payload_sweeper import PayloadSweeper
from orchestrator.tasks.records import read_record
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.agent import Agent
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import LocalTeam, local_settings, run_local_team
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.tasks.model import Envelope

WAIT_S = 10.0
LONG = "x" * 20_000
"""Too long for the rows of scripts, so the record has it in a field of its own."""


def echoing() -> Agent:
    """An agent that returns its argument, and fails for `fail`."""
    agent = Agent("ed")

    @agent.skill
    async def echo(text: str) -> int:
        if text == "fail":
            raise ValueError(text)
        return len(text)

    return agent


def files(folder: Path) -> list[Path]:
    """All files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


async def kept_of(team: LocalTeam, id_: str) -> Envelope:
    """The stored envelope."""
    return (await read_record(team.services.store, id_, "env")).envelope


@pytest.mark.parametrize("text", ["short", LONG])
@pytest.mark.parametrize("options", [{}, {"session": "s", "tags": ["t"], "priority": "low"}, {"key": "k"}])
async def test_a_success_drops_its_arguments(
    redis_server: RedisServer, prefix: str, text: str, options: dict[str, Any]
) -> None:
    """Skill and options stay, and what shows the task says that it has no arguments; a repeat is still recognised."""
    settings = local_settings(redis_server.url, prefix, results__keep_arguments=False)
    async with run_local_team(settings) as team:
        await team.work(echoing())
        handle = await team.orc.submit("echo", {"text": text}, **options)
        assert await handle.result(WAIT_S) == len(text)
        kept, info = await kept_of(team, handle.id), await handle.info()
        assert (kept.skill, kept.args, kept.session) == ("echo", b"", options.get("session"))
        assert (info.args, info.skill, info.tags) == (b"null", "echo", tuple(options.get("tags", ())))
        assert info.priority == (3 if options.get("priority") else 2)
        assert not await team.services.store.execute("HEXISTS", team.services.keys.task(handle.id), "args")
        again = await team.orc.submit("echo", {"text": text}, **options)
        assert (again.id == handle.id) == ("key" in options)


async def test_what_keeps_its_arguments(redis_server: RedisServer, prefix: str) -> None:
    """A dead letter and a cancelled task may be retried; the setting keeps those of successes, and works at once."""
    settings = local_settings(redis_server.url, prefix, results__keep_arguments=False)
    async with run_local_team(settings) as team:
        await team.work(echoing())
        dead = await team.orc.submit("echo", {"text": "fail"}, max_attempts=1)
        with pytest.raises(TaskFailed):
            await dead.result(WAIT_S)
        cancelled = await team.orc.submit("nobody", {"text": "c"})
        await cancelled.cancel()
        assert [(await kept_of(team, one.id)).args for one in (dead, cancelled)] == [
            b'{"text":"fail"}',
            b'{"text":"c"}',
        ]
    settings = local_settings(redis_server.url, prefix, results__keep_arguments=True)
    async with run_local_team(settings) as team:
        await team.work(echoing())
        handle = await team.orc.submit("echo", {"text": "kept"})
        await handle.result(WAIT_S)
        assert (await handle.info()).args == b'{"text":"kept"}'


async def test_older_programs_read_all_arguments(redis_server: RedisServer, prefix: str) -> None:
    """Programs before the floor would misread empty arguments, so nothing is dropped before it is raised."""
    settings = local_settings(redis_server.url, prefix, results__keep_arguments=False)
    async with run_local_team(settings, supervised=False) as team:
        store = team.services.store
        await store.execute("SET", team.services.keys.format, Feature.LEAN_SUCCESSES.floor - 1)
        store.floor.value = Feature.LEAN_SUCCESSES.floor - 1
        assert not store.floor.admits(Feature.LEAN_SUCCESSES)
        await team.start_supervisor()
        await team.work(echoing())
        handle = await team.orc.submit("echo", {"text": "old"})
        await handle.result(WAIT_S)
        assert (await kept_of(team, handle.id)).args == b'{"text":"old"}'
        await store.execute("SET", team.services.keys.format, FORMAT)

        async def dropped() -> bool:
            one = await team.orc.submit("echo", {"text": "new"})
            await one.result(WAIT_S)
            return (await kept_of(team, one.id)).args == b""

        await wait_for(dropped, "the worker to learn of the floor")


async def test_stored_arguments_go_too(redis_server: RedisServer, prefix: str, tmp_path: Path) -> None:
    """The sweep deletes large arguments of a success, which nothing names any longer, and keeps its large result."""
    settings = local_settings(
        redis_server.url, prefix, payload__store=tmp_path.as_uri(), results__keep_arguments=False,
        payload__inline_bytes=4096,
    )  # fmt: skip
    async with run_local_team(settings) as team:
        await team.work(echoing())
        done, waiting = [await team.orc.submit(skill, {"text": LONG}) for skill in ("echo", "nobody")]
        assert await done.result(WAIT_S) == len(LONG)
        assert is_reference((await kept_of(team, waiting.id)).args)
        assert (await done.info()).stored_args is None
        await PayloadSweeper(team.services, young_s=0).sweep()
        assert {file.parent.name for file in files(tmp_path)} == {waiting.id}


async def test_at_the_command_line(redis_server: RedisServer, prefix: str, tmp_path: Path) -> None:
    """`orc tasks` shows why a success has no arguments, and says that a retry is a new submit."""
    settings = local_settings(redis_server.url, prefix, results__keep_arguments=False)
    terminal = Terminal(tmp_path, ORC_REDIS__URL=redis_server.url, ORC_PREFIX=prefix)

    async def orc(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, "tasks", *arguments))

    async with run_local_team(settings) as team:
        await team.work(echoing())
        handle = await team.orc.submit("echo", {"text": "gone"})
        await handle.result(WAIT_S)
        assert (await orc("show", handle.id, "-o", "json")).json()["args"] is None
        shown = (await orc("show", handle.id)).out
        assert re.search(r"^args +not kept after the success \(results\.keep_arguments\)$", shown, re.MULTILINE)
        refused = await orc("retry", handle.id, "--reason", "again", "--yes")
        assert refused.code == 4
        assert "has succeeded; submit it again as a new task" in refused.out + refused.err


@pytest.mark.every_server
@pytest.mark.parametrize("listpack_bytes", [64, 1024])
async def test_small_records_after_success(listpack_bytes: int) -> None:
    """With short listpacks, the hash table of a queued task becomes a listpack again, with all its fields."""
    with RedisServer(options={"hash-max-listpack-value": str(listpack_bytes)}) as server:
        settings = local_settings(server.url, "kept:test:t", results__keep_arguments=False)
        async with run_local_team(settings) as team:
            store, keys = team.services.store, team.services.keys
            plain = await team.orc.submit("echo", {"text": "x" * 100})
            laned = await team.orc.submit("echo", {"text": "x" * 100}, lane="l")
            queued = [await store.execute("OBJECT", "ENCODING", keys.task(one.id)) for one in (plain, laned)]
            assert queued == [b"hashtable" if listpack_bytes == 64 else b"listpack"] * 2
            await team.work(echoing())
            assert [await one.result(WAIT_S) for one in (plain, laned)] == [100, 100]
            assert await store.execute("OBJECT", "ENCODING", keys.task(plain.id)) == b"listpack"
            record = await read_record(store, plain.id)
            assert set(await store.execute("HKEYS", keys.task(plain.id))) == {
                b"gen", b"state", b"at", b"ended", b"env", b"result",
            }  # fmt: skip
            assert (record.holder, record.result, record.skill) == ("ed", b"100", "echo")
            assert 3500 < await store.execute("TTL", keys.task(plain.id)) <= 3600
            assert (await plain.info()).history[-1].assigned_at is not None
            assert (await laned.info()).lane == "l"
