"""Reads the receipts of a command and finds the processes that have not answered."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_text, read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.commands import Command
    from orchestrator.control.signing import Signer
    from orchestrator.store.store import Store

SUPERVISOR: Final = "supervisor"
"""Sender of the receipts of the leading supervisor."""

SIGNATURE: Final = b"~"
"""Prefix of the field with the signature of a sender's receipt."""

KEPT: Final = timedelta(days=7)
"""How long receipts are kept; the same number as in `lua/control/receipt.lua`."""

_FINAL: Final = frozenset({"done", "failed", "refused"})
INSTANT_DIGITS: Final = 13
"""Digits of a time in ms before the year 2286."""
_POLL_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Receipt:
    """Receipt of one worker or of the supervisor.

    Attributes:
        sender: id of the worker, or `supervisor`.
        word: `received`, `progress` (of a job), `done`, `failed` or `refused`.
        detail: more text, or empty.
        at: time of the receipt by the clock of Redis.
    """

    sender: str
    word: str
    detail: str
    at: datetime

    @property
    def final(self) -> bool:
        """True if the sender sends no further receipt."""
        return self.word in _FINAL


@dataclass(frozen=True, slots=True)
class Receipts:
    """Receipts of a command.

    Attributes:
        answered: the receipts in the order of their times.
        missing: live processes that have not answered and ran when the command was given.
        busy: live processes that have answered and are not done.
        forged: receipts without a valid signature, which do not count, when there is a secret. An older program
            signs none.
    """

    answered: tuple[Receipt, ...]
    missing: tuple[str, ...]
    busy: tuple[str, ...] = ()
    forged: tuple[Receipt, ...] = ()

    @property
    def complete(self) -> bool:
        """True if no receipt is missing."""
        return not self.missing

    @property
    def done(self) -> bool:
        """True if every process is done."""
        return not self.missing and not self.busy


async def poll(store: Store, id_: str, command: Command, *, at: datetime, signer: Signer) -> Receipts:
    """Read the receipts of a command.

    Args:
        store: of the pool.
        id_: of the command.
        command: the command; its audience must answer.
        at: when it was accepted.
        signer: checks their signatures.
    """
    keys = store.keys
    reply, workers, leader = _answers(
        await store.pipeline([("HGETALL", keys.receipts(id_)), ("ZRANGE", keys.workers, 0, -1), ("GET", keys.leader)])
    )
    answered, forged = _parse(id_, reply, signer)
    received = {receipt.sender for receipt in answered}
    live = {read_text(name) for name in workers}
    busy = [one.sender for one in answered if not one.final and (one.sender == SUPERVISOR or one.sender in live)]
    asked: set[str] = set()
    if command.audience == "all":
        asked = live
    elif command.audience == "worker":
        asked = live & {getattr(command, "worker", "")}
    missing: list[str] = []
    # Older receipts are deleted, so that missing ones cannot be told.
    if datetime.now(UTC) - at < KEPT:
        missing = await _there_at(store, sorted(asked - received), at)
        awaits_supervisor = command.audience in {"all", "supervisor"} and (command.job or leader is not None)
        missing += [SUPERVISOR] if awaits_supervisor and SUPERVISOR not in received else []
    return Receipts(answered, tuple(missing), tuple(busy), forged)


async def _there_at(store: Store, workers: Sequence[str], at: datetime) -> list[str]:
    """Return the workers that had started by this time."""
    if not workers:
        return []
    started = _answers(await store.pipeline([("HGET", store.keys.worker(name), "started_ms") for name in workers]))
    return [
        name
        for name, since_ms in zip(workers, started, strict=True)
        if since_ms is not None and from_instant_ms(read_whole(since_ms)) <= at
    ]


def _answers(replies: Sequence[Any]) -> Sequence[Any]:
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    return replies


async def wait(
    store: Store,
    id_: str,
    command: Command,
    *,
    at: datetime,
    signer: Signer,
    timeout_s: float | None,
    until_done: bool,
) -> Receipts:
    """Wait until every process has answered, or is done; at the time-out, return the receipts so far."""
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        found = await poll(store, id_, command, at=at, signer=signer)
        if (found.done if until_done or command.job else found.complete) or time.monotonic() >= end_s:
            return found
        await anyio.sleep(_POLL_EVERY_S)


def read_receipt(text: bytes) -> tuple[int, str, str] | None:
    """Parse a field of `receipts:CMD` into time in ms, word and detail; return None if it is malformed."""
    at, _, rest = read_text(text).partition(" ")
    word, _, detail = rest.partition(" ")
    return (
        (read_whole(at), word, detail) if at.isascii() and at.isdigit() and len(at) <= INSTANT_DIGITS and word else None
    )


def read_signed(
    command: str, sender: str, text: bytes, signature: bytes | None, signer: Signer
) -> tuple[int, str, str] | None:
    """Parse a receipt as `read_receipt` does; None also if its signature is invalid."""
    said = read_receipt(text)
    if said is None or not signer.accepts_receipt(command, sender, *said[1:], read_text(signature or b"")):
        return None
    return said


def _parse(command: str, reply: Sequence[bytes], signer: Signer) -> tuple[tuple[Receipt, ...], tuple[Receipt, ...]]:
    """Return the receipts of a command by time: those that count, and those without a valid signature."""
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    true: list[Receipt] = []
    forged: list[Receipt] = []
    for name, text in fields.items():
        if name.startswith(SIGNATURE):
            continue
        said, sender = read_receipt(text), read_text(name)
        # A malformed receipt is ignored, because no process of the pool wrote it.
        if said is not None:
            is_true = read_signed(command, sender, text, fields.get(SIGNATURE + name), signer) is not None
            (true if is_true else forged).append(Receipt(sender, said[1], said[2], from_instant_ms(said[0])))
    by_time = attrgetter("at")
    return tuple(sorted(true, key=by_time)), tuple(sorted(forged, key=by_time))
