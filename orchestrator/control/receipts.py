"""Who has heard of a command and what came of it, and who has not answered yet. Reads only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.control.commands import Command
    from orchestrator.store.store import Store

SUPERVISOR: Final = "supervisor"
"""How the supervisor that leads is called among those who have not answered."""

_FINAL: Final = frozenset({"done", "failed", "refused"})
_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one worker or supervisor says of a command.

    Attributes:
        sender: the worker or supervisor.
        word: `heard`; `progress` of a job; `done` when nothing is left to do; `failed` or `refused`.
        detail: in words; empty when there is nothing to say.
        at: when, by the server's clock.
    """

    sender: str
    word: str
    detail: str
    at: datetime

    @property
    def final(self) -> bool:
        """Whether nothing more will come from this sender."""
        return self.word in _FINAL


@dataclass(frozen=True, slots=True)
class Receipts:
    """What is known of a command.

    Attributes:
        answered: the receipts, in the order of their times.
        missing: who is there and has not answered.
    """

    answered: tuple[Receipt, ...]
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether all who should have answered."""
        return not self.missing

    @property
    def done(self) -> bool:
        """Whether nothing is left to be done anywhere."""
        return self.complete and all(receipt.final for receipt in self.answered)


async def receipts(store: Store, id_: str) -> tuple[Receipt, ...]:
    """The receipts of a command, in the order of their times."""
    reply = await store.execute("HGETALL", store.keys.receipts(id_))
    return _parse(reply)


async def look(store: Store, id_: str, command: Command) -> Receipts:
    """Who has answered, and who of those that live now has not."""
    keys = store.keys
    replies = await store.pipeline(
        [("HGETALL", keys.receipts(id_)), ("ZRANGE", keys.workers, 0, -1), ("GET", keys.leader)]
    )
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    answered = _parse(replies[0])
    senders = {receipt.sender for receipt in answered}
    workers, leader = [name.decode() for name in replies[1]], replies[2]
    missing: list[str] = []
    match command.audience:
        case "everybody":
            missing += [worker for worker in workers if worker not in senders]
        case "worker":
            named = getattr(command, "worker", "")
            missing += [named] if named in workers and named not in senders else []
        case "nobody":
            return Receipts(answered, ())
    led = any(sender not in workers for sender in senders)
    if command.audience != "worker" and not led and (command.job or leader is not None):
        missing.append(SUPERVISOR)
    return Receipts(answered, tuple(missing))


async def wait(store: Store, id_: str, command: Command, *, timeout_s: float, until_done: bool) -> Receipts:
    """Wait until all have answered, or until all is done; at the time-out what there is."""
    end_s = time.monotonic() + timeout_s
    while True:
        found = await look(store, id_, command)
        if (found.done if until_done or command.job else found.complete) or time.monotonic() >= end_s:
            return found
        await anyio.sleep(_LOOK_EVERY_S)


def _parse(reply: Sequence[bytes]) -> tuple[Receipt, ...]:
    found: list[Receipt] = []
    for sender, text in zip(reply[::2], reply[1::2], strict=True):
        at_ms, word, detail = text.decode(errors="replace").split(" ", 2)
        found.append(Receipt(sender.decode(errors="replace"), word, detail, from_instant_ms(int(at_ms))))
    return tuple(sorted(found, key=lambda receipt: receipt.at))
