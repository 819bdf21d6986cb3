"""Measures a plain stream on the same server, for `orc bench`: no priorities, limits, retries or recovery.

The keys are in the pool of the benchmark and go with it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.bench.measures import BATCH, CALLERS, time_submits
from orchestrator.bench.server_cost import read_cost

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.store.store import Store

_GROUP: Final = "bench"
_RESULT_TTL_S: Final = 60
_BULK_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RawRates:
    """Tasks per second of the raw loop, and server time per task from the first submit to the last end."""

    one_by_one: float
    many: float
    drain: float
    server_us: float


async def measure_raw(services: Services, *, tasks: int, body: str, at_most_s: float) -> RawRates:
    """Append entries singly and in pipelines, then read, answer, acknowledge and delete them in batches.

    Raises:
        StoreError: Redis does not answer, or the user may not run one of the commands.
    """
    store = services.store
    stream = f"{store.keys.stem}bench:raw"
    value = body or "x" * 20
    # The server holds one batch of bodies in its buffers at most.
    many, batch = max(1, min(BATCH, _BULK_BYTES // len(value))), max(1, min(CALLERS, _BULK_BYTES // len(value)))

    async def one_by_one(count: int) -> None:
        for _ in range(count):
            await store.execute("XADD", stream, "*", "d", value)

    async def in_bulk(count: int) -> None:
        await _send(store, [("XADD", stream, "*", "d", value)] * count)

    await store.execute("XGROUP", "CREATE", stream, _GROUP, "0", "MKSTREAM")
    before = await read_cost(services)
    single = await time_submits(one_by_one, tasks, step=10, at_most_s=at_most_s)
    bulk = await time_submits(in_bulk, tasks, step=many, at_most_s=at_most_s)
    submitted = single.tasks + bulk.tasks
    started_s = time.perf_counter()
    while reply := await store.execute("XREADGROUP", "GROUP", _GROUP, "one", "COUNT", batch, "STREAMS", stream, ">"):
        entries = reply[0][1]
        ids = [entry_id for entry_id, _ in entries]
        commands: list[Any] = []
        for entry_id in ids:
            name = f"{store.keys.stem}bench:raw:{entry_id.decode()}"
            commands += [("SET", name, value, "EX", _RESULT_TTL_S), ("LPUSH", f"{name}:reply", "1")]
            commands.append(("EXPIRE", f"{name}:reply", _RESULT_TTL_S))
        await _send(store, [*commands, ("XACK", stream, _GROUP, *ids), ("XDEL", stream, *ids)])
    drain_s = time.perf_counter() - started_s
    used_s = (await read_cost(services)).cpu_s - before.cpu_s
    return RawRates(single.per_s, bulk.per_s, submitted / drain_s, used_s / submitted * 1e6)


async def _send(store: Store, commands: list[Any]) -> None:
    for reply in await store.pipeline(commands):
        if isinstance(reply, Exception):
            raise reply
