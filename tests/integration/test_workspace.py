"""Agents share a workspace: from handlers, from outside, from fifty at once; whoever lost its right changes nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import (
    DELETE,
    Agent,
    Fenced,
    InvalidInput,
    LockLost,
    NotFound,
    OrchestratorError,
    ServerRefused,
    StateConflict,
    TaskContext,
    VersionConflict,
    WorkspaceFull,
)
from orchestrator.testing.waiting import wait_for
from tests.helpers.json_values import alike, json_values
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    import redis

    from orchestrator import Workspace, WorkspaceEvent
    from tests.helpers.local_team import LocalTeam


async def test_handlers_share(team: LocalTeam) -> None:
    """Fifty agents at once each bump one path and append one entry: version 50, 50 entries, nobody is refused."""
    agent = Agent("writer", concurrency=50)

    @agent.skill
    async def write(ctx: TaskContext, number: int) -> int:
        await ctx.workspace.append("findings", {"by": number})
        return (await ctx.workspace.incr("count")).version

    await team.work(agent)
    handles = [await team.orc.submit("write", {"number": n}, session="S 1") for n in range(50)]
    versions = [await handle.result(TIMEOUT_S) for handle in handles]
    assert sorted(versions) == list(range(1, 51))
    shared = await team.orc.workspace("S 1").snapshot()
    assert (shared.paths["count"].value, shared.paths["count"].version, shared.paths["count"].agent) == (
        50,
        50,
        "writer",
    )
    assert sorted(entry.value["by"] for entry in shared.logs["findings"]) == list(range(50))
    assert [entry.number for entry in shared.logs["findings"]] == list(range(1, 51))
    assert shared.revision == 100


async def test_tasks_that_share_nothing_pay_nothing(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A task of a session that does not touch its workspace makes no key for it."""
    agent = Agent("idle")

    @agent.skill
    async def nothing(ctx: TaskContext) -> None: ...

    await team.work(agent)
    await (await team.orc.submit("nothing", session="s")).result(TIMEOUT_S)
    assert redis_client.keys(f"{team.settings.prefix}:{{session:*") == []


async def test_a_task_without_a_session(team: LocalTeam) -> None:
    """A handler that asks for a workspace without a session is told what to do."""
    agent = Agent("lonely")

    @agent.skill
    async def look(ctx: TaskContext) -> str:
        with pytest.raises(OrchestratorError, match="belongs to no session, so it has no workspace"):
            _ = ctx.workspace
        return "told"

    await team.work(agent)
    assert await (await team.orc.submit("look")).result(TIMEOUT_S) == "told"


async def test_scratch_and_publish(team: LocalTeam) -> None:
    """A handler keeps drafts to itself and publishes one; the next attempt of its agent finds the others."""
    agent = Agent("drafter")

    @agent.skill
    async def draft(ctx: TaskContext) -> list[str]:
        if await ctx.scratch.list():
            await ctx.workspace.publish("text")
            with pytest.raises(NotFound, match="holds no 'text'; nothing was published"):
                await ctx.workspace.publish("text")
        else:
            await ctx.scratch.patch({"text": "…", "more": [1]})
        return await ctx.scratch.list()

    await team.work(agent)
    results = [await (await team.orc.submit("draft", session="s")).result(TIMEOUT_S) for _ in range(2)]
    assert results == [["more", "text"], ["more"]]
    assert (await team.orc.workspace("s").get("text"))["text"].value == "…"


async def test_a_scratch_is_its_agents_alone(team: LocalTeam) -> None:
    """Agents of one session write one path each for themselves, and one that they share; no other scratch is found."""
    names, written = ("ada", "bob"), list[str]()
    for name in names:
        agent = Agent(name)

        async def write(ctx: TaskContext) -> dict[str, Any]:
            await ctx.scratch.set("note", ctx.agent)
            await ctx.workspace.append("seen", ctx.agent)
            written.append(ctx.agent)
            await wait_for(lambda: len(written) >= len(names), "both agents have written")
            shared = await ctx.workspace.snapshot()
            return {
                "mine": {path: found.value for path, found in (await ctx.scratch.get()).items()},
                "paths": sorted(shared.paths),
                "seen": [entry.value for entry in shared.logs["seen"]],
            }

        agent.skill(name=f"write-{name}")(write)
        await team.work(agent)
    handles = [await team.orc.submit(f"write-{name}", session="S") for name in names]
    ada, bob = [await handle.result(TIMEOUT_S) for handle in handles]
    assert (ada["mine"], bob["mine"]) == ({"note": "ada"}, {"note": "bob"})
    assert ada["paths"] == bob["paths"] == []
    assert ada["seen"] == bob["seen"] == written
    other = await team.orc.submit("write-ada", session="another")
    assert (await other.result(TIMEOUT_S))["seen"] == ["ada"]


async def test_fenced_attempt(team: LocalTeam, redis_client: redis.Redis) -> None:
    """An attempt whose lock a later generation has taken is refused with the present owner, and changes nothing."""
    agent, raised = Agent("old"), []

    @agent.skill(max_attempts=1)
    async def write(ctx: TaskContext) -> None:
        await ctx.workspace.set("mine", 1)
        key = f"{team.settings.prefix}:{{session:s}}:exec:{ctx.task_id}"
        redis_client.set(key, f"9:{ctx.task_id}:99999999999999:ab", ex=60)
        for change in (
            ctx.workspace.set("mine", 2),
            ctx.workspace.append("log", 1),
            ctx.scratch.set("x", 1),
            ctx.workspace.clear(),
        ):
            try:
                await change
            except Fenced as fenced:
                raised.append(fenced)

    await team.work(agent)
    handle = await team.orc.submit("write", session="s")
    await wait_for(lambda: len(raised) == 4, "four refusals")
    assert {fenced.owner for fenced in raised} == {f"task {handle.id}, generation 99999999999999"}
    shared = await team.orc.workspace("s").snapshot()
    assert (shared.revision, shared.paths["mine"].value, shared.logs) == (1, 1, {})


async def test_edit(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A program edits under a lock of its own, which is gone afterwards; a handle without one has no changes at all."""
    view = team.orc.workspace("101")
    async with view.edit() as ws, view.edit(agent="ann") as other:
        assert (await ws.set("title", "a")).version == 1
        assert (await other.set("title", "b", if_version=1)).version == 2
    assert (await view.get("title"))["title"].agent == "ann"
    assert not hasattr(view, "set")
    assert redis_client.keys(f"{team.settings.prefix}:{{session:101}}:lock:*") == []
    with pytest.raises(LockLost):
        await ws.set("title", "c")


async def test_an_editor_who_lost_its_lock(team: LocalTeam, redis_client: redis.Redis) -> None:
    """An edit whose lock is somebody else's by now changes nothing: LockLost."""
    view = team.orc.workspace("101")
    with pytest.raises(LockLost, match="eve has it now"):  # noqa: PT012 - the block is what loses its lock
        async with team.orc.locks("session:101").hold("document") as lease:
            ws = view.under(lease)
            await ws.set("title", "a")
            redis_client.set(f"{team.settings.prefix}:{{session:101}}:lock:document", "999:00:eve", ex=60)
            with pytest.raises(LockLost, match="eve"):
                await ws.set("title", "b")
    assert (await view.get("title"))["title"].value == "a"


async def test_a_lock_of_another_session(team: LocalTeam) -> None:
    """A lock guards its own scope alone."""
    async with team.orc.locks("session:other").hold("document") as lease:
        with pytest.raises(InvalidInput, match="a lock guards its own scope alone"):
            await team.orc.workspace("101").under(lease).set("title", "a")


@pytest.fixture
async def ws(team: LocalTeam) -> Any:
    """A workspace that the test may change, as the agent ada."""
    async with team.orc.workspace("101").edit(agent="ada") as ws:
        yield ws


async def test_refusals_say_what_to_do(ws: Workspace) -> None:
    """Conflicts name what is there; what cannot be is refused before anything is sent."""
    await ws.set("p", 1)
    with pytest.raises(VersionConflict, match="path 'p' has version 1, not 7; nothing was changed") as version:
        await ws.set("p", 2, if_version=7)
    assert (version.value.path, version.value.version) == ("p", 1)
    with pytest.raises(VersionConflict, match="path 'q' holds nothing, not 2"):
        await ws.patch({"p": 1, "q": 2}, if_versions={"q": 2})
    await ws.transition("job", to="open")
    with pytest.raises(StateConflict, match="'job' is open, not held or done") as state:
        await ws.transition("job", to="done", expect=["held", "done"])
    assert state.value.state == "open"
    await ws.transition("job", to="done")
    await ws.set("p", "x")
    with pytest.raises(InvalidInput, match="holds no whole number"):
        await ws.incr("p")
    for wrong in (
        lambda: ws.set("", 1),
        lambda: ws.set("a\nb", 1),
        lambda: ws.set("é" * 129, 1),
        lambda: ws.set("p", {1}),
        lambda: ws.set("p", float("nan")),
        lambda: ws.set("p", "x" * 300_000),
        lambda: ws.set("p", 1, if_version=1, newer_than=2),
        lambda: ws.set("p", 1, if_version=-1),
        lambda: ws.patch({}),
        lambda: ws.patch(dict.fromkeys(map(str, range(501)), 1)),
        lambda: ws.patch({"p": 1}, if_versions={"q": 1}),
        lambda: ws.incr("p", 2**53),
        lambda: ws.append("log"),
        lambda: ws.append("log", 1, 2, cap=1),
        lambda: ws.add("s"),
        lambda: ws.transition("job", to="a b"),
        lambda: ws.direct("a b", "STOP"),
        lambda: ws.direct("ada", "STOP", "x" * 20_000),
        lambda: ws.publish("k", as_path="a", to_log="b"),
        lambda: ws.join(lease=0),
        lambda: ws.log("log", last=0),
        lambda: ws.replay(until="$"),
    ):
        with pytest.raises(InvalidInput):
            await wrong()
    assert (await ws.snapshot()).revision == 4


async def test_newer_than(ws: Workspace) -> None:
    """Writers that number their versions: the highest wins in whatever order they come, and may come twice."""
    for number in (3, 1, 5, 5, 2):
        try:
            assert (await ws.set("p", number, newer_than=number)).version == number
        except VersionConflict as conflict:
            assert conflict.version > number  # noqa: PT017 - which ones conflict is the point
    assert (await ws.get("p"))["p"].value == 5
    assert (await ws.set("p", 5, newer_than=5)).duplicate


@pytest.mark.parametrize("settings", [{"workspace__max_items": 2}], indirect=True)
async def test_full(ws: Workspace) -> None:
    """A cap is named with its setting."""
    await ws.append("l", 1, 2)
    with pytest.raises(WorkspaceFull, match=r"session '101' has reached workspace\.max_items = 2; nothing was changed"):
        await ws.set("p", 1)


async def test_events_as_they_come(ws: Workspace) -> None:
    """A reader hears of every change in order while it waits, and goes on behind any event without a gap."""
    heard: list[WorkspaceEvent] = []

    async def listen() -> None:
        async for event in ws.events("0-0"):
            heard.append(event)
            if event.revision == 20:
                return

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        for number in range(20):
            await ws.set("p", number)
    assert [event.revision for event in heard] == list(range(1, 21))
    assert [(event.changes[0].previous, event.changes[0].value) for event in heard[:2]] == [(None, 0), (0, 1)]
    later = [event.revision async for event in ws.events(heard[14].id, block=0)]
    assert later == list(range(16, 21))
    assert [event async for event in ws.events(block=0)] == []
    assert [event.revision async for event in ws.events(heard[18].id, block=0.05)] == [20]


async def test_directives_wait_for_their_agent(team: LocalTeam, ws: Workspace) -> None:
    """A STOP reaches an agent that was busy or is new; until it is acknowledged it comes again."""
    await ws.direct("bob", "STOP", {"why": "enough"})
    async with team.orc.workspace("101").edit(agent="bob") as bob:
        for _ in range(2):
            async for told in bob.directives():
                assert (told.kind, told.value, told.by) == ("STOP", {"why": "enough"}, "ada")
                break
        await bob.acknowledge(*[told async for told in bob.directives(block=0)])
        assert [told async for told in bob.directives(block=0)] == []
        async with anyio.create_task_group() as group:
            group.start_soon(ws.direct, "bob", "GO")
            async for told in bob.directives(block=TIMEOUT_S):
                assert told.kind == "GO"
                break


async def test_directory(ws: Workspace) -> None:
    """Who joined is there until it leaves or its lease ends."""
    await ws.join({"role": "critic"}, lease=5)
    (entry,) = await ws.agents()
    assert (entry.agent, entry.info) == ("ada", {"role": "critic"})
    assert 4 < entry.left <= 5
    await ws.leave()
    assert await ws.agents() == []
    await ws.join(lease=0.001)
    await anyio.sleep(0.01)
    assert await ws.agents() == []


async def test_replay_and_snapshot(ws: Workspace) -> None:
    """The events alone lead to what is stored; a change that went past them is found."""
    await ws.patch({"a": [], "b": {"c": 1.0}})
    middle = (await ws.snapshot()).event
    await ws.patch({"a": DELETE, "d": None})
    await ws.append("log", 1, 2, 3, cap=4)
    await ws.append("log", 4, 5, cap=4)
    await ws.add("s", "x", "y")
    await ws.remove("s", "x")
    await ws.transition("job", to="open", data=[1])
    again = await ws.replay()
    assert (again.complete, again.differs) == (True, ())
    earlier = await ws.replay(until=middle)
    assert {path: held.value for path, held in earlier.snapshot.paths.items()} == {"a": [], "b": {"c": 1.0}}
    scope = ws._scope
    await scope.store.execute("HSET", scope.keys.key("ws:doc"), "b", "9 eve 1")
    await scope.store.execute("SADD", scope.keys.key("ws:set:s"), "z")
    assert (await ws.replay()).differs == ("path:b", "set:s")
    assert (await ws.snapshot()).sets == {"s": {"y", "z"}}
    exported = await ws.export()
    assert (exported["revision"], exported["sets"], exported["states"]["job"]["state"]) == (
        7,
        {"s": ["y", "z"]},
        "open",
    )


async def test_large_values_are_not_replayed(ws: Workspace) -> None:
    """A value that is too large for its event makes the replay incomplete, and it says so."""
    await ws.set("large", "x" * 10_000)
    again = await ws.replay()
    assert (again.complete, again.differs) == (False, ("path:large",))


async def test_every_change_twice_at_once(ws: Workspace) -> None:
    """Five hundred appends, each sent twice at the same time: five hundred entries, and half the answers say so."""
    answers = await asyncio.gather(
        *[ws.append("log", number, op_id=f"op{number}") for number in range(500) for _ in range(2)]
    )
    assert sum(answer.duplicate for answer in answers) == 500
    entries = await ws.log("log", last=1000)
    assert sorted(entry.value for entry in entries) == list(range(500))
    assert (await ws.log("log", after=3, last=2))[0].number == 4


WAYS = ["set", "patch", "scratch", "append", "transition", "publish", "join", "direct"]


async def write(ws: Workspace, how: str, value: Any) -> Any:
    """Write a value in one way and read it back."""
    match how:
        case "set":
            await ws.set("p", value)
        case "patch":
            await ws.patch({"q": value, "p": value})
        case "scratch":
            await ws.scratch.set("p", value)
            return (await ws.scratch.get("p"))["p"].value
        case "append":
            await ws.append("l", 0, value)
            return (await ws.log("l", last=1))[0].value
        case "transition":
            await ws.transition("t", to="x", data=value)
            return (await ws.states("t"))["t"].value
        case "publish":
            await ws.scratch.set("k", value)
            await ws.publish("k", as_path="p")
        case "join":
            await ws.join(value)
            return (await ws.agents())[0].info
        case "direct":
            await ws.direct("ada", "x", value)
            told = [one async for one in ws.directives(block=0)]
            await ws.acknowledge(*told)
            return told[0].value
    return (await ws.get("p"))["p"].value


@pytest.mark.parametrize("how", WAYS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(json_values(), min_size=3, max_size=10))
async def test_fidelity(ws: Workspace, how: str, values: list[Any]) -> None:
    """Whatever JSON holds comes back as it went in, through every way to write it, and through its event."""
    for value in values:
        assert alike(await write(ws, how, value), value)
    if how in {"set", "append", "transition"}:
        events = [event async for event in ws.events("0-0", block=0)]
        assert alike(events[-1].changes[-1].value, values[-1])


async def test_nothing_stays_for_ever(ws: Workspace, redis_client: redis.Redis) -> None:
    """After a random workload every key of the session has a lifetime."""
    for how in WAYS:
        await write(ws, how, 1)
    await ws.add("s", "x")
    keys = redis_client.keys("*{session:101}*")
    assert len(keys) > 10
    assert [key for key in keys if redis_client.pttl(key) < 0] == []


async def test_broken_connections(ws: Workspace, redis_client: redis.Redis) -> None:
    """Connections that break again and again in the middle of changes lose none and double none."""
    broken = 0

    async def append(writer: int) -> None:
        for number in range(40):
            await ws.append("log", [writer, number])
            await ws.incr("count")

    async def cut() -> None:
        nonlocal broken
        while broken < 10:
            await anyio.sleep(0.01)
            broken += await anyio.to_thread.run_sync(
                lambda: redis_client.client_kill_filter(_type="normal", skipme=True)
            )

    async with anyio.create_task_group() as group:
        group.start_soon(cut)
        for writer in range(20):
            group.start_soon(append, writer)
    entries = [tuple(entry.value) for entry in await ws.log("log", last=1000)]
    assert sorted(entries) == [(writer, number) for writer in range(20) for number in range(40)]
    assert (await ws.get("count"))["count"].value == 800
    assert broken >= 10


async def test_one_name_for_two_changes(team: LocalTeam) -> None:
    """An op_id that has named another change is refused in words, and nothing is changed a second time."""
    async with team.orc.workspace("s").edit(agent="ed") as ws:
        await ws.patch({"a": 1, "b": 2}, op_id="x")
        for again in (ws.set("c", 1, op_id="x"), ws.incr("c", op_id="x")):
            with pytest.raises(InvalidInput, match="op_id 'x' names another change of session 's'"):
                await again
        assert set(await ws.get()) == {"a", "b"}
    await team.orc.agents.set_state("ed", {"status": "idle"}, op_id="x")
    with pytest.raises(InvalidInput, match="op_id 'x' names another change of agent 'ed'"):
        await team.orc.agents.bump("ed", "count", op_id="x")


async def test_foreign_key_in_a_snapshot(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A key of another type under a workspace: its snapshot says what Redis said."""
    async with team.orc.workspace("s").edit() as ws:
        await ws.append("l", 1)
        redis_client.set(f"{team.settings.prefix}:{{session:s}}:ws:ev", "foreign", ex=100)
        with pytest.raises(ServerRefused, match="WRONGTYPE"):
            await ws.snapshot()
