"""Chooses the locator for a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import ConfigError
from orchestrator.core.redis_url import parse_url, url_problem
from orchestrator.store.locator import Address, FixedLocator
from orchestrator.store.sentinel_locator import follow
from orchestrator.store.slot_map import ClusterLocator
from orchestrator.store.tls import check_files

if TYPE_CHECKING:
    from orchestrator.core.redis_url import RedisUrl
    from orchestrator.store.locator import Locator


def locate(url: str | RedisUrl) -> Locator:
    """Return the locator for a URL, or for one that is parsed.

    Raises:
        ConfigError: it is not the address of Redis, or a file that TLS needs is wrong.
    """
    place = parse_url(check_url(url)) if isinstance(url, str) else url
    if place.is_encrypted:
        check_files(place)
    if place.kind == "cluster":
        return ClusterLocator([Address(place.server(node)) for node in place.nodes])
    if place.kind == "sentinel":
        return follow(place)
    return FixedLocator(Address(place.url))


def check_url(url: str) -> str:
    """Return `url` if it is the address of Redis.

    Raises:
        ConfigError: it is not; the message has no text of it.
    """
    if (problem := url_problem(url)) is not None:
        raise ConfigError(f"the Redis URL: {problem}")
    return url
