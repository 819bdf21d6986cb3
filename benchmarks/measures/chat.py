"""Chats beside a bare list and beside libraries that keep histories in Redis.

A history of 200 messages is read, fifty writers append to one chat, and an agent makes a turn of a hundred tool calls
on a long history.
"""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from redis.asyncio import BlockingConnectionPool, Redis

from benchmarks import sources
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_least_raw, at_most, at_most_raw
from benchmarks.peers.histories import HistoryPass, history_pass
from benchmarks.server_cost import read_server
from benchmarks.timing import crowd_rate, latencies
from orchestrator.client.client import Orchestrator
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from benchmarks.harness import Bench
    from benchmarks.timing import Call
    from orchestrator.bench.measures import Latencies
    from orchestrator.chat.chat import Chat

    Opened = Callable[[Bench], AbstractAsyncContextManager[Call]]

_STORED, _READS = 200, 500
_WRITERS, _APPENDS, _LONG = 50, 2_000, 7_900
_TURN_CALLS, _HISTORY_TOKENS = 100, 200_000
MESSAGE = {"role": "assistant", "content": "x" * 320, "tokens": 90}
"""About 360 bytes of JSON."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure reads, appends and a turn."""
    yield from _reads(bench)
    yield from _appends(bench)
    yield from _turn(bench)


# ------------------------------------------------------------------------------------------------------------ reads


def _reads(bench: Bench) -> Iterator[Figure]:
    peers = _peer_passes(bench)
    ways: dict[str, Callable[[], Latencies | HistoryPass]] = {
        **{name: partial(_read, bench, opened) for name, opened in _READS_BY_NAME.items()},
        **peers,
    }
    runs = bench.in_turns(ways, rounds_factor=3)
    read = {name: [run for run in rounds if not isinstance(run, HistoryPass)] for name, rounds in runs.items()}
    p50 = {name: [run.p50 for run in rounds] for name, rounds in read.items() if rounds}
    for name, values in p50.items():
        base, goals = _READ_GOALS.get(name, (_LRANGE, ()))
        what = f"{_STORED} messages, {name}"
        yield figure_of("chat", f"{what}, p50", "ms", values, p50[base] if base != name else (), goals=goals)
        spread = [run.p99 / run.p50 for run in read[name]]
        yield figure_of("chat", f"{what}, p99 / p50", "times", spread, goals=(at_most(3),) if name == _HYDRATE else ())
    for name, rounds in runs.items():
        passes = [run for run in rounds if isinstance(run, HistoryPass)]
        if passes:
            yield from _beside(name, passes, p50[_HYDRATE])


def _beside(name: str, passes: Sequence[HistoryPass], ours: Sequence[float]) -> Iterator[Figure]:
    values = [one.read_p50_ms for one in passes]
    yield figure_of("chat", f"{_STORED} messages, {name}, p50", "ms", values, ours[: len(values)])
    goal = {
        "openai-agents": Goal("≤ 1 x openai-agents", 1.0, at_most=True, of_ratio=True),
        "langchain-redis": Goal("≤ 0.1 x langchain-redis", 0.1, at_most=True, of_ratio=True),
    }[name]
    what = f"{_STORED} messages, {_HYDRATE}, p50, beside {name}"
    yield figure_of("chat", what, "ms", ours[: len(values)], values, goals=(goal,))


def _read(bench: Bench, opened: Opened) -> Latencies:
    async def run() -> Latencies:
        async with opened(bench) as call:
            return await latencies(call, _READS)

    return run_loop(run)


@contextlib.asynccontextmanager
async def chat_of(bench: Bench, *, messages: int = 0) -> AsyncIterator[Chat]:
    """Open a chat with some messages."""
    async with Orchestrator(bench.server.url) as orc:
        chat = orc.chat(f"bench{random.random()}")
        for start in range(0, messages, 500):
            await chat.append([MESSAGE] * min(500, messages - start))
        yield chat


@contextlib.asynccontextmanager
async def _hydrate(bench: Bench, *, known: bool = False, cached: bool = False) -> AsyncIterator[Call]:
    async with chat_of(bench, messages=_STORED) as chat:
        seen = await chat.hydrate()
        assert len(seen.messages) == _STORED
        position = seen.position if known else None
        yield lambda _: chat.hydrate(known=position, cached=cached)


@contextlib.asynccontextmanager
async def _plain(bench: Bench, *, own_link: bool, command: Sequence[Any]) -> AsyncIterator[Call]:
    async with Orchestrator(bench.server.url) as orc, Redis.from_url(bench.server.url) as client:
        await client.rpush("list", *[json.dumps(MESSAGE)] * _STORED)
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        yield lambda _: execute(*command)


@contextlib.asynccontextmanager
async def _source_load(bench: Bench) -> AsyncIterator[Call]:
    async with Redis.from_url(bench.server.url) as client:
        for _ in range(_STORED):
            await sources.append_message(client, "s", MESSAGE, cap=_STORED)
        yield lambda _: sources.load_session(client, "s")


# ---------------------------------------------------------------------------------------------------------- appends


@dataclass(frozen=True, slots=True)
class _Appended:
    rate: float
    lost: float


def _appends(bench: Bench) -> Iterator[Figure]:
    runs = bench.in_turns(
        {name: partial(_crowd, bench, way) for name, way in _APPENDS_BY_NAME.items()}, rounds_factor=3
    )
    rates = {name: [one.rate for one in rounds] for name, rounds in runs.items()}
    for name, rounds in runs.items():
        base, goals = _APPEND_GOALS.get(name, (_RPUSH, ()))
        what = f"{_WRITERS} writers, one chat, {name}"
        yield figure_of(
            "chat", what, "appends/s", rates[name], rates[base][: len(rounds)] if base != name else (), goals=goals
        )
        if name in {_APPEND, _TWICE, _AFTER_MANY}:
            lost = [one.lost for one in rounds]
            yield figure_of("chat", f"lost or doubled, {name}", "%", lost, goals=(at_most(0),))


def _crowd(bench: Bench, way: Callable[[Bench], AbstractAsyncContextManager[tuple[Call, Any]]]) -> _Appended:
    async def run() -> _Appended:
        async with way(bench) as (call, count):
            before = await count()
            rate = await crowd_rate(call, _APPENDS, _WRITERS)
            return _Appended(rate, 100 * abs(_APPENDS - (await count() - before)) / _APPENDS)

    return run_loop(run)


@contextlib.asynccontextmanager
async def _ours(bench: Bench, *, times: int = 1, before: int = 0) -> AsyncIterator[tuple[Call, Any]]:
    async with chat_of(bench, messages=before) as chat:

        async def append(number: int) -> None:
            sent = [chat.append([MESSAGE], op_id=f"m{number}") for _ in range(times)]
            if times == 1:
                await sent[0]
            else:
                async with anyio.create_task_group() as group:
                    for one in sent:
                        group.start_soon(_wait, one)

        async def count() -> int:
            head = await chat.head()
            return head.count

        yield append, count


async def _wait(sent: Any) -> None:
    await sent


@contextlib.asynccontextmanager
async def _rpush(bench: Bench, *, own_link: bool) -> AsyncIterator[tuple[Call, Any]]:
    pool = BlockingConnectionPool.from_url(bench.server.url, max_connections=_WRITERS, timeout=60)
    text = json.dumps(MESSAGE)
    async with Redis.from_pool(pool) as client, Orchestrator(bench.server.url) as orc:
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        yield lambda _: execute("RPUSH", "list", text), lambda: client.llen("list")


@contextlib.asynccontextmanager
async def _source_append(bench: Bench) -> AsyncIterator[tuple[Call, Any]]:
    pool = BlockingConnectionPool.from_url(bench.server.url, max_connections=_WRITERS, timeout=60)
    async with Redis.from_pool(pool) as client:
        yield (
            lambda _: sources.append_message(client, "s", MESSAGE, cap=10_000),
            lambda: client.llen("app:env:tenant:session:s:mem:messages"),
        )


# ------------------------------------------------------------------------------------------------------------- turn


def _turn(bench: Bench) -> Iterator[Figure]:
    """Measure the network bytes of a turn of tool calls; after each call the agent reads what is new."""
    messages = _HISTORY_TOKENS // 100
    runs = bench.in_turns(
        {words: partial(_turn_bytes, bench, before) for words, before in ((_SHORT, 0), (_HISTORY, messages))}
    )
    for words, values in runs.items():
        goals = (Goal("≤ 1.1 x the empty one", 1.1, at_most=True, of_ratio=True),) if words == _HISTORY else ()
        base = runs[_SHORT] if words == _HISTORY else ()
        yield figure_of("chat", f"{_TURN_CALLS} tool calls, {words}", "network bytes", values, base, goals=goals)
    added = 2 * _TURN_CALLS * len(json.dumps(MESSAGE))
    yield figure_of("chat", f"{_TURN_CALLS} tool calls, what they add", "bytes", [added] * len(runs[_SHORT]))


def _turn_bytes(bench: Bench, before: int) -> float:
    # 400 bytes are about a hundred tokens.
    async def run() -> float:
        async with chat_of(bench, messages=before) as chat:
            seen = await chat.hydrate(last=max(1, before))
            assert len(seen.messages) == before
            began = read_server(bench.meter)
            for number in range(_TURN_CALLS):
                await chat.append([MESSAGE], turn="t")
                await chat.append([MESSAGE], turn="t")
                seen = seen.updated(await chat.hydrate(known=seen))
                assert len(seen.messages) == before + 2 * number + 2
            return float(read_server(bench.meter).net_bytes - began.net_bytes)

    return run_loop(run)


def _peer_passes(bench: Bench) -> Mapping[str, Callable[[], HistoryPass]]:
    return {one.package.name: partial(history_pass, one, bench.server.url, MESSAGE, _STORED) for one in bench.histories}


_HYDRATE, _UNCHANGED = "chat", "chat, unchanged since a known position"
_LRANGE, _PING = "LRANGE by redis-py", "PING by redis-py"
_READS_BY_NAME: dict[str, Opened] = {
    _HYDRATE: _hydrate,
    "chat, unchanged, kept in the process": partial(_hydrate, cached=True),
    _UNCHANGED: partial(_hydrate, known=True),
    _LRANGE: partial(_plain, own_link=False, command=("LRANGE", "list", 0, -1)),
    "LRANGE over our connection": partial(_plain, own_link=True, command=("LRANGE", "list", 0, -1)),
    _PING: partial(_plain, own_link=False, command=("PING",)),
    "PING over our connection": partial(_plain, own_link=True, command=("PING",)),
    "list and hash, as the source": _source_load,
}
_READ_GOALS: dict[str, tuple[str, tuple[Goal, ...]]] = {
    _HYDRATE: (_LRANGE, (at_most_raw(2),)),
    _UNCHANGED: (_PING, (Goal("≤ 1.2 x PING", 1.2, at_most=True, of_ratio=True),)),
}
_APPEND, _TWICE = "chat", "chat, every append twice at once"
_AFTER_MANY, _RPUSH = f"chat, {_LONG:,} messages before", "RPUSH by redis-py"
_APPENDS_BY_NAME: dict[str, Callable[[Bench], AbstractAsyncContextManager[tuple[Call, Any]]]] = {
    _APPEND: _ours,
    _TWICE: partial(_ours, times=2),
    _AFTER_MANY: partial(_ours, before=_LONG),
    _RPUSH: partial(_rpush, own_link=False),
    "RPUSH over our connection": partial(_rpush, own_link=True),
    "list and hash, as the source": _source_append,
}
_APPEND_GOALS: dict[str, tuple[str, tuple[Goal, ...]]] = {
    _APPEND: (_RPUSH, (at_least_raw(0.7),)),
    _AFTER_MANY: (_APPEND, (Goal("≥ 0.9 x the small one", 0.9, at_most=False, of_ratio=True),)),
}
_SHORT, _HISTORY = "no history", f"a history of {_HISTORY_TOKENS:,} tokens"
