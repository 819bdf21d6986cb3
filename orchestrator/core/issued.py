"""The form in which a control command is stored and sent: the command with who asked for it, why and when.

What it means is not known here (`orchestrator.control.commands`); but whoever explains why a task waits can say who
stopped it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from orchestrator.core.errors import InvalidInput

VERSION: Final = 1
MAX_BYTES: Final = 65_536
"""No command is longer, whatever it says; what is longer is not even looked at."""


class Issued(msgspec.Struct, frozen=True, array_like=True):
    """A command as it was given.

    Attributes:
        version: of this form.
        id: its own, a UUIDv7; it also keeps a command from being obeyed twice.
        command: JSON, its `kind` and what belongs to it.
        actor: who asked.
        reason: why.
        issued_ms: when, by the server's clock.
        not_after_ms: from then on it is not accepted any more.
        epoch: of the pool, when it was issued.
        key: which secret signed it; empty: it is not signed.
    """

    version: int
    id: str
    command: bytes
    actor: str
    reason: str
    issued_ms: int
    not_after_ms: int
    epoch: int
    key: str = ""

    @property
    def words(self) -> str:
        """Who asked, and why, for a person."""
        return f"{self.actor}: {self.reason}" if self.reason else self.actor


class SlotValue(msgspec.Struct, frozen=True):
    """A field of `desired`: what is active, and the command that put it there.

    Attributes:
        mark: what is special about it, see `orchestrator.control.commands.DesiredChange`.
        issued: the command.
        packed: the command as it was signed.
        signature: hexadecimal; empty: not signed.
        ended: it is not active any more; kept, because its signature is to be checked.
    """

    mark: str
    issued: Issued
    packed: bytes
    signature: str
    ended: bool = False


_decode = msgspec.msgpack.Decoder(Issued).decode
_pack = msgspec.msgpack.Encoder().encode
_SIGNATURE_CHARS: Final = 64


def pack_issued(issued: Issued) -> bytes:
    """The bytes that are stored, sent and signed."""
    return _pack(issued)


def unpack_issued(packed: bytes) -> Issued:
    """Read a command.

    Raises:
        InvalidInput: these bytes are none, or those of a newer version.
    """
    if len(packed) > MAX_BYTES:
        raise InvalidInput(f"not a control command: {len(packed)} bytes, more than the {MAX_BYTES} allowed")
    try:
        issued = _decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as unreadable:
        raise InvalidInput(f"not a control command: {unreadable}") from None
    if issued.version != VERSION:
        raise InvalidInput(f"a control command of version {issued.version}; this program knows {VERSION}")
    return issued


def read_slot_value(value: bytes) -> SlotValue:
    """Read a field of `desired`: active (1 or 0), mark, signature or 64 blanks, command.

    Raises:
        InvalidInput: it is damaged.
    """
    head, packed = value[: 2 + _SIGNATURE_CHARS], value[2 + _SIGNATURE_CHARS :]
    if len(head) < 2 + _SIGNATURE_CHARS or not head.isascii():
        raise InvalidInput("a damaged entry of the desired state")
    flags = head.decode()
    return SlotValue(flags[1], unpack_issued(packed), packed, flags[2:].strip(), ended=flags[0] != "1")


def pack_slot_value(found: SlotValue) -> bytes:
    """The field of `desired` that says this."""
    return f"{0 if found.ended else 1}{found.mark}{found.signature:<{_SIGNATURE_CHARS}}".encode() + found.packed
