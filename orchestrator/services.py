"""Builds the services that every process shares, from the settings."""

from __future__ import annotations

import math
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ConfigError, ServerUnavailable
from orchestrator.core.formats import label_connection
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.turns import SILENT_AFTER_S, LoopTurn, LoopTurns
from orchestrator.payloads.payloads import Payloads
from orchestrator.store.failures import ReplyTooLarge
from orchestrator.store.keys import PoolKeys
from orchestrator.store.links import count_reconnects
from orchestrator.store.long_read import LongRead
from orchestrator.store.scoped import bind_scope
from orchestrator.store.server_info import ServerInfo
from orchestrator.store.store import Endpoint, Store, SyncStore
from orchestrator.tasks.values import ValueReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from orchestrator.accounts.accounts import Accounts
    from orchestrator.chat.accounts import ChatAccounts
    from orchestrator.chat.cache import ChatCache
    from orchestrator.core.formats import Floor
    from orchestrator.core.redis_url import RedisUrl
    from orchestrator.core.settings import Settings
    from orchestrator.embedded.attachment import Attachment as Attachment  # noqa: PLC0414 - exported
    from orchestrator.embedded.attachment import EmbeddedInfo as EmbeddedInfo  # noqa: PLC0414 - exported
    from orchestrator.store.capabilities import CapabilityProbe
    from orchestrator.vectors.cache import VectorCache
    from orchestrator.workspace.kept_states import KeptStates


__all__ = [
    "START_PAUSE_S",
    "WAIT_REPORTED_EVERY_S",
    "Endpoint",
    "LongRead",
    "PoolKeys",
    "PoolParts",
    "ReplyTooLarge",
    "ServerInfo",
    "ServerWait",
    "Services",
    "SyncStore",
    "bind_scope",
    "check_answers",
    "configured_server",
    "count_cache_loads",
    "count_cached_bytes",
    "count_reconnects",
    "describe_embedded",
    "hold_embedded",
    "hold_ephemeral",
    "open_services",
    "pool_keys",
    "reach_server",
    "resolve_settings",
    "run_embedded",
    "wait_for_services",
]

START_PAUSE_S: Final = 1.0
"""Longest pause between two tries of a process that waits for Redis at its start."""
WAIT_REPORTED_EVERY_S: Final = 10.0


@dataclass(frozen=True)
class Services:
    """The shared services of a client, a supervisor or a worker.

    Those of chats and memories are made when they are used, because their modules take long to import.

    Attributes:
        live: the settings of the process, which a reload replaces.
        turns: the watched loops of the process.
        payloads: large arguments and results.
        values: reads arguments that are fields of their own.
    """

    live: LiveSettings
    endpoint: Endpoint
    keys: PoolKeys
    store: Store
    turns: LoopTurns = field(default_factory=LoopTurns)
    payloads: Payloads = field(init=False)
    values: ValueReader = field(init=False)

    def __post_init__(self) -> None:
        """Open the payload store."""
        object.__setattr__(self, "payloads", Payloads(self.live, self.store.require))
        object.__setattr__(self, "values", ValueReader(self.store))

    @cached_property
    def chat_cache(self) -> ChatCache:
        """Parts of chats that the process has read."""
        from orchestrator.chat.cache import ChatCache

        return ChatCache()

    @cached_property
    def chat_accounts(self) -> ChatAccounts:
        """Counts the chats that the process changes."""
        from orchestrator.chat.accounts import ChatAccounts

        return ChatAccounts(self.store, self.live)

    @cached_property
    def accounts(self) -> Accounts:
        """Users, tokens and links of the dashboard."""
        from orchestrator.accounts.accounts import Accounts

        secret = self.live.current.control.secret
        return Accounts(self.store, secret.get_secret_value() if secret else "")

    @cached_property
    def past_states(self) -> KeptStates:
        """Past states of workspaces that the process keeps for the next step of a replay."""
        from orchestrator.workspace.kept_states import KeptStates

        return KeptStates()

    @cached_property
    def vector_cache(self) -> VectorCache:
        """Vectors that the process keeps to compare them."""
        from orchestrator.vectors.cache import VectorCache

        return VectorCache()

    @property
    def capabilities(self) -> CapabilityProbe:
        """Commands of the server beyond those of Redis 7.0."""
        return self.store.capabilities

    @property
    def settings(self) -> Settings:
        """The settings of now. Read a `Live` one at each use, and do not keep it."""
        return self.live.current

    def watch_loop(self, name: str, *, waits_s: float | Callable[[Settings], float] = 0.0) -> LoopTurn:
        """Watch a loop whose turn is at most one wait and a few calls to Redis.

        Args:
            name: of the loop.
            waits_s: the longest wait of a turn, for a time or an event; a function if it depends on a `Live` setting.
        """
        redis = self.settings.redis
        calls_s = max(SILENT_AFTER_S, 3 * (redis.connect_timeout_s + redis.command_timeout_s))
        if not callable(waits_s):
            return self.turns.loop(name, calls_s + waits_s)
        turn = self.turns.loop(name, calls_s)
        turn.waits_s = lambda: waits_s(self.settings)
        return turn


@dataclass(frozen=True, slots=True)
class PoolParts:
    """Gives one of several pools of a process its part of what they share.

    Attributes:
        turns: its watched loops.
        endpoint: that all of them use, so that one pool tells the others what it learned of the servers.
    """

    turns: LoopTurns = field(default_factory=LoopTurns)
    endpoint: Endpoint | None = None


def pool_keys(settings: Settings) -> PoolKeys:
    """Return the keys of the pool in the settings."""
    return PoolKeys(settings.prefix, settings.pool)


@contextmanager
def reach_server(settings: Settings) -> Iterator[Endpoint]:
    """Find Redis: the URL in the settings, else a running embedded server, which is held while in use.

    Raises:
        ServerUnavailable: there is neither; the message has the command to type.
    """
    if (configured := configured_server(settings)) is not None:
        yield configured
        return
    from orchestrator.embedded.attachment import attach, find_data_dir

    with attach(find_data_dir(None, create=False), start=False) as attached:
        yield _endpoint(attached.url, settings)


def configured_server(settings: Settings) -> Endpoint | None:
    """Return the place of Redis for all pools of a process; None for an embedded server, which each pool finds."""
    place = settings.redis.place
    return None if place is None else _endpoint(place, settings)


def _endpoint(url: str | RedisUrl, settings: Settings) -> Endpoint:
    return Endpoint.at(
        url,
        connect_timeout_s=settings.redis.connect_timeout_s,
        command_timeout_s=settings.redis.command_timeout_s,
    )


@asynccontextmanager
async def open_services(
    settings: Settings | LiveSettings,
    *,
    name: str,
    floor: Floor | None = None,
    shared: PoolParts | None = None,
    brief: bool = False,
) -> AsyncIterator[Services]:
    """Connect, check the data format, load the scripts.

    Args:
        settings: all settings; live ones in a process that reloads them.
        name: shown in CLIENT LIST, with the pool and the format of this program.
        floor: of a worker that has checked the format, and acts on changes itself.
        shared: in a process of several pools.
        brief: of a command that ends soon: each script is read and loaded by its first call, because reading all takes
            longer than such a command.

    Raises:
        StoreError: Redis does not answer, or the pool does not admit this version of the program.
    """
    live = LiveSettings.of(settings)
    keys = pool_keys(live.current)
    shared = shared or PoolParts()
    with reach_server(live.current) if shared.endpoint is None else nullcontext(shared.endpoint) as where:
        async with Store(where, keys, name=label_connection(name, keys.root), floor=floor) as store:
            if floor is None:
                await store.check_format()
            if not brief:
                await store.load_scripts()
            yield Services(live, where, keys, store, shared.turns)


class ServerWait:
    """Paces the tries of a process that starts while Redis does not answer.

    Args:
        report: called with the failure: at once, and then every `WAIT_REPORTED_EVERY_S`.
    """

    def __init__(self, report: Callable[[ServerUnavailable], None]) -> None:
        self._report = report
        self._pauses = Pauses(cap_s=START_PAUSE_S)
        self._reported_s = -math.inf

    async def wait(self, failure: ServerUnavailable) -> None:
        """Wait a moment after a try that failed."""
        if time.monotonic() - self._reported_s > WAIT_REPORTED_EVERY_S:
            self._report(failure)
            self._reported_s = time.monotonic()
        await anyio.sleep(self._pauses.next_s(failure))


@asynccontextmanager
async def wait_for_services(
    settings: Settings | LiveSettings,
    *,
    name: str,
    report: Callable[[ServerUnavailable], None],
    check: Callable[[Services], Awaitable[object]] | None = None,
    shared: PoolParts | None = None,
) -> AsyncIterator[Services]:
    """Open the services when Redis answers.

    A process that ended and was started again would cost more, and what starts it would give up after a few ends.

    Args:
        settings: as for `open_services`.
        name: as for `open_services`.
        report: called while Redis does not answer; see `ServerWait`.
        check: further requests that must be answered.
        shared: as for `open_services`.

    Raises:
        StoreError: Redis refuses.
    """
    wait = ServerWait(report)
    while True:
        async with AsyncExitStack() as opened:
            try:
                services = await opened.enter_async_context(open_services(settings, name=name, shared=shared))
                if check is not None:
                    await check(services)
            except ServerUnavailable as failure:
                unreachable = failure
            else:
                yield services
                return
        await wait.wait(unreachable)


def resolve_settings(
    *, url: str | None = None, pool: str | None = None, prefix: str | None = None, settings: Settings | None = None
) -> Settings:
    """Load the settings from the usual sources, with the arguments over them.

    Raises:
        ConfigError: an invalid or unknown setting.
    """
    overrides = {"redis.url": url, "pool": pool, "prefix": prefix}
    if settings is None:
        from orchestrator.core.settings_sources import load_settings  # long to import

        return load_settings(overrides=overrides)
    if any(overrides.values()):
        raise ConfigError("give either settings= or url=, pool=, prefix=; settings hold all three")
    return settings


def count_cached_bytes() -> int:
    """Return the size of the vectors that this process keeps."""
    from orchestrator.vectors import cache

    return cache.count_cached_bytes()


def count_cache_loads() -> int:
    """Return how often this process has read the vectors of a memory."""
    from orchestrator.vectors import cache

    return cache.count_cache_loads()


# ------------------------------------------------------------------------------------------------ for the command line


def check_answers(settings: Settings) -> None:
    """Check that Redis answers. Blocks.

    Raises:
        ServerUnavailable: it does not.
    """
    with reach_server(settings) as where:
        store = SyncStore(where, pool_keys(settings), name="cli")
        try:
            store.execute("PING")
        finally:
            store.close()


def hold_embedded() -> Attachment:
    """Attach to the embedded server of the nearest data directory; starts what is missing. Blocks.

    Raises:
        ServerUnavailable, ConfigError: as `embedded.attachment.attach`.
    """
    from orchestrator.embedded.attachment import attach, find_data_dir

    return attach(find_data_dir(None, create=True), start=True)


def hold_ephemeral() -> Attachment:
    """Start a private embedded server whose data is deleted with it. Blocks."""
    from orchestrator.embedded.attachment import attach_ephemeral

    return attach_ephemeral()


def describe_embedded() -> EmbeddedInfo:
    """Describe the running embedded server. Blocks.

    Raises:
        ServerUnavailable: none is running.
    """
    from orchestrator.embedded.attachment import find_data_dir, info

    return info(find_data_dir(None, create=False))


def run_embedded(on_ready: Callable[[Attachment], None]) -> bool:
    """Hold the embedded server until a signal; see `embedded.attachment.run_foreground`."""
    from orchestrator.embedded.attachment import find_data_dir, run_foreground

    data_dir = find_data_dir(None, create=True)
    assert data_dir is not None
    return run_foreground(data_dir, on_ready=on_ready)
