"""The chats of a session, newest messages first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_whole
from orchestrator.dashboard.page import page
from orchestrator.dashboard.texts import Texts, as_command, json_text
from orchestrator.dashboard.workspace_rows import session_of
from orchestrator.views.chat import list_chat_lines, read_chat_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.chat.model import StoredMessage
    from orchestrator.dashboard.page import PageRequest
    from orchestrator.views.chat import ChatLine

CHARS: Final = 2000


@page("/sessions/chat", "session_chat.html", narrowed=True)
async def chat(asked: PageRequest) -> Mapping[str, Any]:
    """Read the chats of a session, and a page of the messages of one."""
    id_, texts = session_of(asked), Texts()
    chats = await list_chat_lines(asked.services, id_)
    source = source_of(asked, chats)
    found = await read_chat_page(asked.services, id_, source, before=number_before(asked))
    return {
        "id": id_,
        "chats": chats,
        "source": source,
        "found": found,
        "messages": [(one, *_said(texts, one)) for one in reversed(found.messages)],
        "texts_of_part": Texts.of_part,
        "commands": [as_command("orc", "chat", "show", id_, source=source)],
    }


def source_of(asked: PageRequest, chats: Sequence[ChatLine]) -> str:
    """Return the source of the chat that a query asks for: by default the first of the session."""
    return asked.query.get("source") or (chats[0].source if chats else "main")


def number_before(asked: PageRequest) -> int | None:
    """Return the number of the message before which a page goes on.

    Raises:
        InvalidInput: it is no number of a message.
    """
    before = asked.text("after")
    if before is not None and not (before.isascii() and before.isdigit() and len(before) < 16):
        raise InvalidInput(f"{ascii(before)[:80]} is not the number of a message")
    return None if before is None else read_whole(before)


def _said(texts: Texts, message: StoredMessage) -> tuple[str, str, int]:
    """Return the role of a message, its beginning and its length in characters."""
    data = message.data
    role = data.get("role") if isinstance(data, dict) else None
    content = data.get("content") if isinstance(data, dict) and isinstance(data.get("content"), str) else data
    whole = json_text(content)
    return texts.cut(role if isinstance(role, str) else "-", 40), texts.cut(whole, CHARS), len(whole)
