"""Reads which secret each process of a pool signs with, by a name that does not reveal it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents.queries import CHUNK, worker_ids
from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from orchestrator.store.store import Store


async def read_key_names(store: Store) -> dict[str, str]:
    """Return the name of the key of each supervisor and worker, as `worker W`; empty: it signs with none.

    Programs of older versions publish none.
    """
    listed = await store.execute("ZRANGE", store.keys.supervisors, 0, -1)
    ids = [read_text(member).partition(" ")[0] for member in listed]
    found: dict[str, str] = {}
    if ids:
        requests = await store.execute("HMGET", store.keys.supervisor_requests, *ids)
        for id_, request in zip(ids, requests, strict=True):
            found[f"supervisor {id_}"] = read_text(request or b"").partition(" ")[2]
    workers = await worker_ids(store)
    for at in range(0, len(workers), CHUNK):
        chunk = workers[at : at + CHUNK]
        replies = await store.pipeline([("HGET", store.keys.worker(worker), "key") for worker in chunk])
        for worker, reply in zip(chunk, replies, strict=True):
            if isinstance(reply, StoreError):
                raise reply
            found[f"worker {worker}"] = read_text(reply or b"")
    return found
