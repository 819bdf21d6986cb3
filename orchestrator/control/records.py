"""The record of commands: who asked for what, when and why, and whether it is in force. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.control.desired import Desired, read_desired
from orchestrator.control.entries import Heard, read_entry
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.control.signing import Signer
    from orchestrator.store.store import Store

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Record:
    """One command as it was given.

    Attributes:
        id: of the command; of the entry, when it is unreadable.
        at: when Redis accepted or refused it.
        kind: what it is; empty: unreadable.
        words: the command on one line.
        actor: who; empty: unreadable.
        reason: why.
        state: `in force`, `to be done` (a job), `given` (nothing of it stands any more), `refused`.
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
    """What is in force."""
    return read_desired(await store.execute("HGETALL", store.keys.desired), signer)


async def records(store: Store, signer: Signer, *, limit: int) -> list[Record]:
    """The newest commands, those that were refused among them, newest first."""
    now = await desired(store, signer)
    given = await store.execute("XREVRANGE", store.keys.control, "+", "-", "COUNT", limit)
    refused = await store.execute("XREVRANGE", store.keys.refused_control, "+", "-", "COUNT", limit)
    found = [_record(read_entry(entry.decode(), fields, signer), now, "") for entry, fields in given]
    for entry, fields in refused:
        why = dict(zip(fields[::2], fields[1::2], strict=False)).get(b"r", b"").decode(errors="replace")
        found.append(_record(read_entry(entry.decode(), fields, signer), now, why or "?"))
    return sorted(found, key=lambda record: record.at, reverse=True)[:limit]


async def find(store: Store, signer: Signer, id_: str) -> Heard:
    """One command that was accepted, by its id.

    Raises:
        NotFound: no such command, or the stream does not reach back to it.
    """
    before = "+"
    while True:
        page = await store.execute("XREVRANGE", store.keys.control, before, "-", "COUNT", PAGE)
        for entry, fields in page:
            heard = read_entry(entry.decode(), fields, signer)
            if id_ in (heard.id, heard.entry):
                return heard
        if len(page) < PAGE:
            raise NotFound(f"no command {id_}, or it is so long ago that the record does not reach back to it")
        before = f"({page[-1][0].decode()}"


async def record_of(store: Store, signer: Signer, heard: Heard) -> Record:
    """What is known of a command that was found."""
    return _record(heard, await desired(store, signer), "")


def _record(heard: Heard, now: Desired, refusal: str) -> Record:
    problem = refusal or heard.problem
    standing = {one.issued.id for one in now.standing.values()}
    if problem:
        state = "refused"
    elif heard.id in standing:
        state = "in force"
    elif heard.id in {job.issued.id for job in now.jobs}:
        state = "to be done"
    else:
        state = "given"
    return Record(
        id=heard.id,
        at=from_instant_ms(int(heard.entry.partition("-")[0])),
        kind=heard.command.kind if heard.command else "",
        words=heard.command.words if heard.command else "(unreadable)",
        actor=heard.issued.actor if heard.issued else "",
        reason=heard.issued.reason if heard.issued else "",
        state=state,
        problem=problem,
        entry=heard.entry,
    )
