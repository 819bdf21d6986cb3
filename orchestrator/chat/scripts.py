"""Wraps the scripts in `lua/chat/`, one function per script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text
from orchestrator.store.calls import Argument, Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.locks.fenced_writer import CallerRow
    from orchestrator.store.keys import ScopeKeys


class MessageRow(NamedTuple):
    """One message, in the column order of `lua/chat/append.lua`.

    Names are encoded, `-` stands for none; `tokens` and `links` are JSON.
    """

    id: str
    version: int
    tokens: str
    turn: str
    subject: str
    links: str
    text: bytes


class RestoredRow(NamedTuple):
    """One message of a second storage, in the column order of `lua/chat/restore.lua`; as in `MessageRow`."""

    number: int
    revision: int
    ms: int
    id: str
    version: int
    tokens: str
    turn: str
    subject: str
    links: str
    text: bytes


class SizeRow(NamedTuple):
    """The size of a chat, in the column order of `lua/chat/account.lua`; `ends` is the Unix ms of its end."""

    chat: str
    bytes: int
    messages: int
    ends: int


@dataclass(frozen=True, slots=True)
class ChatCall:
    """The arguments that every change of a chat begins with; `source` is encoded."""

    keys: ScopeKeys
    caller: CallerRow
    limits: bytes
    source: str


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Reply to a change: `ok` or `duplicate` with the revision and the results, or why nothing was changed."""

    status: str
    rev: int
    rest: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SinceReply:
    """Reply to a conditional read: `same`, or `tail` or `all` with what the chat holds."""

    word: str
    fields: dict[bytes, bytes]
    length: int
    entries: list[bytes]
    summary: tuple[bytes | None, ...]
    left_ms: int


def pack_limits(settings: Settings) -> bytes:
    """Pack the lifetimes and caps of chats."""
    chat, ops = settings.chat, settings.workspace
    return pack_rows(
        [
            (
                round(chat.ttl_s * 1000),
                round(chat.life_s * 1000),
                round(chat.summary_ttl_s * 1000),
                # One memory of op ids serves all changes of a session.
                round(ops.dedup_s * 1000),
                ops.max_dedup,
                chat.max_messages,
                chat.max_bytes,
                chat.max_sources,
            )
        ]
    )


def append(change: ChatCall, *, rows: Sequence[MessageRow]) -> Call[ChatReply]:
    """Append up to 500 messages."""
    return _call("append", change, rows=_pack(rows))


def put(change: ChatCall, *, row: MessageRow, mode: str) -> Call[ChatReply]:
    """Replace a message; `mode` is newer or is."""
    return _call("put", change, rows=_pack([row]), mode=mode)


def meta(change: ChatCall, *, fields: Sequence[tuple[str, bytes | None]], version: int, most: int) -> Call[ChatReply]:
    """Change up to 100 fields: all or none. A field without a value is removed; a version of 0 takes the next one."""
    rows = pack_rows([(field, int(value is not None), opaque(value or b"")) for field, value in fields])
    return _call("meta", change, rows=rows, version=version, most=most)


def summarize(change: ChatCall, *, text: bytes, upto: int, version: int) -> Call[ChatReply]:
    """Store a summary if it is newer."""
    return _call("summarize", change, text=text, upto=upto, version=version)


def pop(change: ChatCall, *, number: int, revision: int) -> Call[ChatReply]:
    """Remove the last message if it is this one."""
    return _call("pop", change, number=number, revision=revision)


def truncate(change: ChatCall, *, keep: int) -> Call[ChatReply]:
    """Remove up to 500 of the oldest messages until `keep` are left."""
    return _call("truncate", change, keep=keep)


def erase(change: ChatCall, *, subject: str, for_ms: int, after: int) -> Call[ChatReply]:
    """Remove the summary and messages about a person, after a number; refuse new ones for a time."""
    return _call("erase", change, subject=subject, for_ms=for_ms, after=after)


def clear(change: ChatCall) -> Call[ChatReply]:
    """Empty a chat."""
    return _call("clear", change)


def restore(change: ChatCall, *, rows: Sequence[RestoredRow], base: int, shift: int, trimmed: int) -> Call[ChatReply]:
    """Add up to 500 messages, oldest first, before the first message of a chat whose base is known."""
    packed = pack_rows([(*row[:-1], opaque(row.text)) for row in rows])
    return _call("restore", change, rows=packed, base=base, shift=shift, trimmed=trimmed)


def saved(keys: ScopeKeys, *, source: str, upto: int, ahead: int = 0) -> Call[bool]:
    """Note up to which revision a second storage has the chat, and how far it counts ahead of the chat (0: as noted).

    Returns whether the revision is new.
    """
    return Call("chat/saved", {"scope": keys.root, "source": source, "upto": upto, "ahead": ahead}, bool)


def extracted(keys: ScopeKeys, *, caller: CallerRow, source: str, name: str, upto: int, rev: int) -> Call[ChatReply]:
    """Note up to which message a skill has extracted a chat whose messages have revisions up to `rev` there."""
    args: Arguments = {
        "scope": keys.root,
        "caller": pack_rows([caller]),
        "source": source,
        "name": name,
        "upto": upto,
        "rev": rev,
    }
    return Call("chat/extracted", args, _parse)


def account(keys: ScopeKeys, *, rows: Sequence[SizeRow]) -> Call[tuple[int, int, int]]:
    """Store the sizes of some chats of a tenant; return bytes and messages of all chats, and their number."""
    return Call("chat/account", {"scope": keys.root, "rows": pack_rows(rows), "now_arg": ""}, tuple)


def touch(keys: ScopeKeys, *, source: str, ttl_ms: int, life_ms: int) -> Call[int]:
    """Extend the lifetime of the messages; return the ms of their end, 0 if there are none."""
    args: Arguments = {"scope": keys.root, "source": source, "ttl_ms": ttl_ms, "life_ms": life_ms, "now_arg": ""}
    return Call("chat/touch", args, int)


def since(keys: ScopeKeys, *, source: str, rev: int, seq: int, last: int) -> Call[SinceReply]:
    """Read what is new to a reader that knows a revision and the messages up to a number."""

    def parse(reply: list[Any]) -> SinceReply:
        word = read_text(reply[0])
        if word == "same":
            left_ms, born, dies = reply[1:]
            return SinceReply(word, {b"born": born, b"dies": dies}, 0, [], (None, None, None), left_ms)
        names, values, length, entries, summary, left_ms = reply[1:]
        return SinceReply(word, dict(zip(names, values, strict=True)), length, entries, tuple(summary), left_ms)

    args: Arguments = {"scope": keys.root, "source": source, "rev": rev, "seq": seq, "last": last}
    return Call("chat/since", args, parse)


def page(keys: ScopeKeys, *, source: str, before: int, limit: int) -> Call[list[bytes]]:
    """Read messages that precede a number, oldest first."""
    return Call("chat/page", {"scope": keys.root, "source": source, "before": before, "limit": limit}, list)


def _pack(rows: Sequence[MessageRow]) -> bytes:
    return pack_rows([(*row[:-1], opaque(row.text)) for row in rows])


def _call(verb: str, change: ChatCall, **args: Argument) -> Call[ChatReply]:
    head: Arguments = {
        "scope": change.keys.root,
        "caller": pack_rows([change.caller]),
        "limits": change.limits,
        "source": change.source,
    }
    return Call(f"chat/{verb}", {**head, **args, "now_arg": ""}, _parse)


def _parse(reply: list[Any]) -> ChatReply:
    status = read_text(reply[0])
    if status in {"ok", "duplicate"}:
        return ChatReply(status, reply[1], tuple(reply[2:]))
    return ChatReply(status, 0, tuple(reply[1:]))
