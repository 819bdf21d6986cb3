"""Sends the changes of one chat handle, and checks what they store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from orchestrator.chat.model import Message, decode_name, encode_name, format_links
from orchestrator.chat.scripts import ChatCall, MessageRow, pack_limits
from orchestrator.core.errors import ChatFull, InvalidInput, SubjectErased
from orchestrator.core.ids import check_text, encode_foreign, new_short_id
from orchestrator.core.reading import read_text
from orchestrator.locks.fenced_writer import WRITE_WAIT_S, FencedWriter
from orchestrator.subjects.places import Place, noted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestrator.chat.accounts import ChatAccounts
    from orchestrator.chat.scripts import ChatReply, RestoredRow
    from orchestrator.locks.model import WriteGuard
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.store.calls import Call
    from orchestrator.store.scoped import ScopedStore, StateAction

MAX_ROWS: Final = 500
"""Messages in one change: the server runs nothing else while a script runs."""
MAX_CALL_BYTES: Final = 4 * 1024 * 1024
MAX_FIELDS: Final = 100
MAX_FIELD_BYTES: Final = 16 * 1024
_MAX_STEM_BYTES: Final = 252
_NO_LINKS: Final = format_links(None, None)
MAX_NUMBER: Final = 2**53 - 1
MAX_VERSION: Final = 2**52
"""Scripts count in floating point: what follows a version must be exact."""


class ChatWriter(FencedWriter):
    """Makes the changes of one handle, under a lock or without one."""

    __slots__ = ("accounts", "source")

    def __init__(
        self,
        scope: ScopedStore,
        guard: WriteGuard | None,
        *,
        source: str,
        waiter: LockWaiter,
        enclosing: WriteGuard | None = None,
        agent: str = "",
        wait_s: float = WRITE_WAIT_S,
        accounts: ChatAccounts | None = None,
    ) -> None:
        super().__init__(
            scope, guard, waiter=waiter, enclosing=enclosing, agent=agent, wait_s=wait_s,
            max_value_bytes=lambda settings: settings.chat.max_message_bytes,
        )  # fmt: skip
        self.source = encode_foreign("source", source)
        self.accounts = accounts

    def at_once(self) -> ChatWriter:
        """Return a writer that does not wait while another owner holds the session alone."""
        return ChatWriter(
            self.scope, self.guard, source=decode_name(self.source), waiter=self.waiter, enclosing=self.enclosing,
            agent=self.agent, wait_s=0, accounts=self.accounts,
        )  # fmt: skip

    async def change(
        self,
        make_call: Callable[[ChatCall], Call[ChatReply]],
        op_id: str | None = None,
        action: StateAction | None = None,
    ) -> ChatReply:
        """Send a change. The caller handles every status but `fenced`, `occupied` and `full`.

        Raises:
            Fenced, LockLost: another owner has the lock.
            Occupied: another owner holds the session alone.
            ChatFull: a cap was reached.
            InvalidInput: a change of other messages has this `op_id`.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        while True:
            reply = await self.send(
                lambda caller: make_call(
                    ChatCall(self.scope.keys, caller, pack_limits(self.scope.settings), self.source)
                ),
                op_id,
                action,
            )
            # After the loss of a key each call counts up to 500 messages again, then one makes the change.
            if reply.status != "again":
                break
        if reply.status == "reused":
            raise InvalidInput(f"op_id {op_id!r} belongs to a change of other messages; give each change its own")
        if reply.status == "full":
            raise self._full(read_text(reply.rest[0]))
        if reply.status == "erased":
            raise SubjectErased
        self.note()
        return reply

    async def store(
        self,
        make_call: Callable[[ChatCall], Call[ChatReply]],
        rows: Sequence[MessageRow | RestoredRow],
        op_id: str | None = None,
        action: StateAction | None = None,
    ) -> ChatReply:
        """Send a change that stores messages, after a note of their place for the people that they are about.

        Raises:
            SubjectErased: one of them was erased a moment ago; nothing was stored.
            Fenced, LockLost, Occupied, ChatFull, StoreError: as `change`.
        """
        subjects = {decode_name(row.subject) for row in rows if row.subject != "-"}
        if not subjects:
            return await self.change(make_call, op_id, action)
        async with noted(self.scope, self.place, subjects, self.keep_s):
            return await self.change(make_call, op_id, action)

    @property
    def place(self) -> Place:
        """The chat as a place of text about people."""
        return Place("chat", self.scope.keys.id, decode_name(self.source))

    @property
    def keep_s(self) -> float:
        """Seconds for which text may be in the chat: in messages, and in summaries that are written anew."""
        return self.scope.settings.chat.life_s + 2 * self.scope.settings.chat.summary_ttl_s

    async def admit(self, *, growing: bool = True) -> None:
        """Refuse what the tenant has no room for.

        Args:
            growing: whether the chat grows; False for what helps to make room, which a new chat alone is refused.

        Raises:
            TenantFull: it has reached a limit.
        """
        if self.accounts is not None:
            await self.accounts.admit(self.scope.keys, self.source, growing=growing)

    def note(self) -> None:
        """Note a change of size or lifetime."""
        if self.accounts is not None:
            self.accounts.note(self.scope.keys, self.source)

    def _full(self, what: str) -> ChatFull:
        name, cap = {
            "sources": ("chat.max_sources", self.scope.settings.chat.max_sources),
            "fields": ("the cap of fields", MAX_FIELDS),
        }[what]
        return ChatFull(self.scope.keys.id, what, name, cap)

    def make_rows(
        self, messages: Sequence[Mapping[str, Any] | Message], turn: str | None, op_id: str | None
    ) -> list[MessageRow]:
        """Encode messages that are appended, each with an id: its own, one from the op id, or a new one.

        Raises:
            InvalidInput: none or too many, or one that cannot be stored.
        """
        given: Any = messages
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise InvalidInput(f"give a list of messages, not a {type(messages).__name__}")
        if not 1 <= len(messages) <= MAX_ROWS:
            raise InvalidInput(f"an append takes 1 to {MAX_ROWS} messages, not {len(messages)}")
        stem = None if op_id is None else _id_stem(op_id)
        rows = [
            self.make_row(message, turn=turn, default=None if stem is None else f"{stem}.{place}")
            for place, message in enumerate(messages, 1)
        ]
        if (size := sum(len(row.id) + sum(map(len, row[2:])) for row in rows)) > MAX_CALL_BYTES:
            raise InvalidInput(f"{size} bytes of messages are too much for one append; send at most {MAX_CALL_BYTES}")
        return rows

    def make_row(
        self,
        message: Mapping[str, Any] | Message,
        *,
        turn: str | None = None,
        id_: str | None = None,
        default: str | None = None,
        version: int = 1,
    ) -> MessageRow:
        """Encode a message; `id_` stands over the message's own id, and that over `default`.

        Raises:
            InvalidInput: it cannot be stored.
        """
        whole = message if isinstance(message, Message) else Message(message)
        data = whole.data
        if not isinstance(data, dict) and not hasattr(data, "model_dump"):
            raise InvalidInput(f"a message is a JSON object, not {type(data).__name__}; put the text into one")
        if whole.tokens is not None:
            check_number("tokens", whole.tokens)
        given = next((name for name in (id_, whole.id, default) if name is not None), None)
        row = MessageRow(
            encode_name("message id", given) if given is not None else new_short_id(),
            check_number("version", version, least=1, most=MAX_VERSION),
            "null" if whole.tokens is None else str(whole.tokens),
            encode_name("turn", whole.turn if whole.turn is not None else turn),
            encode_name("subject", whole.subject),
            format_links(whole.calls, whole.answers),
            self.encode("message", data),
        )
        most = self.scope.settings.chat.max_message_bytes
        if (size := len(row.links) - len(_NO_LINKS) + len(row.text)) > most:
            raise InvalidInput(
                f"a message of {size} bytes, with the ids of its tool calls, is too long; "
                f"chat.max_message_bytes is {most}"
            )
        return row


def _id_stem(op_id: str) -> str:
    """Return what the ids of the messages of an append begin with, short enough for `.500` behind it.

    Raises:
        InvalidInput: not an op id.
    """
    data = check_text("op_id", op_id).encode()
    return op_id if len(data) <= _MAX_STEM_BYTES else hashlib.sha256(data).hexdigest()


def check_number(name: str, value: int, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    """Return `value` if it is a whole number between `least` and `most`.

    Raises:
        InvalidInput: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} must be a whole number between {least} and {most}, not {value!r:.80}")
    return value
