"""Progress and partial output: read live, resumed anywhere, by any number of readers, refused from a stale attempt."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import pytest
from pydantic import BaseModel, SecretStr

from orchestrator import (
    Agent,
    Fenced,
    InvalidInput,
    NotFound,
    Orchestrator,
    OrchestratorError,
    Progress,
    Retry,
    Snooze,
    Submission,
    TaskContext,
)
from orchestrator.core.ids import new_task_id
from tests.helpers.connections import connection_names
from tests.helpers.local_team import TIMEOUT_S, local_settings
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import redis

    from orchestrator import OutputChunk, TaskEvent
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

SOON: dict[str, Any] = {"redis__command_timeout_s": 0.3}
"""Readers are looked up as often as a command may take at most."""


async def read(stream: AsyncGenerator[Any]) -> list[Any]:
    """All of a stream, up to its end."""
    with anyio.fail_after(TIMEOUT_S):
        return [item async for item in stream]


def talker(gate: anyio.Event | None = None) -> Agent:
    """An agent that emits as many numbers as it is asked for, and waits for the gate after the first."""
    agent = Agent("talker")

    @agent.skill
    async def count(ctx: TaskContext, to: int) -> int:
        for number in range(1, to + 1):
            await ctx.emit({"number": number})
            await ctx.progress(number, to, "counting")
            if number == 1 and gate is not None:
                await gate.wait()
        return to

    return agent


async def test_chunks_come_while_the_task_runs(team: LocalTeam) -> None:
    """A chunk is there before the handler has ended; the stream ends with the task."""
    gate = anyio.Event()
    await team.work(talker(gate))
    handle = await team.orc.submit("count", {"to": 3})
    seen: list[OutputChunk] = []
    with anyio.fail_after(TIMEOUT_S):
        async for chunk in handle.output():
            seen.append(chunk)
            if len(seen) == 1:
                assert (await handle.status()).state == "running"
                gate.set()
    assert [chunk.data for chunk in seen] == [{"number": 1}, {"number": 2}, {"number": 3}]
    assert [(chunk.attempt, chunk.number) for chunk in seen] == [(1, 1), (1, 2), (1, 3)]
    assert all(chunk.at.tzinfo is not None for chunk in seen)
    assert await handle.result(TIMEOUT_S) == 3


async def test_events_tell_the_whole_life(team: LocalTeam) -> None:
    """Who follows from the beginning sees every step, with its attempt, across a retry."""
    agent = Agent("talker")

    @agent.skill
    async def stumble(ctx: TaskContext) -> None:
        await ctx.emit(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry(0.01, "not yet")

    handle = await team.orc.submit("stumble")
    seen: list[TaskEvent] = []
    with anyio.fail_after(TIMEOUT_S):
        async for event in handle.events():
            seen.append(event)
            if event.kind == "ready":
                await team.work(agent)
    assert [(event.kind, event.attempt) for event in seen] == [
        ("ready", 1),
        ("assigned", 1),
        ("output", 1),
        ("retried", 1),
        ("assigned", 2),
        ("output", 2),
        ("succeeded", 2),
    ]
    assert (seen[1].agent, seen[2].data, seen[2].number, seen[3].reason) == ("talker", 1, 1, "Retry: not yet")
    assert [event.final for event in seen] == [False] * 6 + [True]
    assert [event.id for event in seen] == sorted(event.id for event in seen)
    chunks = await read(handle.output())
    assert [(chunk.attempt, chunk.number, chunk.data) for chunk in chunks] == [(1, 1, 1), (2, 1, 2)]


@pytest.mark.parametrize("live", [True, False])
async def test_resumes_behind_every_offset(team: LocalTeam, live: bool) -> None:  # noqa: FBT001 - a test parameter
    """Whatever was seen last, reading goes on right behind it: of a running task and of one that has ended."""
    gate = anyio.Event()
    await team.work(talker(gate if live else None))
    handle = await team.orc.submit("count", {"to": 5})
    if live:
        with anyio.fail_after(TIMEOUT_S):
            async with aclosing(handle.output()) as begun:
                first = await anext(begun)
        later = handle.output(after=first.id)
        gate.set()
        assert [chunk.number for chunk in await read(later)] == [2, 3, 4, 5]
    chunks, events = await read(handle.output()), await read(handle.events())
    assert [chunk.number for chunk in chunks] == [1, 2, 3, 4, 5]
    for stream, seen in ((handle.output, chunks), (handle.events, events)):
        for position, item in enumerate(seen, 1):
            assert await read(stream(after=item.id)) == seen[position:]
    assert await read(handle.output(after=events[-1].id)) == []


async def test_readers_go_at_their_own_pace(team: LocalTeam) -> None:
    """A reader that has stopped to think holds up no other, and misses nothing when it goes on."""
    await team.work(talker())
    handle = await team.orc.submit("count", {"to": 200})
    async with aclosing(handle.output()) as slow:
        with anyio.fail_after(TIMEOUT_S):
            first = await anext(slow)
            assert [chunk.number for chunk in await read(handle.output())] == list(range(1, 201))
            rest = [chunk.number async for chunk in slow]
    assert [first.number, *rest] == list(range(1, 201))


async def test_readers_of_other_clients(team: LocalTeam) -> None:
    """Any client reads, by the id alone, from the beginning: while the task runs, and when it has ended."""
    gate = anyio.Event()
    await team.work(talker(gate))
    id_ = (await team.orc.submit("count", {"to": 2})).id
    other = await team.client()
    found: list[list[int]] = []

    async def follow() -> None:
        found.append([chunk.number for chunk in await read(other.task(id_).output())])

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(follow)
        await wait_for(lambda: team.services.store.execute("XLEN", team.services.keys.out(id_)), "output")
        gate.set()
    await follow()
    assert found == [[1, 2]] * 4


async def test_a_silent_task_ends_its_readers(team: LocalTeam) -> None:
    """A task that emits nothing: its readers learn of the end at once, whoever ends it."""
    handle = await team.orc.submit("nobody_can")
    events: list[TaskEvent] = []

    async def follow() -> None:
        events.extend(await read(handle.events()))

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await wait_for(lambda: team.services.store.execute("EXISTS", team.services.keys.out(handle.id)), "a follower")
        await handle.cancel("not needed")
    assert [(event.kind, event.reason) for event in events] == [("ready", ""), ("cancelled", "not needed")]
    assert await read(handle.output()) == []


async def test_a_task_that_ended_unseen(team: LocalTeam) -> None:
    """Nobody followed and nothing was emitted: no chunks, and one event made from the record, behind which is none."""
    silent = Agent("silent")

    @silent.skill
    async def fail() -> None:
        raise ValueError("no")

    await team.work(silent)
    handle = await team.orc.submit("fail", max_attempts=1)
    await wait_for(lambda: ended(handle), "the end")
    (event,) = await read(handle.events())
    assert (event.kind, event.attempt, event.reason, event.final) == ("dead", 1, "ValueError: no", True)
    assert event.at == (await handle.info()).ended_at
    assert await read(handle.events(after=event.id)) == await read(handle.output()) == []
    assert not await team.services.store.execute("EXISTS", team.services.keys.out(handle.id))


async def ended(handle: TaskHandle[Any]) -> bool:
    """Whether a task has ended."""
    return (await handle.status()).state.final


async def test_unknown_tasks_and_offsets(team: LocalTeam) -> None:
    """An unknown task is NotFound when read; what is no offset is refused at once."""
    stranger = team.orc.task(new_task_id())
    for stream in (stranger.output(), stranger.events()):
        with pytest.raises(NotFound, match="does not exist"):
            await read(stream)
    for after in (
        "",
        "x",
        "1",
        "1-",
        "-1-0",
        "1-0-0",
        "1-0 ",
        "\N{FULLWIDTH DIGIT NINE}-0",
        f"{2**64}-0",
        f"0-{2**64}",
        7,
    ):
        with pytest.raises(InvalidInput, match="is not the id of an event"):
            stranger.output(after=after)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="is not the id of an event"):
            stranger.events(after=after)  # type: ignore[arg-type]


async def test_progress_is_kept(team: LocalTeam) -> None:
    """The latest progress of the present attempt is told with the task; that of an earlier attempt is not."""
    agent, gate = Agent("worker"), anyio.Event()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            await ctx.progress(1, 3)
            await ctx.progress(2.5, 3, "  nearly \n there ")
            await gate.wait()
            raise Retry(0.01)

    await team.work(agent)
    handle = await team.orc.submit("work")
    wanted = Progress(2.5, 3, "nearly there")

    async def told() -> bool:
        return (await handle.info()).progress == wanted

    await wait_for(told, "the progress")
    assert (await handle.status()).progress == wanted
    gate.set()
    await handle.result(TIMEOUT_S)
    assert (await handle.info()).progress is None


async def test_a_thread_emits(team: LocalTeam) -> None:
    """A `def` handler emits and reports through the event loop."""
    agent = Agent("threads")

    @agent.skill
    def work(ctx: TaskContext) -> str:
        anyio.from_thread.run(ctx.progress, 1, 2, "half")
        anyio.from_thread.run(ctx.emit, ["a"])
        return "done"

    await team.work(agent)
    handle = await team.orc.submit("work")
    events = await read(handle.events())
    assert [event.kind for event in events if event.kind in {"progress", "output"}] == ["progress", "output"]
    assert await handle.result() == "done"
    assert (await handle.info()).progress == Progress(1, 2, "half")


class Finding(BaseModel):
    """What a handler may emit."""

    page: int
    text: str


@pytest.mark.parametrize(
    "settings", [{"output__max_chunk_bytes": 100, "queue__max_depth": 3}], indirect=True, ids=["small"]
)
async def test_what_is_refused_by_validation(team: LocalTeam) -> None:
    """What JSON cannot hold, is too large or too deep, and numbers that are none: nothing of it is sent."""
    agent = Agent("worker")
    refused: list[str] = []

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        for data in (object(), float("nan"), {1: 2}, "x" * 99, [[[[1]]]], "\ud800", {1, 2}):
            with pytest.raises(InvalidInput) as failure:
                await ctx.emit(data)
            refused.append(str(failure.value))
        amounts: Any = [(-1,), (float("nan"),), ("1",), (True,), (1, -1), (1, float("inf")), (None,)]
        for amount in amounts:
            with pytest.raises(InvalidInput):
                await ctx.progress(*amount)
        with pytest.raises(InvalidInput, match="must be a text"):
            await ctx.progress(1, 2, None)  # type: ignore[arg-type]
        for data in (None, "é" * 49, [[[]]], Finding(page=1, text="t"), 2**70):
            await ctx.emit(data)
        await ctx.progress(3, 2, "x" * 40)

    await team.work(agent)
    handle = await team.orc.submit("work", max_attempts=1)
    chunks = await read(handle.output())
    await handle.result(TIMEOUT_S)
    assert [chunk.data for chunk in chunks] == [None, "é" * 49, [[[]]], {"page": 1, "text": "t"}, 2**70]
    assert [chunk.number for chunk in chunks] == [1, 2, 3, 4, 5]
    assert all(f"output of task {handle.id}" in text for text in refused)


async def test_a_stale_attempt_is_refused(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Once the task was taken away, progress and output raise `Fenced`, and readers see nothing of them."""
    agent, taken = Agent("worker"), anyio.Event()
    raised: list[Fenced] = []

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        await ctx.emit("mine")
        await taken.wait()
        for say in (ctx.emit("late"), ctx.progress(1), ctx.emit("later")):
            with pytest.raises(Fenced) as refusal:
                await say
            raised.append(refusal.value)

    await team.work(agent)
    handle = await team.orc.submit("work")
    with anyio.fail_after(TIMEOUT_S):
        async with aclosing(handle.output()) as chunks:
            assert (await anext(chunks)).data == "mine"
    record, out = team.services.keys.task(handle.id), team.services.keys.out(handle.id)
    before = redis_client.xlen(out)
    redis_client.hincrby(record, "gen", 1)  # as whoever takes it does
    taken.set()
    await wait_for(lambda: len(raised) == 3, "three refusals")
    assert {refusal.task_id for refusal in raised} == {handle.id}
    assert "no longer owns task" in str(raised[0])
    assert redis_client.xlen(out) == before


async def test_readers_drop_what_is_older(team: LocalTeam, redis_client: redis.Redis) -> None:
    """An entry of a lower generation behind one of a higher is not shown, wherever it came from."""
    handle = await team.orc.submit("nobody_can", delay=60)
    out = team.services.keys.out(handle.id)
    for generation, data in ((10**13, '"new"'), (10**13 - 1, '"old"'), (10**13, '"newer"')):
        redis_client.xadd(out, {"k": "output", "g": generation, "a": 1, "n": 1, "d": data})
    redis_client.xadd(out, {"k": "cancelled", "g": 10**13, "a": 1, "d": ""})
    redis_client.expire(out, 60)
    assert [chunk.data for chunk in await read(handle.output())] == ["new", "newer"]


async def test_a_snoozed_task_begins_to_count_anew(team: LocalTeam) -> None:
    """A run that counts no attempt numbers its chunks from 1 again, so that readers see it began anew."""
    agent = Agent("worker")
    runs: list[int] = []

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        runs.append(1)
        await ctx.emit("a")
        await ctx.emit("b")
        if len(runs) == 1:
            raise Snooze(0.01)

    await team.work(agent)
    chunks = await read((await team.orc.submit("work")).output())
    assert [(chunk.attempt, chunk.number) for chunk in chunks] == [(1, 1), (1, 2), (1, 1), (1, 2)]


async def test_concurrent_emits_keep_their_order(team: LocalTeam) -> None:
    """Emits that one handler has under way together are stored in the order they were made; batches lose none."""
    agent = Agent("worker", concurrency=20)

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(ctx.emit, number)

    await team.work(agent)
    handles = [await team.orc.submit("work") for _ in range(20)]
    for handle in handles:
        assert [chunk.data for chunk in await read(handle.output())] == list(range(50))


async def test_a_thousand_followed_tasks_share_a_connection(team: LocalTeam, redis_client: redis.Redis) -> None:
    """However many tasks are followed: one connection for hints, and each reader sees its own task's end."""
    agent, gate = Agent("worker", concurrency=500), anyio.Event()

    @agent.skill
    async def work(ctx: TaskContext, n: int) -> None:
        await gate.wait()
        await ctx.emit(n)

    client = await team.client()

    def connections() -> dict[str, int]:
        names = connection_names(redis_client)
        return {name: names.count(name) for name in names if name.startswith("client")}

    handles = await client.submit_many([Submission("work", {"n": n}) for n in range(1000)])
    before = connections()
    found: dict[int, list[int]] = {}

    async def follow(n: int) -> None:
        found[n] = [chunk.data for chunk in await read(handles[n].output())]

    async with anyio.create_task_group() as group:
        for n in range(1000):
            group.start_soon(follow, n)
        keys = team.services.keys

        async def all_follow() -> bool:
            listed = await team.services.store.execute("PUBSUB", "SHARDCHANNELS")
            return len([name for name in listed if name.decode().startswith(keys.out(""))]) == 1000

        await wait_for(all_follow, "a thousand followers")
        assert connections() == before | {"client:hints": 1}
        gate.set()
        await team.work(agent)
    assert found == {n: [n] for n in range(1000)}


@pytest.mark.parametrize("settings", [SOON], indirect=True, ids=["soon"])
async def test_who_stops_reading_leaves_nothing_behind(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A reader that breaks off, is dropped or cancelled ends its subscription; an idle client keeps no connection."""
    gate = anyio.Event()
    await team.work(talker(gate))
    handle = await team.orc.submit("count", {"to": 2})
    channel = team.services.keys.out(handle.id)

    def listeners() -> int:
        return int(redis_client.pubsub_shardnumsub(channel)[0][1])

    async for _ in handle.output():
        assert listeners() == 1
        break
    with anyio.move_on_after(0.1):
        async for _ in handle.output():
            pass
    await wait_for(lambda: listeners() == 0, "no listener")

    def following() -> bool:
        return "client:hints" in connection_names(redis_client)

    await wait_for(lambda: not following(), "the connection to be closed")
    gate.set()
    assert [chunk.number for chunk in await read(handle.output())] == [1, 2]


async def test_a_closed_client_ends_its_readers(settings: Settings, team: LocalTeam) -> None:
    """Who follows when the client is closed gets an error, and so does who begins afterwards."""
    handle = await team.orc.submit("nobody_can")
    failures: list[str] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Orchestrator(settings=settings))
        theirs = client.task(handle.id)

        async def follow() -> None:
            with pytest.raises(OrchestratorError) as failure:
                await read(theirs.events())
            failures.append(str(failure.value))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await wait_for(lambda: team.services.store.execute("EXISTS", team.services.keys.out(handle.id)), "it")
            await stack.aclose()
        await follow()
    assert failures == [
        "the client was closed while a task was followed",
        f"the client that made this handle is closed; ask an open one for task {handle.id}",
    ]


@pytest.mark.parametrize("settings", [SOON], indirect=True, ids=["soon"])
async def test_a_followed_task_that_vanishes(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Readers of a task whose record is deleted learn that it is gone."""
    handle = await team.orc.submit("nobody_can")
    async with aclosing(handle.events()) as events:
        assert (await anext(events)).kind == "ready"
        redis_client.delete(team.services.keys.task(handle.id), team.services.keys.out(handle.id))
        with pytest.raises(NotFound, match="does not exist"):
            await anext(events)


@pytest.mark.parametrize("right", ["&*", "resetchannels"])
async def test_without_the_right_to_hints(team: LocalTeam, redis_client: redis.Redis, right: str) -> None:
    """A client whose server user may not subscribe sees everything, a look late; with the right it hears at once."""
    redis_client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", right)  # type: ignore[no-untyped-call]
    url = team.settings.redis.url
    assert url is not None
    theirs = local_settings(url.get_secret_value(), team.settings.prefix, redis__command_timeout_s=0.5)
    theirs = theirs.model_copy(update={"redis": theirs.redis.model_copy(update={"url": _as(url, "reader", "pw")})})
    gate = anyio.Event()
    await team.work(talker(gate))
    id_ = (await team.orc.submit("count", {"to": 2})).id
    try:
        async with Orchestrator(settings=theirs) as client:
            seen: list[int] = []
            with anyio.fail_after(TIMEOUT_S):
                async for chunk in client.task(id_).output():
                    seen.append(chunk.number)
                    listening = redis_client.pubsub_shardnumsub(team.services.keys.out(id_))[0][1]
                    assert (listening == 1) == (right == "&*")
                    gate.set()
            assert seen == [1, 2]
    finally:
        redis_client.execute_command("ACL", "DELUSER", "reader")  # type: ignore[no-untyped-call]


def _as(url: Any, user: str, password: str) -> Any:
    """The same server, logged in as somebody."""
    return SecretStr(url.get_secret_value().replace("://", f"://{user}:{password}@", 1))
