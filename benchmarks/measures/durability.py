"""Rate and latency of submits per level of durability, from one submitter and from a hundred at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from benchmarks.figures import Figure, median
from benchmarks.processes import wait_until
from benchmarks.server import running_server
from orchestrator import Orchestrator
from orchestrator.core.event_loop import run_loop
from orchestrator.core.settings import RedisSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis import Redis

    from benchmarks.harness import Bench
    from benchmarks.server import Server
    from orchestrator.core.durability import Level

_FOR_S: Final = 4.0
_SUBMITTERS: Final = (1, 100)


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    level: Level
    appendfsync: str


_KINDS: Final = (
    _Kind("default, appendfsync everysec", "default", "everysec"),
    _Kind("fsync, appendfsync everysec", "fsync", "everysec"),
    _Kind("default, appendfsync always", "default", "always"),
    _Kind("fsync, appendfsync always", "fsync", "always"),
    _Kind("replicated", "replicated", "everysec"),
)


def measure(bench: Bench) -> Iterator[Figure]:
    """Submit for some seconds per level to a master with an append-only file and one replica."""
    if not bench.ours:
        return
    with contextlib.ExitStack() as stack:
        servers = [_start(stack, bench, name) for name in ("master", "replica")]
        master, replica = servers[0], stack.enter_context(servers[1].connect())
        meter = stack.enter_context(master.connect())
        replica.replicaof("127.0.0.1", master.url.rpartition(":")[2].partition("/")[0])
        wait_until(lambda: _in_step(meter), what="the replica to be in step")
        for kind in _KINDS:
            meter.config_set("appendfsync", kind.appendfsync)
            for submitters in _SUBMITTERS:
                taken_s = run_loop(_submit, master.url, kind.level, submitters)
                name = f"{kind.name}, {submitters} at once"
                yield Figure("durability", f"{name}, submits", "1/s", len(taken_s) / _FOR_S)
                yield Figure("durability", f"{name}, p50", "ms", median(taken_s) * 1000)
                meter.flushall()


def _start(stack: contextlib.ExitStack, bench: Bench, name: str) -> Server:
    folder = bench.folder / f"durability-{name}"
    folder.mkdir()
    options = ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"]
    return stack.enter_context(running_server(folder, unix_socket=False, options=options))


def _in_step(meter: Redis) -> bool:
    return bool(meter.wait(1, 10))


async def _submit(url: str, level: Level, submitters: int) -> Sequence[float]:
    taken_s: list[float] = []
    async with Orchestrator(settings=Settings(redis=RedisSettings(url=SecretStr(url)))) as orc:
        await orc.submit("work", durability=level)
        end_s = time.monotonic() + _FOR_S

        async def submit() -> None:
            while (began_s := time.monotonic()) < end_s:
                await orc.submit("work", durability=level)
                taken_s.append(time.monotonic() - began_s)

        await asyncio.gather(*(submit() for _ in range(submitters)))
    return taken_s
