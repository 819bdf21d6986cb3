"""Lists the programs of a pool with their formats, as far as Redis knows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.agents.queries import CHUNK, leader, worker_ids
from orchestrator.core.errors import ServerRefused
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT, ConnectionLabel, read_floor, read_label
from orchestrator.core.reading import read_text, read_whole, readable

if TYPE_CHECKING:
    from orchestrator.store.store import Store

_CONNECTION: Final = re.compile(r"\bid=(?P<id>\d+) addr=(?P<address>\S*) .*\bname=(?P<name>\S*) .*\bdb=(?P<db>\d+)")
_OLDER: Final = frozenset({"supervisor", "client"})
"""Names of connections of programs from before format 3. Their workers are in the registry."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that uses the pool.

    Attributes:
        kind: `supervisor`, `worker` or `client`.
        id: id of the program, or address of its connection if the program has no id in Redis.
        version: empty if unknown.
        format: its format; programs from before format 3 name none.
        certain: False for a connection of a program from before format 3, which may belong to another pool.
    """

    kind: str
    id: str
    version: str
    format: int
    certain: bool = True

    @property
    def is_older(self) -> bool:
        """True if its format is older than that of this program."""
        return self.format < FORMAT

    def __str__(self) -> str:
        version = f"version {self.version}, " if self.version else ""
        return f"{self.kind} {self.id} ({version}format {self.format})"


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a pool.

    Attributes:
        floor: the lowest format that the pool admits.
        programs: supervisors, workers, clients.
        connections_known: False if the Redis user may not run CLIENT LIST, so that clients and standby supervisors from
            before format 3 are unknown.
    """

    floor: int
    programs: tuple[Program, ...]
    connections_known: bool


async def read_programs(store: Store) -> Programs:
    """Read the programs that are registered, lead, or have a connection to the server."""
    floor = read_floor(await store.execute("GET", store.keys.format))
    connections = await _connections(store)
    programs = (*await _supervisors(store), *await read_workers(store), *(connections or ()))
    return Programs(OLDEST_FORMAT if floor is None else floor, programs, connections is not None)


async def _supervisors(store: Store) -> list[Program]:
    listed = await store.execute("ZRANGE", store.keys.supervisors, 0, -1)
    found = []
    for member in listed:
        id_, _, rest = read_text(member).partition(" ")
        format_, _, version = rest.partition(" ")
        if version:  # otherwise no supervisor wrote it
            found.append(Program("supervisor", id_, version, read_whole(format_)))
    holder = await leader(store)
    if holder is not None and holder not in {program.id for program in found}:
        of, format_ = await store.execute("HMGET", store.keys.leader_format, "id", "format")
        known = of is not None and read_text(of) == holder
        found.append(Program("supervisor", holder, "", read_whole(format_) if known else OLDEST_FORMAT))
    return found


async def read_workers(store: Store) -> list[Program]:
    """Read the workers of the registry."""
    ids = await worker_ids(store)
    found = []
    for at in range(0, len(ids), CHUNK):
        chunk = ids[at : at + CHUNK]
        replies = await store.pipeline([("HMGET", store.keys.worker(id_), "version", "format") for id_ in chunk])
        for id_, reply in zip(chunk, replies, strict=True):
            version, format_ = (read_text(value) for value in readable(reply, [None, None]))
            if version:  # otherwise it was forgotten in between
                found.append(Program("worker", id_, version, read_whole(format_ or OLDEST_FORMAT)))
    return found


async def _connections(store: Store) -> list[Program] | None:
    """Read the clients and the programs from before format 3; None if the user may not."""
    try:
        clients: bytes = await store.execute("CLIENT", "LIST")
    except ServerRefused:
        return None
    connections = [match for line in read_text(clients).splitlines() if (match := _CONNECTION.search(line))]
    labels = [read_label(connection["name"]) for connection in connections]
    own_db = {connection["db"] for connection, label in zip(connections, labels, strict=True) if _is_of(store, label)}
    found = []
    for connection, label in zip(connections, labels, strict=True):
        id_ = f"{connection['address']} (connection {connection['id']})"
        # Supervisors and workers of this format list themselves with their ids.
        if label is not None and label.name == "client" and label.root == store.keys.root:
            found.append(Program("client", id_, label.version, label.format))
        elif connection["name"] in _OLDER and connection["db"] in own_db:
            found.append(Program(connection["name"], id_, "", OLDEST_FORMAT, certain=False))
    return found


def _is_of(store: Store, label: ConnectionLabel | None) -> bool:
    return label is not None and label.root == store.keys.root
