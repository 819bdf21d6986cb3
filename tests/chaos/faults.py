"""The faults of a chaos run. Each begins, lasts for a while, and heals itself, also when it is cancelled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import redis
from anyio import to_thread

from orchestrator.core.errors import StoreError
from tests.chaos.agents import LEASE_S
from tests.chaos.topology import around_the_lease
from tests.faultkit.checkers.history import AllStopped
from tests.faultkit.commands import any_script, any_work

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from anyio.abc import TaskGroup

    from orchestrator.client.admin import Admin
    from tests.chaos.deployment import Actor, Deployment
    from tests.chaos.topology import ServerFault
    from tests.faultkit.checkers.history import Recorder
    from tests.faultkit.proxy import FaultProxy

EVERY_S: Final = 0.5
"""One fault begins so often, on average."""


class Faults:
    """Throws the dice and injects what they say, one fault per target at a time."""

    def __init__(self, deployment: Deployment, *, seed: str, admin: Admin, recorder: Recorder) -> None:
        self._deployment, self._tell = deployment, deployment.timeline.fault
        self._admin, self._recorder = admin, recorder
        self._dice = random.Random(f"faults {seed}")
        self._busy: set[str] = set()
        self._menu: dict[Callable[[], Coroutine[Any, Any, None]], float] = {
            self._kill_worker: 3,
            self._freeze_worker: 7,
            self._kill_host: 1.5,
            self._freeze_host: 1,
            self._drain_host: 0.7,
            self._kill_supervisor: 1.5,
            self._freeze_supervisor: 2,
            self._pause_redis: 0.7,
            self._flush_scripts: 1,
            self._kill_clients: 1,
            self._stop_all: 1.5,
        }
        for fault, weight in deployment.topology.faults().items():
            self._menu[partial(self._harm, fault)] = weight
        if deployment.topology.proxies:
            self._menu |= {
                self._cut: 3,
                self._silence: 2.5,
                self._refuse: 1,
                self._delay: 1,
                self._lose_reply: 3,
                self._double: 1,
            }

    async def run(self, tasks: TaskGroup) -> None:
        """Inject faults until cancelled; the first ones are those that each run must meet.

        A stop comes before all else, so that it meets workers that all hear it. The commands of each host arrive once
        after its leases have lapsed, so that the scripts, and not the worker's own clock, must refuse them.
        """
        await self._stop_all()
        if self._deployment.topology.proxies:
            for host in self._deployment.hosts:
                tasks.start_soon(self._hold_back, host)
        while True:
            await anyio.sleep(self._dice.expovariate(1 / EVERY_S))
            fault = self._dice.choices(list(self._menu), list(self._menu.values()))[0]
            tasks.start_soon(fault)

    # ------------------------------------------------------------------------------------------------- processes

    async def _kill_worker(self) -> None:
        host = self._dice.choice(self._deployment.hosts)
        if children := host.children():
            pid = self._dice.choice(children)
            self._tell("kill worker", f"{pid} of {host.name}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _freeze_worker(self) -> None:
        host = self._dice.choice(self._deployment.hosts)
        children = [pid for pid in host.children() if pid not in host.frozen]
        if not children:
            return
        pid, seconds = self._dice.choice(children), around_the_lease(self._dice, LEASE_S)
        self._tell("freeze worker", f"{pid} of {host.name} for {seconds:.1f} s")
        host.freeze(pid)
        try:
            await anyio.sleep(seconds)
        finally:
            self._thaw(host, pid)

    @staticmethod
    def _thaw(actor: Actor, pid: int) -> None:
        actor.frozen.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def _kill_host(self) -> None:
        await self._kill(self._dice.choice(self._deployment.hosts))

    async def _kill_supervisor(self) -> None:
        await self._kill(self._dice.choice(self._deployment.supervisors))

    async def _kill(self, actor: Actor) -> None:
        if not actor.runs or actor.name in self._busy:
            return
        seconds = self._dice.uniform(0.0, 2.0)
        with self._only(actor.name):
            self._tell(f"kill {actor.name}", f"started again after {seconds:.1f} s")
            actor.kill()
            await anyio.sleep(seconds)
            actor.start()

    async def _freeze_host(self) -> None:
        """The host and all its workers, as a machine that stands still."""
        host = self._dice.choice(self._deployment.hosts)
        if not host.runs or host.name in self._busy:
            return
        seconds = around_the_lease(self._dice, LEASE_S)
        with self._only(host.name):
            pids = [host.pid, *host.children()]
            self._tell(f"freeze {host.name}", f"with its workers for {seconds:.1f} s")
            for pid in pids:
                host.freeze(pid)
            try:
                await anyio.sleep(seconds)
            finally:
                for pid in pids:
                    self._thaw(host, pid)

    async def _freeze_supervisor(self) -> None:
        supervisor = self._dice.choice(self._deployment.supervisors)
        if not supervisor.runs or supervisor.name in self._busy:
            return
        seconds = around_the_lease(self._dice, 1.5)
        with self._only(supervisor.name):
            pid = supervisor.pid
            self._tell(f"freeze {supervisor.name}", f"for {seconds:.1f} s")
            supervisor.freeze(pid)
            try:
                await anyio.sleep(seconds)
            finally:
                self._thaw(supervisor, pid)

    async def _drain_host(self) -> None:
        """An orderly restart, as a deployment does it."""
        host = self._dice.choice(self._deployment.hosts)
        if not host.runs or host.name in self._busy:
            return
        with self._only(host.name):
            self._tell(f"drain {host.name}", "and start it again")
            host.terminate()
            for _ in range(100):
                await anyio.sleep(0.05)
                host.start()  # once it has ended

    # ----------------------------------------------------------------------------------------------------- wires

    async def _cut(self) -> None:
        name, proxy = self._wire()
        reset = self._dice.random() < 0.5
        self._tell("reset" if reset else "cut", f"the connections of {name}")
        proxy.cut(reset=reset)

    async def _silence(self) -> None:
        name, proxy = self._wire()
        up, down = self._dice.choice([(True, True), (True, False), (False, True)])
        seconds = around_the_lease(self._dice, LEASE_S)
        what = "both ways" if up and down else "to Redis" if up else "from Redis"
        await self._for_a_while(
            name, "silence", f"{what} for {seconds:.1f} s", seconds, lambda: proxy.blackhole(up=up, down=down)
        )

    async def _hold_back(self, host: Actor) -> None:
        await anyio.sleep(self._dice.uniform(2.0, 10.0))
        seconds = 2.5 * LEASE_S
        detail = f"to Redis for {seconds:.1f} s"
        proxy = self._deployment.topology.proxies[host.name]
        await self._for_a_while(host.name, "silence", detail, seconds, lambda: proxy.blackhole(up=True, down=False))

    async def _refuse(self) -> None:
        name, proxy = self._wire()
        seconds = self._dice.uniform(0.2, 2.0)

        def refuse() -> None:
            proxy.refuse()
            proxy.cut(reset=True)

        await self._for_a_while(name, "refuse", f"connections for {seconds:.1f} s", seconds, refuse)

    async def _delay(self) -> None:
        name, proxy = self._wire()
        seconds, late_ms = self._dice.uniform(0.5, 2.0), self._dice.choice([5, 30, 150])
        await self._for_a_while(
            name,
            "delay",
            f"{late_ms} ms for {seconds:.1f} s",
            seconds,
            lambda: proxy.latency(late_ms, jitter_ms=late_ms),
        )

    async def _lose_reply(self) -> None:
        name, proxy = self._wire()
        nth, command = self._dice.randint(1, 5), self._dice.random() < 0.4
        if command:
            self._tell("lose command", f"number {nth} of {name}")
            proxy.fail_command(any_work, nth=nth, how=self._dice.choice(["cut", "reset", "truncate"]))
        else:
            self._tell("lose reply", f"number {nth} of {name}")
            proxy.fail_reply(any_work, nth=nth, how=self._dice.choice(["cut", "reset", "truncate", "swallow"]))

    async def _double(self) -> None:
        name, proxy = self._wire()
        self._tell("send twice", f"a script of {name}")
        proxy.double(any_script, nth=self._dice.randint(1, 5), answer=self._dice.choice(["first", "second"]))

    def _wire(self) -> tuple[str, FaultProxy]:
        return self._dice.choice(list(self._deployment.topology.proxies.items()))

    async def _for_a_while(self, name: str, kind: str, detail: str, seconds: float, begin: Callable[[], None]) -> None:
        wire = f"wire of {name}"
        if wire in self._busy:
            return
        proxy = self._deployment.topology.proxies[name]
        with self._only(wire):
            self._tell(kind, f"{name}, {detail}")
            begin()
            try:
                await anyio.sleep(seconds)
            finally:
                proxy.heal()

    # ----------------------------------------------------------------------------------------------------- Redis

    async def _harm(self, fault: ServerFault) -> None:
        if "redis" in self._busy:
            return
        with self._only("redis"):
            await fault(self._dice, self._tell)

    async def _pause_redis(self) -> None:
        seconds = self._dice.uniform(0.1, 1.5)
        await self._ask_redis("pause Redis", f"for {seconds:.1f} s", "CLIENT", "PAUSE", int(seconds * 1000), "ALL")

    async def _flush_scripts(self) -> None:
        await self._ask_redis("flush scripts", "", "SCRIPT", "FLUSH")

    async def _kill_clients(self) -> None:
        await self._ask_redis("kill clients", "all connections", "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def _ask_redis(self, kind: str, detail: str, *command: str | int) -> None:
        if "redis" in self._busy:
            return
        with self._only("redis"):
            self._tell(kind, detail)

            masters = self._deployment.topology.masters()

            def ask() -> None:
                with contextlib.suppress(redis.RedisError), self._dice.choice(masters).client() as client:
                    send: Callable[..., object] = client.execute_command
                    send(*command)

            await to_thread.run_sync(ask)

    # ------------------------------------------------------------------------------------------------- operators

    async def _stop_all(self) -> None:
        """Stop everything for a while; when all have acknowledged it, nothing may begin."""
        if "stop" in self._busy:
            return
        now, seconds = self._dice.random() < 0.5, self._dice.uniform(0.5, 2.0)
        with self._only("stop"):
            self._tell("stop", f"for {seconds:.1f} s{', interrupting' if now else ''}")
            try:
                with contextlib.suppress(StoreError):
                    sent = await self._admin.stop(now=now, actor="chaos")
                    # A worker that left the registry is not asked; it starts nothing before it has read the commands.
                    acknowledged = (await sent.receipts(timeout=3)).complete
                    since_ms = time.time_ns() // 1_000_000
                    await anyio.sleep(seconds)
                    if acknowledged:
                        self._recorder.write(AllStopped(sent.id, since_ms, time.time_ns() // 1_000_000))
            finally:
                with anyio.CancelScope(shield=True):
                    await self._start_all()

    async def _start_all(self) -> None:
        """Let everything go on, however long Redis cannot be reached: the round ends with it."""
        while True:
            try:
                await self._admin.start(actor="chaos")
            except StoreError:
                await anyio.sleep(0.2)
            else:
                return

    @contextlib.contextmanager
    def _only(self, target: str) -> Iterator[None]:
        self._busy.add(target)
        try:
            yield
        finally:
            self._busy.discard(target)
