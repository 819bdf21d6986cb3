"""Finds the replicas of the server, and reads how far they are behind.

A primary names its replicas in INFO; in a cluster, CLUSTER SLOTS names them by slots. A replica that has the offset
which its primary had a moment ago has all that was confirmed until then, so that what is read there is no older.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.reading import read_text
from orchestrator.store.locator import FixedLocator, slot_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.store.locator import Address, Locator
    from orchestrator.store.store import Store

CATCH_UP_S: Final = 0.25
"""How long a reader waits until a replica has what its primary had at the beginning."""
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Replication:
    """Facts that a server tells about its replication.

    Attributes:
        is_replica: it follows a primary.
        history: id of the history of writes that its offset counts.
        offset: bytes of that history.
        link_down_s: seconds for which the link to its primary has been down; None while it is up.
        replicas: host and port of each connected replica.
    """

    is_replica: bool
    history: str
    offset: int
    link_down_s: int | None
    replicas: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Lag:
    """Distance of a replica behind its primary.

    Attributes:
        caught_up: it has all that its primary had when that was asked.
        bytes: how much of the history of writes it lacks; 0 if that is unknown.
        link_down_s: seconds for which the link to its primary has been down; None while it is up.
    """

    caught_up: bool
    bytes: int = 0
    link_down_s: int | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """A primary and its replicas.

    Attributes:
        slots: first and last slots of the ranges that it has; empty: it has all, in no cluster.
    """

    primary: Address
    replicas: tuple[Address, ...]
    slots: tuple[tuple[int, int], ...] = ()


class ReplicaLocator(FixedLocator):
    """Answers the address that is read for each slot.

    Args:
        read: the address of each shard, a replica or the primary.
    """

    def __init__(self, read: Mapping[Shard, Address]) -> None:
        super().__init__(next(iter(read.values())))
        for shard, address in read.items():
            for first, last in shard.slots:
                for slot in range(first, last + 1):
                    self.moved(slot, address)


def parse_replication(text: str) -> Replication:
    """Parse the section `replication` of INFO."""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    is_replica = facts.get("role") == "slave"
    down = is_replica and facts.get("master_link_status") != "up"
    return Replication(
        is_replica=is_replica,
        history=facts.get("master_replid", ""),
        offset=_number(facts.get("slave_repl_offset" if is_replica else "master_repl_offset", "")),
        link_down_s=max(0, _number(facts.get("master_link_down_since_seconds", ""))) if down else None,
        replicas=tuple(
            (fields["ip"], int(fields["port"]))
            for name, value in facts.items()
            if name.startswith("slave") and name.removeprefix("slave").isdigit()
            if (fields := dict(part.split("=", 1) for part in value.split(","))).get("state") == "online"
        ),
    )


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0


async def find_shards(store: Store, locator: Locator) -> list[Shard]:
    """Return the primaries with their replicas: one, or all of a cluster.

    Raises:
        StoreError: the primary does not answer.
    """
    home = locator.single or locator.address(slot_of(store.keys.root))
    info = read_text(await store.execute("INFO", "replication", "cluster"))
    if "cluster_enabled:1" not in info:
        found = parse_replication(info).replicas
        return [Shard(home, tuple(home.at(host, port) for host, port in found))]
    shards: dict[Address, tuple[list[tuple[int, int]], tuple[Address, ...]]] = {}
    for first, last, *nodes in await store.execute("CLUSTER", "SLOTS"):
        # An empty host is that of the server that answered.
        primary, *replicas = [home.at(read_text(node[0] or b""), int(node[1])) for node in nodes]
        shards.setdefault(primary, ([], tuple(replicas)))[0].append((int(first), int(last)))
    return [Shard(primary, replicas, tuple(slots)) for primary, (slots, replicas) in shards.items()]


async def read_replication(store: Store) -> Replication:
    """Ask a server for its replication.

    Raises:
        StoreError: it does not answer.
    """
    return parse_replication(read_text(await store.execute("INFO", "replication")))


async def measure_lag(replica: Store, primary: Replication | None) -> Lag:
    """Wait a moment until a replica has what its primary had, and return how far it is behind.

    Args:
        replica: connected to it.
        primary: what the primary said just now; None if it does not answer.

    Raises:
        StoreError: the replica does not answer.
    """
    started_s = time.monotonic()
    while True:
        found = await read_replication(replica)
        same = primary is not None and found.history == primary.history
        lacks = max(0, primary.offset - found.offset) if primary is not None and same else 0
        if same and not lacks:
            return Lag(caught_up=True)
        if primary is None or found.link_down_s is not None or time.monotonic() - started_s > CATCH_UP_S:
            return Lag(caught_up=False, bytes=lacks, link_down_s=found.link_down_s)
        await anyio.sleep(_POLL_S)
