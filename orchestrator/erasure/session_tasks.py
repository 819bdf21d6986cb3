"""Deletes the ended tasks of a session, with their results in the reply streams of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.core.ids import encode_foreign
from orchestrator.core.reading import read_text
from orchestrator.store.scoped import read_many
from orchestrator.tasks import bulk, families, scripts
from orchestrator.tasks.model import DeleteStatus, TaskState
from orchestrator.tasks.selecting import TaskFilter, select

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence

    from orchestrator.payloads.payloads import Payloads
    from orchestrator.store.store import Store

_PAGE: Final = 100
_CHUNK: Final = 500
_ENDED: Final = frozenset(state for state in TaskState if state.final)


class DeletedTasks(NamedTuple):
    """Outcome of `delete_session_tasks`.

    Attributes:
        deleted: number of deleted tasks.
        left: number of tasks that stay, because they have not ended.
    """

    deleted: int
    left: int


async def delete_session_tasks(
    store: Store,
    session: str,
    *,
    payloads: Payloads | None,
    retry_for_s: float,
    on_deleted: Callable[[int], None] = lambda _: None,
) -> DeletedTasks:
    """Delete the ended tasks of a session; `on_deleted` gets the number of those that were deleted so far.

    Raises:
        StoreError: a call failed; a repeat goes on.
        PayloadStoreUnavailable: the payload store did not delete their values; a repeat goes on.
    """
    states = await session_task_states(store, session)
    ended = [id_ for id_, state in states.items() if state in _ENDED]
    deleted = 0
    for chunk in _chunks(ended):
        # Replies and large values go first, because a repeat after a crash finds them by the tasks.
        await _drop_replies(store, set(chunk), retry_for_s=retry_for_s)
        if payloads is not None:
            await payloads.delete_tasks(chunk)
        statuses = await bulk.delete(store, chunk, retry_for_s=retry_for_s)
        deleted += sum(status is DeleteStatus.DELETED for status, _ in statuses.values())
        on_deleted(deleted)
    for chunk in _chunks(list(states)):
        call = scripts.unlist_session(store.keys, session=encode_foreign("session", session), ids=chunk)
        await store.call(call, retry_for_s=retry_for_s)
    return DeletedTasks(deleted, len([state for state in states.values() if state is not None]) - len(ended))


async def session_task_states(store: Store, session: str) -> dict[str, TaskState | None]:
    """Return the tasks of a session with their states; None for those whose record has expired."""
    found: dict[str, TaskState | None] = dict.fromkeys(await families.listed_tasks(store, session))
    members = await families.session_tasks(store, session, limit=families.KEPT_TASKS)
    found |= {row.id: row.state for row in members.rows}
    if members.dropped:
        # The list has the newest 1000.
        selected = await select(store, TaskFilter(session=session), among=frozenset(TaskState), limit=None)
        found |= {task.id: task.state for task in selected.tasks}
    return found


async def _drop_replies(store: Store, tasks: Collection[str], *, retry_for_s: float) -> None:
    """Remove the entries of reply streams that have results of these tasks."""
    for client in sorted({client for id_ in tasks if (client := _listening_client(id_))}):
        entries = [entry async for entry in _entries_with(store, client, tasks, retry_for_s=retry_for_s)]
        for chunk in _chunks(entries):
            call = scripts.drop_replies(store.keys, rows=[(client, entry) for entry in chunk])
            await store.call(call, retry_for_s=retry_for_s)


def _listening_client(id_: str) -> str:
    """Return the client that gets the reply of a task, or an empty text; as `lua/includes/ending.lua`."""
    return id_[24:] if id_[24] >= "8" else ""


async def _entries_with(store: Store, client: str, tasks: Collection[str], *, retry_for_s: float) -> AsyncIterator[str]:
    after = "-"
    while True:
        command = ("XRANGE", store.keys.replies(client), after, "+", "COUNT", _PAGE)
        (page,) = await read_many(store, [command], retry_for_s=retry_for_s)
        for entry, flat in page:
            if any(read_text(id_) in tasks for id_ in flat[::2]):
                yield read_text(entry)
        if len(page) < _PAGE:
            return
        after = f"({read_text(page[-1][0])}"


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), _CHUNK):
        yield ids[first : first + _CHUNK]
