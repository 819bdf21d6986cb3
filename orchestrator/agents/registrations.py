"""Finds workers whose registrations have no valid signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.agents.queries import CHUNK, worker_ids
from orchestrator.core.reading import read_text, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from orchestrator.store.store import Store

    Accepts: TypeAlias = Callable[[str, str, str, str], bool]
    """Returns whether a signature is valid for worker, agent and slots."""

SIGNATURE: Final = "signature:"
"""Prefix of the field of `worker:W` with the signature of its registration for an agent."""
_AGENT: Final = "agent:"


async def read_forged(store: Store, accepts: Accepts) -> list[str]:
    """Return the workers of the registry that are registered for an agent without a valid signature.

    Args:
        store: of the pool.
        accepts: checks a signature.
    """
    workers = await worker_ids(store)
    forged = []
    for at in range(0, len(workers), CHUNK):
        chunk = workers[at : at + CHUNK]
        # One read of each record, because a registration changes slots and signature together.
        replies = await store.pipeline([("HGETALL", store.keys.worker(worker)) for worker in chunk])
        for worker, reply in zip(chunk, replies, strict=True):
            flat = [read_text(value) for value in readable(reply, [])]
            if not _is_signed(worker, dict(zip(flat[::2], flat[1::2], strict=True)), accepts):
                forged.append(worker)
    return forged


def _is_signed(worker: str, record: Mapping[str, str], accepts: Accepts) -> bool:
    registered = {name.removeprefix(_AGENT): slots for name, slots in record.items() if name.startswith(_AGENT)}
    return all(
        accepts(worker, agent, slots, record.get(f"{SIGNATURE}{agent}", "")) for agent, slots in registered.items()
    )
