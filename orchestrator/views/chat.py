"""Reads the chats of a session. A reading view extends no lifetime."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - as below
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING, Any, Final

from orchestrator.chat import queries
from orchestrator.chat.chat import make_hydration
from orchestrator.chat.model import StoredMessage, parse_entries
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound
from orchestrator.core.reading import read_whole
from orchestrator.store.scoped import bind_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.chat.model import Hydration
    from orchestrator.services import Services

PAGE: Final = 500
LINES: Final = 50
"""Chats of a list in bounded reads."""
MESSAGES: Final = 20
PAGE_BYTES: Final = 1024 * 1024
"""Bytes of the messages of a page, because to decode them keeps the event loop from other work."""
_BEHIND_ALL: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class ChatView:
    """Counts of a chat.

    Attributes:
        source: source of the chat.
        messages: number of stored messages.
        bytes: their size.
        tokens: their length, without messages whose caller did not count.
        trimmed: number of messages that caps, `truncate` and `clear` have removed from the beginning.
        gap: number of messages that are known to be missing.
        summary_upto: number of the last message that the summary covers; None if there is no summary.
        last_message_at: time of the last message; None if there is none.
        ends_at: time at which the messages expire; None if they have.
        extracted: number of the last message that a skill has extracted, by `AGENT/SKILL`.
    """

    source: str
    messages: int
    bytes: int
    tokens: int
    trimmed: int
    gap: int
    summary_upto: int | None
    last_message_at: datetime | None
    ends_at: datetime | None
    extracted: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ChatLine:
    """A chat in a list.

    Attributes:
        source: source of the chat.
        messages: number of stored messages.
        bytes: their size.
        tokens: their length, without messages whose caller did not count.
        trimmed: number of messages that were removed from the beginning.
        ends_at: time at which the messages expire; None if it is not known.
        summary: whether it has a summary.
    """

    source: str
    messages: int
    bytes: int
    tokens: int
    trimmed: int
    ends_at: datetime | None
    summary: bool


@dataclass(frozen=True, slots=True)
class ChatPage:
    """Some messages of a chat.

    Attributes:
        messages: oldest first, without erased and damaged ones.
        cursor: number before which the next page goes on; None at the beginning of the chat.
        looked: number of entries that were read.
    """

    messages: tuple[StoredMessage, ...]
    cursor: int | None
    looked: int


async def list_chat_lines(services: Services, session: str, *, limit: int = LINES) -> tuple[ChatLine, ...]:
    """Read the chats of a session that hold messages, by source, at most `limit`, in two round trips.

    Raises:
        InvalidInput: that is no session.
    """
    scope = bind_scope(services.store, services.settings, "session", session)
    sources = (await queries.find_sources(scope))[:limit]
    keys = scope.keys
    replies = await services.store.pipeline(
        [
            command
            for source in sources
            for command in (
                ("HMGET", keys.key(keys.chat_part(source, "meta")), "bytes", "tokens", "trimmed", "dies"),
                ("LLEN", keys.key(keys.chat_part(source, "q"))),
                ("EXISTS", keys.key(keys.chat_part(source, "sum"))),
            )
        ]
    )
    found = [_line(source, *replies[3 * n : 3 * n + 3]) for n, source in enumerate(sources)]
    return tuple(line for line in found if line.messages or line.summary)


def _line(source: str, head: Any, length: Any, summary: Any) -> ChatLine:
    size, tokens, trimmed, dies = map(read_whole, head if isinstance(head, list) else (0, 0, 0, 0))
    return ChatLine(
        source=source,
        messages=length if isinstance(length, int) else 0,
        bytes=size,
        tokens=tokens,
        trimmed=trimmed,
        ends_at=from_instant_ms(dies) if dies else None,
        summary=summary == 1,
    )


async def read_chat_page(
    services: Services, session: str, source: str, *, before: int | None = None, limit: int = MESSAGES
) -> ChatPage:
    """Read messages of a chat that precede a number, or the newest ones, in one trip: at most `PAGE_BYTES`, or one.

    Raises:
        InvalidInput: that is no session or no source.
    """
    scope = bind_scope(services.store, services.settings, "session", session)
    entries = await queries.read_entries(scope, source, _BEHIND_ALL if before is None else before, limit)
    full = len(entries) == limit
    shown = _newest(entries, PAGE_BYTES)
    oldest = shown[0].partition(b",")[0] if shown else b""
    more = (full or len(shown) < len(entries)) and read_whole(oldest) > 1
    return ChatPage(parse_entries(shown), read_whole(oldest) if more else None, len(shown))


def _newest(entries: Sequence[bytes], most_bytes: int) -> Sequence[bytes]:
    """Return the last entries that have at most `most_bytes` together, at least one if there is one."""
    first, size = len(entries), 0
    while first and (size := size + len(entries[first - 1])) <= most_bytes:
        first -= 1
    return entries[min(first, len(entries) - 1) :] if entries else entries


async def list_chats(services: Services, session: str) -> tuple[ChatView, ...]:
    """Read the chats of a session that hold anything, by source.

    Raises:
        InvalidInput: that is no session.
    """
    scope = bind_scope(services.store, services.settings, "session", session)
    found = [await _read(services, session, source, 1) for source in await queries.find_sources(scope)]
    return tuple(view for view, hydration in found if not hydration.empty)


async def read_chat(services: Services, session: str, source: str, *, last: int) -> tuple[ChatView, Hydration]:
    """Read a chat and its newest messages.

    Raises:
        InvalidInput: that is no session or no source.
        NotFound: the session has no such chat.
    """
    view, hydration = await _read(services, session, source, last)
    if hydration.empty:
        others = ", ".join(repr(chat.source) for chat in await list_chats(services, session)) or "none"
        raise NotFound(f"session {session!r} has no chat {source!r}; its chats: {others}")
    return view, hydration


async def read_whole_chat(services: Services, session: str, source: str) -> tuple[Hydration, list[StoredMessage]]:
    """Read a chat and all its messages, in pages.

    Raises:
        InvalidInput, NotFound: as `read_chat`.
    """
    _, hydration = await read_chat(services, session, source, last=PAGE)
    scope = bind_scope(services.store, services.settings, "session", session)
    pages = [hydration.messages]
    while pages[-1] and pages[-1][0].number > hydration.base + 1:
        pages.append(await queries.read_page(scope, source, pages[-1][0].number, PAGE))
    return hydration, [message for page in reversed(pages) for message in page]


async def _read(services: Services, session: str, source: str, last: int) -> tuple[ChatView, Hydration]:
    scope = bind_scope(services.store, services.settings, "session", session)
    found = await queries.read_all(scope, source, last)
    head = queries.parse_head(found.fields)
    hydration = make_hydration(found, parse_entries(found.entries))
    newest = hydration.messages[-1] if hydration.messages else None
    view = ChatView(
        source=source,
        messages=found.length,
        bytes=head.bytes,
        tokens=head.tokens,
        trimmed=head.trimmed,
        gap=hydration.gap,
        summary_upto=None if hydration.summary is None else hydration.summary.upto,
        last_message_at=None if newest is None else newest.at,
        ends_at=from_instant_ms(head.dies_ms) if head.dies_ms else None,
        extracted=head.extracted,
    )
    return view, hydration
