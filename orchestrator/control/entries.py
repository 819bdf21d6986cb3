"""What a reader makes of the control stream: true commands, and what is refused and why. Pure.

A command that came past `control/append` is found here: it is unsigned, too late, or was given before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.commands import Command, decode_command
from orchestrator.control.desired import SKEW_MS
from orchestrator.core.errors import InvalidInput
from orchestrator.core.issued import Issued, SlotValue, unpack_issued

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.signing import Signer
    from orchestrator.store.keys import PoolKeys

READ_COUNT: Final = 100
"""Entries that are read at once: between two reads of a flood other work goes on."""


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """One entry of the control stream.

    Attributes:
        entry: its id.
        issued: who asked for what; None: unreadable.
        command: None: not one that this version knows.
        packed: the command as it came.
        signature: as it came.
        problem: why it is refused; empty: it is to be obeyed.
    """

    entry: str
    issued: Issued | None
    command: Command | None
    packed: bytes = b""
    signature: bytes = b""
    problem: str = ""

    @property
    def id(self) -> str:
        """The command's id, or that of the entry if there is none to be read."""
        return self.issued.id if self.issued else self.entry

    def came_after(self, other: Issued) -> bool:
        """Whether it was not given before this other one."""
        return self.issued is not None and self.issued.issued_ms >= other.issued_ms

    def in_slot(self, slot: str) -> SlotValue | None:
        """What it puts into a slot of the desired state; None: nothing. Whether a job was done it cannot tell."""
        changes = self.command.changes if self.command else ()
        for change in changes:
            if change.slot == slot and self.issued is not None:
                signature = self.signature.decode(errors="replace")
                return SlotValue(change.mark or "-", self.issued, self.packed, signature, ended=not change.mark)
        return None


def read_entry(entry: str, fields: Sequence[bytes], signer: Signer) -> ControlEntry:
    """Judge one entry by itself; whether it was given before, its nonce tells (`refuse_replays`)."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))
    packed, signature = found.get(b"c", b""), found.get(b"s", b"")
    received = ControlEntry(entry, None, None, packed, signature)
    try:
        issued = unpack_issued(packed)
    except InvalidInput as unreadable:
        return replace(received, problem=str(unreadable))
    received = replace(received, issued=issued)
    if not signer.accepts(packed, signature.decode(errors="replace")):
        return replace(received, problem="its signature is not true" if signature else "it is not signed")
    try:
        received = replace(received, command=decode_command(issued.command))
    except InvalidInput as unknown:
        return replace(received, problem=str(unknown))
    came_ms = int(entry.partition("-")[0])
    if came_ms > issued.not_after_ms:
        return replace(received, problem="it came too late")
    if issued.issued_ms > came_ms + SKEW_MS:
        return replace(received, problem="it says that it was issued in the future")
    return received


def nonces(keys: PoolKeys, received: Sequence[ControlEntry]) -> list[tuple[str, str]]:
    """The commands that read the nonces of what is to be obeyed.

    By MGET, which says of a key that holds something else that there is nothing: that must not keep anybody from
    answering all the other commands.
    """
    return [("MGET", keys.nonce(one.id)) for one in received if not one.problem]


def refuse_replays(received: Sequence[ControlEntry], replies: Sequence[Any]) -> list[ControlEntry]:
    """Refuse what was given before: the nonce of a command names the entry that it first had."""
    stored = iter(replies)
    judged: list[ControlEntry] = []
    for one in received:
        nonce = None if one.problem else next(stored)[0]
        first = one.entry if nonce is None else nonce.partition(b" ")[0].decode(errors="replace")
        judged.append(one if first == one.entry else replace(one, problem="it was given before"))
    return judged
