"""Values of chats: messages, results of changes, and what `hydrate` returns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec.structs import force_setattr

from orchestrator.chat.tool_calls import answered, open_calls
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import encode_foreign
from orchestrator.core.log import get_logger
from orchestrator.core.payload import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_log = get_logger(__name__)

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, a list of JSON values, or a dict with str keys."""
MAIN: Final = "main"
"""Source of a chat unless the caller names another."""


class Message(msgspec.Struct, frozen=True):
    """A message to store, for callers that know more of it than its JSON.

    Attributes:
        data: the message as the caller's model takes it, a JSON object.
        id: its id in the chat; a message with a known id is not stored again. By default a new time-ordered id.
        tokens: its length as the caller counts it.
        turn: the turn that it belongs to; by default that of the call.
        subject: the person that it is about, so that `erase` finds it.
        calls: ids of the tool calls that it makes; None: read from `data`.
        answers: ids of the tool calls whose output it holds; None: read from `data`.
    """

    data: Json
    id: str | None = None
    tokens: int | None = None
    turn: str | None = None
    subject: str | None = None
    calls: tuple[str, ...] | None = None
    answers: tuple[str, ...] | None = None


class StoredMessage(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message of a chat.

    Its JSON form is an array in the order of the fields, as the list of a chat holds it.

    Attributes:
        number: counts the messages of the chat from 1, without gaps; a number is used again after `pop`.
        revision: unique and rising; a message that was replaced keeps its number and gets a new revision.
        version: 1 for an appended message; `upsert` and `patch` change it.
        tokens: its length as the caller counted it; None if the caller did not.
        at_ms: time of its first storing, Unix ms.
        id: its id in the chat.
        turn: the turn that it belongs to, or None.
        subject: the person that it is about, or None.
        calls: ids of its tool calls, if the caller named them; None: see `data`.
        answers: ids of the tool calls that it answers, if the caller named them; None: see `data`.
        data: the message itself.
    """

    number: int
    revision: int
    version: int
    tokens: int | None
    at_ms: int
    id: str
    turn: str | None
    subject: str | None
    calls: tuple[str, ...] | None
    answers: tuple[str, ...] | None
    data: Json

    @property
    def at(self) -> datetime:
        """Time of its first storing, by the server's clock."""
        return from_instant_ms(self.at_ms)


@dataclass(frozen=True, slots=True)
class AppendedMessages:
    """Result of an append.

    Attributes:
        ids: id of each message, in order.
        numbers: number of each message; of a known one the number that it has already.
        added: number of messages that were new.
        dropped: number of old messages that were dropped for a cap.
        seq: number of the last message of the chat.
        rev: revision of the chat.
        duplicate: whether a call with the same `op_id` made the change before; then nothing was changed again.
    """

    ids: tuple[str, ...]
    numbers: tuple[int, ...]
    added: int
    dropped: int
    seq: int
    rev: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ChatChange:
    """Result of a change of a message, of the fields or of the summary.

    Attributes:
        applied: whether the chat has changed; False if it held this version or a newer one.
        version: version that the chat holds now.
        number: number of the message; 0 for fields and summary.
        rev: revision of the chat.
        duplicate: whether a call with the same `op_id` made the change before; then nothing was changed again.
    """

    applied: bool
    version: int
    number: int
    rev: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of the oldest messages of a chat.

    Attributes:
        text: the summary.
        upto: number of the last message that it covers.
        version: rises with each summary.
    """

    text: str
    upto: int
    version: int


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a reader in a chat.

    Attributes:
        rev: revision of the chat that it has read.
        seq: number of the last message that it has.
    """

    rev: int
    seq: int


@dataclass(frozen=True, slots=True)
class ChatHead:
    """Counts of a chat.

    Attributes:
        rev: revision: rises with each change, also over a loss or the end of the chat. 0: nothing is stored.
        edited: revision of the last change of stored messages; a reader that knows it needs only newer messages.
        base: number of the last message before the first stored one.
        count: number of stored messages as the writers counted them.
        bytes: their size.
        tokens: their length, without messages whose caller did not count.
        trimmed: number of messages that caps, `truncate` and `clear` have removed from the beginning.
        born_ms: time of the first change, Unix ms.
        dies_ms: time at which the messages end, Unix ms.
        saved: revision up to which a second storage has the messages; 0: it was not asked since the chat began.
        ahead: by how much the second storage counts ahead of the chat, which began anew.
        cleared: revision of the last `clear`.
        lost: number of missing messages that no second storage has.
        erased: revision after the last erasure of a person; summaries up to it are gone.
        summed: version of the summary, which may have been lost since; 0: there is none.
        version: version of the fields.
        fields: fields that `set_meta` wrote.
        extracted: number of the last message that a skill has extracted, by `AGENT/SKILL`.
    """

    rev: int = 0
    edited: int = 0
    base: int = 0
    count: int = 0
    bytes: int = 0
    tokens: int = 0
    trimmed: int = 0
    born_ms: int = 0
    dies_ms: int = 0
    saved: int = 0
    ahead: int = 0
    cleared: int = 0
    lost: int = 0
    erased: int = 0
    summed: int = 0
    version: int = 0
    fields: Mapping[str, Json] = field(default_factory=dict)
    extracted: Mapping[str, int] = field(default_factory=dict)

    @property
    def seq(self) -> int:
        """Number of the last message."""
        return self.base + self.count


@dataclass(frozen=True, slots=True)
class Hydration:
    """A chat at one moment, or what has changed since a known one.

    Attributes:
        messages: messages, oldest first.
        meta: fields that `set_meta` wrote.
        summary: summary of the oldest messages, or None.
        rev: revision of the chat; 0: nothing is stored.
        seq: number of the last message.
        base: number of the last message before the first stored one.
        after: 0: `messages` is what the chat holds, as far as it was asked for. Else `messages` has only what follows
            this number, because the caller knows the others.
        gap: number of messages that are known to be missing.
        not_modified: whether the chat is as the caller knows it; then there are no messages, fields or summary.
        restorable: whether a second storage may have more, and `rehydrate` has not looked there yet.
        source: where the messages come from: Redis, a second storage, or both.
    """

    messages: tuple[StoredMessage, ...] = ()
    meta: Mapping[str, Json] = field(default_factory=dict)
    summary: Summary | None = None
    rev: int = 0
    seq: int = 0
    base: int = 0
    after: int = 0
    gap: int = 0
    not_modified: bool = False
    restorable: bool = False
    source: Literal["redis", "mixed", "secondary"] = "redis"

    @property
    def expired(self) -> bool:
        """True if the messages have ended, and only their summary is left."""
        return not self.rev and self.seq == self.base and self.summary is not None

    @property
    def empty(self) -> bool:
        """True if the chat holds no message, field or summary, and none is known to be missing."""
        return self.seq == self.base and not self.gap and self.summary is None and not self.meta

    @property
    def position(self) -> Position:
        """Position of a reader that has read this; a later `hydrate(known=...)` takes it."""
        return Position(self.rev, self.seq)

    @property
    def data(self) -> list[Json]:
        """The messages alone, as a model takes them.

        A message whose tool calls have not all been answered is left out with their outputs, because the APIs of models
        refuse it: an attempt was killed between the calls and their outputs, or is still at work. `messages` has it.
        """
        return [self.messages[place].data for place in answered(self.messages)]

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of the tool calls in `messages` that have no output yet, in their order."""
        return tuple(open_calls(self.messages))

    def updated(self, newer: Hydration) -> Hydration:
        """Return the chat after a later read: these messages and the new ones.

        Args:
            newer: result of a later `hydrate(known=self)`.
        """
        if newer.not_modified:
            return self
        if not newer.after:
            return newer
        kept = [message for message in self.messages if newer.base < message.number <= newer.after]
        return replace(newer, messages=(*kept, *newer.messages), after=self.after)


def encode_name(kind: str, value: str | None) -> str:
    """Encode an id for a column of an entry; `-` for None.

    Raises:
        InvalidInput: empty, longer than 256 bytes, or with an unpaired surrogate.
    """
    if value is None:
        return "-"
    return "%2D" if value == "-" else encode_foreign(kind, value)


def decode_name(encoded: str) -> str:
    """Decode an id of an entry."""
    return unquote(encoded) if "%" in encoded else encoded


def format_links(calls: Sequence[str] | None, answers: Sequence[str] | None) -> str:
    """Format ids of tool calls and of answered calls as two JSON columns; the ids are encoded.

    Raises:
        InvalidInput: not lists of ids.
    """
    for name, ids in (("calls", calls), ("answers", answers)):
        given: Any = ids
        if given is not None and (not isinstance(given, Sequence) or isinstance(given, str | bytes)):
            raise InvalidInput(f"{name} of a message must be a tuple of ids, not a {type(given).__name__}")
    return ",".join(
        format_names(None if ids is None else [encode_foreign("tool call", id_) for id_ in ids])
        for ids in (calls, answers)
    )


def format_names(names: Sequence[str] | None) -> str:
    """Format encoded names as a JSON array; `null` for None."""
    return "null" if names is None else "[" + ",".join([f'"{name}"' for name in names]) + "]"


def parse_entries(entries: Sequence[bytes]) -> tuple[StoredMessage, ...]:
    """Decode entries of the list of a chat, without erased ones. Damaged ones are left out and logged."""
    try:
        messages = _decode_entries(entries)
    except (ValueError, RecursionError):
        found = [parse_entry(entry) for entry in entries]
        erased = [message for message in found if message is not None and not message.version]
        messages = tuple([message for message in found if message is not None and message.data is not None])
        if damaged := len(entries) - len(messages) - len(erased):
            _log.warning("chat_messages_unreadable", count=damaged)
    # Erased messages have version 0.
    return messages if 0 not in [message.version for message in messages] else tuple(filter(_is_kept, messages))


def _decode_entries(entries: Sequence[bytes]) -> tuple[StoredMessage, ...]:
    if not entries:
        return ()
    # All entries as one document, because a hydration decodes hundreds of messages.
    text = b"[[" + b"],[".join(entries) + b"]]"
    messages = _decode_all(text)
    if len(messages) != len(entries):
        raise ValueError("an entry holds two messages")
    if b"%" in text:
        _decode_names(messages)
    return messages


def _is_kept(message: StoredMessage) -> bool:
    return message.version > 0


def parse_entry(entry: bytes) -> StoredMessage | None:
    """Decode an entry of the list of a chat; its data is None if that is damaged or erased. None for another text."""
    columns = split_entry(entry)
    if columns is None:
        return None
    head, text = entry[: -len(columns.text)], columns.text
    with suppress(ValueError, RecursionError):
        message = _decode_one(b"[" + head + b"null]")
        with suppress(ValueError, RecursionError):
            force_setattr(message, "data", decode_json(text))
        _decode_names((message,))
        return message
    return None


class EntryColumns(NamedTuple):
    """Columns of an entry of the list of a chat, each the text of a JSON value."""

    number: bytes
    revision: bytes
    version: bytes
    tokens: bytes
    at_ms: bytes
    id: bytes
    turn: bytes
    subject: bytes
    calls: bytes
    answers: bytes
    text: bytes


def split_entry(entry: bytes) -> EntryColumns | None:
    """Split an entry of the list of a chat; None for another text."""
    found = _ENTRY.fullmatch(entry)
    return EntryColumns(*found.groups()) if found is not None else None


_NAME: Final = rb'(null|"[^",]+")'
_NAMES: Final = rb"(null|\[[^\]]*\])"
_ENTRY: Final = re.compile(
    rb'(\d+),(\d+),(\d+),(null|\d+),(\d+),("[^",]+"),%b,%b,%b,%b,(.+)' % (_NAME, _NAME, _NAMES, _NAMES), re.DOTALL
)
_decode_one: Final = msgspec.json.Decoder(StoredMessage).decode
_decode_all: Final = msgspec.json.Decoder(tuple[StoredMessage, ...]).decode


def _decode_names(messages: Sequence[StoredMessage]) -> None:
    """Decode ids, turns, persons and ids of tool calls in place; few have a character that is encoded."""
    for message in messages:
        if "%" in message.id:
            force_setattr(message, "id", unquote(message.id))
        if message.turn is not None and "%" in message.turn:
            force_setattr(message, "turn", unquote(message.turn))
        if message.subject is not None and "%" in message.subject:
            force_setattr(message, "subject", unquote(message.subject))
        if message.calls:
            force_setattr(message, "calls", tuple(map(unquote, message.calls)))
        if message.answers:
            force_setattr(message, "answers", tuple(map(unquote, message.answers)))
