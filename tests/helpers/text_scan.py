"""Walks over every key of a prefix and tells which of them hold a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, SyncStore
from tests.lua.keyspace import snapshot

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings


def keys_with(settings: Settings, text: str) -> list[str]:
    """Return the keys of the prefix whose names or contents have a text of ASCII letters and digits, sorted."""
    url = settings.redis.url
    assert url is not None
    store = SyncStore(Endpoint.at(url.get_secret_value()), PoolKeys(settings.prefix, settings.pool), name="test")
    try:
        found = snapshot(store._router, f"{settings.prefix}:")
    finally:
        store.close()
    return sorted(name for name, contents in found.items() if text in name or text in repr(contents))
