"""Reads the record of commands, and of actions without one: actor, time, reason and state of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.desired import Desired, read_desired
from orchestrator.control.entries import ControlEntry, named_entries, nonces, read_entry, refuse_replays
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput, NotFound, StoreError
from orchestrator.core.ids import TASK_ID_CHARS
from orchestrator.core.reading import read_text, read_whole, readable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    from orchestrator.control.commands import Command
    from orchestrator.control.signing import Signer
    from orchestrator.store.calls import Argument
    from orchestrator.store.store import Store

PAGE: Final = 500
_CURSOR: Final = re.compile(r"\d{1,20}-\d{1,20}")

_PROBLEMS: Final = {
    "replayed": "it was given before",
    "expired": "it arrived too late",
    "early": "its time of issue is in the future",
    "stale": "it was issued before the epoch was renewed",
    "busy": "more commands than control.per_minute were given in that minute",
}
"""Text for the status codes of `lua/control/append.lua`; readers store the text itself."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A command in the record.

    Attributes:
        id: of the command; of the entry, when the command is unreadable.
        at: when Redis accepted or refused it.
        kind: kind of the command, or empty if it cannot be decoded.
        words: the command on one line.
        actor: actor of the command, or empty if it cannot be decoded.
        reason: of the command.
        state: `active`, `to be done` (a job), `given` (no longer active), `refused`.
        problem: reason of a refusal, or empty if it was accepted.
        entry: id of its stream entry.
    """

    id: str
    at: datetime
    kind: str
    words: str
    actor: str
    reason: str
    state: str
    problem: str
    entry: str


async def desired(store: Store, signer: Signer) -> Desired:
    """Read the desired state."""
    return read_desired(await store.execute("HGETALL", store.keys.desired), signer)


async def records(
    store: Store,
    signer: Signer,
    *,
    limit: int,
    since: datetime | None = None,
    wanted: Callable[[ControlRecord], bool] = lambda _: True,
) -> list[ControlRecord]:
    """Return the newest commands, newest first; refused commands are included.

    Args:
        store: of the pool.
        signer: checks their signatures.
        limit: at most this many.
        since: only commands from this time on.
        wanted: filter.
    """
    now = await desired(store, signer)
    from_ms = "-" if since is None else str(max(0, int(since.timestamp() * 1000)))
    found: list[ControlRecord] = []
    refused = await _refused(store, signer, since=from_ms)
    found += [record for record in (_record(one, now) for one in refused.values()) if wanted(record)]
    for stream in _streams(store):
        given = 0
        async for page in _pages(store, signer, stream, since=from_ms):
            for received in page:
                if (
                    _place(stream, received.entry) not in refused
                    and given < limit
                    and wanted(record := _record(received, now))
                ):
                    found.append(record)
                    given += 1
            if given >= limit:
                break
    return sorted(found, key=lambda record: record.at, reverse=True)[:limit]


@dataclass(frozen=True, slots=True)
class ControlPage:
    """A part of the record, newest first; `cursor` is for the next page, None at the end.

    Attributes:
        looked: entries that were looked at.
    """

    records: tuple[ControlRecord, ...]
    cursor: str | None
    looked: int


async def read_page(
    store: Store,
    signer: Signer,
    *,
    before: str | None = None,
    limit: int,
    wanted: Callable[[ControlRecord], bool] = lambda _: True,
) -> ControlPage:
    """Read `limit` entries of each stream from before a time on, and return those of the newest that are wanted.

    Args:
        store: of the pool.
        signer: checks their signatures.
        before: cursor of the page before.
        limit: entries to look at.
        wanted: filter.

    Raises:
        InvalidInput: `before` is no cursor.
    """
    if before is not None and not _CURSOR.fullmatch(before):
        raise InvalidInput(f"cursor {ascii(before)[:80]} is none of the record of commands")
    edge = "+" if before is None else f"({before}"
    keys = store.keys
    given, refusals = _streams(store), (keys.refused_control, keys.refused_records)
    replies = await store.pipeline(
        [("HGETALL", keys.desired)]
        + [("XREVRANGE", stream, edge, "-", "COUNT", limit) for stream in (*given, *refusals)]
    )
    fields, *read = [readable(reply, []) for reply in replies]
    now = read_desired(fields, signer)
    found: list[tuple[str, str, ControlEntry]] = []
    for stream, entries in zip(given, read, strict=False):
        received = [read_entry(read_text(entry), values, signer) for entry, values in entries]
        checked = await without_replays(store, stream, received)
        found += [(one.entry, _place(stream, one.entry), one) for one in checked]
    for stream, entries in zip(refusals, read[2:], strict=True):
        for entry, values in entries:
            alone, named = _refusal(read_text(entry), values, signer)
            if not named:  # others are where their entry is
                found.append((alone.entry, _place(stream, alone.entry), alone))
    newest = sorted(found, key=lambda one: _order(one[0]), reverse=True)[:limit]
    refused = await _refused_since(store, signer, newest[-1][0]) if newest else {}
    rows = [_record(refused.get(place, received), now) for _, place, received in newest]
    full = any(len(entries) == limit for entries in read) or len(found) > limit
    cursor = newest[-1][0] if newest and full else None
    return ControlPage(tuple(row for row in rows if wanted(row)), cursor, len(newest))


async def _refused_since(store: Store, signer: Signer, entry: str) -> dict[str, ControlEntry]:
    """Return the refusals of entries of the control stream from this one on, by the place of the entry."""
    keys = store.keys
    replies = await store.pipeline(
        [("XRANGE", stream, entry, "+", "COUNT", PAGE) for stream in (keys.refused_control, keys.refused_records)]
    )
    found: dict[str, ControlEntry] = {}
    for reply in replies:
        for id_, values in readable(reply, []):
            received, named = _refusal(read_text(id_), values, signer)
            if named:
                found[_place(keys.control, named)] = received
    return found


def _order(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return read_whole(ms), read_whole(number)


async def without_replays(store: Store, stream: str, received: Sequence[ControlEntry]) -> list[ControlEntry]:
    """Mark the entries of a stream that repeat an earlier one as refused."""
    asked = nonces(store.keys, received, of_records=stream == store.keys.action_records)
    named = named_entries(received, await _replies(store, asked))
    return refuse_replays(
        received, named, await _replies(store, [("XRANGE", stream, first, first) for first in named if first])
    )


async def _replies(store: Store, asked: Sequence[Sequence[Argument]]) -> Sequence[Any]:
    replies = await store.pipeline(asked) if asked else []
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


async def find(store: Store, signer: Signer, id_: str) -> tuple[ControlRecord, Command | None]:
    """Return a command by its id, the beginning of it, or its entry; of several with one id, the accepted one.

    Raises:
        NotFound: the record has no such command.
        InvalidInput: several ids begin so.
    """
    quickly = await find_accepted(store, signer, id_)
    if quickly is not None:
        return _record(quickly, await desired(store, signer)), quickly.command
    refused = await _refused(store, signer, since="-")
    begun = [
        (_place(stream, one.entry), one)
        for stream in _streams(store)
        async for page in _pages(store, signer, stream, since="-")
        for one in page
        if one.id.startswith(id_) or one.entry == id_
    ]
    found = [(place, one) for place, one in begun if id_ in (one.id, one.entry)]
    if not found and begun:
        ids = {one.id for _, one in begun}
        if len(ids) > 1:
            raise InvalidInput(f"the ids of {len(ids)} commands begin with {id_}; give more of the id")
        found, id_ = begun, ids.pop()
    true = [one for place, one in found if not one.problem and place not in refused]
    others = [refused.get(place, one) for place, one in found] + [
        one for one in refused.values() if id_ in (one.id, one.entry)
    ]
    # The list is newest first, and the oldest of several with one id was accepted.
    for received in [*true[::-1], *others]:
        return _record(received, await desired(store, signer)), received.command
    raise NotFound(f"no command {id_} in the record; it keeps about the last 10,000 commands and 5000 actions")


async def find_accepted(store: Store, signer: Signer, id_: str) -> ControlEntry | None:
    """Return an accepted command by its whole id without a walk, as long as Redis keeps its nonce."""
    keys = store.keys
    if len(id_) != TASK_ID_CHARS:
        return None
    nonces_of = await _replies(store, [("MGET", keys.nonce(id_)), ("MGET", keys.record_nonce(id_))])
    for stream, (nonce,) in zip(_streams(store), nonces_of, strict=True):
        entry = read_text(nonce).partition(" ")[0]
        if not _CURSOR.fullmatch(entry):
            continue
        found, refused = await _replies(
            store, [("XRANGE", stream, entry, entry), ("XRANGE", keys.refused_control, entry, "+", "COUNT", PAGE)]
        )
        named = {_refusal(read_text(each), values, signer)[1] for each, values in refused}
        if found and entry not in named:
            received = read_entry(entry, found[0][1], signer)
            if received.id == id_ and not received.problem:
                return received
    return None


def _streams(store: Store) -> tuple[str, str]:
    """Return the keys of commands and of actions; programs of an older version add actions to the commands."""
    return store.keys.control, store.keys.action_records


def _place(stream: str, entry: str) -> str:
    """Return a text that identifies an entry among all streams, whose ids may be equal."""
    return f"{stream} {entry}"


async def _pages(store: Store, signer: Signer, stream: str, *, since: str) -> AsyncIterator[list[ControlEntry]]:
    """Yield the entries of a stream with their problems, newest first."""
    before = "+"
    while True:
        page = await store.execute("XREVRANGE", stream, before, since, "COUNT", PAGE)
        received = [read_entry(read_text(entry), fields, signer) for entry, fields in page]
        yield await without_replays(store, stream, received)
        if len(page) < PAGE:
            return
        before = f"({read_text(page[-1][0])}"


async def _refused(store: Store, signer: Signer, *, since: str) -> dict[str, ControlEntry]:
    """Return what was refused by its place in the control stream; by that of its refusal, if it has none there."""
    found: dict[str, ControlEntry] = {}
    for stream in (store.keys.refused_control, store.keys.refused_records):
        for entry, fields in await store.execute("XREVRANGE", stream, "+", since):
            received, named = _refusal(read_text(entry), fields, signer)
            found[_place(store.keys.control, named) if named else _place(stream, read_text(entry))] = received
    return found


def _refusal(entry: str, fields: Sequence[bytes], signer: Signer) -> tuple[ControlEntry, str]:
    said: dict[bytes, Any] = dict(zip(fields[::2], fields[1::2], strict=False))
    why = read_text(said.get(b"r", b""))
    named = read_text(said.get(b"e", b""))
    return replace(read_entry(entry, fields, signer), problem=_PROBLEMS.get(why, why) or "?"), named


def _record(received: ControlEntry, now: Desired) -> ControlRecord:
    active = {one.issued.id for one in (*now.active.values(), *now.config.values())}
    if received.problem:
        state = "refused"
    elif received.id in active:
        state = "active"
    elif received.id in {job.issued.id for job in now.jobs}:
        state = "to be done"
    else:
        state = "given"
    return ControlRecord(
        id=received.id,
        at=from_instant_ms(read_whole(received.entry.partition("-")[0])),
        kind=received.command.kind if received.command else "",
        words=received.command.words if received.command else "(unreadable)",
        actor=received.issued.actor if received.issued else "",
        reason=received.issued.reason if received.issued else "",
        state=state,
        problem=received.problem,
        entry=received.entry,
    )
