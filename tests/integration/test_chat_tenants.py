"""Limits of a tenant: what all chats of a prefix hold is counted in the background, and bounds what is added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, Orchestrator, TaskContext, TenantFull
from orchestrator.chat import accounts
from orchestrator.client.session_actions import delete_session
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import redis

    from orchestrator import ChatUsage
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count soon."""
    monkeypatch.setattr(accounts, "EVERY_S", 0.01)


def message(text: str = "x") -> list[Any]:
    """One message."""
    return [{"role": "user", "content": text}]


async def real_usage(orc: Orchestrator, sessions: list[str]) -> tuple[int, int, int]:
    """What the chats of these sessions say of themselves."""
    heads = [await orc.chat(session).head() for session in sessions]
    return sum(head.bytes for head in heads), sum(head.count for head in heads), sum(head.count > 0 for head in heads)


async def test_counts_are_what_the_chats_hold(team: LocalTeam, settings: Settings) -> None:
    """Of clients and attempts, after appends, pops, replacements, clears; another client reads the same."""
    agent = Agent("ed")

    @agent.skill
    async def answer(ctx: TaskContext) -> None:
        await ctx.chat.append(message("answer"))

    await team.work(agent)
    sessions = [f"s/{n}" for n in range(5)]
    for session in sessions:
        await team.orc.chat(session).append([*message("hello"), *message("é" * 100)], op_id=f"first {session}")
    await (await team.orc.submit(answer, session="s/0")).result(TIMEOUT_S)
    await team.orc.chat("s/1").pop()
    await team.orc.chat("s/2").clear()
    await team.orc.chat("s/3").patch("first s/3.2", {"content": ""}, if_version=1)
    expected = await real_usage(team.orc, sessions)

    async def counted() -> ChatUsage | None:
        async with Orchestrator(settings=settings) as other:
            usage = await other.chat_usage()
        return usage if (usage.bytes, usage.messages, usage.chats) == expected else None

    usage = await wait_for(counted, "the counts", TIMEOUT_S)
    assert usage is not None
    assert usage.messages == 8
    assert usage == await team.orc.chat_usage()


@pytest.mark.parametrize("settings", [{"chat": {"tenant_max_bytes": 2000}}], indirect=True)
async def test_the_limit_of_bytes(team: LocalTeam, settings: Settings) -> None:
    """Messages are refused at the limit, also to a client that has just started, until there is room."""
    await team.orc.chat("a").append(message("x" * 3000))
    await team.orc.chat_usage()
    async with Orchestrator(settings=settings) as other:
        for chat in (team.orc.chat("a"), other.chat("b"), other.chat("a", "web")):
            with pytest.raises(TenantFull, match="tenant_max_bytes = 2000"):
                await chat.append(message())
        with pytest.raises(TenantFull):
            await other.chat("b").upsert("m", message()[0], version=1)
        with pytest.raises(TenantFull):
            await other.chat("b").set_meta({"more": 1})
        await other.chat("a").set_summary("makes room", upto=1, version=1)
        await other.chat("a").set_meta({"gone": None})
        await other.chat("a").clear()
        await other.chat("b").append(message())
        usage = await other.chat_usage()
        assert (usage.messages, usage.chats) == (1, 1)


@pytest.mark.parametrize("settings", [{"chat": {"tenant_max_chats": 2}}], indirect=True)
async def test_the_limit_of_chats(team: LocalTeam) -> None:
    """A new chat is refused; those that exist go on."""
    for name in ("a", "b"):
        await team.orc.chat(name).append(message())
    await team.orc.chat_usage()
    with pytest.raises(TenantFull, match="tenant_max_chats = 2"):
        await team.orc.chat("c").append(message())
    assert (await team.orc.chat("a").append(message())).seq == 2


async def test_a_program_that_only_deletes_a_session(team: LocalTeam, settings: Settings) -> None:
    """It counts the chats that are gone, although it has used none itself."""
    await team.orc.chat("a").append(message())
    assert (await team.orc.chat_usage()).chats == 1
    async with Orchestrator(settings=settings) as other:
        await delete_session(other.services, other.locks(), "a")
    async with Orchestrator(settings=settings) as third:
        assert (await third.chat_usage()).chats == 0


@pytest.mark.parametrize("settings", [{"chat": {"tenant_max_chats": 2}}], indirect=True)
async def test_cleared_and_deleted_chats_make_room(team: LocalTeam) -> None:
    """A chat that holds nothing does not count."""
    for name in ("a", "b"):
        await team.orc.chat(name).append(message())
    await team.orc.chat("a").clear()
    await delete_session(team.services, team.orc.locks(), "b")
    for name in ("c", "d"):
        await team.orc.chat(name).append(message())
    await team.orc.chat_usage()
    with pytest.raises(TenantFull):
        await team.orc.chat("a").set_summary("a new chat", upto=1, version=1)


@pytest.mark.parametrize("settings", [{"chat": {"tenant_max_chats": 1}}], indirect=True)
async def test_appends_at_the_limit_of_chats(
    settings: Settings, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat that exists costs one round trip more in five seconds."""
    monkeypatch.setattr(accounts, "EVERY_S", 3600.0)
    async with run_local_team(settings, supervised=False) as team:
        chat = team.orc.chat("a")
        await chat.append(message())
        await team.orc.chat_usage()
        counter = CommandCounter(redis_client)
        for _ in range(10):
            await chat.append(message())
        # One for all of them asks whether the chat exists.
        assert (counter.scripts(), counter.calls().get("hstrlen", 0)) == (10, 1)


async def test_fields_and_summaries_count(team: LocalTeam) -> None:
    """Their bytes are part of the size, until they are removed."""
    chat = team.orc.chat("a")
    await chat.set_meta({"x": "y" * 1000})
    await chat.set_meta({"x": "y" * 2000, "z": 1})
    usage = await team.orc.chat_usage()
    assert 2000 < usage.bytes < 2030
    assert (usage.messages, usage.chats) == (0, 1)
    await chat.set_summary("s" * 500, upto=1, version=1)
    assert (await team.orc.chat_usage()).bytes == usage.bytes + 502
    await chat.set_meta({"x": None, "z": None})
    assert (await team.orc.chat_usage()).bytes == 502
    await chat.clear()
    usage = await team.orc.chat_usage()
    assert (usage.bytes, usage.chats) == (0, 0)


@pytest.mark.parametrize("settings", [{"chat": {"tenant_max_bytes": 2000}}], indirect=True)
async def test_broken_counts_refuse_nothing(
    team: LocalTeam, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A key of another type is logged; messages are stored."""
    key = team.services.chat_accounts._keys.key("chat")
    redis_client.sadd(key, "x")
    redis_client.expire(key, 60)
    for name in ("a", "b"):
        await team.orc.chat(name).append(message())
    assert "chats_not_counted" in caplog.text
