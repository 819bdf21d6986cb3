"""What must be true of a pool after everything has ended, read from Redis and from nowhere else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from orchestrator.tasks.model import STATE_OF_LETTER
from tests.helpers.guards import immortal_keys, keys_of

if TYPE_CHECKING:
    import redis

    from orchestrator.store.keys import PoolKeys

FINAL = {state.value for state in STATE_OF_LETTER.values()}


def leftovers(direct: redis.Redis, keys: PoolKeys) -> list[str]:
    """Everything that is not as it should be in a pool without work: an empty list is what a test wants."""
    found = [f"key without a lifetime: {key}" for key in immortal_keys(direct, keys.prefix)]
    everything = keys_of(direct, keys.prefix)
    found += [
        f"tasks still wait in {key}"
        for key in everything
        if key in {keys.queues, keys.scheduled, f"{keys.root}:expiring"} or key.startswith(f"{keys.root}:queue:")
    ]
    for key in everything:
        if key.startswith(f"{keys.root}:inbox:"):
            if length := direct.xlen(key):
                found.append(f"{length} entries in {key}")
            for group in _groups(direct, key):
                if group["pending"]:
                    found.append(f"{group['pending']} pending entries in {key}")
    states = {id_: record.get(b"state", b"").decode() for id_, record in records(direct, keys).items()}
    found += [f"task {id_} is {state}" for id_, state in states.items() if state not in FINAL]
    endings = ended_states(direct, keys)
    for id_, state in states.items():
        if endings[id_] != [state]:
            found.append(f"task {id_} is {state}, but its endings were {endings[id_]}")
    return found


def records(direct: redis.Redis, keys: PoolKeys) -> dict[str, dict[bytes, bytes]]:
    """All task records by id."""
    stem = keys.task("")
    found = [key for key in keys_of(direct, keys.prefix) if key.startswith(stem)]
    with direct.pipeline(transaction=False) as pipeline:
        for key in found:
            pipeline.hgetall(key)
        stored: list[dict[bytes, bytes]] = pipeline.execute()
    return {key.removeprefix(stem): record for key, record in zip(found, stored, strict=True)}


def ended_states(direct: redis.Redis, keys: PoolKeys) -> dict[str, list[str]]:
    """The ends that the server recorded, in order, by task; holds what the capped stream of events holds."""
    endings: dict[str, list[str]] = {id_: [] for id_ in records(direct, keys)}
    # Raw, by a script: redis-py makes a mapping of an entry and so would hide an end that came twice.
    entries: Any = direct.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, keys.events)
    for _, fields in entries:
        for id_, letter in zip(fields[::2], fields[1::2], strict=True):
            endings.setdefault(id_.decode(), []).append(STATE_OF_LETTER[letter.decode()].value)
    return endings


def counters(direct: redis.Redis, keys: PoolKeys) -> Counter[str]:
    """The pool's own counters, to be held against what was counted otherwise."""
    stored: Any = direct.hgetall(keys.stats("TOTAL"))
    return Counter({name.decode(): int(count) for name, count in stored.items()})


def _groups(direct: redis.Redis, key: str) -> list[dict[str, Any]]:
    groups: Any = direct.xinfo_groups(key)
    return list(groups)
