"""The actors of a chaos run: supervisors and hosts as processes, and their way to the servers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import redis

from orchestrator.core.settings_sources import load_settings
from orchestrator.services import pool_keys
from tests.chaos.agents import HISTORY_VARIABLE, SHARED_PER_S, agents
from tests.faultkit.processes import ActorProcess
from tests.helpers.subprocesses import alive, workers_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from orchestrator.core.settings import Settings
    from tests.chaos.timeline import Timeline
    from tests.chaos.topology import Topology, Wire

ROOT: Final = Path(__file__).parents[2]
PROCESSES: Final = 2
HOSTS: Final = 2
SUPERVISORS: Final = 2
MAY_EXIT: Final = frozenset({0, 69})
"""An actor that is started while Redis is away says so and ends; somebody starts it again, as an init system does."""
SETTINGS: Final = f"""
prefix = "chaos:test:run"
[limits]
shared = "{SHARED_PER_S}/s"
[redis]
connect_timeout_s = 2.0
command_timeout_s = 2.0
[results]
keep_arguments = true  # the checkers read what each task was asked to do
[worker]
drain_s = 3.0
grace_s = 1.0
heartbeat_s = 0.6
stuck_after_s = 8.0
[supervisor]
sweep_s = 0.5
leader_lease_s = 1.5
[retry]
base_s = 0.05
cap_s = 0.3
"""


class Actor:
    """One process that is started again after each end; its logs are kept, all in one file."""

    def __init__(self, name: str, command: Sequence[str], wire: Wire, *, deployment: Deployment) -> None:
        self.name, self.wire = name, wire
        self._command, self._deployment = [sys.executable, "-P", *command], deployment
        self._process: ActorProcess | None = None
        self._told_to_end = False
        self.frozen: set[int] = set()

    @property
    def runs(self) -> bool:
        """Whether its process is there, be it frozen."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Its process id; 0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    def children(self) -> list[int]:
        """The processes that it started."""
        with contextlib.suppress(OSError):
            return [int(child) for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def start(self) -> None:
        """Start it, unless it runs; says why if it had ended by itself and should not have."""
        if self.runs:
            return
        if self._process is not None:
            code = self._process.returncode
            self.end()
            # One whose worker was killed while it drained says so with its status; one that was told before it listened
            # has simply gone.
            if code not in MAY_EXIT and not (self._told_to_end and code in {1, -signal.SIGTERM}):
                self._deployment.surprises.append(f"{self.name} ended by itself with {code}; see its log")
        self._told_to_end = False
        environment = self._deployment.environment | {"ORC_REDIS__URL": self.wire.url}
        # Not in the checkout, nor beside planted scripts: a host takes packages from where it is started last of all.
        where = self._deployment.directory
        self._process = ActorProcess(self._command, name=self.name, env=environment, cwd=where).start()

    def kill(self) -> None:
        """Kill it as kill -9 does; what it started goes on."""
        if self.runs and self._process is not None:
            self._process.kill()
        self.end()

    def terminate(self) -> None:
        """Ask it to end."""
        if self.runs and self._process is not None:
            self._told_to_end = True
            self._process.terminate()

    def end(self) -> None:
        """Forget the process, killing it if need be, and keep its log."""
        if self._process is not None:
            with (self._deployment.directory / f"{self.name}.log").open("a") as kept:
                kept.write(self._process.output)
            self._process.close()
            self._process = None

    def freeze(self, pid: int) -> None:
        """Stop one process in its tracks."""
        self.frozen.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all go on that were stopped."""
        for pid in self.frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen.clear()

    def heal(self) -> None:
        """End all its faults; connections that may have lost something are cut."""
        self.thaw()
        self.wire.heal()
        self.wire.cut()


class Deployment:
    """Everything that runs; use it in a `with` block.

    Attributes:
        topology: the servers.
        client: between the client and the servers.
        directory: where logs, histories and settings lie.
        surprises: actors that ended although nobody had ended them.
    """

    def __init__(self, directory: Path, *, topology: Topology, timeline: Timeline, path: Sequence[Path] = ()) -> None:
        self.directory, self.timeline, self.topology = directory, timeline, topology
        self.history = directory / "history"
        self.surprises: list[str] = []
        config = directory / "orchestrator.toml"
        config.write_text(SETTINGS)
        self.environment = {
            "ORC_CONFIG": str(config),
            HISTORY_VARIABLE: str(self.history),
            "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])),
        }
        self._config = config
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.topology)
            stack.callback(self._kill_all)
            self.client = self.topology.wire("the client", stack)
            self.hosts = [
                self._actor(
                    stack,
                    f"host{n}",
                    ["-m", "orchestrator.workers", "tests.chaos.agents:agents", "--processes", str(PROCESSES)],
                )
                for n in range(HOSTS)
            ]
            self.supervisors = [
                self._actor(stack, f"supervisor{n}", ["-m", "orchestrator", "supervisor", "run"])
                for n in range(SUPERVISORS)
            ]
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _actor(self, stack: ExitStack, name: str, command: Sequence[str]) -> Actor:
        actor = Actor(name, command, self.topology.wire(name, stack, log_size=2000), deployment=self)
        stack.callback(actor.end)
        stack.callback(actor.thaw)
        return actor

    @property
    def actors(self) -> list[Actor]:
        """All processes but Redis."""
        return [*self.supervisors, *self.hosts]

    def settings(self, url: str) -> Settings:
        """The settings of a client."""
        return load_settings(config=self._config, overrides={"redis.url": url}, environ={})

    def all_registered(self) -> bool:
        """Whether Redis knows as many workers as run when nothing is wrong."""
        keys = pool_keys(self.settings(self.topology.url))
        try:
            with self.topology.client() as direct:
                return len(workers_of(direct, keys, agents[0].name)) == HOSTS * PROCESSES
        except redis.RedisError:
            return False

    def start_all(self) -> None:
        """Start what does not run."""
        for actor in self.actors:
            actor.start()

    def heal(self) -> None:
        """End every fault that is still there, and start what is missing. Blocks for a moment."""
        self.topology.heal()
        self.client.heal()
        self.client.cut()
        for actor in self.actors:
            actor.heal()
        self.start_all()

    def processes(self) -> list[int]:
        """Every process that belongs to this run, wherever it was moved: they carry the place of the histories."""
        mark = f"{HISTORY_VARIABLE}={self.history}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0") and alive(int(path.parent.name)):
                    found.append(int(path.parent.name))
        return [pid for pid in found if pid != os.getpid()]

    def _kill_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
