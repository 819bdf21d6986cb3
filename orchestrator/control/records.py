"""Reads the record of commands, and of actions without one: actor, time, reason and state of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.desired import Desired, read_desired
from orchestrator.control.entries import ControlEntry, named_entries, nonces, read_entry, refuse_replays
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput, NotFound, StoreError
from orchestrator.core.reading import read_text, read_whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    from orchestrator.control.commands import Command
    from orchestrator.control.signing import Signer
    from orchestrator.store.store import Store

PAGE: Final = 500

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


async def without_replays(store: Store, stream: str, received: Sequence[ControlEntry]) -> list[ControlEntry]:
    """Mark the entries of a stream that repeat an earlier one as refused."""
    asked = nonces(store.keys, received, of_records=stream == store.keys.action_records)
    named = named_entries(received, await _replies(store, asked))
    return refuse_replays(
        received, named, await _replies(store, [("XRANGE", stream, first, first) for first in named if first])
    )


async def _replies(store: Store, asked: Sequence[tuple[str, ...]]) -> Sequence[Any]:
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
