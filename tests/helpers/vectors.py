"""Records with vectors, and what the keys of a memory say about them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from orchestrator import Record
from orchestrator.memory.headers import decode_header
from orchestrator.vectors.encoding import encode_vector, split_stored
from orchestrator.vectors.vector_set import add_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from orchestrator.store.keys import ScopeKeys

DIMS = 16


def vector(seed: int, dims: int = DIMS) -> list[float]:
    """A vector that depends on the seed."""
    chance = random.Random(seed)
    return [chance.gauss(0, 1) for _ in range(dims)]


def note(seed: int, **columns: object) -> Record:
    """A record with a vector, whose content has the seed of the vector."""
    usual = {"id": f"r{seed}", "step": seed % 1000, "kind": "note", "content": {"n": seed}, "embedding": vector(seed)}
    return Record(**{**usual, **columns})  # type: ignore[arg-type]


def run(client: redis.Redis, *command: object) -> Any:
    """Run a command that the client has no method for."""
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


def stored_vectors(client: redis.Redis, keys: ScopeKeys) -> set[str]:
    """The elements that the stored vectors must have in a vector set."""
    stored = run(client, "HGETALL", keys.key("emb"))
    return {f"{split_stored(value).number}:{id_.decode()}" for id_, value in stored.items()}


def named_vectors(client: redis.Redis, keys: ScopeKeys) -> set[str]:
    """The elements of the vectors that the headers of the records name."""
    headers = {
        id_: decode_header(packed)
        for tier in ("stm", "im")
        for id_, packed in run(client, "HGETALL", keys.key(f"{tier}:hdr")).items()
    }
    return {f"{int(header.vector)}:{id_.decode()}" for id_, header in headers.items() if header.vector}


def elements(client: redis.Redis, keys: ScopeKeys) -> set[str]:
    """All elements of the vector set."""
    key = keys.key("vec")
    size = run(client, "VCARD", key)
    return {each.decode() for each in run(client, "VRANDMEMBER", key, size) or ()} if size else set()


def differences(client: redis.Redis, keys: ScopeKeys) -> list[str]:
    """What differs between headers, stored vectors, and the vector set; nothing may once all changes are made."""
    named, stored, indexed = named_vectors(client, keys), stored_vectors(client, keys), elements(client, keys)
    notes = client.hgetall(keys.key("vec:pending"))
    told = {"lost": named - stored, "orphans": stored - named, "missing": stored - indexed, "stale": indexed - stored}
    return [f"{word}: {sorted(some)}" for word, some in {**told, "notes": notes}.items() if some]


async def add_late(
    client: redis.Redis, keys: ScopeKeys, names: Sequence[str], *, dims: int = DIMS, seed: int = 0
) -> None:
    """Add elements to the vector set as a writer does that has lost its lock."""

    def add() -> None:
        for first in range(0, len(names), 500):
            pipeline = client.pipeline(transaction=False)
            for number, name in enumerate(names[first : first + 500]):
                floats = encode_vector("late", vector(seed + first + number, dims))
                command = add_command(keys.key("vec"), floats, name, kind="note", action="", step=1)
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            pipeline.execute()

    await anyio.to_thread.run_sync(add)
