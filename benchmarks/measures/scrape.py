"""Cost of a scrape of a large pool: commands, time of the server, time of the event loop."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from benchmarks.figures import Figure, figure_of
from benchmarks.goals import at_most
from benchmarks.server_cost import SentCommands
from benchmarks.systems import our_system
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.agents.timings import MAX_NAMES, RAN_MS, RUNS, WAITED_MS, WAITS
from orchestrator.core.event_loop import run_loop
from orchestrator.core.ids import new_task_id
from orchestrator.monitoring.exposition import PoolExposition, pool_labels
from orchestrator.monitoring.pool_reader import PoolReader
from orchestrator.store.calls import opaque
from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, Store, SyncStore
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.model import Envelope, encode_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from benchmarks.harness import Bench

_KEYS = PoolKeys("orc:dev:default", "default")
_AGENTS = 1000
_SKILLS = MAX_NAMES
_QUEUES = 500
_ROUNDS = 50
_COMMANDS, _GOAL_MS = 10, 5
_COUNTED = (0, 1, 2, WAITED_MS, RAN_MS, *range(WAITS, WAITS + 12), *range(RUNS + 4, RUNS + 16))
_CELLS = [value for cell in _COUNTED for value in (cell, 1000 + cell)]


def measure(bench: Bench) -> Iterator[Figure]:
    """Scrape a pool of 1,000 agents whose 200 pairs of agent and skill have counted since the last scrape."""
    if not our_system(bench):
        return
    bench.clean()
    endpoint = Endpoint.at(bench.server.url)
    filler = SyncStore(endpoint, _KEYS, name="filler")
    _fill(filler)
    commands, server_ms, loop_ms, longest_ms, kib = run_loop(_scrape, bench, filler)
    filler.close()
    pool = f"{_AGENTS:,} agents, {_QUEUES} queues"
    yield Figure("scrape", f"commands, {pool}", "commands", commands, goals=(at_most(_COMMANDS),))
    yield figure_of("scrape", f"CPU of the server, {pool}", "ms", server_ms, goals=(at_most(_GOAL_MS),))
    yield figure_of("scrape", f"longest turn of the event loop, {pool}", "ms", longest_ms, goals=(at_most(_GOAL_MS),))
    yield figure_of("scrape", f"CPU of the supervisor, {pool}", "ms", loop_ms)
    yield Figure("scrape", f"size of the text, {pool}", "KiB", kib)


def _fill(store: SyncStore) -> None:
    for number in range(_AGENTS):
        skills = frozenset({f"skill-{number % _SKILLS:03}", f"skill-{(number + 1) % _SKILLS:03}"})
        spec = AgentSpec(f"agent-{number:04}", skills)
        call = registry.register(_KEYS, worker=f"w{number}", spec=spec, slots=4, backlog=0, about={}, alive_s=3600)
        store.call(call)
    envelope = opaque(encode_envelope(Envelope("skill-000", b"{}")))
    queues = [f"skill:skill-{number:03}" for number in range(_SKILLS)]
    queues += [f"agent:agent-{number:04}" for number in range(_QUEUES - _SKILLS)]
    for queue in queues:
        rows = [tasks.UnusualRow(new_task_id(), envelope, queue=queue, skill="skill-000") for _ in range(4)]
        store.call(tasks.submit(_KEYS, rows=rows, max_tasks=10**6, max_wait_s=3600))


def _count(store: SyncStore, batch: int) -> None:
    rows = [(f"agent-{number:04}", f"skill-{number:03}", _CELLS) for number in range(MAX_NAMES)]
    store.call(registry.count(_KEYS, worker="w0", batch=batch, rows=rows))


async def _scrape(bench: Bench, filler: SyncStore) -> tuple[int, list[float], list[float], list[float], float]:
    server_ms, loop_ms, longest_ms, size = list[float](), list[float](), list[float](), 0
    async with Store(Endpoint.at(bench.server.url), _KEYS) as store:
        await store.load_scripts()
        reader, exposition = PoolReader(store), PoolExposition(pool_labels("bench:bench:bench", "default"))
        for batch in range(_ROUNDS + 1):
            _count(filler, batch)
            before_s, started_s = _server_cpu_s(bench.meter), time.process_time()
            async with anyio.create_task_group() as group:
                turns = list[float]()
                group.start_soon(_record_turns, turns)
                page = exposition.page()
                await exposition.add(page, await reader.read(), supervisor="s")
                size = len(page.render())
                group.cancel_scope.cancel()
            if batch:  # the first one reads all agents
                loop_ms.append((time.process_time() - started_s) * 1000)
                longest_ms.append(max(after - before for before, after in itertools.pairwise(turns)) * 1000)
                server_ms.append((_server_cpu_s(bench.meter) - before_s) * 1000)
        counter = SentCommands(bench.meter, bench.server.url)
        with counter.counting():
            await reader.read()
    return counter.count, server_ms, loop_ms, longest_ms, size / 1024


async def _record_turns(turns: list[float]) -> None:
    """Record the processor time of the process at each turn of the event loop."""
    while True:
        turns.append(time.process_time())
        await anyio.lowlevel.checkpoint()


def _server_cpu_s(meter: Redis) -> float:
    # Processor time, because other processes may interrupt the server.
    facts = meter.info("cpu")
    return float(facts["used_cpu_user"] + facts["used_cpu_sys"])
