"""Looks for what should have gone away by itself: ids of tasks whose record is gone, keys that would stay for ever.

Both looks are bounded and say how far they got. What was found is looked at twice, since a pool at work moves on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries as registry
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.store.keys import is_permanent
from orchestrator.tasks import queries as tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.doctor.findings import Finding
    from orchestrator.doctor.subject import Subject
    from orchestrator.store.store import Store

IDS_OF_EACH: Final = 500
IDS_AT_ALL: Final = 20_000
SCAN_S: Final = 2.0
SCAN_COUNT: Final = 500
_SHOWN: Final = 5


async def check_lost_tasks(subject: Subject, *, of_each: int = IDS_OF_EACH) -> list[Finding]:
    """Queues and other indexes that list tasks whose record is gone; the oldest ids of each are looked at."""
    store = subject.store
    indexes = await _indexes(store)
    looked, findings = 0, []
    for key in indexes[: IDS_AT_ALL // of_each]:
        ids = [id_.decode(errors="replace") for id_ in await store.execute("ZRANGE", key, 0, of_each - 1)]
        looked += len(ids)
        lost = await _without_record(store, ids)
        if lost:
            still = await store.pipeline([("ZSCORE", key, id_) for id_ in lost])
            lost = [id_ for id_, score in zip(lost, still, strict=True) if isinstance(score, bytes)]
        if lost:
            found = f"{len(lost)} of the {len(ids)} oldest ids in {key} are of tasks whose record is gone"
            again = "; look again afterwards" if len(lost) > _SHOWN else ""
            findings.append(warning("lost-tasks", found, f"`redis-cli ZREM {key} {' '.join(lost[:_SHOWN])}`{again}"))
    return findings or [ok("lost-tasks", f"looked at {looked} ids in {len(indexes)} indexes; each has its record")]


async def _indexes(store: Store) -> list[str]:
    queues = await tasks.queue_lengths(store)
    agents = await registry.agents(store)
    keys = store.keys
    return [
        *(keys.queue(queue) for queue in queues if queue != "scheduled"),
        keys.scheduled,
        keys.expiring,
        *(keys.parked(agent.name) for agent in agents),
        keys.dead,
    ]


async def _without_record(store: Store, ids: Sequence[str]) -> list[str]:
    there = await store.pipeline([("EXISTS", store.keys.task(id_)) for id_ in ids])
    return [id_ for id_, count in zip(ids, there, strict=True) if count == 0]


async def check_lifetimes(subject: Subject, *, budget_s: float = SCAN_S) -> list[Finding]:
    """Keys of the pool that should have a time to live and have none."""
    store = subject.store
    deadline_s = time.monotonic() + budget_s
    cursor, looked, immortal = b"0", 0, list[str]()
    while True:
        cursor, names = await store.execute("SCAN", cursor, "MATCH", f"{store.keys.root}:*", "COUNT", SCAN_COUNT)
        looked += len(names)
        immortal += await _immortal(store, [name.decode(errors="replace") for name in names])
        if cursor == b"0" or time.monotonic() > deadline_s:
            break
    immortal = await _immortal(store, list(dict.fromkeys(immortal)))
    whole = cursor == b"0"
    far = f"all {looked} keys" if whole else f"the {looked} keys that {budget_s:g} s allowed"
    if immortal:
        found = f"{len(immortal)} of {far} have no time to live: {', '.join(immortal[:_SHOWN])}"
        fix = f"`redis-cli EXPIRE {immortal[0]} 86400`{' and so on' * (len(immortal) > 1)}; then report it as a bug"
        return [problem("lifetimes", found, fix)]
    return [ok("lifetimes", f"looked at {far} of the pool; what should go away will")]


async def _immortal(store: Store, names: Sequence[str]) -> list[str]:
    mortal = [name for name in names if not is_permanent(name)]
    left_ms = await store.pipeline([("PTTL", name) for name in mortal])
    return [name for name, left in zip(mortal, left_ms, strict=True) if left == -1]
