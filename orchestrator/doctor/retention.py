"""Projects how much memory ended tasks will take at the present rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ServerRefused
from orchestrator.core.reading import read_whole
from orchestrator.doctor.findings import ok, warning
from orchestrator.repair.key_report import memory_usage
from orchestrator.tasks import queries
from orchestrator.tasks.model import TaskState

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.store import Store

RATE_MINUTES: Final = 10
MOST_MINUTES: Final = 24 * 60
"""Minutes whose counters are read: Redis keeps them for three days."""
SAMPLE: Final = 20
MOST_SHARE: Final = 0.9


async def check_memory_at_rate(context: CheckContext) -> list[DoctorFinding]:
    """Compare `maxmemory` with what successes will take when as many are kept as the present rate makes."""
    store, kept_s = context.store, context.settings.results.ttl_s
    ended = await _successes(store, min(round(kept_s / 60), MOST_MINUTES))
    latest = ended[-RATE_MINUTES:]
    per_s = sum(latest) / (60 * len(latest))
    if not per_s:
        return [ok("memory-at-rate", f"no task succeeded in the last {len(latest)} minutes")]
    size = await _record_bytes(store)
    if size is None:
        return [
            ok("memory-at-rate", f"unknown: {per_s:.3g} successes a second, but no record of one could be measured")
        ]
    later = per_s * kept_s * size
    found = (
        f"{per_s:.3g} successes a second with {size:.0f} bytes each, kept for {kept_s:g} s: "
        f"{later / 2**20:.3g} MiB at this rate"
    )
    limit = context.info.memory_limit_bytes
    if not limit:
        return [ok("memory-at-rate", found)]
    used = context.info.memory_bytes + max(0.0, later - sum(ended) * size)
    found += f", with all else {used / limit:.0%} of maxmemory"
    if used > MOST_SHARE * limit:
        fix = f"`redis-cli CONFIG SET maxmemory {round(used * 1.5 / 2**20) + 1}mb`, or lower results.ttl_s"
        return [warning("memory-at-rate", found, fix)]
    return [ok("memory-at-rate", found)]


async def _successes(store: Store, minutes: int) -> list[int]:
    """Return the successes of each of the last whole minutes, oldest first."""
    now = read_whole((await store.execute("TIME"))[0]) // 60
    asked = [("HGET", store.keys.stats(str(minute)), "succeeded") for minute in range(now - minutes, now)]
    return [read_whole(reply) if isinstance(reply, bytes) else 0 for reply in await store.pipeline(asked)]


async def _record_bytes(store: Store) -> float | None:
    """Return the mean memory of the records of the latest successes; None if there are none or it is not allowed."""
    latest = await queries.ended(store, 10 * SAMPLE)
    ids = [id_ for id_, state in latest if state is TaskState.SUCCEEDED][:SAMPLE]
    sizes = await store.pipeline([memory_usage(store.keys.task(id_)) for id_ in ids])
    if any(isinstance(size, ServerRefused) for size in sizes):
        return None
    found = [size for size in sizes if isinstance(size, int)]
    return sum(found) / len(found) if found else None
