"""Reads the lists of sessions, of the tasks of a session and of the tasks below a task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import StoreError
from orchestrator.core.ids import decode_foreign, encode_foreign
from orchestrator.core.reading import read_text, read_whole, readable
from orchestrator.tasks.queries import TaskRow, rows_of
from orchestrator.tasks.records import list_records, read_each
from orchestrator.tasks.selecting import RETRYABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from orchestrator.store.store import Store
    from orchestrator.tasks.model import TaskState

KEPT_TASKS: Final = 1000
"""Newest tasks that the list of a session keeps; `lua/includes/family.lua` drops older ones."""
_PAGE: Final = 500
_FAMILIES: Final = 100
"""Parents whose children one round trip reads."""


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
        encoded = [read_text(name) for name in pairs[::2]]
        lists = [keys.session(decode_foreign(name)) for name in encoded]
        replies = await store.pipeline(
            [command for key in lists for command in (("LLEN", key), ("LINDEX", key, -1))]
            + [("HMGET", keys.dropped_of_sessions, *encoded)]
        )
        *sizes, found_dropped = replies
        dropped = readable(found_dropped, [None] * len(encoded))
        for n, name in enumerate(encoded):
            length, newest = sizes[2 * n], sizes[2 * n + 1]
            if isinstance(length, StoreError) or isinstance(newest, StoreError) or newest is None:
                continue
            total = length + read_whole(dropped[n])
            found.append(
                SessionSummary(
                    decode_foreign(name), from_instant_ms(read_whole(pairs[2 * n + 1])), total, read_text(newest)
                )
            )
    return found[:limit]


async def sessions_behind(store: Store, behind: tuple[int, str] | None, *, count: int) -> list[tuple[int, str]]:
    """Read the next sessions by their last activity, newest first, each as its time in ms and its encoded id.

    Args:
        store: the store.
        behind: the session behind which to go on; None at the beginning.
        count: maximum number.
    """
    key = store.keys.sessions
    if behind is None:
        return _timed(await store.execute("ZRANGE", key, 0, count - 1, "REV", "WITHSCORES"))
    at_ms, name = behind
    flat, score, rank = map(
        _checked,
        await store.pipeline(
            [
                ("ZRANGE", key, at_ms, "-inf", "BYSCORE", "REV", "LIMIT", 0, count + 1, "WITHSCORES"),
                ("ZSCORE", key, name),
                ("ZREVRANK", key, name),
            ]
        ),
    )
    found = [each for each in _timed(flat) if each < behind]
    if len(found) < count and len(flat) > 2 * count and score is not None and read_whole(score) == at_ms:
        # More sessions have this time than the read returned.
        found = _timed(await store.execute("ZRANGE", key, rank + 1, rank + count, "REV", "WITHSCORES"))
    return found[:count]


def _timed(flat: Sequence[bytes]) -> list[tuple[int, str]]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [(read_whole(at_ms), read_text(name)) for name, at_ms in pairs]


async def last_activity(store: Store, session: str) -> datetime | None:
    """Read when a task of a session was submitted or ended last; None if the session is not listed."""
    at_ms = await store.execute("ZSCORE", store.keys.sessions, encode_foreign("session", session))
    return None if at_ms is None else from_instant_ms(read_whole(at_ms))


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
    return await _members(store, _checked(ids)[::-1], read_whole(_checked(dropped)), states, limit)


async def listed_tasks(store: Store, session: str) -> list[str]:
    """Return the ids in the list of a session, oldest first; records of some may have expired."""
    return [read_text(id_) for id_ in await store.execute("LRANGE", store.keys.session(session), 0, -1)]


async def children(store: Store, parent: str, *, states: Collection[TaskState] = (), limit: int) -> Members:
    """List the children of a task, in the order of their submits; arguments as of `session_tasks`."""
    keys = store.keys
    length, dropped = map(
        _checked, await store.pipeline([("LLEN", keys.children(parent)), ("HGET", keys.task(parent), "dropped")])
    )
    rows: list[TaskRow] = []
    for first in range(0, length, _PAGE):
        ids = await store.execute("LRANGE", keys.children(parent), first, first + _PAGE - 1)
        rows += await _listed(store, ids, states)
        if len(rows) >= limit:
            break
    return Members(tuple(rows[:limit]), length + read_whole(dropped), read_whole(dropped))


@dataclass(frozen=True, slots=True)
class TaskTree:
    """A task and the tasks below it, each behind its parent, children in the order of their submits.

    Attributes:
        ids: of all of them, also of those without a record.
        rows: those that have a record.
        more: more tasks are below it.
    """

    ids: tuple[str, ...]
    rows: tuple[TaskRow, ...]
    more: bool


async def tree(store: Store, top: str, *, limit: int) -> TaskTree:
    """Read a task and the tasks below it, at most `limit`, level by level."""
    ids, more = await below(store, [top], limit=limit)
    rows: list[TaskRow] = []
    for first in range(0, len(ids), _PAGE):
        page = dict.fromkeys(ids[first : first + _PAGE])
        rows += await rows_of(store, await list_records(store, page))
    return TaskTree(tuple(ids), tuple(rows), more)


async def count_children(store: Store, parents: Sequence[str]) -> dict[str, int]:
    """Return the number of children that the list of each of these tasks has."""
    replies = await store.pipeline([("LLEN", store.keys.children(parent)) for parent in parents])
    return dict(zip(parents, map(_checked, replies), strict=True))


async def below(store: Store, tops: Sequence[str], *, limit: int | None) -> tuple[list[str], bool]:
    """Return the ids of tasks and of all tasks below them, each behind its parent, and whether there are more.

    Args:
        store: the store.
        tops: the tasks.
        limit: maximum number, or None for all; levels near the top come first.
    """
    most = math.inf if limit is None else limit
    found: dict[str, list[str]] = {}
    level, more = list(dict.fromkeys(tops)), False
    seen = set(level)
    while level and not more:
        following: list[str] = []
        for first in range(0, len(level), _FAMILIES):
            for parent, ids in (await _children_of(store, level[first : first + _FAMILIES])).items():
                new = [id_ for id_ in ids if id_ not in seen]
                room = max(0, round(min(most - len(seen), len(new))))
                more = more or room < len(new)
                found[parent] = new[:room]
                following += found[parent]
                seen.update(found[parent])
            if more:
                break
        level = following
    return _in_order(list(dict.fromkeys(tops)), found), more


async def to_retry(store: Store, tops: Sequence[str]) -> list[str]:
    """Return tasks, and those below them that ended without a result; each before its parent, which awaits it."""
    ids, _ = await below(store, tops, limit=None)
    wanted = set(tops)
    for first in range(0, len(ids), _PAGE):
        records = await read_each(store, ids[first : first + _PAGE], "state")
        wanted |= {
            id_
            for id_, record in records.items()
            if not isinstance(record, StoreError) and record.exists and record.state in RETRYABLE
        }
    return [id_ for id_ in reversed(ids) if id_ in wanted]


async def _children_of(store: Store, parents: Sequence[str]) -> dict[str, list[str]]:
    """Read the children of tasks, a page of each at a time."""
    found: dict[str, list[str]] = {parent: [] for parent in parents}
    rest, first = list(parents), 0
    while rest:
        replies = await store.pipeline(
            [("LRANGE", store.keys.children(parent), first, first + _PAGE - 1) for parent in rest]
        )
        for parent, reply in zip(rest, replies, strict=True):
            found[parent] += [read_text(id_) for id_ in _checked(reply)]
        first += _PAGE
        rest = [parent for parent in rest if len(found[parent]) == first]
    return found


def _in_order(tops: Sequence[str], found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return tasks, each behind its parent."""
    ordered: list[str] = []
    left = list(reversed(tops))
    while left:
        id_ = left.pop()
        ordered.append(id_)
        left += reversed(found.get(id_, ()))
    return ordered


def _checked(reply: Any) -> Any:
    if isinstance(reply, StoreError):
        raise reply
    return reply


async def _members(store: Store, ids: list[bytes], dropped: int, states: Collection[TaskState], limit: int) -> Members:
    rows: list[TaskRow] = []
    for first in range(0, len(ids), _PAGE):
        if len(rows) >= limit:
            break
        rows += await _listed(store, ids[first : first + _PAGE], states)
    return Members(tuple(rows[:limit]), len(ids) + dropped, dropped)


async def _listed(store: Store, ids: Sequence[bytes], states: Collection[TaskState]) -> list[TaskRow]:
    """Return the rows of tasks that have a record and are in one of these states; empty for all."""
    page = {read_text(id_): None for id_ in ids}
    return [row for row in await rows_of(store, await list_records(store, page)) if not states or row.state in states]
