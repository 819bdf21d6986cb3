"""Cost of an XADD for the server when many readers of one group block on the stream."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
from redis.asyncio import Redis

from benchmarks.figures import Figure
from benchmarks.processes import ChildFailedError
from benchmarks.server_cost import read_server
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench

_READERS = (0, 10, 100, 1000)
_ADDS = 2_000
_STREAM, _GROUP = "blocked", "workers"


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure the cost by the number of readers, which limits the useful size of a team."""
    for readers in _READERS:
        bench.clean()
        cpu_s = run_loop(_cost, bench, readers)
        yield Figure("blocked", f"server CPU per XADD, {readers} blocked readers", "µs", cpu_s / _ADDS * 1e6)


async def _cost(bench: Bench, readers: int) -> float:
    """Return the server's processor time of all XADDs, with waking and blocking readers."""
    bench.meter.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)
    async with contextlib.AsyncExitStack() as stack:
        clients: list[Any] = [
            await stack.enter_async_context(Redis.from_url(bench.server.url, socket_timeout=None))
            for _ in range(readers)
        ]
        writer: Any = await stack.enter_async_context(Redis.from_url(bench.server.url))
        async with anyio.create_task_group() as group:
            for number, client in enumerate(clients):
                group.start_soon(_read, client, f"reader-{number}")
            with anyio.fail_after(30):
                while bench.meter.info("clients")["blocked_clients"] < readers:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.05)
            before = read_server(bench.meter)
            for _ in range(_ADDS):
                await writer.xadd(_STREAM, {"d": "x"})
            after = read_server(bench.meter)
            group.cancel_scope.cancel()
    if after.calls_by_command["xadd"] - before.calls_by_command.get("xadd", 0) != _ADDS:
        raise ChildFailedError("The server counted another number of XADDs than were sent.")
    return after.cpu_s - before.cpu_s


async def _read(client: Any, name: str) -> None:
    while True:
        await client.xreadgroup(_GROUP, name, {_STREAM: ">"}, count=1, block=0, noack=True)
