"""A fleet: real worker processes and simulated ones at rest, and a million tasks an hour for 10,000 agents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import time
from typing import TYPE_CHECKING, Final

import anyio

from benchmarks.figures import Figure
from benchmarks.goals import at_most
from benchmarks.ours import fleet
from benchmarks.ours.team import FREE, OurTeam
from benchmarks.processes import pss_bytes, running, wait_until
from benchmarks.server_cost import cost_between, read_server
from orchestrator import Orchestrator
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.core.event_loop import run_loop
from orchestrator.store.keys import PoolKeys
from orchestrator.store.links import Link
from orchestrator.store.locator import Address
from orchestrator.store.store import Endpoint, Store
from orchestrator.tasks.inbox import GROUP
from orchestrator.workers.runtime.heartbeat import CHECK_ONE_BEATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.harness import Bench
    from benchmarks.processes import Child

_PREFIX, _POOL = "orc:dev:default", "default"
_KEYS = PoolKeys(_PREFIX, _POOL)
_PROCESSES = 200
_SIMULATED = 10_000
_CONNECTIONS: Final = 3
"""Goal for a worker process at rest, and connections of a simulated one."""
_AGENTS, _HOSTED, _SESSIONS = 10_000, 2_500, 100_000
_TASKS_PER_S = 1_000_000 / 3600
_MINUTES: Final = float(os.environ.get("BENCH_FLEET_MINUTES", "10"))
_SETTLE_S = 10.0
_HEARTBEAT_S, _READ_S, _LISTEN_S, _ALIVE_S = 5.0, 3.0, 30.0, 20
"""Times of a worker with the default settings."""


def measure(bench: Bench) -> Iterator[Figure]:
    """Start real workers, then simulated ones, then a load on many agents."""
    if not bench.ours:
        return
    full = bench.sizes.rounds > 1
    bench.clean()
    yield from _processes(bench, _PROCESSES if full else 20)
    bench.clean()
    yield from _simulated(bench, _SIMULATED if full else 1_000)
    bench.clean()
    share = 1 if full else 10
    minutes = _MINUTES if full else 0.5
    yield from _load(bench, agents=_AGENTS // share, sessions=_SESSIONS // share, minutes=minutes)


# ------------------------------------------------------------------------------------------------------ real processes


def _processes(bench: Bench, count: int) -> Iterator[Figure]:
    """Watch one host with many worker processes at rest, without a supervisor."""
    team = OurTeam(bench, FREE)
    words = f"{count} processes at rest"
    arguments = ["workers", f"{FREE.module}:{FREE.variable}", "--processes", str(count)]
    env = {"ORC_REDIS__URL": bench.server.url, "ORC_PREFIX": _PREFIX, "ORC_POOL": _POOL}
    started_s = time.monotonic()
    with running("workers", arguments, folder=bench.folder, env=env) as host:
        wait_until(
            lambda: team.registered() == count, what=f"{count} registered workers", children=(host,), timeout_s=120
        )
        yield Figure("fleet", f"{count} processes, time until registered", "s", time.monotonic() - started_s)
        calls_per_s, busiest, server_percent = _watch(bench)
        listed = bench.meter.client_list()
        own = len(listed) - 1
        pids = host.pids()
        yield Figure("fleet", f"{words}, connections per process", "", own / count, (at_most(_CONNECTIONS),))
        yield Figure("fleet", f"{words}, calls with those of scripts", "calls/s", calls_per_s, note=busiest)
        yield Figure("fleet", f"{words}, server CPU", "%", server_percent)
        memory = sum(int(client["tot-mem"]) for client in listed) / len(listed)
        yield Figure("fleet", f"{words}, server memory per connection", "bytes", memory)
        yield Figure("fleet", f"{words}, PSS per process", "MiB", sum(map(pss_bytes, pids)) / len(pids) / 2**20)


def _watch(bench: Bench) -> tuple[float, str, float]:
    time.sleep(_SETTLE_S)
    before, started_s = read_server(bench.meter), time.monotonic()
    time.sleep(max(bench.sizes.rest_s, 3 * _HEARTBEAT_S))
    after, duration_s = read_server(bench.meter), time.monotonic() - started_s
    cost = cost_between(before, after)
    calls = sorted(cost.calls_by_command.items(), key=lambda item: -item[1])
    busiest = ", ".join(f"{name} {number / duration_s:.1f}/s" for name, number in calls[:10])
    return cost.calls / duration_s, busiest, cost.cpu_s / duration_s * 100


# --------------------------------------------------------------------------------------------------- simulated workers


def _simulated(bench: Bench, wanted: int) -> Iterator[Figure]:
    """Play the workers of a fleet: what a worker process at rest sends, at the same intervals, over as many links."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(wanted, (limit - 500) // _CONNECTIONS)
    bench.meter.config_set("maxclients", str(limit - 100))
    calls_per_s, busiest, server_percent = run_loop(_play, bench, count)
    words = f"{count:,} simulated workers at rest"
    note = "" if count == wanted else f"the limit of {limit:,} open files admits no more"
    yield Figure("fleet", f"{words}, calls with those of scripts", "calls/s", calls_per_s, note=busiest)
    yield Figure("fleet", f"{words}, server CPU", "%", server_percent, note=note)
    whole = server_percent * _SIMULATED / count
    yield Figure("fleet", f"server CPU for {_SIMULATED:,} workers, in proportion", "%", whole, (at_most(25),))


async def _play(bench: Bench, count: int) -> tuple[float, str, float]:
    places = asyncio.Semaphore(200)
    connected, all_connected = 0, anyio.Event()

    async def worker(number: int) -> None:
        nonlocal connected
        links = [
            Link(Address(bench.server.url), connect_timeout_s=30, read_timeout_s=60, name=f"sim-{kind}")
            for kind in ("calls", "inbox", "control")
        ]
        calls, inbox, control = links
        name, agent = f"sim-{number}", fleet.name_of(number)
        spec = AgentSpec(agent, frozenset({"pick_up"}))
        about: dict[str, str | int] = {"host": "sim", "pid": number, "version": "0"}
        async with places:
            call = registry.register(
                _KEYS, worker=name, spec=spec, slots=4, backlog=0, about=about, alive_s=_ALIVE_S * 10
            )
            await calls.execute(*call.command())
            for link in (inbox, control):
                await link.execute("PING")
        connected += 1
        if connected == count:
            all_connected.set()
        async with anyio.create_task_group() as group:
            group.start_soon(_beat, calls, name, agent)
            group.start_soon(_read, calls, inbox, name, agent)
            group.start_soon(_listen, control, name)

    async with Store(Endpoint.at(bench.server.url), _KEYS, name="sim") as store:
        await store.load_scripts()
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(worker, number)
        await all_connected.wait()
        watched = await anyio.to_thread.run_sync(_watch, bench)
        group.cancel_scope.cancel()
    return watched


async def _beat(calls: Link, name: str, agent: str) -> None:
    """Send heartbeats as the heartbeat thread does; some check the registration in full."""
    await anyio.sleep(random.random() * _HEARTBEAT_S)
    while True:
        for number in range(CHECK_ONE_BEATS):
            backlogs, others = ([(agent, 0)], []) if number == 0 else ([], [agent])
            beat = registry.heartbeat(_KEYS, worker=name, backlogs=backlogs, others=others, alive_s=_ALIVE_S)
            await calls.execute(*beat.command())
            await anyio.sleep(_HEARTBEAT_S)


async def _read(calls: Link, inbox: Link, name: str, agent: str) -> None:
    """Search the inbox and wait for entries, as the inbox reader does."""
    key = _KEYS.inbox(agent)
    while True:
        search = ("XREAD", "COUNT", 1, "STREAMS", key, "0-0")
        await calls.pipeline([search, ("EXISTS", _KEYS.suspected_queues)])
        await inbox.execute(
            "XREADGROUP", "GROUP", GROUP, name, "COUNT", 4, "BLOCK", int(_READ_S * 1000), "STREAMS", key, ">"
        )


async def _listen(control: Link, name: str) -> None:
    """Wait for commands, as the command listener does."""
    while True:
        streams = (_KEYS.control, _KEYS.notes(name))
        await control.execute("XREAD", "COUNT", 100, "BLOCK", int(_LISTEN_S * 1000), "STREAMS", *streams, "$", "0-0")


# ---------------------------------------------------------------------------------------------------------------- load


def _load(bench: Bench, *, agents: int, sessions: int, minutes: float) -> Iterator[Figure]:
    """Submit a million tasks an hour to agents by name, each in a session with a workspace."""
    base = {"ORC_REDIS__URL": bench.server.url, "ORC_PREFIX": _PREFIX, "ORC_POOL": _POOL, "ORC_RESULTS__TTL_S": "300"}
    with contextlib.ExitStack() as stack:
        children: list[Child] = []
        for number, first in enumerate(range(0, agents, _HOSTED)):
            env = {
                **base,
                fleet.FIRST_VARIABLE: str(first),
                fleet.AGENTS_VARIABLE: str(min(_HOSTED, agents - first)),
            }
            arguments = ["workers", "benchmarks.ours.fleet:agents"]
            children.append(stack.enter_context(running(f"fleet-{number}", arguments, folder=bench.folder, env=env)))
        arguments = ["orchestrator", "supervisor", "run"]
        supervisor = stack.enter_context(running("supervisor", arguments, folder=bench.folder, env=base))
        children.append(supervisor)
        wait_until(
            lambda: bench.meter.zcard(_KEYS.agents) == agents, what="all agents", children=children, timeout_s=300
        )
        yield from run_loop(_submit, bench, supervisor, agents, sessions, minutes)


async def _submit(bench: Bench, supervisor: Child, agents: int, sessions: int, minutes: float) -> Sequence[Figure]:
    waited_ms: list[float] = []
    memory: list[float] = []
    failed = 0

    async def one(orc: Orchestrator) -> None:
        nonlocal failed
        agent, session = fleet.name_of(random.randrange(agents)), random.randrange(sessions)
        args = {"sent_ns": time.time_ns()}
        try:
            handle = await orc.submit("pick_up", args, agent=agent, session=f"session-{session}")
            waited_ms.append(await handle.result(timeout=60))
        except Exception:  # noqa: BLE001 - each counts
            failed += 1

    async with Orchestrator(bench.server.url, pool=_POOL, prefix=_PREFIX) as orc:

        async def prepare(first: int) -> None:
            for number in range(first, sessions, 100):
                async with orc.workspace(f"session-{number}").edit() as space:
                    await space.set("begun", number)

        async with anyio.create_task_group() as group:
            for first in range(100):
                group.start_soon(prepare, first)
        before, cpu_s, begun_s = read_server(bench.meter), supervisor.cpu_s(), time.monotonic()
        submitted = 0
        async with anyio.create_task_group() as group:
            while (passed_s := time.monotonic() - begun_s) < minutes * 60:
                while submitted < passed_s * _TASKS_PER_S:
                    group.start_soon(one, orc)
                    submitted += 1
                if len(memory) < passed_s // 5:
                    memory.append(bench.meter.info("memory")["used_memory"] / 2**20)
                await anyio.sleep(0.002)
        duration_s = time.monotonic() - begun_s
    cost = cost_between(before, read_server(bench.meter))
    words = f"{agents:,} agents, {sessions:,} sessions, {submitted / duration_s * 3600 / 1e6:.2f} million tasks an hour"
    half = len(memory) // 2
    return [
        Figure("fleet", f"{words}, submit to start, p50", "ms", _percentile(waited_ms, 50)),
        Figure("fleet", f"{words}, submit to start, p99", "ms", _percentile(waited_ms, 99), (at_most(20),)),
        Figure("fleet", f"{words}, without a result", "tasks", failed, (at_most(0),)),
        Figure("fleet", f"{words}, server CPU", "%", cost.cpu_s / duration_s * 100),
        Figure("fleet", f"{words}, supervisor CPU", "%", (supervisor.cpu_s() - cpu_s) / duration_s * 100),
        Figure("fleet", f"{words}, server memory, first half", "MiB", max(memory[: half + 1], default=0.0)),
        Figure("fleet", f"{words}, server memory, second half", "MiB", max(memory[half:], default=0.0)),
    ]


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)] if values else float("inf")
