"""What a supervisor and a worker cost while nothing happens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.goals import at_most
from benchmarks.metering import SentCommands, cost_between, read_server
from benchmarks.processes import pss_bytes, rss_bytes
from benchmarks.sides import our_side
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.harness import Bench
    from benchmarks.team import Team

_SETTLE_S = 3.0
_MIB = 1024 * 1024


def measure(bench: Bench) -> Iterator[Figure]:
    """Watch one worker process under its host, and one supervisor, after a first task has warmed them up."""
    for team in our_side(bench).values():
        bench.clean()
        team.prepare()
        with team.crew(1) as crew:
            crew.go()
            run_loop(_warm_up, team)
            time.sleep(_SETTLE_S)
            children = [*crew.workers, *crew.helpers]
            cpu_before_s = {child.name: child.cpu_s() for child in children}
            before, started_s = read_server(bench.meter), time.monotonic()
            counter = SentCommands(bench.meter, bench.server.url)
            with counter.counting():
                time.sleep(bench.sizes.rest_s)
            after, duration_s = read_server(bench.meter), time.monotonic() - started_s
            cost = cost_between(before, after)
            sent_per_s = counter.count / duration_s
            yield Figure(
                "rest",
                "commands sent",
                "commands/s",
                sent_per_s,
                goals=(at_most(5),),
                note=_busiest(cost.calls_by_command),
            )
            yield Figure("rest", "server CPU", "%", cost.cpu_s / duration_s * 100)
            for child in children:
                used_s = child.cpu_s() - cpu_before_s[child.name]
                yield Figure("rest", f"CPU of {child.name}", "%", used_s / duration_s * 100, goals=(at_most(0.5),))
                for number, pid in enumerate(child.pids()):
                    role = child.name if number == 0 else f"{child.name}, child {number}"
                    note = f"{pss_bytes(pid) / _MIB:.0f} MiB when shared pages are divided"
                    yield Figure(
                        "rest",
                        f"resident memory of {role}",
                        "MB",
                        rss_bytes(pid) / 1e6,
                        goals=(at_most(60),),
                        note=note,
                    )


async def _warm_up(team: Team) -> None:
    async with team.client() as client:
        await client.round_trip(0)


def _busiest(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(calls.items(), key=lambda item: -item[1])[:8])
