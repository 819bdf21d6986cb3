"""Chats of a session: from programs and from handlers, read as a whole or from where the reader was."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import (
    Agent,
    ChatConflict,
    ChatFull,
    Fenced,
    InvalidInput,
    Message,
    OrchestratorError,
    Position,
    TaskContext,
)
from orchestrator.chat.cache import ChatCache
from orchestrator.client.session_actions import delete_session
from orchestrator.views.chat import list_chats, read_chat
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import redis

    from orchestrator import Chat
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

pytestmark = pytest.mark.every_server


@pytest.fixture
async def alone(settings: Settings) -> AsyncIterator[Chat]:
    """A chat in a pool without a supervisor, so that nothing else runs commands."""
    async with run_local_team(settings, supervised=False) as team:
        yield team.orc.chat("S 1")


def user(text: str) -> dict[str, Any]:
    """What the user says."""
    return {"role": "user", "content": text}


@pytest.fixture
async def chat(team: LocalTeam) -> Chat:
    """A chat of a program outside."""
    return team.orc.chat("S 1")


async def test_what_a_program_appends_a_handler_reads(team: LocalTeam) -> None:
    """A web server appends what the user said, the handler reads it and appends its answers one by one."""
    agent = Agent("support")

    @agent.skill
    async def answer(ctx: TaskContext) -> list[str]:
        history = await ctx.chat.hydrate()
        await ctx.chat.append([{"role": "assistant", "content": "one"}], turn="t1")
        await ctx.chat.append([{"role": "assistant", "content": "two"}], turn="t1")
        return [message["content"] for message in history.data]

    await team.work(agent)
    chat = team.orc.chat("s")
    await chat.append([user("hello")], turn="t1", op_id="request-1")
    assert await (await team.orc.submit("answer", session="s")).result(TIMEOUT_S) == ["hello"]
    after = await chat.hydrate()
    assert [message["content"] for message in after.data] == ["hello", "one", "two"]
    assert [message.number for message in after.messages] == [1, 2, 3]
    assert {message.turn for message in after.messages} == {"t1"}


async def test_a_crashed_turn_keeps_what_it_had(team: LocalTeam) -> None:
    """An attempt that fails in the middle of a turn leaves its messages; the next one goes on behind them."""
    agent = Agent("support")

    @agent.skill
    async def answer(ctx: TaskContext) -> int:
        done = len((await ctx.chat.hydrate()).messages)
        for step in range(done, 4):
            if step == 2 and ctx.attempt == 1:
                raise RuntimeError("crash")
            await ctx.chat.append([{"step": step}], op_id=f"{ctx.task_id}-{step}")
        return done

    await team.work(agent)
    assert await (await team.orc.submit("answer", session="s")).result(TIMEOUT_S) == 2
    assert [message["step"] for message in (await team.orc.chat("s").hydrate()).data] == [0, 1, 2, 3]


async def test_a_task_without_a_session(team: LocalTeam) -> None:
    """A handler that asks for a chat without a session is told what to do."""
    agent = Agent("lonely")

    @agent.skill
    async def look(ctx: TaskContext) -> None:
        with pytest.raises(OrchestratorError, match="belongs to no session, so it has no chat"):
            _ = ctx.chat

    await team.work(agent)
    await (await team.orc.submit("look")).result(TIMEOUT_S)


async def test_an_attempt_that_lost_its_task(team: LocalTeam) -> None:
    """Its messages, changes of messages, fields and removals are refused; those of a program outside are not."""
    agent, refused = Agent("late"), list[str]()

    @agent.skill
    async def late(ctx: TaskContext) -> None:
        # With an id, because another attempt may start before the test has read the chat.
        await ctx.chat.append([Message(user("mine"), id="mine")])
        keys = ctx.chat._scope.keys
        store, task = team.services.store, ctx.task_id
        await store.execute("SET", keys.key(f"exec:{task}"), f"9:{task}:99:ab", "PX", 60_000)
        await store.execute("HSET", keys.key("exec:fence"), task, "99 9")
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: ctx.chat.append([user("late")]),
            "upsert": lambda: ctx.chat.upsert("x", user("late"), version=9),
            "meta": lambda: ctx.chat.set_meta({"a": 1}),
            "summary": lambda: ctx.chat.set_summary("late", upto=1, version=9),
            "pop": ctx.chat.pop,
            "truncate": lambda: ctx.chat.truncate(1),
            "clear": ctx.chat.clear,
            "other source": lambda: ctx.chat.source("other").append([user("late")]),
        }
        for name, change in changes.items():
            try:
                await change()
            except Fenced:
                refused.append(name)
        assert len(refused) >= len(changes)

    await team.work(agent)
    handle = await team.orc.submit("late", session="s")
    await asyncio.wait([asyncio.ensure_future(handle.result(TIMEOUT_S))])
    assert len(refused) >= 8
    chat = team.orc.chat("s")
    assert [message["content"] for message in (await chat.hydrate()).data] == ["mine"]
    assert await chat.sources() == ["main"]
    await chat.append([user("from outside")])


async def test_under_a_lock(team: LocalTeam) -> None:
    """A holder of a lock of the session presents it; after its end every change is refused."""
    chat = team.orc.chat("s")
    async with team.orc.locks("session:s").hold("turn") as lease:
        mine = chat.under(lease).source("web")
        await mine.append([user("x")])
    with pytest.raises(OrchestratorError):
        await mine.append([user("y")])
    assert len((await chat.source("web").hydrate()).messages) == 1


@pytest.mark.every_server(alone=True)
async def test_reading_again(alone: Chat, redis_client: redis.Redis) -> None:
    """A reader gets nothing if nothing has changed, new messages if some were added, and all after any other change."""
    chat = alone
    await chat.append([Message(user(f"m{number}"), id=f"m{number}") for number in range(10)])
    held = await chat.hydrate()
    count = CommandCounter(redis_client)
    same = await chat.hydrate(known=held)
    assert (same.not_modified, same.messages, same.rev, same.seq) == (True, (), held.rev, 10)
    assert count.scripts() == 1
    assert "lrange" not in count.calls()
    assert held.updated(same) is held

    await chat.append([Message(user("m10"), id="m10")])
    await chat.set_meta({"topic": "x"})
    newer = await chat.hydrate(known=held)
    assert ([message.id for message in newer.messages], newer.after, newer.meta) == (["m10"], 10, {"topic": "x"})
    held = held.updated(newer)
    assert held == await chat.hydrate()
    fields_only = await chat.hydrate(known=Position(held.rev - 1, held.seq))
    assert (fields_only.messages, fields_only.after, fields_only.not_modified) == ((), 11, False)

    for change in (
        lambda: chat.upsert("m3", user("changed"), version=2),
        lambda: chat.pop("m10"),
        lambda: chat.truncate(5),
        chat.clear,
        lambda: chat.append([user("again")]),
    ):
        await change()
        held = held.updated(await chat.hydrate(known=held))
        assert (held.data, held.rev, held.base) == (
            (now := await chat.hydrate()).data,
            now.rev,
            now.base,
        )


async def test_cached_reads(team: LocalTeam) -> None:
    """A read through the cache returns what one without it returns, after any change, by whomever."""
    chat, other = team.orc.chat("s"), (await team.client()).chat("s")
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: other.append([Message(user(f"m{number}"), id=f"m{number}", tokens=5) for number in range(30)]),
        lambda: other.append([user("x")], turn="t"),
        lambda: other.set_meta({"a": 1}),
        lambda: other.set_summary("s", upto=3, version=1),
        lambda: other.upsert("m7", user("changed"), version=2),
        lambda: other.truncate(20),
        other.pop,
        lambda: other._scope.store.execute("DEL", other._scope.keys.key("chat:main:q")),
        lambda: other.append([user("y")]),
        other.clear,
        lambda: other.append([user("z")]),
    ]
    reads: list[dict[str, Any]] = [{}, {"last": 3}, {"last": 10}, {"turns": 2}, {"max_tokens": 20}]
    for change in changes:
        for options in reads:
            assert await chat.hydrate(cached=True, **options) == await other.hydrate(**options)
        await change()
        assert await chat.hydrate(cached=True) == await other.hydrate()
    held = await chat.hydrate(cached=True)
    held.messages[0].data["content"] = "changed by the reader"
    assert (await chat.hydrate(cached=True)).data == [user("z")]


async def test_the_cache_is_bounded(alone: Chat, redis_client: redis.Redis) -> None:
    """A read moves only what is new; beyond its size the cache drops the chat that was read the longest ago."""
    scope, cache = alone._scope, ChatCache(30_000)
    for source in "abc":
        await alone.source(source).append([user("x" * 10_000)])
        await cache.read(scope, source, 200)
    for source, listed in (("c", 0), ("b", 0), ("a", 1), ("b", 0), ("c", 1)):
        count = CommandCounter(redis_client)
        assert len((await cache.read(scope, source, 200)).entries) == 1
        assert count.calls().get("lrange", 0) == listed


async def test_the_cache_counts_all_that_it_holds(alone: Chat) -> None:
    """Fields and summaries count, and a chat that holds nothing is not kept."""
    scope, cache = alone._scope, ChatCache(30_000)
    for number in range(3):
        await cache.read(scope, f"empty {number}", 200)
    assert not cache._held
    for source in "abc":
        chat = alone.source(source)
        await chat.set_meta({"f": "x" * 8_000})
        await chat.set_summary("s" * 5_000, upto=1, version=1)
        await cache.read(scope, source, 200)
    assert [source for _, source in cache._held] == ["b", "c"]
    for source in "bc":
        await alone.source(source).clear()
        await cache.read(scope, source, 200)
    assert (cache._bytes, len(cache._held)) == (0, 0)


async def test_a_cached_read_knows_the_new_end(alone: Chat, redis_client: redis.Redis) -> None:
    """A chat near the end of its longest life is extended to it once, and not by each cached read."""
    scope, cache = alone._scope, ChatCache()
    chat = alone._with(cache=cache)
    await chat.append([user("x")])
    await chat.hydrate(cached=True)
    meta = scope.keys.key(scope.keys.chat_part("main", "meta"))
    now_s, _ = await scope.store.execute("TIME")
    end = (int(now_s) + 3600) * 1000
    born = end - round(scope.settings.chat.life_s * 1000)
    await scope.store.execute("HSET", meta, "born", born, "dies", end - 5000)
    await scope.store.execute("PEXPIREAT", meta, end - 5000)
    await chat.hydrate(cached=True)
    assert (await chat.head()).dies_ms == end
    counter = CommandCounter(redis_client)
    for _ in range(3):
        await chat.hydrate(cached=True)
    assert counter.scripts() == 3


@pytest.mark.every_server(alone=True)
async def test_one_round_trip(alone: Chat, redis_client: redis.Redis) -> None:
    """Every change is one script, and a read is one transaction."""
    chat = alone
    await chat.append([user("a"), user("b")])
    await chat.clear()
    records = chat._scope.store.keys.action_records
    # The next record of the client follows ten seconds later.
    await wait_for(lambda: redis_client.exists(records), "the record of the clear", TIMEOUT_S)
    for change in (
        lambda: chat.append([Message(user(f"m{number}"), id=f"m{number}") for number in range(50)]),
        lambda: chat.upsert("m3", user("x"), version=2),
        lambda: chat.patch("m3", user("x"), if_version=2),
        lambda: chat.set_meta({f"f{number}": number for number in range(50)}),
        lambda: chat.set_summary("s", upto=1, version=1),
        lambda: chat.page(20),
        chat.clear,
    ):
        count = CommandCounter(redis_client)
        await change()
        assert count.scripts() == 1
    count = CommandCounter(redis_client)
    await chat.hydrate()
    calls = count.calls()
    assert (calls.pop("multi"), calls.pop("exec"), calls.get("evalsha", 0)) == (1, 1, 0)


async def test_limits_of_a_read(chat: Chat) -> None:
    """The last messages, turns, or as many as fit; more is read when the first 200 do not have them."""
    for turn in range(6):
        rows = [Message({"role": "user" if n == 0 else "assistant", "n": n}, tokens=10) for n in range(100)]
        await chat.append(rows, turn=f"t{turn}")
    assert len((await chat.hydrate()).messages) == 200
    assert [m.number for m in (await chat.hydrate(last=3)).messages] == [598, 599, 600]
    assert [m.number for m in (await chat.hydrate(turns=4)).messages] == list(range(201, 601))
    assert len((await chat.hydrate(turns=99)).messages) == 600
    assert (await chat.hydrate(last=50, turns=1)).messages == ()
    assert len((await chat.hydrate(max_tokens=4505)).messages) == 450
    assert len((await chat.hydrate(max_tokens=4505, turns=99)).messages) == 400
    assert (await chat.hydrate(max_tokens=9)).messages == ()


async def test_a_tool_call_is_not_split(chat: Chat) -> None:
    """A window that begins with the output of a tool begins later."""
    await chat.append([
        user("sum?"),
        {"role": "assistant", "tool_calls": [{"id": "c1"}, {"id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "3"},
    ])  # fmt: skip
    assert [m.number for m in (await chat.hydrate(last=3)).messages] == [5]
    assert [m.number for m in (await chat.hydrate(last=4)).messages] == [2, 3, 4, 5]
    assert [m.number for m in (await chat.hydrate(last=3, pair_safe=False)).messages] == [3, 4, 5]


async def test_pages(chat: Chat) -> None:
    """Older messages are read by number, also after the oldest were dropped."""
    await chat.append([{"n": number} for number in range(1, 101)])
    await chat.truncate(60)
    numbers = [m.number for m in (await chat.hydrate(last=10)).messages]
    while page := await chat.page(numbers[0], 25):
        assert len(page) <= 25
        numbers = [*[m.number for m in page], *numbers]
    assert numbers == list(range(41, 101))


async def test_messages_that_are_sent_again(chat: Chat) -> None:
    """A repeat with the op id stores nothing, also long after the memory of op ids has forgotten it."""
    first = await chat.append([user("a"), user("b")], op_id="turn 1")
    again = await chat.append([user("a"), user("b")], op_id="turn 1")
    assert (again.duplicate, again.ids, again.numbers) == (True, first.ids, (1, 2))
    scope = chat._scope
    await scope.store.execute("DEL", scope.keys.key("ops"))
    later = await chat.append([user("a"), user("b"), user("c")], op_id="turn 1")
    assert (later.duplicate, later.numbers, later.added) == (False, (1, 2, 3), 1)


async def test_versions(chat: Chat) -> None:
    """Only newer versions are stored; a patch of another version says which there is."""
    assert (await chat.upsert("m", user("2"), version=2)).applied
    old = await chat.upsert("m", user("1"), version=1)
    assert (old.applied, old.version, old.number) == (False, 2, 1)
    assert (await chat.patch("m", user("3"), if_version=2)).version == 3
    with pytest.raises(ChatConflict, match="message 'm' has version 3, not version 2"):
        await chat.patch("m", user("x"), if_version=2)
    with pytest.raises(ChatConflict, match="message 'none' is not there"):
        await chat.patch("none", user("x"), if_version=1)
    assert (await chat.hydrate()).data == [user("3")]
    assert (await chat.set_meta({"a": 1, "b": {"c": []}}, newer_than=5)).version == 5
    assert not (await chat.set_meta({"a": 2}, newer_than=5)).applied
    assert (await chat.set_meta({"b": None})).version == 6
    assert await chat.meta() == {"a": 1}
    await chat.set_summary("so far", upto=1, version=1)
    assert not (await chat.set_summary("older", upto=1, version=1)).applied
    summary = (await chat.hydrate()).summary
    assert summary is not None
    assert (summary.text, summary.upto, summary.version) == ("so far", 1, 1)


async def test_pop(chat: Chat) -> None:
    """The last message comes back; with an expected id only that one."""
    await chat.append([Message(user("a"), id="a"), Message(user("b"), id="b")])
    with pytest.raises(ChatConflict, match="its end is message 'b', not message 'a'"):
        await chat.pop("a")
    popped = await chat.pop("b")
    assert popped is not None
    assert (popped.id, popped.data) == ("b", user("b"))
    assert (await chat.pop()).data == user("a")  # type: ignore[union-attr]
    assert await chat.pop() is None
    with pytest.raises(ChatConflict, match="its end is nothing"):
        await chat.pop("a")


async def test_pop_of_a_damaged_message(chat: Chat, redis_client: redis.Redis) -> None:
    """The expected message goes although it is damaged, and it alone."""
    await chat.append([Message(user("a"), id="a"), Message(user("b"), id="b")])
    keys = chat._scope.keys
    messages = keys.key(keys.chat_part("main", "q"))
    entry: Any = redis_client.lindex(messages, -1)
    redis_client.lset(messages, -1, entry[:-3])
    popped = await chat.pop("b")
    assert popped is not None
    assert (popped.id, popped.data) == ("b", None)
    assert (await chat.hydrate()).data == [user("a")]


async def test_pops_at_once(chat: Chat) -> None:
    """Each message is popped once."""
    await chat.append([{"n": number} for number in range(20)])
    popped = await asyncio.gather(*[chat.pop() for _ in range(25)])
    assert sorted(message.data["n"] for message in popped if message) == list(range(20))


async def test_chat_and_workspace_are_apart(team: LocalTeam) -> None:
    """Clearing one leaves the other as it is."""
    chat, workspace = team.orc.chat("s"), team.orc.workspace("s")
    await chat.append([user("x")])
    async with workspace.edit() as ws:
        await ws.set("p", 1)
        await ws.clear()
        assert len((await chat.hydrate()).messages) == 1
        await ws.set("p", 2)
    await chat.clear()
    assert (await workspace.get("p"))["p"].value == 2
    assert (await chat.hydrate()).messages == ()


async def test_gaps(chat: Chat) -> None:
    """Messages that the server has lost are counted; those that were removed are not."""
    await chat.append([{"n": number} for number in range(10)])
    await chat.truncate(8)
    await chat.set_summary("s", upto=2, version=1)
    assert (await chat.hydrate()).gap == 0
    scope = chat._scope
    key = {part: scope.keys.key(scope.keys.chat_part("main", part)) for part in ("meta", "q", "id", "sum")}
    await scope.store.execute("DEL", key["q"])
    lost = await chat.hydrate()
    assert (lost.gap, lost.messages, lost.seq) == (8, (), 10)
    assert (await chat.hydrate(known=lost)).gap == 8
    await chat.append([{"n": 10}])
    after = await chat.hydrate()
    assert (after.gap, after.messages[0].number) == (8, 11)
    await scope.store.execute("DEL", key["q"], key["meta"], key["id"])
    assert ((await chat.hydrate()).gap, (await chat.hydrate()).rev) == (0, 0)
    await chat.append([{"n": 11}])
    assert [m.number for m in (await chat.hydrate()).messages] == [3]
    await chat.clear()
    assert (await chat.hydrate()).gap == 0


async def test_a_read_extends_the_lifetime(chat: Chat) -> None:
    """In its second half, and only then; the read itself succeeds without the right to write."""
    await chat.append([user("x")])
    scope = chat._scope
    key = scope.keys.key(scope.keys.chat_part("main", "meta"))
    before = await scope.store.execute("PEXPIRETIME", key)
    await chat.hydrate()
    assert await scope.store.execute("PEXPIRETIME", key) == before
    held = await chat.hydrate()
    near = 11 * 3_600_000
    for part in ("meta", "q", "id"):
        await scope.store.execute("PEXPIRE", scope.keys.key(scope.keys.chat_part("main", part)), near)
    dies_ms = (await chat.head()).dies_ms - 16 * 3_600_000
    await scope.store.execute("HSET", key, "dies", dies_ms)
    await chat.hydrate()
    assert await scope.store.execute("PTTL", key) > 2 * near
    # A reader that finds nothing new keeps the chat alive too.
    await scope.store.execute("PEXPIRE", key, near)
    await scope.store.execute("HSET", key, "dies", dies_ms)
    assert (await chat.hydrate(known=held)).not_modified
    assert await scope.store.execute("PTTL", key) > 2 * near


INVALID: dict[str, Any] = {
    "no messages": lambda chat: chat.append([]),
    "one message, no list": lambda chat: chat.append(user("x")),
    "text": lambda chat: chat.append(["hello"]),
    "a set": lambda chat: chat.append([{"x": {1}}]),
    "too large": lambda chat: chat.append([{"x": "x" * 300_000}]),
    "too many": lambda chat: chat.append([{}] * 501),
    "an empty id": lambda chat: chat.append([Message({}, id="")]),
    "half a character": lambda chat: chat.append([Message({}, turn="\ud800")]),
    "negative tokens": lambda chat: chat.append([Message({}, tokens=-1)]),
    "a version of 0": lambda chat: chat.upsert("x", {}, version=0),
    "no fields": lambda chat: chat.set_meta({}),
    "a field too large": lambda chat: chat.set_meta({"x": "x" * 20_000}),
    "no text": lambda chat: chat.set_summary(1, upto=1, version=1),
    "keep nothing": lambda chat: chat.truncate(0),
    "no last": lambda chat: chat.hydrate(last=0),
    "a float": lambda chat: chat.hydrate(max_tokens=1.5),
    "a negative page": lambda chat: chat.page(-1),
}


async def test_invalid_input(chat: Chat) -> None:
    """What cannot be stored is refused before anything is sent."""
    for call in INVALID.values():
        with pytest.raises(InvalidInput):
            await call(chat)
    assert (await chat.hydrate()).rev == 0
    with pytest.raises(InvalidInput):
        chat.source("")


@pytest.mark.parametrize("size", [252, 253, 256])
async def test_a_long_op_id(chat: Chat, size: int) -> None:
    """An append with the longest op id is made once, also after the server has forgotten the op id."""
    op_id = "é" * (size // 2) + "o" * (size % 2)
    first = await chat.append([user("x")] * 100, op_id=op_id)
    second = await chat.append([user("x")] * 100, op_id=op_id)
    assert second.duplicate
    assert len(set(first.ids)) == 100
    again = await chat.append([Message(user("x"), id=id_) for id_ in first.ids])
    assert (again.added, again.numbers) == (0, first.numbers)
    with pytest.raises(InvalidInput, match="op_id"):
        await chat.append([user("x")], op_id="o" * 257)


async def test_ids_of_tool_calls_count(chat: Chat) -> None:
    """A message with very many of them is refused, as are many such messages together."""
    calls = tuple(f"{number}{'y' * 200}" for number in range(1200))
    with pytest.raises(InvalidInput, match=r"chat\.max_message_bytes is 262144"):
        await chat.append([Message({}, calls=(*calls, *calls))])
    with pytest.raises(InvalidInput, match="too much for one append"):
        await chat.append([Message({}, calls=calls)] * 20)
    with pytest.raises(InvalidInput, match="calls of a message must be a tuple of ids, not a str"):
        await chat.append([Message({}, calls="call_1")])  # type: ignore[arg-type]
    assert (await chat.append([Message({}, calls=calls)])).added == 1


async def test_full(team: LocalTeam) -> None:
    """A session with too many chats, or a chat with too many fields, says which setting was reached."""
    client = await team.client(chat__max_sources=1)
    chat = client.chat("s")
    await chat.append([user("x")])
    with pytest.raises(ChatFull, match=r"chat\.max_sources = 1"):
        await chat.source("other").append([user("x")])
    await chat.set_meta({f"f{number}": 1 for number in range(100)})
    with pytest.raises(ChatFull, match="the cap of fields = 100"):
        await chat.set_meta({"more": 1})


async def test_messages_that_have_expired(chat: Chat) -> None:
    """What a summary outlives has ended; it is not missing, also after the chat goes on."""
    await chat.append([user("a"), user("b")])
    await chat.set_summary("said a and b", upto=2, version=1)
    keys = chat._scope.keys
    lost = [keys.key(keys.chat_part("main", part)) for part in ("q", "id", "meta")]
    await chat._scope.store.execute("DEL", *lost)
    found = await chat.hydrate()
    assert (found.expired, found.empty, found.gap, found.seq) == (True, False, 0, 0)
    await chat.append([user("c")])
    found = await chat.hydrate()
    assert (found.expired, found.gap, found.messages[0].number) == (False, 0, 3)


@pytest.mark.parametrize("part", ["meta", "chats"])
async def test_delete_a_session_that_lost_a_key(chat: Chat, team: LocalTeam, part: str) -> None:
    """A chat whose counts or place in the list are lost is shown, and deleted with its session."""
    await chat.append([user("personal")])
    keys = chat._scope.keys
    lost = keys.key("chats" if part == "chats" else keys.chat_part("main", "meta"))
    assert await chat._scope.store.execute("DEL", lost) == 1
    view, shown = await read_chat(team.services, chat.session, "main", last=5)
    assert (view.messages, shown.seq, shown.empty) == (1, 1, False)
    assert [view.source for view in await list_chats(team.services, chat.session)] == ["main"]
    assert (await delete_session(team.services, team.orc.locks(), chat.session)).chats == 1
    assert (await chat.hydrate()).data == []


async def test_values_that_would_break_the_numbers(chat: Chat) -> None:
    """A summary behind the last message, versions that cannot rise, and an op id of another change are refused."""
    await chat.append([Message(user("a"), id="a")], op_id="o")
    with pytest.raises(InvalidInput, match="the last message of the chat is 1"):
        await chat.set_summary("x", upto=2, version=1)
    for refused in (
        lambda: chat.set_summary("x", upto=2**53 - 1, version=1),
        lambda: chat.set_summary("x", upto=1, version=2**53 - 1),
        lambda: chat.upsert("a", user("x"), version=2**53 - 1),
        lambda: chat.set_meta({"x": 1}, newer_than=2**53 - 1),
        lambda: chat.append([Message(user("b"), id="b")], op_id="o"),
    ):
        with pytest.raises(InvalidInput):
            await refused()
    assert (await chat.hydrate()).data == [user("a")]


async def test_an_erased_call_hides_no_history(chat: Chat, team: LocalTeam) -> None:
    """Its output is left out, and what precedes it stays."""
    await chat.append([user(str(number)) for number in range(5)])
    call = Message({"role": "assistant", "tool_calls": [{"id": "c1"}]}, subject="ann")
    await chat.append([call, {"role": "tool", "tool_call_id": "c1", "content": "4"}, user("next")])
    await team.orc.subjects.erase("ann", asked_by="test")
    assert [message["content"] for message in (await chat.hydrate()).data] == ["0", "1", "2", "3", "4", "next"]
    assert [message["content"] for message in (await chat.hydrate(last=2)).data] == ["next"]


async def test_calls_without_an_output_are_not_for_models(team: LocalTeam) -> None:
    """A killed attempt leaves a call without output: `data` leaves out that message and its other outputs."""
    chat = team.orc.chat("s")
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ("a", "b")]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    await chat.append([user("x"), asked, {"role": "tool", "tool_call_id": "a", "content": "1"}, user("y")])
    history = await chat.hydrate()
    assert history.open_calls == ("b",)
    assert history.data == [user("x"), user("y")]
    assert len(history.messages) == 4
    await chat.append([{"role": "tool", "tool_call_id": "b", "content": "2"}])
    history = history.updated(await chat.hydrate(known=history))
    assert history.open_calls == ()
    assert len(history.data) == 5


async def test_odd_sources(team: LocalTeam) -> None:
    """Any text is the name of a source, also one that columns of entries use for none."""
    for source in ("-", "%2D", "}:{x", "null", " "):
        chat = team.orc.chat("s").source(source)
        await chat.append([user(source)])
        assert (await chat.hydrate()).data == [user(source)]
        assert len(await chat.page(9)) == 1
    assert sorted(await team.orc.chat("s").sources()) == sorted(["-", "%2D", "}:{x", "null", " "])
