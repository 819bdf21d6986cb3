"""What chats cost: bytes on the network for a long turn, keys and bytes that a turn leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Message
from tests.helpers.local_team import run_local_team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator import Chat
    from orchestrator.core.settings import Settings

pytestmark = pytest.mark.every_server


@pytest.fixture
async def chat(settings: Settings) -> AsyncIterator[Chat]:
    """A chat in a pool without a supervisor, so that nothing else uses the network."""
    async with run_local_team(settings, supervised=False) as team:
        yield team.orc.chat("s")


def as_text(name: bytes | str) -> str:
    """The name of a key."""
    return name.decode() if isinstance(name, bytes) else name


def transferred(client: redis.Redis) -> int:
    """Bytes that the server has received and sent."""
    stats: Any = client.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


async def test_a_long_turn_costs_what_it_adds(chat: Chat, redis_client: redis.Redis) -> None:
    """A turn of 100 tool calls on a history of 200,000 tokens moves what it adds, not what is there.

    The twin that reads everything at each step moves the history each time.
    """
    words = "word " * 200
    for start in range(0, 1000, 250):
        await chat.append(
            [Message({"role": "user", "content": f"{start + n} {words}"}, tokens=200) for n in range(250)], turn="old"
        )
    before = transferred(redis_client)
    held = await chat.hydrate(last=1000)
    assert sum(message.tokens or 0 for message in held.messages) == 200_000
    history = transferred(redis_client) - before
    assert history > 1_000_000

    added, before = 0, transferred(redis_client)
    for step in range(100):
        call: dict[str, Any] = {
            "role": "assistant",
            "tool_calls": [{"id": f"c{step}", "function": {"arguments": "x" * 200}}],
        }
        output = {"role": "tool", "tool_call_id": f"c{step}", "content": "y" * 1000}
        for message in (call, output):
            await chat.append([message], turn="new", op_id=f"{step}-{message['role']}")
            added += len(str(message))
        held = held.updated(await chat.hydrate(known=held))
    moved = transferred(redis_client) - before
    assert [message.number for message in held.messages] == list(range(1, 1201))
    # Each message goes to the server and comes back, beside 300 calls with their keys and replies.
    assert moved < 2 * added + 300 * 1500, (moved, added, history)
    assert moved < history

    before = transferred(redis_client)
    await chat.hydrate(last=2000)
    assert transferred(redis_client) - before > history


async def test_what_a_turn_leaves_behind(chat: Chat, redis_client: redis.Redis) -> None:
    """docs/guides/chat.md has these numbers: keys of a chat, bytes of a turn, and when each key ends."""

    def usage() -> dict[str, int]:
        return {
            as_text(name).rpartition("}:")[2]: int(redis_client.memory_usage(name, samples=0) or 0)
            for name in redis_client.keys(f"{chat._scope.keys.root}:*")
        }

    async def turn(number: int) -> int:
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "x" * 220},
            {"role": "assistant", "tool_calls": [{"id": f"call_{number}", "function": {"arguments": "x" * 180}}]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "x" * 200},
            {"role": "assistant", "content": "x" * 220},
        ]
        for message in messages:
            await chat.append([message], turn=f"turn-{number}")
        return sum(len(str(message)) for message in messages)

    for number in range(50):
        await turn(number)
    before = usage()
    added = sum([await turn(number) for number in range(50, 150)])
    after = usage()
    assert set(after) == {"chat:main:q", "chat:main:id", "chat:main:meta", "chats", "ops"}
    per_turn = {name: (after[name] - before[name]) / 100 for name in after}
    text = added / 100
    assert 900 < text < 1100
    assert per_turn["chat:main:q"] == pytest.approx(1430, rel=0.1)
    server: Any = redis_client.info("server")
    valkey = "valkey_version" in server
    assert per_turn["chat:main:id"] == pytest.approx(200 if valkey else 330, rel=0.1)
    op_ids = 410 if valkey else 580 if server["redis_version"].startswith("7.") else 525
    assert per_turn["ops"] == pytest.approx(op_ids, rel=0.1)
    assert per_turn["chat:main:meta"] < 5
    ends = {name: redis_client.pttl(f"{chat._scope.keys.root}:{name}") for name in after}
    day_ms = 86_400_000
    for name in ("chat:main:q", "chat:main:id", "chat:main:meta", "chats"):
        assert day_ms < ends[name] <= day_ms * 9 // 8
    assert ends["ops"] <= 2 * 600_000
