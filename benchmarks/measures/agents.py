"""Many agents in one worker process: calls at rest, and their drain beside that of one agent."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.drains import drain
from benchmarks.figures import Figure, figure_of
from benchmarks.goals import AGENTS_CALLS_PER_S, AGENTS_CONNECTIONS, AGENTS_DRAIN_SHARE, at_least, at_most
from benchmarks.ours.many_agents import AGENTS_VARIABLE, name_of
from benchmarks.ours.team import AgentUnderTest, ManyAgentsTeam
from benchmarks.server_cost import cost_between, read_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench
    from benchmarks.processes import Child

AT_REST: Final = (1, 100, 1_000)
DRAINED_BY: Final = 500
_SETTLE_S: Final = 8.0
"""Longer than a heartbeat and a search for entries."""


@dataclass(frozen=True, slots=True)
class _Rest:
    calls_per_s: float
    busiest: str
    server_cpu_percent: float
    worker_cpu_percent: float


def measure(bench: Bench) -> Iterator[Figure]:
    """Watch worker processes with different numbers of agents at rest, then compare the drains of one and of many."""
    if not bench.ours:
        return
    for count in AT_REST:
        bench.clean()
        yield from _rest(_team(bench, count), count)
    one, many = _team(bench, 1), _team(bench, DRAINED_BY)
    teams = {"one": one, "by name": many, "by skill": replace(many, agents=())}
    drains = bench.in_turns({name: partial(drain, bench, team, processes=1) for name, team in teams.items()})
    rates = {name: [run.rate_per_s for run in runs] for name, runs in drains.items()}
    yield figure_of("agents", "drain, 1 agent", "tasks/s", rates["one"])
    for name in ("by name", "by skill"):
        words = f"drain, {DRAINED_BY} agents with as many slots, tasks {name}"
        yield figure_of("agents", words, "tasks/s", rates[name])
        shares = [of_many / of_one for of_many, of_one in zip(rates[name], rates["one"], strict=True)]
        yield figure_of("agents", f"{words}, by 1 agent", "x", shares, goals=(at_least(AGENTS_DRAIN_SHARE),))


def _team(bench: Bench, count: int) -> ManyAgentsTeam:
    names = [name_of(number) for number in range(count)]
    agent = AgentUnderTest("agents", names[-1], "answer", module="benchmarks.ours.many_agents")
    return ManyAgentsTeam(bench, agent, {AGENTS_VARIABLE: str(count)}, agents=names)


def _rest(team: ManyAgentsTeam, count: int) -> Iterator[Figure]:
    words = f"{count:,} {'agent' if count == 1 else 'agents'} at rest"
    with team.worker_processes(1) as processes:
        (child,) = processes.workers
        alone = _watch(team.bench, child)
        calls, connections = (at_most(AGENTS_CALLS_PER_S),), (at_most(AGENTS_CONNECTIONS),)
        yield Figure(
            "agents", f"{words}, calls with those of scripts", "calls/s", alone.calls_per_s, calls, note=alone.busiest
        )
        yield Figure("agents", f"{words}, connections", "", _connections(team.bench), connections)
        yield Figure("agents", f"{words}, server CPU", "%", alone.server_cpu_percent)
        yield Figure("agents", f"{words}, worker CPU", "%", alone.worker_cpu_percent)
        processes.start()
        led = _watch(team.bench, child)
        words += ", with a supervisor that scans the pool"
        yield Figure("agents", f"{words}, calls with those of scripts", "calls/s", led.calls_per_s, note=led.busiest)
        yield Figure("agents", f"{words}, server CPU", "%", led.server_cpu_percent)


def _watch(bench: Bench, child: Child) -> _Rest:
    time.sleep(_SETTLE_S)
    cpu_before_s, before, started_s = child.cpu_s(), read_server(bench.meter), time.monotonic()
    time.sleep(bench.sizes.rest_s)
    after, duration_s = read_server(bench.meter), time.monotonic() - started_s
    cost = cost_between(before, after)
    calls = sorted(cost.calls_by_command.items(), key=lambda item: -item[1])
    return _Rest(
        calls_per_s=cost.calls / duration_s,
        busiest=", ".join(f"{name} {number}" for name, number in calls[:8]),
        server_cpu_percent=cost.cpu_s / duration_s * 100,
        worker_cpu_percent=(child.cpu_s() - cpu_before_s) / duration_s * 100,
    )


def _connections(bench: Bench) -> int:
    """Count the connections of the worker process and its host; no other program but the meter is connected yet."""
    own = bench.meter.client_id()
    return sum(int(client["id"]) != own for client in bench.meter.client_list())
