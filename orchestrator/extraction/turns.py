"""Reads the messages of a chat in batches of whole turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.chat.trimming import begins_turn
from orchestrator.extraction.model import Turn, TurnMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.chat.chat import Chat
    from orchestrator.chat.model import StoredMessage

_MOST_EARLIER: Final = 100


async def read_batch(chat: Chat, after: int, upto: int, most: int) -> tuple[list[StoredMessage], int]:
    """Read up to `most` messages of a range, and return them with the number of the last one that they reach.

    A batch ends where a turn ends, unless the turn alone has more messages.

    Args:
        chat: the chat.
        after: number of the last message before the range.
        upto: number of the last message of the range.
        most: maximum number of messages.
    """
    last = min(upto, after + most)
    # The message behind the batch tells whether a turn ends there.
    ahead = last < upto
    page = await chat.page(before=last + 1 + ahead, n=last - after + ahead)
    messages = [message for message in page if message.number > after]
    if ahead:
        for place in range(len(messages) - 1, 0, -1):
            if begins_turn(messages[place], messages[place - 1]):
                return messages[:place], min(last, messages[place].number - 1)
    return [message for message in messages if message.number <= last], last


async def read_beginning(chat: Chat, message: StoredMessage) -> list[StoredMessage]:
    """Return the messages of a message's turn that are before it, at most the last 100 of them."""
    if message.turn is None and begins_turn(message, None):
        return []
    whole = [*await chat.page(before=message.number, n=_MOST_EARLIER), message]
    first = len(whole) - 1
    while first > 0 and not begins_turn(whole[first], whole[first - 1]):
        first -= 1
    return whole[first:-1]


def group_turns(messages: Sequence[StoredMessage]) -> list[Turn]:
    """Group messages by turns, as `Chat.hydrate(turns=...)` counts them."""
    groups: list[list[StoredMessage]] = []
    for place, message in enumerate(messages):
        if place == 0 or begins_turn(message, messages[place - 1]):
            groups.append([])
        groups[-1].append(message)
    return [Turn(group[0].turn, tuple(map(_turn_message, group))) for group in groups]


def _turn_message(message: StoredMessage) -> TurnMessage:
    data = message.data
    role = str(data.get("role") or data.get("type") or "") if isinstance(data, Mapping) else ""
    return TurnMessage(message.id, message.number, role, text_of(data), message.subject, message.at, data)


def text_of(data: Any) -> str:
    """Return the text of a message of a usual form; empty for others.

    The content is a text, or a list of parts of which some have one.
    """
    content = data.get("content") if isinstance(data, Mapping) else None
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))
