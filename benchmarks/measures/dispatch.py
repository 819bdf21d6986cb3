"""Tasks of many agents, of one skill or of skills of their own: calls, time until assigned, shares, and rest."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, Goal, figure_of, median
from benchmarks.goals import at_most
from benchmarks.processes import running, wait_until
from benchmarks.server_cost import read_server
from benchmarks.systems import our_system
from orchestrator import Orchestrator, Submission
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.core.event_loop import run_loop
from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, SyncStore
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.inbox import GROUP, parse_entries
from orchestrator.tasks.model import Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness import Bench
    from benchmarks.processes import Child

_KEYS = PoolKeys("orc:dev:default", "default")
_SKILL = "lone"
_AGENTS = (1, 100, 1_000, 10_000)
_AGENTS_QUICK = (1, 100, 1_000)
_CHANGING = 5_000
_CHANGES_PER_S = 10
_CROWD = 10_000
_CROWD_QUICK = 1_000
_WISHES_PER_S = 100
_TASKS_EACH = 5
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
        with _pool(bench, count) as pool:
            calls, taken_ms, _ = run_loop(_lone_tasks, bench, pool.store, _TASKS)
        name = f"{count:,} agent{'s' if count > 1 else ''}"
        goals = (at_most(_CALLS + 0.5),)
        yield Figure("dispatch", f"script calls per lone task, {name}", "calls", calls, goals=goals)
        yield Figure("dispatch", f"submit to assigned, p50, {name}", "ms", median(taken_ms))
    bench.clean()
    with _pool(bench, _SHARED) as pool:
        _, _, shares = run_loop(_lone_tasks, bench, pool.store, 1_000)
    spread = max(shares.values()) / min(shares.values()) if len(shares) == _SHARED else float("inf")
    yield Figure("dispatch", "largest share by smallest, 20 agents", "x", spread, goals=(at_most(1.2),))
    bench.clean()
    with _pool(bench, _CHANGING) as pool:
        still, changing = _with_changes(bench, pool.store, rounds=20 if full else 8)
    yield from _crowd(bench, _CROWD if full else _CROWD_QUICK)
    words = f"submit to assigned, p50, {_CHANGING:,} agents"
    yield figure_of("dispatch", words, "ms", still)
    goal = Goal("≤ 1.1 x without", 1.1, at_most=True, of_ratio=True)
    yield figure_of("dispatch", f"{words}, one changes ten times a second", "ms", changing, still, goals=(goal,))


def _crowd(bench: Bench, agents: int) -> Iterator[Figure]:
    """Measure shares of agents of one skill, then agents with skills of their own: at rest, and while they change."""
    bench.clean()
    with _pool(bench, agents) as pool:
        _, _, shares = run_loop(_lone_tasks, bench, pool.store, 2 * agents)
        spread = max(shares.values()) / min(shares.values()) if len(shares) == agents else float("inf")
        words = f"largest share by smallest, {agents:,} agents, lone tasks"
        yield Figure("dispatch", words, "x", spread, goals=(at_most(1.2),))
        entries = run_loop(_shares, bench, agents)
    words = f"largest share by the mean, {agents:,} agents, {_TASKS_EACH} tasks each at once"
    yield Figure("dispatch", words, "x", max(entries) / _TASKS_EACH)
    bench.clean()
    with _pool(bench, agents, own_skills=True) as pool:
        words = f"{agents:,} agents with skills of their own"
        server, supervisor = _rest(bench, pool)
        yield Figure("dispatch", f"{words}, at rest, server CPU", "%", server, goals=(at_most(5),))
        yield Figure("dispatch", f"{words}, at rest, supervisor CPU", "%", supervisor, goals=(at_most(5),))
        done = threading.Event()
        thread = threading.Thread(target=_change_wishes, args=(bench, agents, done))
        thread.start()
        try:
            skills = [_own_skill(number * 7 % agents) for number in range(_TASKS)]
            _, taken_ms, _ = run_loop(_lone_tasks, bench, pool.store, _TASKS, skills)
        finally:
            done.set()
            thread.join()
    words = f"submit to assigned, p50, {words}, {_WISHES_PER_S} change their wishes each second"
    yield Figure("dispatch", words, "ms", median(taken_ms), goals=(at_most(3),))


async def _shares(bench: Bench, agents: int) -> list[int]:
    """Submit tasks for all agents together, and return the tasks in each inbox when all are assigned."""
    async with Orchestrator(bench.server.url, pool=_KEYS.pool, prefix=_KEYS.prefix) as orc:
        for _ in range(agents * _TASKS_EACH // 1000):
            await orc.submit_many([Submission(_SKILL) for _ in range(1000)])
    wait_until(lambda: not bench.meter.exists(_KEYS.queue(f"skill:{_SKILL}")), what="an empty queue", timeout_s=120)
    pipe = bench.meter.pipeline(transaction=False)
    for number in range(agents):
        pipe.xlen(_KEYS.inbox(f"agent-{number}"))
    return pipe.execute()


def _rest(bench: Bench, pool: _Pool) -> tuple[float, float]:
    """Return the processor time of the server and the supervisor without any task, in percent."""
    cpu_before_s, before, started_s = pool.supervisor.cpu_s(), read_server(bench.meter), time.monotonic()
    time.sleep(bench.sizes.rest_s)
    after, duration_s = read_server(bench.meter), time.monotonic() - started_s
    used_s = pool.supervisor.cpu_s() - cpu_before_s
    return (after.cpu_s - before.cpu_s) / duration_s * 100, used_s / duration_s * 100


def _change_wishes(bench: Bench, agents: int, done: threading.Event) -> None:
    """Let agents ask for a backlog, and later for none, as their workers' heartbeats do."""
    store = SyncStore(Endpoint.at(bench.server.url), _KEYS, name="bench")
    number = 0
    while not done.wait(1 / _WISHES_PER_S):
        number += 1
        agent = number % agents
        wish = (f"agent-{agent}", 1 + number // agents % 2)
        store.call(registry.heartbeat(_KEYS, worker=f"worker-{agent}", backlogs=[wish], alive_s=3600))


def _own_skill(number: int) -> str:
    return f"{_SKILL}-{number}"


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


def _register(store: SyncStore, number: int, *, slots: int = 10, backlog: int = 0, skill: str = _SKILL) -> None:
    spec = AgentSpec(f"agent-{number}", frozenset({skill}))
    call = registry.register(
        _KEYS, worker=f"worker-{number}", spec=spec, slots=slots, backlog=backlog, about={"host": "bench"}, alive_s=3600
    )
    store.call(call)


@dataclass(frozen=True, slots=True)
class _Pool:
    store: SyncStore
    supervisor: Child


@contextlib.contextmanager
def _pool(bench: Bench, agents: int, *, own_skills: bool = False) -> Iterator[_Pool]:
    """Register agents and start a supervisor; wait until it has looked at them."""
    store = SyncStore(Endpoint.at(bench.server.url), _KEYS, name="bench")
    for number in range(agents):
        _register(store, number, skill=_own_skill(number) if own_skills else _SKILL)
    env = {"ORC_REDIS__URL": bench.server.url, "ORC_PREFIX": _KEYS.prefix, "ORC_POOL": _KEYS.pool}
    with running("supervisor", ["orchestrator", "supervisor", "run"], folder=bench.folder, env=env) as supervisor:
        wait_until(lambda: bool(bench.meter.exists(_KEYS.leader)), what="a leader", children=(supervisor,))
        run_loop(_first_task, bench, store, _own_skill(0) if own_skills else _SKILL)
        time.sleep(_SETTLE_S)
        yield _Pool(store, supervisor)


async def _first_task(bench: Bench, store: SyncStore, skill: str) -> None:
    async with Orchestrator(bench.server.url, pool=_KEYS.pool, prefix=_KEYS.prefix) as orc:
        await _one(store, orc, skill)


async def _lone_tasks(
    bench: Bench, store: SyncStore, count: int, skills: Sequence[str] = (_SKILL,)
) -> tuple[float, list[float], Counter[str]]:
    """Return script calls per task, the times until each was assigned in ms, and tasks by agent."""
    taken_ms: list[float] = []
    shares: Counter[str] = Counter()
    before = read_server(bench.meter).calls_by_command.get("evalsha", 0)
    async with Orchestrator(bench.server.url, pool=_KEYS.pool, prefix=_KEYS.prefix) as orc:
        for number in range(count):
            agent, ms = await _one(store, orc, skills[number % len(skills)])
            shares[agent] += 1
            taken_ms.append(ms)
    calls = read_server(bench.meter).calls_by_command["evalsha"] - before
    return calls / count, taken_ms, shares


async def _one(store: SyncStore, orc: Orchestrator, skill: str) -> tuple[str, float]:
    """Submit one task, wait until it is assigned, then read and finish it; return its agent and the time in ms."""
    started_s = time.perf_counter()
    handle = await orc.submit(skill)
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
