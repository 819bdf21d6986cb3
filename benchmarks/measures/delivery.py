"""Delivery time of a message: published, in a stream, as a directive, as an event of a change.

Published messages may be lost (`tests/integration/test_lost_stops.py`); the others are not.
"""

from __future__ import annotations

import contextlib
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from redis.asyncio import Redis

from benchmarks.figures import Figure, figure_of
from benchmarks.goals import at_most
from orchestrator.bench.measures import percentiles
from orchestrator.client.client import Orchestrator
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from benchmarks.harness import Bench

    Side = tuple[Callable[[int], Awaitable[Any]], Callable[[], AsyncIterator[int]]]
    """Sends a number, and receives the numbers."""

_MESSAGES, _APART_S = 500, 0.002


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure the milliseconds from send to receive; one process does both."""
    runs = bench.in_turns({name: partial(_run_once, bench, opened) for name, opened in _WAYS.items()})
    taken = {name: [percentiles(values) for values in rounds] for name, rounds in runs.items()}
    for name, rounds in taken.items():
        for share in ("p50", "p99"):
            values = [getattr(one, share) for one in rounds]
            base = [] if name == _PUBLISHED else [getattr(one, share) for one in taken[_PUBLISHED]]
            goals = (at_most(5),) if share == "p99" and name in {_DIRECTIVE, _EVENT} else ()
            yield figure_of("delivery", f"{share}, {name}", "ms", values, base, goals=goals)


def _run_once(bench: Bench, opened: Callable[[Bench], AbstractAsyncContextManager[Side]]) -> list[float]:
    async def run() -> list[float]:
        sent_s: dict[int, float] = {}
        taken_ms: list[float] = []
        async with opened(bench) as (send, arriving), anyio.create_task_group() as group:

            async def read() -> None:
                async for number in arriving():
                    taken_ms.append((time.perf_counter() - sent_s[number]) * 1000)
                    if len(taken_ms) == _MESSAGES:
                        return

            group.start_soon(read)
            await anyio.sleep(0.2)  # until the reader waits
            for number in range(_MESSAGES):
                sent_s[number] = time.perf_counter()
                await send(number)
                await anyio.sleep(_APART_S)
        return taken_ms

    return run_loop(run)


@contextlib.asynccontextmanager
async def _published(bench: Bench) -> AsyncIterator[Side]:
    async with Redis.from_url(bench.server.url) as client, client.pubsub() as ears:
        await ears.subscribe("channel")

        async def arriving() -> AsyncIterator[int]:
            async for message in ears.listen():
                if message["type"] == "message":
                    yield int(message["data"])

        yield lambda number: client.publish("channel", number), arriving


@contextlib.asynccontextmanager
async def _stream(bench: Bench) -> AsyncIterator[Side]:
    async with Redis.from_url(bench.server.url) as client, Redis.from_url(bench.server.url) as reader:
        await client.xgroup_create("stream", "group", "0", mkstream=True)

        async def arriving() -> AsyncIterator[int]:
            while True:
                answer: Any = await reader.xreadgroup("group", "reader", {"stream": ">"}, count=100, block=5000)
                for _, entries in answer:
                    for entry, fields in entries:
                        yield int(fields[b"n"])
                        await client.xack("stream", "group", entry)

        yield lambda number: client.xadd("stream", {"n": number}), arriving


@contextlib.asynccontextmanager
async def _directive(bench: Bench) -> AsyncIterator[Side]:
    async with Orchestrator(bench.server.url) as orc:
        workspace = orc.workspace(f"bench{random.random()}")
        async with workspace.edit(agent="ada") as ada, workspace.edit(agent="bob") as bob:

            async def arriving() -> AsyncIterator[int]:
                async for told in bob.directives():
                    yield told.value
                    await bob.acknowledge(told)

            yield lambda number: ada.direct("bob", "GO", number), arriving


@contextlib.asynccontextmanager
async def _event(bench: Bench) -> AsyncIterator[Side]:
    async with Orchestrator(bench.server.url) as orc:
        workspace = orc.workspace(f"bench{random.random()}")
        async with workspace.edit(agent="ada") as ada:

            async def arriving() -> AsyncIterator[int]:
                async for event in workspace.events():
                    yield event.changes[0].value

            yield lambda number: ada.set("path", number), arriving


_PUBLISHED, _DIRECTIVE, _EVENT = "published, redis-py", "directive to an agent", "event of a change of a path"
_WAYS: dict[str, Callable[[Bench], AbstractAsyncContextManager[Side]]] = {
    _PUBLISHED: _published,
    "stream with a group, redis-py": _stream,
    _DIRECTIVE: _directive,
    _EVENT: _event,
}
