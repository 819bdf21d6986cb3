"""Wraps the scripts in `lua/control/`, one function per script."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.core.reading import read_text, read_word
from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.signing import Signer
    from orchestrator.core.command_record import Issued
    from orchestrator.core.rates import Rate
    from orchestrator.store.keys import PoolKeys


REMEMBERED_S: Final = 3600
"""How long Redis remembers the id of a command at least, and refuses its repeat (`remember_s` of the script)."""


class AppendStatus(StrEnum):
    """Outcome of `control/append`."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    EXPIRED = "expired"
    EARLY = "early"
    STALE = "stale"
    BUSY = "busy"
    ENDED = "ended"
    HELD = "held"
    BELOW = "below"
    USED = "used"
    DAMAGED = "damaged"


class AppendReply(NamedTuple):
    """`entry`: id of the entry; of a replayed command, of the first one; of `below`, unit and amount; else empty."""

    status: AppendStatus
    entry: str


class ChangeRow(NamedTuple):
    """A change in the column order of `lua/control/append.lua`; the last three are for limits and budgets."""

    slot: str
    mark: str
    starts: int | None = None
    window_us: int | None = None
    budget: str | None = None

    @classmethod
    def of(cls, slot: str, mark: str, rate: Rate | None, budget: str | None = None) -> ChangeRow:
        """Return the row of a change; `rate`: new rate of a limit; `budget`: definition of a budget."""
        if rate is not None:
            return cls(slot, mark, rate.count, rate.window_us)
        return cls(slot, mark, budget=budget)


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
    restore: str = "",
    now_us: str = "",
) -> Call[AppendReply]:
    """Accept a command, change the desired state and append to the control stream."""

    def parse(reply: list[bytes]) -> AppendReply:
        return AppendReply(read_word(AppendStatus, reply[0]), read_text(reply[1]))

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
        "restore": restore,
        "now_arg": now_us,
    }
    return Call("control/append", args, parse)


class Verification(StrEnum):
    """Outcome of the check of a slot."""

    TRUE = "true"
    FALSE = "false"
    OVER = "over"


class VerificationRow(NamedTuple):
    """A checked slot in the column order of `lua/control/verify.lua`.

    Attributes:
        slot: its name.
        value: as it was read.
        verification: outcome of the check.
        starts: of a false slot: count of the rate that the limit returns to.
        window_us: of a false slot: window of that rate.
        again: value to restore in a false slot, or None for the verified one.
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
    """Mark true slots as verified, restore false ones, delete ended ones, and return the number of changed slots.

    Args:
        keys: of the pool.
        rows: up to 500 slots.
        seq: of the state that was read.
        sessions: number of stopped sessions, or None if the stored number is right.
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


class RestoreRow(NamedTuple):
    """A slot that Redis has lost, in the column order of `lua/control/restore.lua`.

    Attributes:
        slot: its name.
        revision: of its last change.
        value: as it was stored, or empty if its command has ended.
        starts: of an active limit: count of its rate.
        window_us: of an active limit: window of its rate.
    """

    slot: str
    revision: int
    value: bytes = b""
    starts: int | None = None
    window_us: int | None = None


def restore(
    keys: PoolKeys,
    *,
    rows: Sequence[RestoreRow],
    verified: bool,
    epoch: int,
    pruned: int,
    mark: str = "",
    now_us: str = "",
) -> Call[int]:
    """Write up to 500 lost slots back, and return the number of written ones; -1 when the mark is another one.

    Args:
        keys: of the pool.
        rows: the slots.
        verified: whether their signatures were verified.
        epoch: the known epoch.
        pruned: the highest revision that is known to be pruned.
        mark: of the restore of a backup.
        now_us: test override.
    """
    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows([(row.slot, row.revision, opaque(row.value), *row[3:]) for row in rows]),
        "sealed": "1" if verified else "",
        "epoch": epoch,
        "pruned": pruned,
        "mark": mark,
        "now_arg": now_us,
    }
    return Call("control/restore", args, int)


def prune(keys: PoolKeys, *, rows: Sequence[tuple[str, int]]) -> Call[int]:
    """Forget up to 500 revisions of ended commands (slot, revision), and return the number of forgotten ones."""
    return Call("control/prune", {"pool": keys.root, "rows": pack_rows(rows)}, int)


class ReceiptRow(NamedTuple):
    """Receipt for one command; `word`: received, done, refused, failed or progress."""

    command: str
    sender: str
    word: str
    detail: str = ""


def receipt(keys: PoolKeys, *, rows: Sequence[ReceiptRow], signer: Signer | None = None, now_us: str = "") -> Call[int]:
    """Store up to 500 receipts, signed if the signer has a secret, and return the number of new ones."""
    signed = [(*row, signer.sign_receipt(*row) if signer else "") for row in rows]
    return Call("control/receipt", {"pool": keys.root, "rows": pack_rows(signed), "now_arg": now_us}, int)


class RefusedRow(NamedTuple):
    """A refused entry of the control stream, in the column order of `lua/control/refuse.lua`."""

    entry: str
    packed: bytes
    signature: bytes
    why: str


def refuse(keys: PoolKeys, *, rows: Sequence[RefusedRow]) -> Call[int]:
    """Record up to 500 refused entries and return the number of recorded ones."""
    packed = pack_rows([(row.entry, opaque(row.packed), opaque(row.signature), row.why) for row in rows])
    return Call("control/refuse", {"pool": keys.root, "rows": packed}, int)


def finish_job(
    keys: PoolKeys,
    *,
    id_: str,
    sender: str,
    status: str,
    detail: str,
    signer: Signer | None = None,
    now_us: str = "",
) -> Call[bool]:
    """End a job with its receipt; return False if it had ended before."""
    args: Arguments = {
        "pool": keys.root,
        "id": id_,
        "sender": sender,
        "status": status,
        "detail": detail,
        "signature": signer.sign_receipt(id_, sender, status, detail) if signer else "",
        "now_arg": now_us,
    }
    return Call("control/finish_job", args, bool)


def select(keys: PoolKeys, *, id_: str, at: int, tasks: Sequence[str]) -> Call[int]:
    """Add up to 500 tasks to the selection of a job after its first `at` tasks and return their new number."""
    rows = pack_rows([(task,) for task in tasks])
    return Call("control/select", {"pool": keys.root, "id": id_, "at": at, "rows": rows}, int)


def release(keys: PoolKeys, *, scope: str, slot: str, limit: int) -> Call[tuple[int, bool]]:
    """Requeue up to `limit` suspended tasks, and return their number and whether more are left."""
    args: Arguments = {"pool": keys.root, "scope": scope, "slot": slot, "limit": limit}
    return Call("control/release", args, lambda reply: (reply[0], bool(reply[1])))
