"""What must be true of a pool after everything has ended, read from Redis and from nowhere else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.faultkit.checkers.final_state import read_ends, read_final_state
from tests.faultkit.checkers.keyspace import check_keys
from tests.faultkit.checkers.rules import Bounds, Rules
from tests.helpers.guards import keys_of

if TYPE_CHECKING:
    import redis

    from orchestrator.store.keys import PoolKeys

RULES = Rules(bounds=Bounds(drained_ms=0, restarted_ms=0))


def find_violations(direct: redis.Redis, keys: PoolKeys, rules: Rules = RULES) -> list[str]:
    """Everything that is not as it should be in a pool without work: an empty list is what a test wants."""
    final = read_final_state(direct, keys)
    found = list(check_keys(final, rules).violations)
    found += [f"task {id_} is {final.tasks[id_].state}" for id_ in final.unended]
    endings, trimmed = ended_states(direct, keys), events_are_trimmed(direct, keys)
    for task in final.tasks.values():
        if task.ended and endings[task.id] != [task.state] and (endings[task.id] or not trimmed):
            found.append(f"task {task.id} is {task.state}, but its endings were {endings[task.id]}")
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
    for _, ends in read_ends(direct, keys, "-"):
        for id_, state in ends:
            endings.setdefault(id_, []).append(state)
    return endings


def events_are_trimmed(direct: redis.Redis, keys: PoolKeys) -> bool:
    """Whether the capped stream of events has lost some: then a task without an end in it tells nothing."""
    if not direct.exists(keys.events):
        return False
    facts: Any = direct.xinfo_stream(keys.events)
    return bool(facts["entries-added"] > facts["length"])


def counters(direct: redis.Redis, keys: PoolKeys) -> Counter[str]:
    """The pool's own counters, to be held against what was counted otherwise."""
    stored: Any = direct.hgetall(keys.stats("TOTAL"))
    return Counter({name.decode(): int(count) for name, count in stored.items()})
