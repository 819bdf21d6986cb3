"""Reads parts of the workspace of a session, each in bounded reads: names and sizes first, small values with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, NotFound, StoreError
from orchestrator.core.reading import read_readable, read_text, read_whole
from orchestrator.store.keys import CHANGES, DIRECTORY, DOCUMENT, MACHINES, META, PARTS
from orchestrator.store.scoped import bind_scope
from orchestrator.workspace.events import read_event
from orchestrator.workspace.model import Change, WorkspaceEvent  # noqa: TC001 - as above
from orchestrator.workspace.queries import parse_directive, parse_log_entry, parse_state, parse_versioned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orchestrator.services import Services
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.workspace.model import Directive, LogEntry, StateEntry, Versioned

PATHS: Final = 50
NAMED: Final = 5000
"""Names of a document that one page sorts; of a larger one it follows the order of the store."""
PREVIEWED: Final = 4096
"""Largest value that a list reads; of a larger one it tells the size."""
READ_AT_ONCE: Final = 1_000_000
"""Size of a workspace up to which a page reads values without asking for their sizes before."""
ENTRIES: Final = 20
MEMBERS: Final = 200
PART_LIST: Final = 200
PRESENT: Final = 50
LOOKED: Final = 1000
"""Events that a page with a filter looks at."""
EVENTS: Final = 30


@dataclass(frozen=True, slots=True)
class NamedPart:
    """A log, a set, a scratch or an inbox of a workspace.

    Attributes:
        kind: `log`, `set`, `scratch` or `inbox`.
        name: of it; of a scratch or inbox the agent.
        size: number of entries, members, paths or directives.
    """

    kind: str
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class PresentAgent:
    """An agent in the directory of a session, and the end of its lease by the clock of Redis."""

    agent: str
    until: datetime


@dataclass(frozen=True, slots=True)
class WorkspaceOutline:
    """Contents of a workspace, without values.

    Attributes:
        revision: number of changes.
        items: number of items.
        bytes: their size.
        paths: number of paths of the document.
        states: number of state machines.
        parts: its logs, sets, scratches and inboxes by kind and name, at most 200.
        parts_total: number of all of them.
        present: the agents in its directory, at most 50; of one that has gone the lease has ended.
        ends_at: when it expires.
    """

    revision: int
    items: int
    bytes: int
    paths: int
    states: int
    parts: tuple[NamedPart, ...]
    parts_total: int
    present: tuple[PresentAgent, ...]
    ends_at: datetime | None

    def of(self, kind: str) -> tuple[NamedPart, ...]:
        """Return the parts of a kind."""
        return tuple(part for part in self.parts if part.kind == kind)


@dataclass(frozen=True, slots=True)
class WorkspaceItem:
    """A path of a document, or a state machine.

    Attributes:
        name: path, or id of the state machine.
        bytes: size of what is stored.
        entry: value, version and author; None if it is larger than 4 KiB or damaged.
    """

    name: str
    bytes: int
    entry: Versioned | StateEntry | None


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Some paths or state machines.

    Attributes:
        items: by name; of more than 5,000 in the order of the store.
        cursor: for the next page; None at the end.
    """

    items: tuple[WorkspaceItem, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, newest first.

    Attributes:
        events: those that match, maybe none although more follow.
        cursor: for the next page; None at the end.
        looked: number of events that were read.
    """

    events: tuple[WorkspaceEvent, ...]
    cursor: str | None
    looked: int


@dataclass(frozen=True, slots=True)
class PathVersion:
    """A change of a path, as an event tells it.

    Attributes:
        event: the event.
        change: what it changed.
    """

    event: WorkspaceEvent
    change: Change


async def read_outline(services: Services, session: str) -> WorkspaceOutline:
    """Read what the workspace of a session holds.

    Raises:
        InvalidInput: that is no session.
    """
    scope, keys = _scope(services, session), _scope(services, session).keys
    meta, paths, states, names = await scope.read_many(
        [
            ("HMGET", keys.key(META), "rev", "items", "bytes", "dies"),
            ("HLEN", keys.key(DOCUMENT)),
            ("HLEN", keys.key(MACHINES)),
            ("HKEYS", keys.key(PARTS)),
        ]
    )
    revision, items, size, dies = map(read_whole, meta)
    parts = sorted(read_text(name) for name in names)
    *sizes, present = await services.store.pipeline(
        [
            *((_SIZE_OF[keys.split_part(part)[0]], keys.key(part)) for part in parts[:PART_LIST]),
            ("ZRANGE", keys.key(DIRECTORY), 0, PRESENT - 1, "REV", "WITHSCORES"),
        ]
    )
    leases = [] if isinstance(present, StoreError) else list(zip(present[::2], present[1::2], strict=True))
    found = [
        NamedPart(*keys.split_part(part), 0 if isinstance(number, StoreError) else number)
        for part, number in zip(parts, sizes, strict=False)
    ]
    return WorkspaceOutline(
        revision=revision,
        items=items,
        bytes=size,
        paths=paths,
        states=states,
        parts=tuple(part for part in sorted(found, key=lambda one: (one.kind, one.name)) if part.size),
        parts_total=len(parts),
        present=tuple(PresentAgent(read_text(name), from_instant_ms(read_whole(until))) for name, until in leases),
        ends_at=from_instant_ms(dies) if dies else None,
    )


async def read_document(
    services: Services,
    session: str,
    outline: WorkspaceOutline,
    *,
    after: str | None = None,
    contains: str | None = None,
) -> ItemPage:
    """Read paths of the document, those that contain a text if one is given.

    Raises:
        InvalidInput: that is no session.
    """
    scope = _scope(services, session)
    return await _read_items(scope, DOCUMENT, parse_versioned, outline, outline.paths, after, contains)


async def read_state_machines(
    services: Services,
    session: str,
    outline: WorkspaceOutline,
    *,
    after: str | None = None,
    contains: str | None = None,
) -> ItemPage:
    """Read state machines, as `read_document`."""
    scope = _scope(services, session)
    return await _read_items(scope, MACHINES, parse_state, outline, outline.states, after, contains)


async def read_path(services: Services, session: str, path: str) -> tuple[Versioned, int]:
    """Read a path of the document and its size.

    Raises:
        InvalidInput: that is no session.
        NotFound: there is no such path.
    """
    scope = _scope(services, session)
    stored = await scope.read("HGET", scope.keys.key(DOCUMENT), path.encode(errors="replace"))
    if stored is None:
        raise NotFound(f"the document of session {session!r} has no path {path[:200]!r}")
    return parse_versioned(stored), len(stored)


async def read_versions(
    services: Services, session: str, path: str, *, before: str | None = None
) -> tuple[tuple[PathVersion, ...], str | None, int]:
    """Read the changes of a path among 1,000 events, newest first, with the cursor behind them and their number."""
    page = await _read_events(
        _scope(services, session), lambda event: _change_of(event, path) is not None, before, EVENTS
    )
    changes = ((event, _change_of(event, path)) for event in page.events)
    found = tuple(PathVersion(event, change) for event, change in changes if change is not None)
    return found, page.cursor, page.looked


async def read_log_page(
    services: Services, session: str, log: str, *, before: int | None = None
) -> tuple[tuple[LogEntry, ...], int | None]:
    """Read 20 entries of a log, newest first, and the number before which to go on; None at the end."""
    scope = _scope(services, session)
    key = scope.keys.key(scope.keys.log_part(log))
    last = -1
    if before is not None:
        # Entries are numbered without gaps, so that the number of the first one tells the places of the others.
        oldest = await scope.read("LINDEX", key, 0)
        if oldest is None:
            return (), None
        last = before - 1 - parse_log_entry(oldest).number
        if last < 0:
            return (), None
    # Of negative places the first one may be before the beginning.
    first = last - ENTRIES + 1 if before is None else max(0, last - ENTRIES + 1)
    page = await scope.read("LRANGE", key, first, last)
    found = read_readable(parse_log_entry, reversed(page))
    return tuple(found), found[-1].number if found and len(page) == ENTRIES else None


async def read_set_page(services: Services, session: str, name: str) -> tuple[tuple[str, ...], int]:
    """Read members of a set, sorted, and their number; of more than 200 an arbitrary part."""
    scope = _scope(services, session)
    key = scope.keys.key(scope.keys.set_part(name))
    total, members = await scope.read_many([("SCARD", key), ("SRANDMEMBER", key, MEMBERS)])
    return tuple(sorted(read_text(member) for member in members)), total


async def read_inbox(services: Services, session: str, agent: str) -> tuple[Directive, ...]:
    """Read the oldest 20 directives that an agent has not acknowledged."""
    scope = _scope(services, session)
    key = scope.keys.key(scope.keys.directives_part(agent))
    page = await scope.read("XRANGE", key, "-", "+", "COUNT", ENTRIES)
    return tuple(read_readable(lambda row: parse_directive(*row), page))


async def read_event_page(
    services: Services,
    session: str,
    *,
    before: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    name: str | None = None,
    limit: int = EVENTS,
) -> EventPage:
    """Read events of a workspace, newest first.

    Args:
        services: of the pool.
        session: its id.
        before: cursor of the page before: the id of an event.
        kind: only events of this kind.
        agent: only changes that this agent made.
        name: only changes of a path, log, set or state machine whose name contains this text.
        limit: maximum number.

    Raises:
        InvalidInput: that is no session.
    """
    filters: list[Callable[[WorkspaceEvent], bool]] = []
    if kind is not None:
        filters.append(lambda event: event.kind == kind)
    if agent is not None:
        filters.append(lambda event: event.agent == agent)
    if name is not None:
        part = name.casefold()
        filters.append(lambda event: any(part in str(change.name).casefold() for change in event.changes))

    def matches(event: WorkspaceEvent) -> bool:
        return all(fits(event) for fits in filters)

    return await _read_events(_scope(services, session), matches if filters else None, before, limit)


async def read_event_at(services: Services, session: str, event: str) -> tuple[WorkspaceEvent, ...]:
    """Read one event; none if it is not stored."""
    scope = _scope(services, session)
    page = await scope.read("XRANGE", scope.keys.key(CHANGES), event, event, "COUNT", 1)
    return tuple(_events(page))


def _scope(services: Services, session: str) -> ScopedStore:
    return bind_scope(services.store, services.settings, "session", session)


_SIZE_OF: Final = {"log": "LLEN", "set": "SCARD", "scratch": "HLEN", "inbox": "XLEN", "other": "EXISTS"}


async def _read_items(  # noqa: PLR0917
    scope: ScopedStore,
    part: str,
    parse: Callable[[bytes], Any],
    outline: WorkspaceOutline,
    number: int,
    after: str | None,
    contains: str | None,
) -> ItemPage:
    key = scope.keys.key(part)
    if number > NAMED:
        return await _walk_items(scope, key, parse, after, contains)
    names: list[bytes] = sorted(await scope.read("HKEYS", key))
    if contains is not None:
        wanted = contains.casefold()
        names = [name for name in names if wanted in read_text(name).casefold()]
    if after is not None:
        names = [name for name in names if name > after.encode(errors="replace")]
    shown = names[:PATHS]
    small = shown
    sizes: dict[bytes, int] = {}
    if outline.bytes > READ_AT_ONCE and shown:
        lengths = await scope.read_many([("HSTRLEN", key, name) for name in shown])
        sizes = dict(zip(shown, lengths, strict=True))
        small = [name for name in shown if sizes[name] <= PREVIEWED]
    values = dict(zip(small, await scope.read("HMGET", key, *small), strict=True)) if small else {}
    sizes |= {name: len(stored) for name, stored in values.items() if stored is not None}
    items = [
        WorkspaceItem(
            read_text(name),
            sizes[name],
            _parsed(values.get(name), parse) if sizes[name] <= PREVIEWED else None,
        )
        for name in shown
        if sizes.get(name)
    ]
    cursor = read_text(shown[-1]) if len(names) > PATHS else None
    return ItemPage(tuple(items), cursor)


async def _walk_items(
    scope: ScopedStore, key: str, parse: Callable[[bytes], Any], after: str | None, contains: str | None
) -> ItemPage:
    """Read the next paths in the order of the store; one that is named exactly comes first."""
    at = after if after is not None and after.isascii() and after.isdigit() else "0"
    exact = contains.encode(errors="replace") if contains is not None and at == "0" else None
    commands: list[tuple[Any, ...]] = [("HSCAN", key, at, "COUNT", PATHS)]
    if exact is not None:
        commands.append(("HGET", key, exact))
    (cursor, flat), *named = await scope.read_many(commands)
    pairs: dict[bytes, bytes] = {}
    if exact is not None and named[0] is not None:
        pairs[exact] = named[0]
    wanted = "" if contains is None else contains.casefold()
    for name, stored in zip(flat[::2], flat[1::2], strict=True):
        if wanted in read_text(name).casefold():
            pairs.setdefault(name, stored)
    items = [
        WorkspaceItem(read_text(name), len(stored), _parsed(stored, parse) if len(stored) <= PREVIEWED else None)
        for name, stored in sorted(pairs.items())
    ]
    return ItemPage(tuple(items), None if cursor == b"0" else read_text(cursor))


def _parsed(stored: bytes | None, parse: Callable[[bytes], Any]) -> Any:
    if stored is None:
        return None
    try:
        return parse(stored)
    except DamagedData:
        return None


async def _read_events(
    scope: ScopedStore, matches: Callable[[WorkspaceEvent], bool] | None, before: str | None, limit: int
) -> EventPage:
    count = limit + 1 if matches is None else LOOKED
    end = "+" if before is None else f"({before}"
    page: Sequence[Any] = await scope.read("XREVRANGE", scope.keys.key(CHANGES), end, "-", "COUNT", count)
    found: list[WorkspaceEvent] = []
    looked = 0
    for event in _events(page):
        if len(found) == limit:
            break
        looked += 1
        if matches is None or matches(event):
            found.append(event)
    more = looked < len(page) or len(page) == count
    return EventPage(tuple(found), read_text(page[looked - 1][0]) if looked and more else None, looked)


def _events(page: Iterable[Any]) -> Iterable[WorkspaceEvent]:
    return (read_event(entry, fields) for entry, fields in page)


def _change_of(event: WorkspaceEvent, path: str) -> Change | None:
    if event.kind != "patch" and event.detail.get("target") != "path":
        return None
    return next((change for change in event.changes if change.name == path), None)
