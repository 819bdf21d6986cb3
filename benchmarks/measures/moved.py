"""Time until work goes on after Redis is elsewhere: cut connections, flushed scripts, a demoted master, a moved slot.

The time counts from the end of the event until the first task ended that was submitted later.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.calls import RESULT_TIMEOUT_S
from benchmarks.figures import Figure
from benchmarks.goals import at_most
from benchmarks.ours.team import CROWD, OurTeam
from benchmarks.payload import ATTEMPTS_FILE_VARIABLE
from benchmarks.processes import wait_until
from benchmarks.server import Server, free_port, running_server
from orchestrator.core.event_loop import run_loop
from orchestrator.store.keys import PoolKeys
from orchestrator.store.locator import slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from redis import Redis

    from benchmarks.harness import Bench
    from orchestrator import Orchestrator

_EVENTS = 3
_BETWEEN_S = 0.5
_SUBMITTERS = 5
_WITHIN_S = 1.0
_PAUSE_MS = 2000
_STAYS_MASTER = ["--cluster-allow-replica-migration", "no"]
_ROOT = PoolKeys("orc:dev:default", "default").root


def measure(bench: Bench) -> Iterator[Figure]:
    """Cut, flush, demote and move while tasks run."""
    if not bench.ours:
        return
    for name, scene in (
        ("all connections cut", _one_server),
        ("all scripts flushed", _one_server),
        ("master demoted, its name leads to the new one", _two_servers),
        ("slot moved to another node", _cluster),
    ):
        taken_s: list[float] = []
        for number in range(bench.sizes.rounds):
            folder = bench.folder / f"moved-{len(taken_s)}-{number}-{name[:5].strip()}"
            folder.mkdir()
            with scene(bench, folder) as place:
                event = place.cut if name.startswith("all connections") else place.event
                taken_s += _first_ends(replace(bench, server=place.server, meter=place.meter), event)
        yield Figure("moved", name, "s", max(taken_s), goals=(at_most(_WITHIN_S),), rounds=tuple(taken_s))


def _first_ends(bench: Bench, event: Callable[[], None]) -> list[float]:
    team = OurTeam(bench, CROWD, {ATTEMPTS_FILE_VARIABLE: str(bench.folder / "attempts")})

    async def run() -> list[float]:
        async with team.orchestrator() as orc, asyncio.TaskGroup() as group:
            load, taken_s = _Load(orc), list[float]()
            for _ in range(_SUBMITTERS):
                group.create_task(load.submit())
            # The supervisor is up once the first task has ended.
            await load.first_end_after(0.0)
            for _ in range(_EVENTS):
                await asyncio.sleep(_BETWEEN_S)
                await asyncio.to_thread(event)
                taken_s.append(await load.first_end_after(time.monotonic()))
            load.stopped = True
        return taken_s

    with team.worker_processes(2) as workers:
        workers.start()
        return run_loop(run)


class _Load:
    """Submits tasks without end."""

    def __init__(self, orc: Orchestrator) -> None:
        self._orc, self._numbers = orc, itertools.count()
        self.stopped = False
        self._ends: list[tuple[float, float]] = []

    async def submit(self) -> None:
        while not self.stopped:
            begun_s = time.monotonic()
            handle: Any = await self._orc.submit(CROWD.skill, {"number": next(self._numbers), "seconds": 0})
            await handle.result(timeout=RESULT_TIMEOUT_S)
            self._ends.append((begun_s, time.monotonic()))

    async def first_end_after(self, event_s: float) -> float:
        while True:
            later = [ended_s for begun_s, ended_s in self._ends if begun_s > event_s]
            if later:
                return min(later) - event_s
            await asyncio.sleep(0.001)


class _Place(Protocol):
    """Where the team finds Redis, and what happens to it."""

    server: Server
    meter: Redis

    def event(self) -> None: ...

    def cut(self) -> None: ...


@dataclass(slots=True)
class _OneServer:
    server: Server
    meter: Redis

    def event(self) -> None:
        self.meter.script_flush()

    def cut(self) -> None:
        self.meter.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _one_server(bench: Bench, folder: Path) -> Iterator[_Place]:
    del folder
    bench.clean()
    yield _OneServer(bench.server, bench.meter)


@dataclass(slots=True)
class _TwoServers(_OneServer):
    """A master and its replica, and a socket path that leads to the master, as a name does."""

    path: Path
    sockets: list[Path]
    clients: list[Redis]

    def event(self) -> None:
        master, replica = self.clients
        # Orderly: what was confirmed is in the replica before it leads.
        master.client_pause(_PAUSE_MS, all=False)
        wait_until(lambda: _offset(master) == _offset(replica), what="a replica in step")
        replica.replicaof("NO", "ONE")
        self.clients.reverse()
        self.sockets.reverse()
        self.point()
        master.replicaof("127.0.0.1", replica.info("server")["tcp_port"])
        master.client_unpause()

    def point(self) -> None:
        """Let the path lead to the master."""
        new = self.path.with_suffix(".new")
        new.symlink_to(self.sockets[0])
        new.replace(self.path)


@contextlib.contextmanager
def _two_servers(bench: Bench, folder: Path) -> Iterator[_Place]:
    del bench
    with contextlib.ExitStack() as stack:
        sockets, servers, clients = [], [], []
        for name in ("a", "b"):
            (folder / name).mkdir()
            sockets.append(folder / name / "redis.sock")
            options = ["--unixsocket", str(sockets[-1]), "--repl-diskless-sync-delay", "0"]
            servers.append(stack.enter_context(running_server(folder / name, unix_socket=False, options=options)))
            clients.append(stack.enter_context(servers[-1].connect()))
        place = replace(servers[0], url=f"unix://{folder}/place")
        found = _TwoServers(place, stack.enter_context(place.connect()), folder / "place", sockets, clients)
        found.point()
        clients[1].replicaof("127.0.0.1", clients[0].info("server")["tcp_port"])
        wait_until(lambda: clients[1].info("replication").get("master_link_status") == "up", what="a replica in step")
        yield found


def _offset(client: Redis) -> int:
    facts: Any = client.info("replication")
    return int(facts["master_repl_offset"])


@dataclass(slots=True)
class _Cluster(_OneServer):
    """Two nodes, between which the slot of the pool moves."""

    clients: list[Redis]

    def event(self) -> None:
        source, target = self.clients
        ids = [_ask(client, "CLUSTER", "MYID").decode() for client in self.clients]
        slot, port = slot_of(_ROOT), target.info("server")["tcp_port"]
        _ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        _ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        while keys := _ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1000):
            _ask(source, "MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
        for client in (target, source):
            _ask(client, "CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        self.clients.reverse()


@contextlib.contextmanager
def _cluster(bench: Bench, folder: Path) -> Iterator[_Place]:
    del bench
    with contextlib.ExitStack() as stack:
        servers, clients, ports = [], [], [free_port(), free_port()]
        for number, port in enumerate(ports):
            (folder / str(number)).mkdir()
            options = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                str(port),
                "--cluster-allow-replica-migration",
                "no",
            ]
            servers.append(
                stack.enter_context(running_server(folder / str(number), unix_socket=False, options=options))
            )
            clients.append(stack.enter_context(servers[-1].connect()))
            _ask(clients[-1], "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        _ask(clients[0], "CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        _ask(clients[0], "CLUSTER", "MEET", "127.0.0.1", clients[1].info("server")["tcp_port"], ports[1])
        wait_until(lambda: all(_is_whole(client) for client in clients), what="a whole cluster of two nodes")
        yield _Cluster(servers[0], clients[0], clients)


def _is_whole(client: Redis) -> bool:
    facts: bytes = _ask(client, "CLUSTER", "INFO")
    return b"cluster_state:ok" in facts and b"cluster_known_nodes:2" in facts


def _ask(client: Redis, *command: Any) -> Any:
    return client.execute_command(*command, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
