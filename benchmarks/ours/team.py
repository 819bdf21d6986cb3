"""This project as a measured system: worker processes, one supervisor, one client."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from benchmarks.calls import RESULT_TIMEOUT_S, Calls
from benchmarks.payload import bulk_of, sized_arguments
from benchmarks.processes import Child, running, wait_until
from benchmarks.traffic import LocalDriver
from orchestrator import Orchestrator, Submission
from orchestrator.store.keys import PoolKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from benchmarks.harness import Bench
    from benchmarks.sizes import Sizes

_PREFIX = "orc:dev:default"
_POOL = "default"


@dataclass(frozen=True, slots=True)
class AgentUnderTest:
    """An agent, or several: variable of a module, registered name of the last one, and skill."""

    variable: str
    name: str
    skill: str
    module: str = "benchmarks.ours.agents"


FREE = AgentUnderTest("free", "bench", "answer")
SHORT = AgentUnderTest("short", "bench-short", "wait_shortly")
HELD = AgentUnderTest("held", "bench-held", "hold")
CROWD = AgentUnderTest("crowd", "bench-crowd", "work")
FIFTY = AgentUnderTest("fifty", "bench-fifty", "work")
TEN = AgentUnderTest("ten", "bench-ten", "work")
LIMITED = AgentUnderTest("limited", "bench-limited", "answer_limited")
CRUNCH = {
    slots: AgentUnderTest(f"crunch_{slots}", f"bench-crunch-{slots}", "crunch", "benchmarks.ours.crunchers")
    for slots in (25, 100)
}


@dataclass(frozen=True, slots=True)
class OurWorkers:
    """Registered workers; `start` starts the supervisor, without which nothing is assigned."""

    workers: tuple[Child, ...]
    helpers: list[Child]
    stack: contextlib.ExitStack
    bench: Bench
    env: Mapping[str, str]

    def start(self) -> None:
        """Start the supervisor."""
        supervisor = running(
            "supervisor", ["orchestrator", "supervisor", "run"], folder=self.bench.folder, env=self.env
        )
        self.helpers.append(self.stack.enter_context(supervisor))


def _client(
    orc: Orchestrator,
    skill: str,
    *,
    lanes: int = 0,
    sessions: int = 0,
    tags: int = 0,
    payload_bytes: int = 0,
    agents: Sequence[str] = (),
) -> Calls:
    """Return a client for one skill; `submit_many` spreads the tasks over the lanes, sessions or agents."""

    def submission(args: dict[str, Any]) -> Submission:
        if agents:
            return Submission(skill, args, agent=agents[args["number"] % len(agents)])
        if sessions:
            labels = [f"tag {number}" for number in range(tags)]
            return Submission(skill, args, session=f"session {args['number'] % sessions}", tags=labels)
        return Submission(skill, args, lane=f"lane {args['number'] % lanes}" if lanes else None)

    return Calls(
        submit=lambda args: orc.submit(skill, args),
        result=lambda handle: handle.result(timeout=RESULT_TIMEOUT_S),
        submit_bulk=lambda batch: orc.submit_many([submission(args) for args in batch]),
        arguments=sized_arguments(payload_bytes),
        bulk=bulk_of(payload_bytes),
    )


@dataclass(frozen=True, slots=True)
class OurTeam:
    """One agent, its worker processes under one host, and a supervisor."""

    bench: Bench
    agent: AgentUnderTest = FREE
    env: Mapping[str, str] = field(default_factory=dict)
    has_bulk: bool = True

    @property
    def sizes(self) -> Sizes:
        """The sizes of the run."""
        return self.bench.sizes

    def prepare(self) -> None:
        """Do nothing: workers and clients create what they need."""

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LocalDriver]:
        """Connect."""
        async with self.orchestrator() as orc:
            yield LocalDriver(_client(orc, self.agent.skill, payload_bytes=self.bench.payload_bytes))

    def orchestrator(self) -> Orchestrator:
        """Return a client of the pool, for traffic of another shape."""
        return Orchestrator(self.bench.server.url, pool=_POOL, prefix=_PREFIX)

    @contextlib.contextmanager
    def worker_processes(self, processes: int, *, hosts: int = 1) -> Iterator[OurWorkers]:
        """Start hosts with worker processes, and wait until all are registered."""
        env = {"ORC_REDIS__URL": self.bench.server.url, "ORC_PREFIX": _PREFIX, "ORC_POOL": _POOL, **self.env}
        arguments = ["workers", f"{self.agent.module}:{self.agent.variable}", "--processes", str(processes)]
        names = ["workers", *(f"workers-{number}" for number in range(2, hosts + 1))]
        with contextlib.ExitStack() as stack:
            started = tuple(
                stack.enter_context(running(name, arguments, folder=self.bench.folder, env=env)) for name in names
            )
            expected = processes * hosts
            wait_until(lambda: self.registered() == expected, what=f"{expected} registered workers", children=started)
            yield OurWorkers(started, [], stack, self.bench, env)

    def remaining(self) -> int:
        """Count the tasks in queue, inbox and schedule; a finished task is in none."""
        pipe = self.bench.meter.pipeline(transaction=False)
        pipe.zcard(_KEYS.queue(f"skill:{self.agent.skill}"))
        pipe.xlen(_KEYS.inbox(self.agent.name))
        pipe.zcard(_KEYS.scheduled)
        return sum(cast("list[int]", pipe.execute()))

    def succeeded(self) -> int:
        """Count the tasks that succeeded."""
        return int(self.bench.meter.hget(_KEYS.stats("TOTAL"), "succeeded") or 0)

    def unfinished(self) -> int:
        """Count the tasks that have not succeeded, wherever they wait."""
        submitted, succeeded = self.bench.meter.hmget(_KEYS.stats("TOTAL"), ["submitted", "succeeded"])
        return int(submitted or 0) - int(succeeded or 0)

    def registered(self) -> int:
        """Count the registered workers."""
        return self.bench.meter.hlen(_KEYS.agent_workers(self.agent.name))


@dataclass(frozen=True, slots=True)
class LanedTeam(OurTeam):
    """The same team with tasks in lanes."""

    lanes: int = 0

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LocalDriver]:
        """Connect."""
        async with self.orchestrator() as orc:
            yield LocalDriver(_client(orc, self.agent.skill, lanes=self.lanes))

    def remaining(self) -> int:
        """Count by the counters, because most tasks wait in lanes and in no queue."""
        return self.unfinished()


@dataclass(frozen=True, slots=True)
class ManyAgentsTeam(OurTeam):
    """A team of several agents; each task is for one of them."""

    agents: Sequence[str] = ()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LocalDriver]:
        """Connect."""
        async with self.orchestrator() as orc:
            yield LocalDriver(_client(orc, self.agent.skill, agents=self.agents))

    def remaining(self) -> int:
        """Count by the counters, because the tasks wait in many queues."""
        return self.unfinished()


@dataclass(frozen=True, slots=True)
class SessionTeam(OurTeam):
    """The same team with tasks of sessions, which may have tags."""

    sessions: int = 1
    tags: int = 0

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LocalDriver]:
        """Connect."""
        async with self.orchestrator() as orc:
            yield LocalDriver(_client(orc, self.agent.skill, sessions=self.sessions, tags=self.tags))


_KEYS = PoolKeys(_PREFIX, _POOL)
