"""Opens a pool for views: at its primary, or at replicas, which spare it."""

from __future__ import annotations

import random
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from orchestrator.core.errors import StoreError
from orchestrator.services import open_services
from orchestrator.store.locator import FixedLocator
from orchestrator.store.replicas import Lag, ReplicaLocator, find_shards, measure_lag, read_replication
from orchestrator.store.script_files import read_all_scripts
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.store.locator import Address, Locator
    from orchestrator.store.replicas import Shard


_UNKNOWN: Final = Lag(caught_up=False)
PROBE_S: Final = 1.0
"""How long a server may take to say how far it is; another replica is asked then."""


@dataclass(frozen=True, slots=True)
class ViewSource:
    """Servers that views are read from, and the greatest age of the views.

    Attributes:
        replicas: addresses of the replicas that are read, one of each primary that has some.
        primaries: addresses of primaries that are read themselves although the settings ask for replicas.
        problem: why they are.
        age_s: the views lack nothing that is older than this; None if that is unknown.
        lacks_bytes: how much a replica lacks of the history of writes, when `age_s` is unknown.
        link_down_s: seconds for which a replica has had no link to its primary; None if all have one.
    """

    replicas: tuple[str, ...] = ()
    primaries: tuple[str, ...] = ()
    problem: str = ""
    age_s: float | None = 0.0
    lacks_bytes: int = 0
    link_down_s: int | None = None


@dataclass(frozen=True, slots=True)
class PoolViews:
    """A pool that is open for views.

    Attributes:
        services: for the functions of this package.
    """

    services: Services
    _replicas: tuple[str, ...] = ()
    _primaries: tuple[str, ...] = ()
    _problem: str = ""
    _lags: tuple[Lag, ...] = ()
    _asked_s: float = 0.0

    def source(self) -> ViewSource:
        """Return where views were read, and how old they may be now."""
        known = all(lag.caught_up for lag in self._lags)
        age_s = (time.monotonic() - self._asked_s if self._replicas else 0.0) if known else None
        down_s = max((lag.link_down_s for lag in self._lags if lag.link_down_s is not None), default=None)
        lacks = max((lag.bytes for lag in self._lags), default=0)
        return ViewSource(self._replicas, self._primaries, self._problem, age_s, lacks, down_s)


@asynccontextmanager
async def open_views(settings: Settings, *, name: str) -> AsyncIterator[PoolViews]:
    """Open a pool for the views of a command, where the setting `redis.views` says.

    Replicas that do not answer are left out.

    Args:
        settings: of the pool.
        name: shown in CLIENT LIST.

    Raises:
        StoreError: the primary does not answer, or the pool does not admit this version of the program.
    """
    async with open_services(settings, name=name, brief=True) as services:
        if settings.redis.views == "primary":
            yield PoolViews(services)
            return
        async with AsyncExitStack() as stack:
            yield await _open_replicas(services, stack, name)


async def _open_replicas(services: Services, stack: AsyncExitStack, name: str) -> PoolViews:
    asked_s = time.monotonic()
    shards = await find_shards(services.store, services.endpoint.locator)
    found: dict[Shard, _Choice] = {}

    async def choose(shard: Shard) -> None:
        found[shard] = await _choose(services, shard)

    async with anyio.create_task_group() as group:
        for shard in shards:
            group.start_soon(choose, shard)
    chosen = {shard: choice for shard, choice in found.items() if choice.address is not None}
    primaries = tuple(str(shard.primary) for shard in shards if shard not in chosen)
    problem = next((choice.problem for choice in found.values() if choice.problem), "")
    if not chosen:
        return PoolViews(services, (), primaries, problem)
    locator = ReplicaLocator({shard: choice.address or shard.primary for shard, choice in found.items()})
    store = await stack.enter_async_context(_connect(services, locator, name))
    replicas = tuple(str(choice.address) for choice in chosen.values())
    lags = tuple(choice.lag for choice in chosen.values())
    viewed = replace(services, endpoint=replace(services.endpoint, locator=locator), store=store)
    return PoolViews(viewed, replicas, primaries, problem, lags, asked_s)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The replica of a shard that is read, or why none is."""

    address: Address | None
    lag: Lag = _UNKNOWN
    problem: str = ""

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Compares replicas: the better one is higher. One without a link may lack more than its offset says."""
        return self.address is not None, self.lag.caught_up, self.lag.link_down_s is None, -self.lag.bytes


async def _choose(services: Services, shard: Shard) -> _Choice:
    """Return a replica that answers: the first that lacks nothing, else the one that lacks least."""
    best = _Choice(None, problem="no replica is known")
    primary = None
    async with _connect(services, FixedLocator(shard.primary), "views") as store:
        with suppress(StoreError), anyio.move_on_after(PROBE_S):
            primary = await read_replication(store)
    for address in random.sample(shard.replicas, len(shard.replicas)):
        try:
            async with _connect(services, FixedLocator(address), "views") as store:
                with anyio.fail_after(PROBE_S):
                    choice = _Choice(address, await measure_lag(store, primary))
                    await _prepare(store)
        except TimeoutError:
            choice = _Choice(None, problem=f"replica {address} does not answer")
        except StoreError as failure:
            choice = _Choice(None, problem=f"replica {address}: {failure}")
        best = max(choice, best, key=lambda one: one.rank)
        if choice.lag.caught_up:
            break
    return best


async def _prepare(store: Store) -> None:
    """Check that a replica answers reads, which it may refuse without its primary, and has the scripts for them."""
    await store.execute("EXISTS", store.keys.format)
    scripts = [script for script in await to_thread.run_sync(read_all_scripts) if script.reads_only]
    known = await store.execute("SCRIPT", "EXISTS", *[script.sha for script in scripts])
    # A replica gets no scripts from its primary. One round trip, because it may be far away.
    missing = [script for script, is_known in zip(scripts, known, strict=True) if not is_known]
    for reply in await store.pipeline([("SCRIPT", "LOAD", script.text) for script in missing]):
        if isinstance(reply, Exception):
            raise reply


def _connect(services: Services, locator: Locator, name: str) -> Store:
    endpoint = replace(services.endpoint, locator=locator)
    return Store(endpoint, services.keys, name=name, floor=services.store.floor, reads_replica=True)
