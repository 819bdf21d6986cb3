"""The composition root: settings in, the bundle of what every process shares out."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.errors import ConfigError
from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, Store, SyncStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from orchestrator.core.settings import Settings


__all__ = ["Endpoint", "Services", "SyncStore", "open_services", "pool_keys", "reach_server", "resolve_settings"]


@dataclass(frozen=True, slots=True)
class Services:
    """What a client, a supervisor and a worker stand on."""

    settings: Settings
    endpoint: Endpoint
    keys: PoolKeys
    store: Store

    def sync_store(self, name: str) -> SyncStore:
        """A door of one's own for a thread."""
        return SyncStore(self.endpoint, self.keys, name=name)


def pool_keys(settings: Settings) -> PoolKeys:
    """The keys of the pool that the settings name."""
    return PoolKeys(settings.prefix, settings.pool)


@contextmanager
def reach_server(settings: Settings) -> Iterator[Endpoint]:
    """Where Redis is: the URL of the settings, else a running embedded server near by, which is held while in use.

    Raises:
        ServerUnavailable: neither is there; the message has the sentence to type.
    """
    with ExitStack() as held:
        if settings.redis.url is not None:
            url = settings.redis.url.get_secret_value()
        else:
            from orchestrator.store.embedded import attach, find_data_dir

            url = held.enter_context(attach(find_data_dir(None, create=False), start=False)).url
        yield Endpoint(
            url,
            connect_timeout_s=settings.redis.connect_timeout_s,
            command_timeout_s=settings.redis.command_timeout_s,
        )


@asynccontextmanager
async def open_services(settings: Settings, *, name: str) -> AsyncIterator[Services]:
    """Connect, check the data format, load the scripts.

    Args:
        settings: all settings.
        name: shown in the server's client list.

    Raises:
        StoreError: Redis does not answer, or its data is newer than this program.
    """
    keys = pool_keys(settings)
    with reach_server(settings) as where:
        async with Store(where, keys, name=name) as store:
            await store.check_format()
            await store.load_scripts()
            yield Services(settings, where, keys, store)


def resolve_settings(
    *, url: str | None = None, pool: str | None = None, prefix: str | None = None, settings: Settings | None = None
) -> Settings:
    """Settings from the usual places, with what the caller names put over them.

    Raises:
        ConfigError: a setting is wrong or unknown.
    """
    from orchestrator.core.settings import load_settings

    overrides = {"redis.url": url, "pool": pool, "prefix": prefix}
    if settings is None:
        return load_settings(overrides=overrides)
    if any(overrides.values()):
        raise ConfigError("give either settings= or url=, pool=, prefix=; settings hold all three")
    return settings
