"""Chats under faults: every message once though replies are lost, and none from an attempt that lost its task."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Orchestrator
from orchestrator.chat import scripts
from orchestrator.chat.scripts import ChatCall, MessageRow
from orchestrator.core.settings import Settings
from orchestrator.locks.fenced_writer import CallerRow
from tests.faultkit.proxy import FaultProxy
from tests.helpers.local_team import local_settings
from tests.lua.scope import Scope

if TYPE_CHECKING:
    import redis

    from orchestrator.chat.scripts import ChatReply
    from orchestrator.store.calls import Call
    from tests.faultkit.servers import RedisServer


@pytest.mark.parametrize(
    ("writers", "each", "lost_share"),
    [(10, 40, 0.05), pytest.param(50, 1000, 0.01, marks=[pytest.mark.slow, pytest.mark.timeout(400)])],
)
async def test_every_append_twice_with_lost_replies(
    redis_server: RedisServer, prefix: str, writers: int, each: int, lost_share: float
) -> None:
    """Writers append to one chat, every call is sent twice at once, replies are lost: each message is there once.

    The other chat is the twin without op ids: there each call stores its message, so that the doubling is felt.
    """
    drawn = random.Random(7)
    duplicates = 0
    async with AsyncExitStack() as opened:
        proxy = await opened.enter_async_context(FaultProxy(redis_server.url))
        settings = local_settings(
            proxy.url, prefix, chat__max_messages=10**6, chat__max_bytes=2**30, redis__command_timeout_s=10.0
        )
        orc = await opened.enter_async_context(Orchestrator(settings=settings))
        chat, twin = orc.chat("s"), orc.chat("s", "twin")
        lost = proxy.fail_reply(lambda command: command.name == "EVALSHA" and drawn.random() < lost_share, nth="every")

        async def send(writer: int, number: int) -> None:
            nonlocal duplicates
            reply = await chat.append([{"writer": writer, "number": number}], op_id=f"{writer}-{number}")
            duplicates += reply.duplicate

        async def write(writer: int) -> None:
            for number in range(each):
                async with anyio.create_task_group() as both:
                    both.start_soon(send, writer, number)
                    both.start_soon(send, writer, number)
            for number in range(each // 20):
                for _ in range(2):
                    await twin.append([{"writer": writer, "number": number}])

        async with anyio.create_task_group() as group:
            for writer in range(writers):
                group.start_soon(write, writer)
        assert lost.fired > writers * each * lost_share / 2
        proxy.heal()
        messages = (await chat.hydrate(last=10**6)).messages
        assert sorted((message.data["writer"], message.data["number"]) for message in messages) == [
            (writer, number) for writer in range(writers) for number in range(each)
        ]
        assert [message.number for message in messages] == list(range(1, writers * each + 1))
        for writer in range(writers):
            own = [message.data["number"] for message in messages if message.data["writer"] == writer]
            assert own == list(range(each))
        assert duplicates >= writers * each
        assert (await twin.head()).count == 2 * writers * (each // 20)


def test_an_attempt_that_lost_its_lock_writes_nothing(
    redis_server: RedisServer, redis_client: redis.Redis, prefix: str
) -> None:
    """None of 10,000 messages of an attempt whose lock another one has is stored; with its own lock all are."""
    session = Scope(redis_server.url, prefix)
    lock, task = "exec:t1", "t1"
    mine, limits = session.claim(lock, task, "10").value, scripts.pack_limits(Settings())

    def append(number: int) -> Call[ChatReply]:
        caller = CallerRow(f"op{number}", lock, mine, "ada")
        row = MessageRow(f"m{number}", 1, "null", "-", "-", "null,null", b'{"late":true}')
        return scripts.append(ChatCall(session.keys, caller, limits, "main"), rows=[row])

    def append_many(first: int, count: int) -> set[bytes]:
        batch = redis_client.pipeline(transaction=False)
        for number in range(first, first + count):
            batch.execute_command(*append(number).command())  # type: ignore[no-untyped-call]
        return {reply[0] for reply in batch.execute()}

    session.call(append(0))
    assert append_many(1, 100) == {b"ok"}
    session.claim(lock, task, "11")
    before = session.store.execute("DUMP", session.keys.key("chat:main:q"))
    assert {status for start in range(101, 10_101, 1000) for status in append_many(start, 1000)} == {b"fenced"}
    assert session.store.execute("DUMP", session.keys.key("chat:main:q")) == before
    assert session.store.execute("LLEN", session.keys.key("chat:main:q")) == 101
    session.close()
