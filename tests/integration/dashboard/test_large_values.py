"""Chats and memories of many megabytes do not keep the dashboard from other requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest

from orchestrator import Record
from orchestrator.views.chat import PAGE_BYTES
from tests.helpers.api_client import api_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.helpers.local_team import LocalTeam

MESSAGES: Final = 20
BYTES: Final = 512 * 1024
MOST_S: Final = 0.1
TRIES: Final = 3
SHAPES: Final[dict[str, Any]] = {
    "text": "x" * BYTES,
    "objects": [{"a": 1}] * (BYTES // 8),
    "secrets": [{"token": "t"}] * (BYTES // 14),
}


async def check_turns(work: Callable[[], Awaitable[object]]) -> None:
    """Check that the event loop is never kept from others for long while something is done."""
    turns_s: list[float] = []
    while not turns_s or (min(turns_s) > MOST_S and len(turns_s) < TRIES):
        turns_s.append(await _longest_turn_s(work))
    assert min(turns_s) < MOST_S, turns_s


async def _longest_turn_s(work: Callable[[], Awaitable[object]]) -> float:
    longest, done = 0.0, False

    async def tick() -> None:
        nonlocal longest
        while not done:
            # Of all threads, because one that holds the interpreter lock keeps the loop, too.
            began = time.process_time()
            await anyio.sleep(0.001)
            longest = max(longest, time.process_time() - began)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await work()
        done = True
    return longest


@pytest.mark.parametrize("shape", ["text", "secrets"])
@pytest.mark.parametrize("settings", [{"chat__max_message_bytes": 1_048_576}], indirect=True)
async def test_a_chat_of_ten_megabytes(team: LocalTeam, shape: str) -> None:
    """It is read page by page while others get their turns, and no message is left out."""
    chat = team.orc.chat("s", "main")
    for number in range(MESSAGES):
        await chat.append([{"role": "user", "number": number, "content": SHAPES[shape]}])
    api = await api_client(team.orc)
    numbers: list[int] = []

    async def read() -> None:
        api.web.dashboard.forget_reads()
        numbers.clear()
        after: dict[str, int] = {}
        while True:
            page = await api.get("/sessions/chat", id="s", **after)
            assert len(page.content) < 3 * PAGE_BYTES
            found = await anyio.to_thread.run_sync(page.json)
            numbers[:0] = [message["data"]["number"] for message in found["messages"]]
            if found["cursor"] is None:
                break
            after = {"after": found["cursor"]}

    await check_turns(read)
    assert numbers == list(range(MESSAGES))


@pytest.mark.parametrize("shape", ["objects"])
@pytest.mark.parametrize("settings", [{"memory__max_record_bytes": 1_048_576}], indirect=True)
async def test_a_memory_of_ten_megabytes(team: LocalTeam, shape: str) -> None:
    """So is a memory."""
    memory = team.orc.memory("worker")
    for number in range(MESSAGES):
        await memory.store(Record(step=number, kind="note", content=SHAPES[shape]))
    api = await api_client(team.orc)
    steps: list[int] = []

    async def read() -> None:
        api.web.dashboard.forget_reads()
        steps.clear()
        after: dict[str, str] = {}
        while True:
            page = await api.get("/memory", agent="worker", **after)
            assert page.status_code == 200
            found = await anyio.to_thread.run_sync(page.json)
            steps.extend(record["step"] for record in found["records"])
            if found["cursor"] is None:
                break
            after = {"after": found["cursor"]}

    await check_turns(read)
    assert steps == list(range(MESSAGES))[::-1]
