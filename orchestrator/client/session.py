"""`orc.session(s)`: one stream of the events of all tasks of a session and of its workspace.

Tasks have a stream each, and the workspace has one in another slot. A reader merges them by time. It shows an entry
when it has read all streams after the millisecond of the entry had passed on the server, so that no stream can bring an
earlier one; a later reader therefore sees the same order, and continues anywhere in it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.durations import from_instant_ms, to_seconds
from orchestrator.core.errors import InvalidInput, ServerUnavailable
from orchestrator.core.ids import check_task_id
from orchestrator.core.reading import read_whole
from orchestrator.store.keys import CHANGES
from orchestrator.store.scoped import bind_scope
from orchestrator.tasks import families, scripts
from orchestrator.tasks.model import TaskEvent, TaskState, WatchStatus
from orchestrator.tasks.output import as_event, final_entry, parse_entries, read_place
from orchestrator.workspace.events import parse_event
from orchestrator.workspace.model import WorkspaceEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime

    from orchestrator.core.durations import Duration
    from orchestrator.services import Services
    from orchestrator.tasks.output import Place, StreamEntry

POLL_S: Final = 0.1
"""Interval at which a reader looks for new tasks and events."""
WATCHED_AT_ONCE: Final = 500
RETRIED_S: Final = 1.0
"""Interval at which a reader looks for retries of tasks that had ended before it found them."""
_BUFFERED: Final = 512
"""Entries that a reader holds, about; each has at most 64 KiB."""
_BEGINNING: Final = (0, 0)
_NOW: Final = "$"
_AFTER: Final = re.compile(r"(\d{1,20}-\d{1,20})/([0-9a-f-]{36})?/(\d{1,20}-\d{1,20})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One event of a session.

    Attributes:
        id: its position; `events(after=id)` continues behind it.
        kind: as of the event of the task or the workspace.
        at: when the server stored it.
        task: the task; None for a change of the workspace.
        event: what happened.
    """

    id: str
    kind: str
    at: datetime
    task: str | None
    event: TaskEvent | WorkspaceEvent


class SessionHandle:
    """A session of the pool.

    Attributes:
        id: the session.
    """

    def __init__(self, id_: str, services: Services) -> None:
        self.id = id_
        self._services = services

    async def events(self, after: str | None = None, *, block: Duration | None = None) -> AsyncGenerator[SessionEvent]:
        """Yield the events of all tasks of the session and of its workspace, in order: `async for event in …:`.

        Tasks are followed from the moment at which this finds them, about a tenth of a second after their submit. What
        they emit is complete; of the states before that moment the first event has the last. A task that has ended
        before has its final state only, unless it emitted; after a retry it is followed within a second. The newest
        1000 tasks of the session are followed.

        Args:
            after: `id` of the last event that was seen; None is the beginning, `$` is now.
            block: end when nothing has happened for so many seconds, or that timedelta; None never ends.

        Raises:
            InvalidInput: `after` is not the id of an event.
        """
        idle_s = None if block is None else to_seconds("block", block)
        reader, pauses = _SessionReader(self._services, self.id, _parse(after)), Pauses()
        if after == _NOW:
            reader.start_at(await reader.now_ms())
        last_s = anyio.current_time()
        while True:
            try:
                events = await reader.read()
            except ServerUnavailable as failure:
                await anyio.sleep(pauses.next_s(failure))
                continue
            pauses.reset()
            for event in events:
                yield event
            if events:
                last_s = anyio.current_time()
            elif idle_s is not None and anyio.current_time() - last_s >= idle_s:
                return
            else:
                await anyio.sleep(POLL_S)


class _SessionPosition(NamedTuple):
    """The last entry of a task that was shown, with its task, and the last one of the workspace."""

    place: Place
    task: str
    workspace: Place

    @property
    def text(self) -> str:
        return f"{_text(self.place)}/{self.task}/{_text(self.workspace)}"


def _parse(after: str | None) -> _SessionPosition:
    if after is None or after == _NOW:
        return _SessionPosition(_BEGINNING, "", _BEGINNING)
    found = _AFTER.fullmatch(after)
    if found is None:
        raise InvalidInput(f"after {ascii(after)[:80]} is not the id of an event of a session; give one as it was read")
    task = check_task_id(found[2]) if found[2] else ""
    return _SessionPosition(read_place(found[1]), task, read_place(found[3]))


def _text(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


@dataclass(slots=True)
class _SessionStream:
    """The stream of a task, as far as a reader has read it.

    Attributes:
        place: of the last entry that was read.
        entries: those that were read and not shown.
        full: whether the last read left entries.
        generation: of the latest attempt that was shown.
    """

    place: Place
    entries: deque[StreamEntry] = field(default_factory=deque)
    full: bool = False
    generation: int = 0


_Shown: TypeAlias = "tuple[Place, str, StreamEntry | WorkspaceEvent]"
"""Place, task (empty for the workspace) and entry."""


class _SessionReader:
    """Merges the streams of a session from a position on."""

    def __init__(self, services: Services, session: str, position: _SessionPosition) -> None:
        self._store, self._session, self._position = services.store, session, position
        self._scope = bind_scope(services.store, services.settings, "session", session)
        self._start = (position.place, position.task)
        self._streams: dict[str, _SessionStream] = {}
        self._known: dict[str, None] = {}
        self._newest = b""
        self._ended: dict[str, None] = {}
        self._looked_s = anyio.current_time()

    def start_at(self, now_ms: int) -> None:
        """Skip what happened before a time."""
        self._position = _SessionPosition((now_ms, 0), "", (now_ms, 0))
        self._start = (self._position.place, "")

    async def now_ms(self) -> int:
        """Read the server's clock."""
        seconds, microseconds = await self._store.execute("TIME")
        return read_whole(seconds) * 1000 + read_whole(microseconds) // 1000

    async def read(self) -> list[SessionEvent]:
        """Return the next events; none if nothing has happened."""
        # What has an earlier time is stored by now, in the streams of tasks that the session lists by now.
        until: Place = (await self.now_ms(), 0)
        await self._find_tasks()
        await self._follow_retried()
        while True:
            await self._fill()
            changes = await self._read_workspace()
            read = [stream.place for stream in self._streams.values() if stream.full]
            if len(changes) == _BUFFERED:
                read.append(changes[-1][0])
            # Behind these places, a stream that was read in part may have an earlier entry than the others.
            last = min(read, default=until)
            shown = [one for one in changes if one[0] < until and one[0] <= last] + self._take_shown(until, last)
            if shown or all(stream.entries or not stream.full for stream in self._streams.values()):
                return [self._show(*one) for one in sorted(shown, key=lambda one: one[:2])]

    async def _find_tasks(self) -> None:
        newest = await self._store.execute("LINDEX", self._store.keys.session(self._session), -1)
        if newest is None or newest == self._newest:
            return
        listed = await families.listed_tasks(self._store, self._session)
        ids = [id_ for id_ in listed if id_ not in self._known]
        for first in range(0, len(ids), WATCHED_AT_ONCE):
            chunk = ids[first : first + WATCHED_AT_ONCE]
            statuses = await self._store.call(scripts.watch(self._store.keys, ids=chunk))
            for id_, (status, _) in zip(chunk, statuses, strict=True):
                stream = _SessionStream(self._first_place())
                end = await final_entry(self._store, id_) if status is WatchStatus.SILENT else None
                if end is not None and (end.place, id_) > self._start:
                    stream.entries.append(end)
                if end is not None and end.kind != TaskState.SUCCEEDED:
                    self._ended[id_] = None
                if status is not WatchStatus.UNKNOWN:
                    self._streams[id_] = stream
        self._known = dict.fromkeys(listed)
        # The list keeps the newest 1000 tasks.
        self._streams = {id_: stream for id_, stream in self._streams.items() if id_ in self._known}
        self._newest = newest

    async def _follow_retried(self) -> None:
        """Follow tasks that had ended, from a retry on: `watch` changes nothing while a task has ended."""
        if not self._ended or anyio.current_time() - self._looked_s < RETRIED_S:
            return
        ids = list(self._ended)
        for first in range(0, len(ids), WATCHED_AT_ONCE):
            chunk = ids[first : first + WATCHED_AT_ONCE]
            statuses = await self._store.call(scripts.watch(self._store.keys, ids=chunk))
            for id_, (status, _) in zip(chunk, statuses, strict=True):
                if status is not WatchStatus.SILENT or id_ not in self._known:
                    del self._ended[id_]
        self._looked_s = anyio.current_time()

    def _first_place(self) -> Place:
        """Return the place before the entries with the time of the position, of which other tasks may have some."""
        ms, _ = self._start[0]
        return (ms - 1, 2**63) if ms else _BEGINNING

    async def _fill(self) -> None:
        """Read on in all streams, except those of which a part is left to show and a part to read."""
        ids = [id_ for id_, stream in self._streams.items() if not (stream.full and stream.entries)]
        count = max(1, _BUFFERED // max(1, len(ids)))
        for first in range(0, len(ids), WATCHED_AT_ONCE):
            keys = {self._store.keys.out(id_).encode(): id_ for id_ in ids[first : first + WATCHED_AT_ONCE]}
            places = [_text(self._streams[id_].place) for id_ in keys.values()]
            reply = await self._store.execute("XREAD", "COUNT", count, "STREAMS", *keys, *places)
            pages = {keys[key]: parse_entries(page) for key, page in reply or ()}
            for id_ in keys.values():
                self._take(id_, pages.get(id_, []), count)

    def _take(self, id_: str, page: list[StreamEntry], count: int) -> None:
        stream = self._streams[id_]
        stream.full = len(page) == count
        for entry in page:
            stream.place = entry.place
            # A lower generation is of an attempt that no longer owned the task (protocol rule 20).
            if entry.generation >= stream.generation and (entry.place, id_) > self._start:
                stream.generation = entry.generation
                stream.entries.append(entry)

    async def _read_workspace(self) -> list[_Shown]:
        key, after = self._scope.keys.key(CHANGES), self._position.workspace
        page = await self._scope.read("XRANGE", key, f"({_text(after)}", "+", "COUNT", _BUFFERED)
        events = [parse_event(entry, flat) for entry, flat in page]
        return [(read_place(event.id), "", event) for event in events]

    def _take_shown(self, until: Place, last: Place) -> list[_Shown]:
        """Take the entries before a time and not behind a place."""
        found: list[_Shown] = []
        for id_, stream in self._streams.items():
            while stream.entries and stream.entries[0].place < until and stream.entries[0].place <= last:
                found.append((stream.entries[0].place, id_, stream.entries.popleft()))
        return found

    def _show(self, place: Place, task: str, entry: StreamEntry | WorkspaceEvent) -> SessionEvent:
        if isinstance(entry, WorkspaceEvent):
            self._position = self._position._replace(workspace=place)
            return SessionEvent(self._position.text, entry.kind, entry.at, None, entry)
        self._position = _SessionPosition(place, task, self._position.workspace)
        return SessionEvent(self._position.text, entry.kind, from_instant_ms(place[0]), task, as_event(entry))
