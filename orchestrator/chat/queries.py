"""Reads chats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.chat import scripts
from orchestrator.chat.model import MAIN, ChatHead, Summary, parse_entries, parse_entry
from orchestrator.chat.scripts import SinceReply
from orchestrator.core.ids import decode_foreign, encode_foreign
from orchestrator.core.reading import read_json, read_text, read_whole
from orchestrator.store.keys import CHATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.chat.model import Position, StoredMessage
    from orchestrator.store.scoped import ScopedStore

_USER: Final = b"u:"
_EXTRACTED: Final = b"x:"


class Removals(NamedTuple):
    """Removals that a second storage does not have yet.

    Attributes:
        cleared: revision of the last `clear`; 0: none.
        number: lowest number of a popped message in the storage.
        rev: revision of the last `pop`; 0: none.
    """

    cleared: int
    number: int
    rev: int


async def read_all(scope: ScopedStore, source: str, last: int) -> SinceReply:
    """Read a chat and its newest messages in one transaction."""
    meta, messages, summary = (scope.keys.key(scope.keys.chat_part(source, part)) for part in ("meta", "q", "sum"))
    replies = await scope.read_many(
        [
            ("MULTI",),
            ("HGETALL", meta),
            ("LLEN", messages),
            ("LRANGE", messages, -last, -1),
            ("HMGET", summary, "text", "upto", "version"),
            ("PTTL", meta),
            ("EXEC",),
        ]
    )
    fields, length, entries, texts, left_ms = replies[-1]
    return SinceReply("all", dict(zip(fields[::2], fields[1::2], strict=True)), length, entries, tuple(texts), left_ms)


async def read_since(scope: ScopedStore, source: str, known: Position, last: int) -> SinceReply:
    """Read what is new to a reader."""
    call = scripts.since(scope.keys, source=encode_foreign("source", source), rev=known.rev, seq=known.seq, last=last)
    return await scope.call(call)


async def read_head(scope: ScopedStore, source: str) -> ChatHead:
    """Read the counts and fields of a chat."""
    flat = await scope.read("HGETALL", scope.keys.key(scope.keys.chat_part(source, "meta")))
    return parse_head(dict(zip(flat[::2], flat[1::2], strict=True)))


async def read_summary(scope: ScopedStore, source: str) -> Summary | None:
    """Read the summary."""
    key = scope.keys.key(scope.keys.chat_part(source, "sum"))
    return parse_summary(await scope.read("HMGET", key, "text", "upto", "version"))


async def read_removals(scope: ScopedStore, source: str) -> Removals:
    """Read what was removed from a chat since its second storage was last saved."""
    key = scope.keys.key(scope.keys.chat_part(source, "gone"))
    cleared, number, rev = await scope.read("HMGET", key, "cleared", "number", "rev")
    return Removals(read_whole(cleared), read_whole(number), read_whole(rev))


async def read_page(scope: ScopedStore, source: str, before: int, count: int) -> tuple[StoredMessage, ...]:
    """Read messages that precede a number, oldest first."""
    found: tuple[StoredMessage, ...] = ()
    while len(found) < count:
        limit = count - len(found)
        entries = await read_entries(scope, source, before, limit)
        found = (*parse_entries(entries), *found)
        oldest = entries[0].partition(b",")[0] if entries else b""
        if len(entries) < limit or not oldest.isdigit():
            break
        # Erased messages among them are made up for.
        before = read_whole(oldest)
    return found


async def read_entries(scope: ScopedStore, source: str, before: int, limit: int) -> list[bytes]:
    """Read entries that precede a number, oldest first, with erased ones."""
    return await scope.call(
        scripts.page(scope.keys, source=encode_foreign("source", source), before=before, limit=limit)
    )


async def read_last(scope: ScopedStore, source: str) -> StoredMessage | None:
    """Read the last message; its data is None if that is damaged or erased."""
    entries = await scope.read("LRANGE", scope.keys.key(scope.keys.chat_part(source, "q")), -1, -1)
    return parse_entry(entries[0]) if entries else None


async def read_first(scope: ScopedStore, source: str) -> StoredMessage | None:
    """Read the oldest message."""
    entries = await scope.read("LRANGE", scope.keys.key(scope.keys.chat_part(source, "q")), 0, 0)
    return parse_entry(entries[0]) if entries else None


async def read_sources(scope: ScopedStore) -> list[str]:
    """Return the sources of the chats of a session that have not ended, sorted."""
    (seconds, micros), flat = await scope.read_many([("TIME",), ("HGETALL", scope.keys.key(CHATS))])
    now_ms = read_whole(seconds) * 1000 + read_whole(micros) // 1000
    ends = zip(flat[::2], flat[1::2], strict=True)
    return sorted(decode_foreign(read_text(source)) for source, end in ends if read_whole(end) > now_ms)


async def find_sources(scope: ScopedStore) -> list[str]:
    """Read the sources of the chats of a session, with the usual one, which a lost list does not name."""
    return sorted({MAIN, *await read_sources(scope)})


def parse_head(fields: dict[bytes, bytes]) -> ChatHead:
    """Decode the hash with the counts and fields of a chat."""

    def number(name: bytes) -> int:
        return read_whole(fields.get(name, 0))

    return ChatHead(
        rev=number(b"rev"),
        edited=number(b"edited"),
        base=number(b"base"),
        count=number(b"count"),
        bytes=number(b"bytes"),
        tokens=number(b"tokens"),
        trimmed=number(b"trimmed"),
        born_ms=number(b"born"),
        dies_ms=number(b"dies"),
        saved=number(b"saved"),
        ahead=number(b"ahead"),
        cleared=number(b"cleared"),
        lost=number(b"lost"),
        erased=number(b"erased"),
        summed=number(b"summed"),
        version=number(b"version"),
        fields={
            read_text(name.removeprefix(_USER)): read_json(value)
            for name, value in fields.items()
            if name.startswith(_USER)
        },
        extracted={
            read_text(name.removeprefix(_EXTRACTED)): read_whole(value)
            for name, value in fields.items()
            if name.startswith(_EXTRACTED)
        },
    )


def is_user_field(name: bytes) -> bool:
    """Return whether a field of the hash is one that `set_meta` wrote."""
    return name.startswith(_USER)


def parse_summary(texts: Sequence[Any]) -> Summary | None:
    """Decode text, upto and version of a summary."""
    text, upto, version = texts
    return None if text is None else Summary(read_json(text), read_whole(upto), read_whole(version))


def gap_of(head: ChatHead, length: int) -> int:
    """Return the number of messages that a chat is known to have lost; what its summary outlives has ended.

    Args:
        head: its counts.
        length: length of its list.
    """
    return max(0, head.base - head.trimmed) + max(0, head.count - length)


def is_restorable(head: ChatHead, summary: Summary | None, length: int) -> bool:
    """Return whether a second storage may have messages that Redis has lost, and was not asked for them yet."""
    return not head.saved or gap_of(head, length) > head.lost or (head.summed > 0 and summary is None)
