"""One typed wrapper per script in `lua/control/`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.issued import Issued
    from orchestrator.core.rates import Rate
    from orchestrator.store.keys import PoolKeys


class AppendStatus(StrEnum):
    """What became of a command that was sent."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    EXPIRED = "expired"
    EARLY = "early"
    STALE = "stale"
    BUSY = "busy"


class AppendReply(NamedTuple):
    """`entry` is that of the stream; of a replayed command that of the first time; else empty."""

    status: AppendStatus
    entry: str


class ChangeRow(NamedTuple):
    """A change of the desired state, in the column order of `lua/control/append.lua`; the last two are of a limit."""

    slot: str
    mark: str
    starts: int | None = None
    window_us: int | None = None

    @classmethod
    def of(cls, slot: str, mark: str, rate: Rate | None) -> ChangeRow:
        """A change of the desired state; `rate` of a limit that is set."""
        return cls(slot, mark, rate.count, rate.window_us) if rate else cls(slot, mark)


def append(
    keys: PoolKeys,
    *,
    issued: Issued,
    packed: bytes,
    signature: str,
    changes: Sequence[ChangeRow],
    job: bool,
    per_minute: int,
    token: str,
    now_us: str = "",
) -> Call[AppendReply]:
    """Accept a command, change the desired state, announce it."""

    def parse(reply: list[bytes]) -> AppendReply:
        return AppendReply(AppendStatus(reply[0].decode()), reply[1].decode())

    args: Arguments = {
        "pool": keys.root,
        "id": issued.id,
        "packed": packed,
        "signature": signature,
        "changes": pack_rows(changes),
        "job": "1" if job else "",
        "sealed": "1" if signature else "",
        "issued_ms": issued.issued_ms,
        "not_after_ms": issued.not_after_ms,
        "epoch": issued.epoch,
        "per_minute": per_minute,
        "token": token,
        "now_arg": now_us,
    }
    return Call("control/append", args, parse)


class Verification(StrEnum):
    """What becomes of a slot."""

    TRUE = "true"
    FALSE = "false"
    OVER = "over"


class VerificationRow(NamedTuple):
    """A slot as it was read, in the column order of `lua/control/verify.lua`.

    Of a false one the rate of the limit that comes back, and what does: without it, what was verified.
    """

    slot: str
    value: bytes
    verification: Verification
    starts: int | None = None
    window_us: int | None = None
    again: bytes | None = None


def verify(
    keys: PoolKeys, *, rows: Sequence[VerificationRow], seq: bytes = b"", sessions: int | None = None
) -> Call[int]:
    """Note which slots carry true signatures, undo the others, drop what is over; how many are not what they were.

    Args:
        keys: of the pool.
        rows: slots, up to 500.
        seq: of the state that was read.
        sessions: how many sessions are stopped in it, if it says something else.
    """
    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows(
            [(row.slot, opaque(row.value), *row[2:5], None if row.again is None else opaque(row.again)) for row in rows]
        ),
        "seq": seq,
        "sessions": "" if sessions is None else str(sessions),
    }
    return Call("control/verify", args, int)


class ReceiptRow(NamedTuple):
    """What one worker or supervisor says of one command: received, done, refused, failed or progress."""

    command: str
    sender: str
    word: str
    detail: str = ""


def receipt(keys: PoolKeys, *, rows: Sequence[ReceiptRow], now_us: str = "") -> Call[int]:
    """Note up to 500 receipts; how many were news."""
    return Call("control/receipt", {"pool": keys.root, "rows": pack_rows(rows), "now_arg": now_us}, int)


class RefusedRow(NamedTuple):
    """An entry of the control stream that a reader refuses, in the column order of `lua/control/refuse.lua`."""

    entry: str
    packed: bytes
    signature: bytes
    why: str


def refuse(keys: PoolKeys, *, rows: Sequence[RefusedRow]) -> Call[int]:
    """ControlRecord up to 500 refused entries; how many were recorded."""
    packed = pack_rows([(row.entry, opaque(row.packed), opaque(row.signature), row.why) for row in rows])
    return Call("control/refuse", {"pool": keys.root, "rows": packed}, int)


def settle(keys: PoolKeys, *, id_: str, sender: str, word: str, detail: str, now_us: str = "") -> Call[bool]:
    """End a job with its receipt; False: it was ended before."""
    args: Arguments = {
        "pool": keys.root,
        "id": id_,
        "sender": sender,
        "word": word,
        "detail": detail,
        "now_arg": now_us,
    }
    return Call("control/settle", args, bool)


def select(keys: PoolKeys, *, id_: str, at: int, tasks: Sequence[str]) -> Call[int]:
    """Keep up to 500 more tasks that a job is for; `at` is how many there are before these. How many there are now."""
    rows = pack_rows([(task,) for task in tasks])
    return Call("control/select", {"pool": keys.root, "id": id_, "at": at, "rows": rows}, int)


def release(keys: PoolKeys, *, scope: str, slot: str, limit: int) -> Call[tuple[int, bool]]:
    """Move up to `limit` tasks that a stop held back to their queues: how many, and whether there are more."""
    args: Arguments = {"pool": keys.root, "scope": scope, "slot": slot, "limit": limit}
    return Call("control/release", args, lambda reply: (reply[0], bool(reply[1])))
