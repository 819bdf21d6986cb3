"""Reads the lists of sessions, of the tasks of a session and of the children of a task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import StoreError
from orchestrator.core.ids import decode_foreign, encode_foreign
from orchestrator.tasks.queries import TaskRow, rows_of
from orchestrator.tasks.records import list_records

if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.store.store import Store
    from orchestrator.tasks.model import TaskState

KEPT_MEMBERS: Final = 1000
"""Newest tasks that a list keeps; `lua/includes/family.lua` drops older ones."""
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session that got tasks.

    Attributes:
        session: its id.
        last_active_at: last submit or end of one of its tasks.
        tasks: number of tasks that were submitted with it, without deleted ones.
        newest: its newest task.
    """

    session: str
    last_active_at: datetime
    tasks: int
    newest: str


@dataclass(frozen=True, slots=True)
class Members:
    """Tasks of a session, newest first, or children of a task, oldest first.

    Attributes:
        rows: the tasks that have a record.
        total: number of tasks that were submitted, without deleted ones of a session.
        dropped: of these, the oldest that the list no longer has.
    """

    rows: tuple[TaskRow, ...]
    total: int
    dropped: int


async def sessions(store: Store, *, limit: int) -> list[SessionSummary]:
    """List the sessions with the latest activity, at most `limit`; a session leaves the list with its last task."""
    found: list[SessionSummary] = []
    keys, first = store.keys, 0
    while len(found) < limit:
        pairs = await store.execute("ZRANGE", keys.sessions, first, first + _PAGE - 1, "REV", "WITHSCORES")
        if not pairs:
            break
        first += _PAGE
        encoded = [name.decode() for name in pairs[::2]]
        lists = [keys.session(decode_foreign(name)) for name in encoded]
        replies = await store.pipeline(
            [command for key in lists for command in (("LLEN", key), ("LINDEX", key, -1))]
            + [("HMGET", keys.dropped_of_sessions, *encoded)]
        )
        *sizes, dropped = replies
        for n, name in enumerate(encoded):
            length, newest = sizes[2 * n], sizes[2 * n + 1]
            if isinstance(length, StoreError) or isinstance(newest, StoreError) or newest is None:
                continue
            total = length + int(dropped[n] or 0)
            found.append(
                SessionSummary(decode_foreign(name), from_instant_ms(int(pairs[2 * n + 1])), total, newest.decode())
            )
    return found[:limit]


async def last_activity(store: Store, session: str) -> datetime | None:
    """Read when a task of a session was submitted or ended last; None if the session is not listed."""
    at_ms = await store.execute("ZSCORE", store.keys.sessions, encode_foreign("session", session))
    return None if at_ms is None else from_instant_ms(int(at_ms))


async def session_tasks(store: Store, session: str, *, states: Collection[TaskState] = (), limit: int) -> Members:
    """List the newest tasks of a session.

    Args:
        store: the store.
        session: its id.
        states: only tasks in these states; empty for all.
        limit: maximum number.
    """
    keys, encoded = store.keys, encode_foreign("session", session)
    ids, dropped = await store.pipeline(
        [("LRANGE", keys.session(session), 0, -1), ("HGET", keys.dropped_of_sessions, encoded)]
    )
    return await _members(store, _checked(ids)[::-1], int(_checked(dropped) or 0), states, limit)


async def listed_tasks(store: Store, session: str) -> list[str]:
    """Return the ids in the list of a session, oldest first; records of some may have expired."""
    return [id_.decode() for id_ in await store.execute("LRANGE", store.keys.session(session), 0, -1)]


async def children(store: Store, parent: str, *, states: Collection[TaskState] = (), limit: int) -> Members:
    """List the children of a task, in the order of their submits; arguments as of `session_tasks`."""
    keys = store.keys
    ids, dropped = await store.pipeline(
        [("LRANGE", keys.children(parent), 0, -1), ("HGET", keys.task(parent), "dropped")]
    )
    return await _members(store, _checked(ids), int(_checked(dropped) or 0), states, limit)


def _checked(reply: Any) -> Any:
    if isinstance(reply, StoreError):
        raise reply
    return reply


async def _members(store: Store, ids: list[bytes], dropped: int, states: Collection[TaskState], limit: int) -> Members:
    rows: list[TaskRow] = []
    for first in range(0, len(ids), _PAGE):
        if len(rows) >= limit:
            break
        page = {id_.decode(): None for id_ in ids[first : first + _PAGE]}
        rows += [
            row for row in await rows_of(store, await list_records(store, page)) if not states or row.state in states
        ]
    return Members(tuple(rows[:limit]), len(ids) + dropped, dropped)
