"""Encodes and decodes issued control commands: the command with actor, reason and time.

The packages below `control` use it to tell who stopped a task, without knowing the commands themselves.
"""

from __future__ import annotations

from typing import Final

import msgspec

from orchestrator.core.errors import InvalidInput

VERSION: Final = 1
SAID_CHARS: Final = 500
"""Limit of an actor and of a reason."""
MAX_BYTES: Final = 65_536
"""Limit of a packed command; a longer one is refused unread."""


class Issued(msgspec.Struct, frozen=True, array_like=True):
    """A command as an operator issued it.

    Attributes:
        version: of this encoding.
        id: UUIDv7, which also protects against replays.
        command: JSON with `kind` and fields.
        actor: name of the operator or program that issued it.
        reason: text shown in the command record.
        issued_ms: time of issue, by the server's clock.
        not_after_ms: time after which it is refused.
        epoch: epoch of the pool at that time.
        key: id of the signing secret, or empty if it is not signed.
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
        """Actor and reason, for people."""
        return f"{self.actor}: {self.reason}" if self.reason else self.actor


class SlotValue(msgspec.Struct, frozen=True):
    """A field of `desired`: an active or ended command.

    Attributes:
        mark: effect, see `orchestrator.control.commands.DesiredChange`.
        issued: the command.
        packed: the command as it was signed.
        signature: hexadecimal, or empty if it is not signed.
        ended: no longer active; kept because its signature must be checked.
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
    """Encode a command for storing, sending and signing."""
    return _pack(issued)


def unpack_issued(packed: bytes) -> Issued:
    """Decode a command.

    Raises:
        InvalidInput: it is not a command, or of a newer version.
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
    """Decode a field of `desired`: active (1 or 0), mark, signature or 64 blanks, command.

    Raises:
        InvalidInput: it is damaged.
    """
    head, packed = value[: 2 + _SIGNATURE_CHARS], value[2 + _SIGNATURE_CHARS :]
    if len(head) < 2 + _SIGNATURE_CHARS or not head.isascii():
        raise InvalidInput("a damaged entry of the desired state")
    flags = head.decode()
    return SlotValue(flags[1], unpack_issued(packed), packed, flags[2:].strip(), ended=flags[0] != "1")


def pack_slot_value(found: SlotValue) -> bytes:
    """Encode a field of `desired`."""
    return f"{0 if found.ended else 1}{found.mark}{found.signature:<{_SIGNATURE_CHARS}}".encode() + found.packed


def check_said(actor: str | None, reason: str, *, cut: bool = False) -> None:
    """Check the texts of a command or record before anything is done.

    Args:
        actor: of the command; None if it is this process.
        reason: of the command.
        cut: whether the record has only the beginning of a longer reason.

    Raises:
        InvalidInput: one is no text, too long or not valid Unicode.
    """
    for what, text in (("actor", "" if actor is None else actor), ("reason", reason)):
        if not isinstance(text, str):
            raise InvalidInput(f"the {what} is a text, not {type(text).__name__}")
        if len(text) > SAID_CHARS and not (cut and what == "reason"):
            raise InvalidInput(f"the {what} has {len(text)} characters of at most {SAID_CHARS}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"the {what} contains an unpaired surrogate; send valid Unicode") from None
