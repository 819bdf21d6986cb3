"""Reads the queues of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries as agents
from orchestrator.core.queue_name import QueueName
from orchestrator.core.slots import STOP_ALL, drain_slot, parse_slot, pause_slot, stop_slot
from orchestrator.tasks import queries as tasks
from orchestrator.views.active_commands import of_slots, read_desired
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.why.model import TaskStatus

HEADS: Final = 100
"""Of how many queues the status of the first task is read."""
SERVING: Final = 100
"""Agents that a view of a queue names."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue that holds tasks, is paused or drained.

    Attributes:
        queue: `skill:NAME`, `agent:NAME`, `scheduled`, `awaiting_input`, `joining` or `awaiting_tasks`.
        tasks: number of its tasks.
        agents: the first `SERVING` live agents that serve it, by name.
        serving: number of live agents that serve it.
        bytes: bytes of its tasks that wait, large arguments included; about right for small tasks.
        head: id of its first task, of the first `HEADS` queues.
        status: state of that task and what it waits for.
    """

    queue: str
    tasks: int
    bytes: int
    agents: tuple[str, ...]
    serving: int
    head: str | None
    status: TaskStatus | None
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class QueueList:
    """Queues by name, then those that are only paused or drained.

    Attributes:
        total: how many there are, including those beyond the limit.
        bytes: bytes of all tasks of the pool that wait.
    """

    queues: tuple[QueueView, ...]
    total: int
    bytes: int


async def _heads(services: Services, queues: Sequence[str]) -> Mapping[str, tuple[str, TaskStatus]]:
    if not queues:
        return {}
    from orchestrator.why import lookup

    return await lookup.heads(services.store, queues)


async def list_queues(services: Services, *, limit: int = LIMIT, longest_first: bool = False) -> QueueList:
    """Read the queues that hold tasks, are paused or drained; at most `limit`, those by name or the longest."""
    now = await read_desired(services)
    lengths = {queue: count for queue, count in (await tasks.queue_lengths(services.store)).items() if count}
    ordered = [slot.name for slot in map(parse_slot, now.active) if slot.kind == "queue"]
    lengths |= {queue: 0 for queue in ordered if queue not in lengths}
    if longest_first:
        lengths = dict(sorted(lengths.items(), key=lambda one: (-one[1], one[0])))
    serving = await agents.serving(services.store) if lengths else {}
    heads = await _heads(services, [queue for queue, count in lengths.items() if count][: min(HEADS, limit)])
    bytes_of, bytes_of_pool = await tasks.waiting_bytes(services.store, list(lengths)[:limit])

    def view(queue: str, count: int) -> QueueView:
        head, status = heads.get(queue, (None, None))
        owner, names = QueueName.parse(queue), serving.get(queue, [])
        slots = (
            STOP_ALL,
            stop_slot(*owner),
            pause_slot(*owner),
            pause_slot("queue", queue),
            drain_slot("queue", queue),
        )
        commands = of_slots(now, *slots)
        return QueueView(queue, count, bytes_of[queue], tuple(names[:SERVING]), len(names), head, status, commands)

    return QueueList(
        tuple(view(queue, count) for queue, count in list(lengths.items())[:limit]), len(lengths), bytes_of_pool
    )
