"""Whole tasks for other programs: what was asked for and all that happened to it, as values that become JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.core.errors import NotFound, StoreError
from orchestrator.tasks import queries
from orchestrator.tasks.model import decode_envelope

if TYPE_CHECKING:
    from orchestrator.store.store import Store


async def export_task(store: Store, id_: str) -> dict[str, Any] | None:
    """Everything that is stored of a task; None: it is gone, or cannot be read.

    Arguments and result keep their digits: they are `msgspec.Raw`.
    """
    try:
        info = await queries.info(store, id_)
        packed, queue, lane = await store.execute("HMGET", store.keys.task(id_), "env", "queue", "lane")
        envelope = decode_envelope(packed)
    except (NotFound, StoreError, msgspec.DecodeError, TypeError) as failure:
        if isinstance(failure, StoreError):
            raise
        return None
    record = asdict(info)
    del record["why"], record["worker"]
    record["args"] = msgspec.Raw(info.args)
    record["result"] = None if info.result is None else msgspec.Raw(info.result)
    record["queue"] = queue.decode() if queue else f"skill:{info.skill}"
    record["lane"] = None if lane is None else lane.decode()
    record["timeout_s"], record["max_attempts"] = envelope.timeout_s, envelope.max_attempts
    return record
