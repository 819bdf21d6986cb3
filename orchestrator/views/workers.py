"""Reads the live workers of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents import queries
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.slots import drain_slot
from orchestrator.views.active_commands import of_slots, read_desired
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from orchestrator.agents.model import WorkerInfo
    from orchestrator.control.desired import Desired
    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A live worker, with the active commands that affect it."""

    worker: WorkerInfo
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class WorkerList:
    """Live workers, longest silent first.

    Attributes:
        total: how many there are, including those beyond the limit.
    """

    workers: tuple[WorkerView, ...]
    total: int


async def list_workers(services: Services, *, limit: int = LIMIT) -> WorkerList:
    """Read the workers with the latest heartbeats, at most `limit`."""
    found, now = await queries.workers(services.store, limit), await read_desired(services)
    return WorkerList(tuple(_view(worker, now) for worker in found), await queries.count_workers(services.store))


async def read_worker(services: Services, typed: str) -> WorkerView:
    """Read the live worker with this id, or the only one whose id begins with it.

    Raises:
        NotFound: there is none.
        InvalidInput: there are several.
    """
    found = await queries.workers_named(services.store, [await find_worker(services, typed)])
    if not found:
        raise _unknown(typed)
    return _view(found[0], await read_desired(services))


async def find_worker(services: Services, typed: str) -> str:
    """Return the id of the live worker with this id, or of the only one whose id begins with it.

    Raises:
        NotFound: there is none.
        InvalidInput: there are several.
    """
    known = await queries.worker_ids(services.store)
    found = [typed] if typed in known else [id_ for id_ in known if id_.startswith(typed)]
    if not found:
        raise _unknown(typed)
    if len(found) > 1:
        named = ", ".join([*found[: queries.NAMED], *(["..."] if len(found) > queries.NAMED else [])])
        raise InvalidInput(f"{len(found)} workers match {typed!r}: {named}; give more of the id")
    return found[0]


def _unknown(typed: str) -> NotFound:
    return NotFound(f"no live worker has the id {typed!r}; `orc workers list` shows them")


def _view(worker: WorkerInfo, now: Desired) -> WorkerView:
    return WorkerView(worker, of_slots(now, drain_slot("worker", worker.id)))
