"""A session's chats for script tests: short calls with the wrappers behind them."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from orchestrator.chat import scripts
from orchestrator.chat.model import ChatHead, StoredMessage, encode_name, parse_entries
from orchestrator.chat.queries import parse_head
from orchestrator.chat.scripts import ChatCall, ChatReply, MessageRow, RestoredRow, SinceReply
from orchestrator.core.ids import encode_foreign
from orchestrator.core.settings import ChatSettings, Settings
from orchestrator.locks.fenced_writer import CallerRow
from tests.lua.keyspace import clear
from tests.lua.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.store.calls import Call


def row(id_: str, value: Any = None, **columns: Any) -> MessageRow:
    """A message."""
    columns = {"version": 1, "tokens": "null", "turn": "-", "subject": "-", "links": "null,null", **columns}
    return MessageRow(encode_name("id", id_), text=json.dumps({"m": value}).encode(), **columns)


def restored(number: int, id_: str, *, revision: int | None = None, **columns: Any) -> RestoredRow:
    """A message of a second storage."""
    plain = row(id_, number, **columns)
    return RestoredRow(number, number if revision is None else revision, 1_000 + number, *plain)


class Chats(Scope):
    """The chats of one session on one server, with settings of their own."""

    def __init__(self, url: str, prefix: str, session: str = "S/1", **settings: Any) -> None:
        super().__init__(url, prefix, "session", session)
        self.settings = Settings(chat=ChatSettings(**settings))
        self._ops = itertools.count()

    def start_afresh(self) -> None:
        """Check the lifetimes of the keys, and begin again with none."""
        clear(self.link, self.keys.root)

    def run(
        self,
        wrapper: Callable[..., Call[ChatReply]],
        *,
        op: str | None = None,
        shown: tuple[str, str] = ("", ""),
        exclusive: str = "",
        source: str = "main",
        **args: Any,
    ) -> ChatReply:
        """Make a change by its wrapper."""
        caller = CallerRow(op or f"auto{next(self._ops)}", *shown, "ada", exclusive)
        head = ChatCall(self.keys, caller, scripts.pack_limits(self.settings), encode_foreign("source", source))
        while (reply := self.call(wrapper(head, **args))).status == "again":
            pass
        return reply

    def append(self, *rows: MessageRow, **options: Any) -> ChatReply:
        """Append messages."""
        return self.run(scripts.append, rows=rows, **options)

    def extracted(
        self,
        upto: int,
        *,
        rev: int = 2**53,
        name: str = "ed/extract",
        shown: tuple[str, str] = ("", ""),
        exclusive: str = "",
        source: str = "main",
    ) -> ChatReply:
        """Note up to which message a skill has extracted a chat."""
        caller, encoded = CallerRow("", *shown, "ed", exclusive), encode_foreign("source", source)
        return self.call(scripts.extracted(self.keys, caller=caller, source=encoded, name=name, upto=upto, rev=rev))

    def key(self, part: str, source: str = "main") -> str:
        """A key of a chat."""
        return self.keys.key(self.keys.chat_part(source, part))

    def stored(self, source: str = "main") -> tuple[StoredMessage, ...]:
        """The messages."""
        return parse_entries(self.store.execute("LRANGE", self.key("q", source), 0, -1))

    def ids(self, source: str = "main") -> list[str]:
        """The ids of the messages."""
        return [message.id for message in self.stored(source)]

    def head(self, source: str = "main") -> ChatHead:
        """The counts."""
        flat = self.store.execute("HGETALL", self.key("meta", source))
        return parse_head(dict(zip(flat[::2], flat[1::2], strict=True)))

    def since(self, rev: int, seq: int, last: int = 100) -> SinceReply:
        """Read what is new."""
        return self.call(scripts.since(self.keys, source="main", rev=rev, seq=seq, last=last))

    def check(self, source: str = "main") -> None:
        """The counts fit the messages, their numbers have no gaps, and the ids lead to them."""
        head, entries = self.head(source), self.store.execute("LRANGE", self.key("q", source), 0, -1)
        messages = parse_entries(entries)
        flat = self.store.execute("HGETALL", self.key("id", source))
        assert (head.count, head.bytes) == (len(messages), sum(map(len, entries)))
        assert head.tokens == sum(message.tokens or 0 for message in messages)
        assert [message.number for message in messages] == list(range(head.base + 1, head.seq + 1))
        assert len({message.revision for message in messages}) == len(messages)
        assert max([message.revision for message in messages], default=0) <= head.rev
        assert dict(zip(flat[::2], map(int, flat[1::2]), strict=True)) == {
            encode_name("id", message.id).encode(): message.number for message in messages
        }


CHANGES: dict[str, Callable[..., ChatReply]] = {
    "append": lambda chats, **options: chats.append(row("new", 1), row("newer", 2), **options),
    "put": lambda chats, **options: chats.run(scripts.put, row=row("a", 5, version=7), mode="newer", **options),
    "patch": lambda chats, **options: chats.run(scripts.put, row=row("b", 5, version=1), mode="is", **options),
    "meta": lambda chats, **options: chats.run(
        scripts.meta, fields=[("topic", b'"x"'), ("gone", None)], version=0, most=9, **options
    ),
    "summarize": lambda chats, **options: chats.run(scripts.summarize, text=b'"s"', upto=1, version=1, **options),
    "pop": lambda chats, **options: chats.run(
        scripts.pop, number=chats.stored()[-1].number, revision=chats.stored()[-1].revision, **options
    ),
    "truncate": lambda chats, **options: chats.run(scripts.truncate, keep=1, **options),
    "restore": lambda chats, **options: chats.run(
        scripts.restore, rows=[restored(1, "x"), restored(2, "y")], base=0, shift=2, trimmed=0, **options
    ),
    "erase": lambda chats, **options: chats.run(scripts.erase, subject="eve", for_ms=60_000, after=0, **options),
    "clear": lambda chats, **options: chats.run(scripts.clear, **options),
}
"""Every change, on a chat with the messages a, b and c."""


def fill(chats: Chats) -> None:
    """Store the messages a, b and c."""
    chats.append(row("a", 1, tokens="3"), row("b", 2, tokens="4", subject="eve"), row("c", 3))
