"""A pool for one test: a namespace, a supervisor and clients in this process, with short times."""

from __future__ import annotations

import os
import secrets
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.client.client import Orchestrator
from orchestrator.core.reading import read_text
from orchestrator.core.settings_sources import load_settings
from orchestrator.core.wakeups import Wakeup
from orchestrator.limits.shared import scope_of
from orchestrator.schedules.scheduler import Scheduler
from orchestrator.services import Services, SyncStore, open_services, pool_keys, reach_server
from orchestrator.supervisor.daemon import supervise
from orchestrator.tasks import scripts as task_scripts
from orchestrator.testing import scripts
from orchestrator.testing.submitted import Submitted, read_submitted
from orchestrator.testing.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from anyio.abc import TaskGroup

    from orchestrator.core.settings import Settings
    from orchestrator.testing.killable_store import KillableStore
    from orchestrator.testing.scripts import RemainingWork

PROMOTE_LIMIT: Final = 500

FAST: Final[Mapping[str, object]] = {
    "worker.heartbeat_s": 0.1,
    "worker.drain_s": 1.0,
    # No back-off, so that a retry is ready at once and a drained team is deterministic.
    "retry.base_s": 0.0,
    "supervisor.leader_lease_s": 1.0,
    # Tests compare the arguments of tasks that have run.
    "results.keep_arguments": True,
}


def new_prefix() -> str:
    """Return an unused namespace."""
    # Not from `random`, which test runners seed alike for every test.
    return f"t{secrets.token_hex(5)}:test:team"


def temporary_settings(url: str, prefix: str, changed: Mapping[str, object] | None = None) -> Settings:
    """Return settings with short times, independent of files and environment.

    Args:
        url: of the server.
        prefix: the namespace.
        changed: by dotted name, as `{"queue.max_tasks": 3}`.

    Raises:
        ConfigError: an unknown name or an invalid value.
    """
    overrides = {"redis.url": url, "prefix": prefix, **FAST, **(changed or {})}
    # Neither files nor the environment of the machine may affect a test.
    return load_settings(os.devnull, overrides, {"CREDENTIALS_DIRECTORY": os.devnull})


class PoolClient(Orchestrator):
    """A client without warnings of names that no agent has, because a test may submit before it starts its workers."""

    def _warn_of_absence(self, absence: str) -> None:
        """Tell nothing; the `TimeoutError` of a wait does."""


class TemporaryPool:
    """Starts actors of a test, reads its tasks and advances its time; made by `open_temporary_pool`.

    Attributes:
        services: services of its actors.
        orc: a client.
    """

    def __init__(self, services: Services, *, group: TaskGroup, stack: AsyncExitStack, orc: Orchestrator) -> None:
        self.services, self.settings, self.orc = services, services.settings, orc
        self._group, self._stack = group, stack

    async def start_supervisor(self) -> anyio.CancelScope:
        """Start a supervisor; cancel the returned scope to stop it."""
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await supervise(self.services)

        self._group.start_soon(run)
        return scope

    async def client(self, settings: Settings | None = None) -> Orchestrator:
        """Open another client; the pool closes it."""
        return await self._stack.enter_async_context(PoolClient(settings=settings or self.settings))

    async def start(self, work: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """Run an actor in a task of the pool, and wait until it has started."""
        await self._group.start(work)

    async def wait_disconnected(self, store: KillableStore) -> None:
        """Wait until the server has dropped the connections of a dead actor, so that it can take no more tasks.

        Raises:
            TimeoutError: connections are left.
        """

        async def dropped() -> bool:
            clients: bytes = await self.services.store.execute("CLIENT", "LIST")
            return f" name={store.name}".encode() not in clients

        await wait_for(dropped, f"the end of the connections of {store.name}")

    async def remaining(self) -> RemainingWork:
        """Count the remaining work."""
        keys, store = self.services.keys, self.services.store
        return scripts.parse_remaining(await store.execute(*scripts.remaining(keys)))

    async def advance(self, by_ms: int) -> None:
        """Advance time: tasks that are due by then are ready, expired, or submitted by their schedule, on return."""
        keys, store = self.services.keys, self.services.store
        # Agents that call a provider need not have its limit.
        known = await store.pipeline([("HKEYS", keys.limits), ("HKEYS", keys.providers)])
        names = sorted({read_text(name) for reply in known for name in reply})
        await store.execute(*scripts.advance_providers(keys, names=names, by_ms=by_ms))
        for name in names:
            await store.execute(*scripts.advance_providers(scope_of(keys, name), names=[name], by_ms=by_ms))
        await store.execute(*scripts.advance(keys, by_ms=by_ms))
        while (await store.call(task_scripts.promote(keys, limit=PROMOTE_LIMIT))).left:
            pass
        await Scheduler(self.services, Wakeup(), repair_requested=Wakeup()).fire_all()

    def submitted(self) -> list[Submitted]:
        """Return all submitted tasks, in order. Blocks."""
        with closing(SyncStore(self.services.endpoint, self.services.keys, name="test")) as store:
            return read_submitted(store)


@asynccontextmanager
async def open_temporary_pool(settings: Settings, *, supervised: bool = True) -> AsyncIterator[TemporaryPool]:
    """Connect, and run a supervisor unless `supervised` is False; everything ends with the block.

    Errors of the block are raised as they are, not inside an exception group.
    """
    failure: BaseException | None = None
    async with open_services(settings, name="test") as services, AsyncExitStack() as stack:
        orc = await stack.enter_async_context(PoolClient(settings=settings))
        try:
            async with anyio.create_task_group() as group:
                pool = TemporaryPool(services, group=group, stack=stack, orc=orc)
                if supervised:
                    await pool.start_supervisor()
                try:
                    yield pool
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as raised:  # noqa: BLE001 - also what ends a test; raised again below
                    failure = raised
                group.cancel_scope.cancel()
        except BaseExceptionGroup as several:
            failure = failure or _unwrap_single(several)
    if failure is not None:
        raise failure


def _unwrap_single(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the only exception of a group, else the group."""
    if len(several.exceptions) > 1:
        return several
    (one,) = several.exceptions
    return _unwrap_single(one) if isinstance(one, BaseExceptionGroup) else one


def remove_keys(settings: Settings) -> int:
    """Remove every key of a namespace and return their number. Blocks."""
    removed = 0
    with reach_server(settings) as where, closing(SyncStore(where, pool_keys(settings), name="test")) as store:
        cursor: int | None = None
        while cursor != 0:
            next_cursor, page = store.execute("SCAN", cursor or 0, "MATCH", f"{settings.prefix}:*", "COUNT", 1000)
            cursor = int(next_cursor)
            if page:
                removed += store.execute("UNLINK", *page)
    return removed
