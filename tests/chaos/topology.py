"""The servers of a chaos run, and what is done to them: one server, a Sentinel group, or a cluster."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import anyio
import redis
from anyio import to_thread

from orchestrator.store.keys import PoolKeys
from tests.chaos.agents import LEASE_S
from tests.faultkit.clusters import run_cluster
from tests.faultkit.proxy import ThreadedProxy
from tests.faultkit.sentinels import SentinelGroup
from tests.faultkit.servers import RedisServer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Any

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.faultkit.clusters import Cluster
    from tests.faultkit.proxy import FaultProxy

# Flushed by every write: what was answered is with the kernel, so kill -9 loses nothing of it. A server that also waits
# for the disk (`everysec`) may postpone a write, and then it does.
_STORED: Final = {"appendonly": "yes", "appendfsync": "no"}

KNOWN_S: Final = 0.2
"""Time for which the master of the pool in a cluster is taken for known."""

Tell: TypeAlias = "Callable[[str, str], None]"
ServerFault: TypeAlias = "Callable[[random.Random, Tell], Coroutine[Any, Any, None]]"
"""Tells what it does, does it, and returns when the servers are well again. One runs at a time."""


class Wire(Protocol):
    """What stands between an actor and the servers."""

    @property
    def url(self) -> str:
        """The URL for the actor."""

    def heal(self) -> None:
        """End all faults of the wire."""

    def cut(self) -> int:
        """Cut the open connections, and return their number."""


class Topology(ABC):
    """Servers; use it in a `with` block.

    Attributes:
        proxies: by actor; empty if the actors find the servers themselves.
    """

    name = ""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.proxies: dict[str, FaultProxy] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @abstractmethod
    def _start(self, stack: ExitStack) -> None: ...

    @property
    @abstractmethod
    def url(self) -> str:
        """URL of the pool, past all proxies."""

    @abstractmethod
    def wire(self, name: str, stack: ExitStack, *, log_size: int = 10_000) -> Wire:
        """Return what stands between one actor and the servers; it lives as long as `stack`."""

    @abstractmethod
    def masters(self) -> Sequence[RedisServer]:
        """The servers that take writes now."""

    def master(self) -> RedisServer:
        """The server that has the pool now."""
        return self.masters()[0]

    def client(self) -> redis.Redis:
        """Return a client of the server that has the pool now; close it."""
        return self.master().client()

    @abstractmethod
    def faults(self) -> Mapping[ServerFault, float]:
        """What can be done to the servers, with weights."""

    def heal(self) -> None:  # noqa: B027 - a single server needs nothing
        """End what was done to the servers, and wait until all are well."""


class Single(Topology):
    """One server with an append-only file, each actor behind a proxy of its own."""

    name = "single"

    def __init__(self, binary: ServerBinary, directory: Path) -> None:
        super().__init__()
        self._server = RedisServer(binary, options={**_STORED, "logfile": str(directory / "redis.log")})

    def _start(self, stack: ExitStack) -> None:
        stack.enter_context(self._server)

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._server.url

    def wire(self, name: str, stack: ExitStack, *, log_size: int = 10_000) -> Wire:
        """Return a proxy."""
        proxy = stack.enter_context(ThreadedProxy(self._server.url, log_size=log_size))
        self.proxies[name] = proxy
        return proxy

    def masters(self) -> Sequence[RedisServer]:
        """The server."""
        return [self._server]

    def faults(self) -> Mapping[ServerFault, float]:
        """Kill it and start it again, or freeze it."""
        return {self._kill: 1.0, self._freeze: 0.7}

    async def _kill(self, dice: random.Random, tell: Tell) -> None:
        seconds = dice.choice([0.0, 0.3, 1.0, 2.5])
        tell("kill Redis", f"started again after {seconds:.1f} s")
        self._server.kill()
        try:
            await anyio.sleep(seconds)
        finally:
            # In this thread, because the server ends with the thread that has started it.
            self._server.start()

    async def _freeze(self, dice: random.Random, tell: Tell) -> None:
        seconds = around_the_lease(dice, LEASE_S) / 1.5
        tell("freeze Redis", f"for {seconds:.1f} s")
        self._server.process.freeze()
        try:
            await anyio.sleep(seconds)
        finally:
            self._server.process.thaw()


class _Direct:
    """An actor that finds the servers itself."""

    def __init__(self, url: str) -> None:
        self.url = url

    def heal(self) -> None:
        """Do nothing."""

    def cut(self) -> int:
        """Do nothing."""
        return 0


class Sentinels(Topology):
    """A master with two replicas, one of which must have each write, and three sentinels."""

    name = "sentinel"

    def __init__(self, binary: ServerBinary) -> None:
        super().__init__()
        options = {**_STORED, "min-replicas-to-write": "1", "min-replicas-max-lag": "2"}
        self._group = SentinelGroup(binary, options=options)

    def _start(self, stack: ExitStack) -> None:
        stack.enter_context(self._group)

    @property
    def url(self) -> str:
        """URL of the group."""
        return self._group.url

    def wire(self, name: str, stack: ExitStack, *, log_size: int = 10_000) -> Wire:
        """Return the URL of the group: the sentinels name the servers, so no proxy can stand before them."""
        return _Direct(self._group.url)

    def masters(self) -> Sequence[RedisServer]:
        """The master."""
        return [self._group.master]

    def faults(self) -> Mapping[ServerFault, float]:
        """Kill the master, freeze it, promote a replica in good order."""
        return {self._kill: 2.0, self._freeze: 2.0, self._order: 2.0}

    async def _kill(self, dice: random.Random, tell: Tell) -> None:
        seconds, master = dice.choice([0.0, 0.3, 2.5, 4.0]), self._group.master
        tell("kill master", f"started again after {seconds:.1f} s")
        master.kill()
        try:
            await anyio.sleep(seconds)
        finally:
            master.start()
        await to_thread.run_sync(self._group.wait_whole, abandon_on_cancel=True)

    async def _freeze(self, dice: random.Random, tell: Tell) -> None:
        seconds, master = dice.choice([0.3, 1.0, 3.0, 5.0]), self._group.master
        tell("freeze master", f"for {seconds:.1f} s")
        master.process.freeze()
        try:
            await anyio.sleep(seconds)
        finally:
            master.process.thaw()
        await to_thread.run_sync(self._group.wait_whole, abandon_on_cancel=True)

    async def _order(self, dice: random.Random, tell: Tell) -> None:
        tell("promote a replica", "in good order")
        with contextlib.suppress(redis.RedisError):  # no replica is fit, right after another change
            await to_thread.run_sync(self._group.failover)
        await to_thread.run_sync(self._group.wait_whole, abandon_on_cancel=True)

    def heal(self) -> None:
        """Wait until the master has both replicas and all sentinels agree."""
        self._group.wait_whole()


class Masters(Topology):
    """Three masters; each has a replica, which must have each write."""

    name = "cluster"

    def __init__(self, binary: ServerBinary) -> None:
        super().__init__()
        self._binary = binary
        self._pool, self._found_s = PoolKeys("chaos:test:run", "default").root, -KNOWN_S
        self._cluster: Cluster
        self._master: RedisServer

    def _start(self, stack: ExitStack) -> None:
        options = {**_STORED, "min-replicas-to-write": "1", "min-replicas-max-lag": "2"}
        options["cluster-allow-replica-migration"] = "no"
        self._cluster = stack.enter_context(run_cluster(self._binary, replicas=True, options=options))

    @property
    def url(self) -> str:
        """URL of the cluster."""
        return self._cluster.url

    def wire(self, name: str, stack: ExitStack, *, log_size: int = 10_000) -> Wire:
        """Return the URL of the cluster: the nodes name each other, so no proxy can stand before them."""
        return _Direct(self._cluster.url)

    def masters(self) -> Sequence[RedisServer]:
        """The masters."""
        return self._cluster.masters()

    def master(self) -> RedisServer:
        """The master of the pool, as it was a moment ago: an observer asks often."""
        if time.monotonic() - self._found_s > KNOWN_S:
            self._master, self._found_s = self._cluster.owner(self._pool), time.monotonic()
        return self._master

    def faults(self) -> Mapping[ServerFault, float]:
        """Kill, freeze or replace a master; move slots, also half."""
        return {self._kill: 2.0, self._freeze: 2.0, self._order: 2.0, self._move: 3.0, self._move_half: 2.0}

    async def _any_master(self, dice: random.Random) -> RedisServer:
        # That of the pool more often than the others.
        masters = await to_thread.run_sync(self._cluster.masters)
        return dice.choice([*masters, await to_thread.run_sync(self._cluster.owner, self._pool)])

    async def _kill(self, dice: random.Random, tell: Tell) -> None:
        seconds, master = dice.choice([0.0, 0.3, 2.5, 5.0]), await self._any_master(dice)
        tell("kill master", f"{master.port}, started again after {seconds:.1f} s")
        master.kill()
        try:
            await anyio.sleep(seconds)
        finally:
            master.start()
        await self._whole()

    async def _freeze(self, dice: random.Random, tell: Tell) -> None:
        seconds, master = dice.choice([0.3, 1.0, 3.0, 6.0]), await self._any_master(dice)
        tell("freeze master", f"{master.port}, for {seconds:.1f} s")
        master.process.freeze()
        try:
            await anyio.sleep(seconds)
        finally:
            master.process.thaw()
        await self._whole()

    async def _order(self, dice: random.Random, tell: Tell) -> None:
        master = await self._any_master(dice)
        tell("promote a replica", f"of {master.port}, in good order")
        await to_thread.run_sync(self._cluster.fail_over, master)
        await self._whole()

    async def _move(self, dice: random.Random, tell: Tell) -> None:
        times = dice.randint(1, 4)
        tell("move the slot of the pool", f"{times} times")
        for _ in range(times):
            await to_thread.run_sync(self._cluster.move_slot, self._pool)
            await anyio.sleep(dice.uniform(0.0, 0.5))
        await self._whole()

    async def _move_half(self, dice: random.Random, tell: Tell) -> None:
        seconds, keys = dice.uniform(0.2, 3.0), dice.randint(0, 50)
        tell("move the slot of the pool half", f"{keys} keys, and the others after {seconds:.1f} s")
        with anyio.CancelScope(shield=True):  # nothing else would finish it
            target = await to_thread.run_sync(lambda: self._cluster.move_slot(self._pool, keys=keys))
            await anyio.sleep(seconds)
            await to_thread.run_sync(self._cluster.finish_move, self._pool, target)
        await self._whole()

    async def _whole(self) -> None:
        await to_thread.run_sync(self._cluster.wait_until_whole, abandon_on_cancel=True)

    def heal(self) -> None:
        """Wait until all nodes see a whole cluster."""
        self._cluster.wait_until_whole()


TOPOLOGIES: Final = ("single", "sentinel", "cluster")


def make_topology(name: str, binary: ServerBinary, directory: Path) -> Topology:
    """Return the servers of a run.

    Args:
        name: one of `TOPOLOGIES`.
        binary: program of all servers.
        directory: for logs.
    """
    if name == "cluster":
        return Masters(binary)
    return Sentinels(binary) if name == "sentinel" else Single(binary, directory)


def around_the_lease(dice: random.Random, lease_s: float) -> float:
    """Below it, somewhat beyond it, far beyond it."""
    return lease_s * dice.choice([0.1, 0.3, 0.6, 1.2, 1.4, 1.6, 2.0, 3.0])
