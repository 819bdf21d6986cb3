"""A session of the OpenAI Agents SDK whose items are the messages of a chat.

Needs the extra `openai-agents`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.chat.writer import MAX_CALL_BYTES, MAX_ROWS
from orchestrator.core.errors import ConfigError
from orchestrator.core.payload import encode_json

try:
    from agents.memory import SessionSettings
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] != "agents":
        raise
    raise ConfigError(
        "OrchestratorSession needs the OpenAI Agents SDK; run `pip install 'redis-orchestrator[openai-agents]'`"
    ) from None

if TYPE_CHECKING:
    from agents.items import TResponseInputItem

    from orchestrator.chat.chat import Chat

_ALL: Final = 1_000_000
_DEPTH: Final = 512
_ROW_BYTES: Final = 64
"""Size of the columns of a message beside its JSON, at most."""


class OrchestratorSession:
    """Stores the history of the SDK in a chat: `Runner.run(agent, "Hello", session=OrchestratorSession(chat))`.

    With `ctx.chat`, an attempt that lost its task adds nothing to the history. With `chat.kept_in(store)`, the history
    outlives Redis. The session owns no connection; it works as long as the client or the attempt of the chat.

    Attributes:
        session_id: id of the session of the chat.
        session_settings: settings of the SDK; their `limit` holds for reads that give none.
    """

    def __init__(self, chat: Chat, *, session_settings: SessionSettings | None = None) -> None:
        self.session_id: str = chat.session
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self._chat = chat

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest items, oldest first. Damaged messages are left out.

        Args:
            limit: maximum number of items; by default that of the settings, else all.

        Raises:
            StoreError: Redis did not answer.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is not None and limit <= 0:
            return []
        wanted = _ALL if limit is None else limit
        last = wanted
        while True:
            # The SDK itself leaves out outputs of calls that are outside of the limit.
            hydration = await self._chat.hydrate(last=min(last, _ALL), pair_safe=False)
            # All of them: the SDK itself leaves out calls without an output.
            items: list[Any] = [message.data for message in hydration.messages]
            # Damaged messages do not count.
            if len(items) >= wanted or last >= hydration.seq - hydration.base:
                return items[-wanted:]
            last *= 2

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items to the end, in their order. Up to 500 of 4 MiB are added all or none; more go in several appends.

        Args:
            items: JSON objects.

        Raises:
            InvalidInput, ChatFull, Fenced, Occupied, StoreError: as `Chat.append`.
        """
        batches: list[list[Any]] = [[]]
        size = 0
        for item in items:
            # Encoded before the first append, so that an invalid item keeps out the others.
            added = len(encode_json("item", item, max_bytes=MAX_CALL_BYTES, max_depth=_DEPTH)) + _ROW_BYTES
            if len(batches[-1]) == MAX_ROWS or (batches[-1] and size + added > MAX_CALL_BYTES):
                batches.append([])
                size = 0
            batches[-1].append(item)
            size += added
        for batch in filter(None, batches):
            await self._chat.append(batch)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; None if there is none. Damaged messages behind it go with it.

        Raises:
            Fenced, Occupied, StoreError: as `Chat.pop`.
        """
        message = await self._chat.pop()
        item: Any = None if message is None else message.data
        return item  # type: ignore[no-any-return]

    async def clear_session(self) -> None:
        """Remove all items, with the fields and the summary of the chat.

        Raises:
            Fenced, Occupied, StoreError: as `Chat.clear`.
        """
        await self._chat.clear()
