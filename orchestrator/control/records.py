"""The record of commands: who asked for what, when and why, and whether it is active. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.desired import Desired, read_desired
from orchestrator.control.entries import ControlEntry, nonces, read_entry, refuse_replays
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    from orchestrator.control.commands import Command
    from orchestrator.control.signing import Signer
    from orchestrator.store.store import Store

PAGE: Final = 500

_PROBLEMS: Final = {
    "replayed": "it was given before",
    "expired": "it came too late",
    "early": "it says that it was issued in the future",
    "stale": "it was issued before the epoch was renewed",
    "busy": "more commands than control.per_minute were given in that minute",
}
"""The words of `lua/control/append.lua`; what readers refuse says why itself."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """One command as it was given.

    Attributes:
        id: of the command; of the entry, when it is unreadable.
        at: when Redis accepted or refused it.
        kind: what it is; empty: unreadable.
        words: the command on one line.
        actor: who; empty: unreadable.
        reason: why.
        state: `active`, `to be done` (a job), `given` (nothing of it stands any more), `refused`.
        problem: why it was refused; empty: it was not.
        entry: of the stream.
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
    """What is active."""
    return read_desired(await store.execute("HGETALL", store.keys.desired), signer)


async def records(
    store: Store,
    signer: Signer,
    *,
    limit: int,
    since: datetime | None = None,
    wanted: Callable[[ControlRecord], bool] = lambda _: True,
) -> list[ControlRecord]:
    """The newest commands, those that were refused among them, newest first.

    Args:
        store: where.
        signer: checks them.
        limit: so many at most.
        since: none that came before.
        wanted: only those.
    """
    now = await desired(store, signer)
    from_ms = "-" if since is None else str(max(0, int(since.timestamp() * 1000)))
    found: list[ControlRecord] = []
    refused = await _refused(store, signer, since=from_ms)
    found += [record for record in (_record(one, now) for one in refused.values()) if wanted(record)]
    given = 0
    async for page in _pages(store, signer, since=from_ms):
        for received in page:
            if received.entry not in refused and given < limit and wanted(record := _record(received, now)):
                found.append(record)
                given += 1
        if given >= limit:
            break
    return sorted(found, key=lambda record: record.at, reverse=True)[:limit]


async def without_replays(store: Store, received: Sequence[ControlEntry]) -> list[ControlEntry]:
    """The same entries, those refused that were given before."""
    asked = nonces(store.keys, received)
    replies = await store.pipeline(asked) if asked else []
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return refuse_replays(received, replies)


async def find(store: Store, signer: Signer, id_: str) -> tuple[ControlRecord, Command | None]:
    """One command by its id, or by that of its entry: that which was accepted, if others have the same id.

    Raises:
        NotFound: no such command, or the record does not reach back to it.
    """
    refused = await _refused(store, signer, since="-")
    found = [one async for page in _pages(store, signer, since="-") for one in page if id_ in (one.id, one.entry)]
    true = [one for one in found if not one.problem and one.entry not in refused]
    others = [refused.get(one.entry, one) for one in found] + [
        one for one in refused.values() if id_ in (one.id, one.entry)
    ]
    # Newest first: of several with one id the first was accepted.
    for received in [*true[::-1], *others]:
        return _record(received, await desired(store, signer)), received.command
    raise NotFound(f"no command {id_}, or it is so long ago that the record does not reach back to it")


async def _pages(store: Store, signer: Signer, *, since: str) -> AsyncIterator[list[ControlEntry]]:
    """The entries of the control stream, judged, newest first."""
    before = "+"
    while True:
        page = await store.execute("XREVRANGE", store.keys.control, before, since, "COUNT", PAGE)
        received = [read_entry(entry.decode(), fields, signer) for entry, fields in page]
        yield await without_replays(store, received)
        if len(page) < PAGE:
            return
        before = f"({page[-1][0].decode()}"


async def _refused(store: Store, signer: Signer, *, since: str) -> dict[str, ControlEntry]:
    """What was refused, by its entry in the control stream; by that in the other one, if it never got there."""
    found: dict[str, ControlEntry] = {}
    for entry, fields in await store.execute("XREVRANGE", store.keys.refused_control, "+", since):
        received, named = _refusal(entry.decode(), fields, signer)
        found[named] = received
    return found


def _refusal(entry: str, fields: Sequence[bytes], signer: Signer) -> tuple[ControlEntry, str]:
    said: dict[bytes, Any] = dict(zip(fields[::2], fields[1::2], strict=False))
    why = said.get(b"r", b"").decode(errors="replace")
    named = said.get(b"e", b"").decode(errors="replace")
    return replace(read_entry(entry, fields, signer), problem=_PROBLEMS.get(why, why) or "?"), named or entry


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
        at=from_instant_ms(int(received.entry.partition("-")[0])),
        kind=received.command.kind if received.command else "",
        words=received.command.words if received.command else "(unreadable)",
        actor=received.issued.actor if received.issued else "",
        reason=received.issued.reason if received.issued else "",
        state=state,
        problem=received.problem,
        entry=received.entry,
    )
