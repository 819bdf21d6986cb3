"""Finds the servers that may hold keys of a prefix, and scans them."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.store.locator import FixedLocator
from orchestrator.store.replicas import ReplicaLocator
from orchestrator.store.scanning import scan_steps
from orchestrator.store.slot_map import parse_slots
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from orchestrator.services import Services

KEYS_AT_ONCE: Final = 500
_GLOB: Final = re.compile(r"([*?\[\]\\^-])")


@asynccontextmanager
async def each_server(services: Services) -> AsyncIterator[Sequence[Store]]:
    """Connect to each server that has keys: of a cluster all masters, because every scope has a slot of its own.

    For views of replicas, connect to what they read.
    """
    async with AsyncExitStack() as stack:
        if isinstance(locator := services.endpoint.locator, ReplicaLocator):
            endpoints = [replace(services.endpoint, locator=FixedLocator(address)) for address in locator.servers]
            stores = [Store(one, services.keys, name="views", reads_replica=True) for one in endpoints]
            yield [await stack.enter_async_context(store) for store in stores]
            return
        info = await services.store.execute("INFO", "cluster")
        if b"cluster_enabled:1" not in info:
            yield [services.store]
            return
        shards = parse_slots(await services.store.execute("CLUSTER", "SLOTS"), services.store.place)
        stores = []
        for address in dict.fromkeys(address for _, _, address in shards):
            endpoint = replace(services.endpoint, locator=FixedLocator(address))
            stores.append(await stack.enter_async_context(Store(endpoint, services.keys, name="backup")))
        yield stores


async def scan(
    store: Store, stem: str, *, retry_for_s: float = 0.0, spent: Callable[[float], None] = lambda _: None
) -> AsyncIterator[list[bytes]]:
    """Yield the names of the keys of one server that begin with `stem`; a name may come twice.

    Args:
        store: connected to the server.
        stem: how the names begin.
        retry_for_s: how long a step is repeated while Redis does not answer.
        spent: gets the seconds of each step.

    Raises:
        ServerUnavailable: Redis does not answer, or restarts again and again.
    """
    pattern = _GLOB.sub(r"\\\1", stem) + "*"
    options = ("MATCH", pattern, "COUNT", KEYS_AT_ONCE)
    async for names in scan_steps(store, ("SCAN",), *options, retry_for_s=retry_for_s, spent=spent):
        yield [name for name in names if name.startswith(stem.encode())]


async def scan_hash(store: Store, full: str, *, count: int, retry_for_s: float = 0.0) -> AsyncIterator[list[bytes]]:
    """Yield the names of the fields of a hash; a name may come twice.

    Args:
        store: connected to the server.
        full: the key.
        count: about how many names one step has.
        retry_for_s: how long a step is repeated while Redis does not answer.

    Raises:
        ServerUnavailable: Redis does not answer, or restarts again and again.
        ServerRefused: the key is of another type.
    """
    async for listed in scan_steps(store, ("HSCAN", full), "COUNT", count, retry_for_s=retry_for_s):
        yield listed[::2]
