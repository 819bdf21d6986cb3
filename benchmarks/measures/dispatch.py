"""Lone tasks of a skill that many agents have: calls, time until they are assigned, shares; changes of one agent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Goal, figure_of, median
from benchmarks.goals import at_most
from benchmarks.processes import running, wait_until
from benchmarks.server_cost import read_server
from benchmarks.systems import our_system
from orchestrator import Orchestrator
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.core.event_loop import run_loop
from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, SyncStore
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.inbox import GROUP, parse_entries
from orchestrator.tasks.model import Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench

_KEYS = PoolKeys("orc:dev:default", "default")
_SKILL = "lone"
_AGENTS = (1, 100, 1_000, 10_000)
_AGENTS_QUICK = (1, 100, 1_000)
_CHANGING = 5_000
_CHANGES_PER_S = 10
_SHARED = 20
_TASKS = 300
_TURN = 150
_CALLS = 3
_SETTLE_S = 3.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Register agents without worker processes, and play their workers."""
    if not our_system(bench):
        return
    full = bench.sizes.rounds > 1
    for count in _AGENTS if full else _AGENTS_QUICK:
        bench.clean()
        with _pool(bench, count) as store:
            calls, taken_ms, _ = run_loop(_lone_tasks, bench, store, _TASKS)
        name = f"{count:,} agent{'s' if count > 1 else ''}"
        goals = (at_most(_CALLS + 0.5),)
        yield Figure("dispatch", f"script calls per lone task, {name}", "calls", calls, goals=goals)
        yield Figure("dispatch", f"submit to assigned, p50, {name}", "ms", median(taken_ms))
    bench.clean()
    with _pool(bench, _SHARED) as store:
        _, _, shares = run_loop(_lone_tasks, bench, store, 1_000)
    spread = max(shares.values()) / min(shares.values()) if len(shares) == _SHARED else float("inf")
    yield Figure("dispatch", "largest share by smallest, 20 agents", "x", spread, goals=(at_most(1.2),))
    bench.clean()
    with _pool(bench, _CHANGING) as store:
        still, changing = _with_changes(bench, store, rounds=20 if full else 8)
    words = f"submit to assigned, p50, {_CHANGING:,} agents"
    yield figure_of("dispatch", words, "ms", still)
    goal = Goal("≤ 1.1 x without", 1.1, at_most=True, of_ratio=True)
    yield figure_of("dispatch", f"{words}, one changes ten times a second", "ms", changing, still, goals=(goal,))


def _with_changes(bench: Bench, store: SyncStore, *, rounds: int) -> tuple[list[float], list[float]]:
    """Return medians without and with an agent that registers ten times a second, in turns in one pool."""
    still, changing = [], []
    for _ in range(rounds):
        still.append(median(run_loop(_lone_tasks, bench, store, _TURN)[1]))
        done = threading.Event()
        thread = threading.Thread(target=_change, args=(bench, done))
        thread.start()
        try:
            changing.append(median(run_loop(_lone_tasks, bench, store, _TURN)[1]))
        finally:
            done.set()
            thread.join()
    return still, changing


def _change(bench: Bench, done: threading.Event) -> None:
    store = SyncStore(Endpoint.at(bench.server.url), _KEYS, name="bench")
    number = 0
    while not done.wait(1 / _CHANGES_PER_S):
        number += 1
        _register(store, 0, slots=10 + number % 3, backlog=number % 2)


def _register(store: SyncStore, number: int, *, slots: int = 10, backlog: int = 0) -> None:
    spec = AgentSpec(f"agent-{number}", frozenset({_SKILL}))
    call = registry.register(
        _KEYS, worker=f"worker-{number}", spec=spec, slots=slots, backlog=backlog, about={"host": "bench"}, alive_s=3600
    )
    store.call(call)


@contextlib.contextmanager
def _pool(bench: Bench, agents: int) -> Iterator[SyncStore]:
    """Register agents and start a supervisor; wait until it has looked at them."""
    store = SyncStore(Endpoint.at(bench.server.url), _KEYS, name="bench")
    for number in range(agents):
        _register(store, number)
    env = {"ORC_REDIS__URL": bench.server.url, "ORC_PREFIX": _KEYS.prefix, "ORC_POOL": _KEYS.pool}
    with running("supervisor", ["orchestrator", "supervisor", "run"], folder=bench.folder, env=env) as supervisor:
        wait_until(lambda: bool(bench.meter.exists(_KEYS.leader)), what="a leader", children=(supervisor,))
        run_loop(_first_task, bench, store)
        time.sleep(_SETTLE_S)
        yield store


async def _first_task(bench: Bench, store: SyncStore) -> None:
    async with Orchestrator(bench.server.url, pool=_KEYS.pool, prefix=_KEYS.prefix) as orc:
        await _one(store, orc)


async def _lone_tasks(bench: Bench, store: SyncStore, count: int) -> tuple[float, list[float], Counter[str]]:
    """Return script calls per task, the times until each was assigned in ms, and tasks by agent."""
    taken_ms: list[float] = []
    shares: Counter[str] = Counter()
    before = read_server(bench.meter).calls_by_command.get("evalsha", 0)
    async with Orchestrator(bench.server.url, pool=_KEYS.pool, prefix=_KEYS.prefix) as orc:
        for _ in range(count):
            agent, ms = await _one(store, orc)
            shares[agent] += 1
            taken_ms.append(ms)
    calls = read_server(bench.meter).calls_by_command["evalsha"] - before
    return calls / count, taken_ms, shares


async def _one(store: SyncStore, orc: Orchestrator) -> tuple[str, float]:
    """Submit one task, wait until it is assigned, then read and finish it; return its agent and the time in ms."""
    started_s = time.perf_counter()
    handle = await orc.submit(_SKILL)
    task_key = _KEYS.task(handle.id)
    while (place := store.execute("HGET", task_key, "at")) is None:
        if time.perf_counter() - started_s > 60:
            raise TimeoutError(f"task {handle.id} is not assigned after a minute")
    ms = (time.perf_counter() - started_s) * 1000
    agent = place.decode().split(" ")[0]
    reply = store.execute("XREADGROUP", "GROUP", GROUP, "worker", "STREAMS", _KEYS.inbox(agent), ">")
    rows = [(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in parse_entries(agent, reply[0][1])]
    store.call(tasks.finish(_KEYS, worker="worker", rows=rows, dead_ttl_s=3600, max_wait_s=3600))
    return agent, ms
