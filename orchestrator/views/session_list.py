"""Lists sessions page by page, in bounded reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, InvalidInput, StoreError
from orchestrator.core.ids import decode_foreign
from orchestrator.core.reading import read_text, read_whole, readable
from orchestrator.store.keys import CHATS, META
from orchestrator.tasks import families
from orchestrator.tasks.model import TaskState  # noqa: TC001 - public dataclasses keep their types resolvable
from orchestrator.tasks.records import LISTED, TaskRecord, read_each

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.services import Services

SHOWN: Final = 40
LOOKED: Final = 2000
"""Names of sessions that one page compares with a text."""


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session in a page.

    Attributes:
        session: its id.
        last_active_at: last submit or end of one of its tasks.
        tasks: number of tasks that were submitted with it, without deleted ones.
        newest: its newest task; None if its list has expired.
        state: state of that task; None if its record is gone.
        agent: agent that had that task last, or that it is addressed to.
        locks: number of locks that are held in it.
        items: number of items in its workspace.
        bytes: their size.
        chats: number of its chats.
    """

    session: str
    last_active_at: datetime
    tasks: int
    newest: str | None
    state: TaskState | None
    agent: str | None
    locks: int
    items: int
    bytes: int
    chats: int


@dataclass(frozen=True, slots=True)
class SessionListPage:
    """A part of the list of sessions.

    Attributes:
        sessions: the sessions with the latest activity that match, maybe none although more follow.
        cursor: for the next page; None at the end.
        looked: number of sessions whose names were read for it.
    """

    sessions: tuple[SessionLine, ...]
    cursor: str | None
    looked: int


async def read_session_page(
    services: Services,
    *,
    contains: str | None = None,
    among: Collection[str] | None = None,
    after: str | None = None,
    limit: int = SHOWN,
) -> SessionListPage:
    """Read the sessions with the latest submit or end of a task.

    Args:
        services: of the pool.
        contains: only sessions whose id contains this text, in upper or lower case.
        among: only these sessions; None for all.
        after: cursor of the page before.
        limit: maximum number.

    Raises:
        InvalidInput: that is no cursor.
    """
    behind = None if after is None else _parse_cursor(after)
    filtered = contains is not None or among is not None
    wanted = LOOKED if filtered else limit + 1
    part = (contains or "").casefold()
    listed = await families.sessions_behind(services.store, behind, count=wanted)
    matching: list[tuple[int, str]] = []
    looked = 0
    for at_ms, name in listed:
        if len(matching) == limit:
            break
        looked += 1
        id_ = _decoded(name)
        if part in id_.casefold() and (among is None or id_ in among):
            matching.append((at_ms, name))
    more = looked < len(listed) or len(listed) == wanted
    cursor = "{}-{}".format(*listed[looked - 1]) if looked and more else None
    return SessionListPage(tuple(await _lines(services, matching)), cursor, looked)


def _parse_cursor(text: str) -> tuple[int, str]:
    at_ms, _, name = text.partition("-")
    if not (at_ms.isascii() and at_ms.isdigit() and len(at_ms) < 17 and name):
        raise InvalidInput(f"cursor {ascii(text)[:80]} is not one of the list of sessions; give one as it was returned")
    return read_whole(at_ms), name


def _decoded(name: str) -> str:
    try:
        return decode_foreign(name)
    except InvalidInput:
        return name


async def _lines(services: Services, listed: Sequence[tuple[int, str]]) -> list[SessionLine]:
    if not listed:
        return []
    keys = services.keys
    ids = [_decoded(name) for _, name in listed]
    scopes = [keys.scope("session", id_) for id_ in ids]
    # A lapsed lock counts until the next write in its scope.
    commands: list[tuple[Any, ...]] = [("HMGET", keys.dropped_of_sessions, *(name for _, name in listed))]
    for id_, scope in zip(ids, scopes, strict=True):
        commands += [
            ("LLEN", keys.session(id_)),
            ("LINDEX", keys.session(id_), -1),
            ("HMGET", scope.key(META), "items", "bytes"),
            ("ZCARD", scope.key("locks")),
            ("HLEN", scope.key(CHATS)),
        ]
    found_dropped, *replies = await services.store.pipeline(commands)
    dropped = readable(found_dropped, [None] * len(listed))
    rows = [replies[first : first + 5] for first in range(0, len(replies), 5)]
    newest = [_text(row[1]) for row in rows]
    records = await read_each(services.store, [id_ for id_ in newest if id_ is not None], *LISTED)
    return [
        _line(id_, at_ms, row, read_whole(lost), records.get(latest or ""))
        for id_, (at_ms, _), row, lost, latest in zip(
            ids, listed, rows, dropped if isinstance(dropped, list) else [0] * len(ids), newest, strict=True
        )
    ]


def _line(id_: str, at_ms: int, row: Sequence[Any], lost: int, record: TaskRecord | StoreError | None) -> SessionLine:
    length, newest, sizes, locks, chats = row
    items, size = sizes if isinstance(sizes, list) else (0, 0)
    known = record if isinstance(record, TaskRecord) and record.exists else None
    return SessionLine(
        session=id_,
        last_active_at=from_instant_ms(at_ms),
        tasks=_count(length) + lost,
        newest=_text(newest),
        state=None if known is None else _state(known),
        agent=None if known is None else known.agent,
        locks=_count(locks),
        items=read_whole(items),
        bytes=read_whole(size),
        chats=_count(chats),
    )


def _state(record: TaskRecord) -> TaskState | None:
    try:
        return record.state
    except DamagedData:
        return None


def _text(reply: Any) -> str | None:
    return read_text(reply) if isinstance(reply, bytes) else None


def _count(reply: Any) -> int:
    return reply if isinstance(reply, int) else 0  # a key of another type counts as an empty one
