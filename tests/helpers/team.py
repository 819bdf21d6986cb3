"""A client, a supervisor and workers in this process, each behind a fault proxy of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread
from pydantic import SecretStr

from orchestrator.client.client import Orchestrator
from orchestrator.core.ids import new_worker_id
from orchestrator.core.settings import RedisSettings, RetrySettings, Settings, SupervisorSettings, WorkerSettings
from orchestrator.services import open_services, pool_keys
from orchestrator.supervisor.daemon import supervise
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.worker import Worker
from tests.faultkit.proxy import FaultProxy, ThreadedProxy
from tests.helpers.logging_agents import make_agents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    import redis
    from anyio.abc import TaskGroup

    from orchestrator.services import Services
    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog


def make_settings(
    url: str,
    prefix: str,
    *,
    command_timeout_s: float = 5.0,
    drain_s: float = 5.0,
    heartbeat_s: float = 0.5,
    leader_lease_s: float = 5.0,
    sweep_s: float = 5.0,
    grace_s: float = 10.0,
    stuck_after_s: float = 60.0,
) -> Settings:
    """Settings with the timings of a test; the lease is each agent's own."""
    return Settings(
        prefix=prefix,
        redis=RedisSettings(url=SecretStr(url), command_timeout_s=command_timeout_s, connect_timeout_s=5.0),
        worker=WorkerSettings(heartbeat_s=heartbeat_s, drain_s=drain_s, grace_s=grace_s, stuck_after_s=stuck_after_s),
        supervisor=SupervisorSettings(sweep_s=sweep_s, leader_lease_s=leader_lease_s),
        retry=RetrySettings(base_s=0.02, cap_s=0.1),
    )


@dataclass(slots=True)
class Member:
    """A running worker: its proxy, and how it ended."""

    worker: Worker
    proxy: FaultProxy
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def drain(self) -> None:
        """Tell it to stop, and wait until it has."""
        self.worker.stop()
        with anyio.fail_after(10):
            await self.ended.wait()


class Team:
    """One pool of a test: use it in an `async with` block.

    Args:
        fault: is given every proxy before its actor starts.

    Attributes:
        client: the proxy of the client; `supervisor` has its own, and so has each member.
        proxies: all of them.
    """

    def __init__(
        self,
        server: RedisServer,
        prefix: str,
        attempt_log: AttemptLog,
        *,
        lease_s: float = 3.0,
        slots: int = 20,
        fault: Callable[[FaultProxy], object] | None = None,
        **timings: float,
    ) -> None:
        self.server, self.prefix, self.attempt_log = server, prefix, attempt_log
        self._lease_s, self._slots, self._timings, self._fault = lease_s, slots, timings, fault
        self.proxies: list[FaultProxy] = []
        # Proxies outlive the actors behind them, also those that are opened later.
        self._proxies, self._stack = ExitStack(), AsyncExitStack()
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self._stack.push_async_callback(self._close_proxies)
        self.direct: redis.Redis = self._stack.enter_context(self.server.client())
        self.client, self.supervisor = self._proxy(), self._proxy()
        self.keys: PoolKeys = pool_keys(self.settings(self.client))
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._supervisor_scope = anyio.CancelScope()
        self._supervisor_ended = anyio.Event()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._stack.__aexit__(kind, error, traceback)
        await self._stack.__aexit__(None, None, None)
        return None  # the test's own failure comes out as it is, not inside a group

    async def _close_proxies(self) -> None:
        # In a thread: their threads may take a while to end, and the loop is watched.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._proxies.close)

    def settings(self, proxy: FaultProxy) -> Settings:
        """The settings of an actor behind `proxy`."""
        return make_settings(proxy.url, self.prefix, **self._timings)

    def _proxy(self) -> FaultProxy:
        proxy = self._proxies.enter_context(ThreadedProxy(self.server.url))
        self.proxies.append(proxy)
        if self._fault is not None:
            self._fault(proxy)
        return proxy

    @asynccontextmanager
    async def open_client(self) -> AsyncIterator[Orchestrator]:
        """A client behind the proxy `client`."""
        async with Orchestrator(settings=self.settings(self.client)) as orc:
            yield orc

    # ----------------------------------------------------------------------------------------------------- actors

    async def start_supervisor(self) -> None:
        """Start a supervisor and wait until it leads."""

        async def run() -> None:
            try:
                with self._supervisor_scope:
                    async with open_services(self.settings(self.supervisor), name="supervisor") as services:
                        await supervise(services)
            finally:
                self._supervisor_ended.set()

        self._tasks.start_soon(run)
        await wait_for(lambda: self.direct.exists(self.keys.leader), "a supervisor that leads", 20)

    async def stop_supervisor(self) -> None:
        """Stop it as a signal does."""
        self._supervisor_scope.cancel()
        await self._supervisor_ended.wait()

    async def start_worker(self) -> Member:
        """Start a worker and wait until the registry knows it."""
        proxy = self._proxy()
        ready = anyio.Event()
        started: list[Member] = []

        async def run() -> None:
            async with open_services(self.settings(proxy), name="worker") as services:
                member = Member(self._make_worker(services), proxy)
                started.append(member)
                ready.set()
                try:
                    with member.scope:
                        await member.worker.run()
                finally:
                    member.ended.set()

        self._tasks.start_soon(run)
        with anyio.fail_after(20):
            await ready.wait()
        (member,) = started
        await wait_for(lambda: self.slots_of(member) == 2, "a worker in the registry")
        return member

    def _make_worker(self, services: Services) -> Worker:
        agents = make_agents(self.attempt_log, lease_s=self._lease_s, slots=self._slots)
        return Worker(services, agents, worker=new_worker_id())

    def slots_of(self, member: Member) -> int:
        """For how many of its agents the registry knows this worker."""
        id_ = member.worker.id
        return sum(self.direct.hexists(self.keys.agent_workers(agent), id_) for agent in ("scribe", "clerk"))

    # ------------------------------------------------------------------------------------------------------ state

    def task(self, id_: str) -> dict[str, bytes]:
        """The record of a task, as it is stored."""
        record: Any = self.direct.hgetall(self.keys.task(id_))
        return {name.decode(): value for name, value in record.items()}

    def state(self, id_: str) -> str:
        """The stored state of a task; empty when there is none."""
        return self.task(id_).get("state", b"").decode()
