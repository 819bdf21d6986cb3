"""Parses and checks entries of the control stream. Pure.

Readers refuse commands that were not added by `control/append`: unsigned, late or replayed ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.desired import SKEW_MS
from orchestrator.core.command_record import Issued, SlotValue, unpack_issued
from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_text, read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.commands import Command
    from orchestrator.control.signing import Signer
    from orchestrator.store.keys import PoolKeys

READ_COUNT: Final = 100
"""Entries per read, so that other work continues between two reads."""
_ENTRY: Final = re.compile(rb"\d{1,19}-\d{1,19}")


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """An entry of the control stream.

    Attributes:
        entry: its id.
        issued: the envelope of the command, or None if it cannot be decoded.
        command: the command, or None if this version does not know it.
        packed: the envelope as stored.
        signature: as stored.
        problem: reason of a refusal, or empty if it is accepted.
    """

    entry: str
    issued: Issued | None
    command: Command | None
    packed: bytes = b""
    signature: bytes = b""
    problem: str = ""

    @property
    def id(self) -> str:
        """The id of the command; of the entry, if the command is unreadable."""
        return self.issued.id if self.issued else self.entry

    def came_after(self, other: Issued) -> bool:
        """Return whether it was issued at the same time as another command, or later."""
        return self.issued is not None and self.issued.issued_ms >= other.issued_ms

    def in_slot(self, slot: str) -> SlotValue | None:
        """Return the value that it sets in a slot of the desired state, or None if it leaves the slot unchanged."""
        changes = self.command.changes if self.command else ()
        for change in changes:
            if change.slot == slot and self.issued is not None:
                signature = read_text(self.signature)
                return SlotValue(change.mark or "-", self.issued, self.packed, signature, ended=not change.mark)
        return None


def read_entry(entry: str, fields: Sequence[bytes], signer: Signer) -> ControlEntry:
    """Parse and check an entry. `refuse_replays` finds repeated commands."""
    from orchestrator.control.commands import decode_command

    found = dict(zip(fields[::2], fields[1::2], strict=False))
    packed, signature = found.get(b"c", b""), found.get(b"s", b"")
    received = ControlEntry(entry, None, None, packed, signature)
    try:
        issued = unpack_issued(packed)
    except InvalidInput as unreadable:
        return replace(received, problem=str(unreadable))
    received = replace(received, issued=issued)
    if not signer.accepts(packed, read_text(signature)):
        return replace(received, problem="its signature is invalid" if signature else "it is not signed")
    try:
        received = replace(received, command=decode_command(issued.command))
    except InvalidInput as unknown:
        return replace(received, problem=str(unknown))
    came_ms = read_whole(entry.partition("-")[0])
    if came_ms > issued.not_after_ms:
        return replace(received, problem="it arrived too late")
    if issued.issued_ms > came_ms + SKEW_MS:
        return replace(received, problem="its time of issue is in the future")
    return received


def nonces(keys: PoolKeys, received: Sequence[ControlEntry], *, of_records: bool = False) -> list[tuple[str, str]]:
    """Return the Redis commands that read the nonces of the accepted entries.

    MGET returns nil for a key of another type, so that one damaged nonce does not fail the whole pipeline.
    """
    key = keys.record_nonce if of_records else keys.nonce
    return [("MGET", key(one.id)) for one in received if not one.problem]


def named_entries(received: Sequence[ControlEntry], replies: Sequence[Any]) -> list[str]:
    """Return for each entry the other one that its nonce names as the first of the command; empty if there is none."""
    stored = iter(replies)
    named: list[str] = []
    for one in received:
        nonce = None if one.problem else next(stored)[0]
        first = b"" if nonce is None else nonce.partition(b" ")[0]
        named.append(read_text(first) if _ENTRY.fullmatch(first) and read_text(first) != one.entry else "")
    return named


def refuse_replays(
    received: Sequence[ControlEntry], named: Sequence[str], pages: Sequence[Sequence[Any]]
) -> list[ControlEntry]:
    """Mark repeated commands as refused.

    Each client may write nonces, so one that names no entry of the command in the stream does not count.

    Args:
        received: the entries.
        named: the result of `named_entries`.
        pages: the replies to XRANGE on those.
    """
    found = iter(pages)
    judged: list[ControlEntry] = []
    for one, first in zip(received, named, strict=True):
        repeats = first != "" and any(_id_of(fields) == one.id for _, fields in next(found))
        judged.append(replace(one, problem="it was given before") if repeats else one)
    return judged


def _id_of(fields: Sequence[bytes]) -> str:
    packed = dict(zip(fields[::2], fields[1::2], strict=False)).get(b"c", b"")
    try:
        return unpack_issued(packed).id
    except InvalidInput:
        return ""
