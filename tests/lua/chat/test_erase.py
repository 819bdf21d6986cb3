"""lua/chat/erase.lua: messages about a person lose their text, the others their place never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.chat import scripts
from orchestrator.chat.model import parse_entries, parse_entry
from tests.lua.chat.chats import row

if TYPE_CHECKING:
    from orchestrator.chat.scripts import ChatReply
    from tests.lua.chat.chats import Chats

pytestmark = pytest.mark.every_server

MINUTE_MS = 60_000


def _erase(chats: Chats, *, after: int = 0, **options: Any) -> ChatReply:
    return chats.run(scripts.erase, subject="eve", for_ms=20 * MINUTE_MS, after=after, **options)


def _entries(chats: Chats) -> list[bytes]:
    found: list[bytes] = chats.store.execute("LRANGE", chats.key("q"), 0, -1)
    return found


def _check(chats: Chats) -> None:
    """Counts and ids fit the list, with erased messages."""
    messages = [message for entry in _entries(chats) if (message := parse_entry(entry)) is not None]
    head = chats.head()
    flat = chats.store.execute("HGETALL", chats.key("id"))
    assert (head.count, head.bytes) == (len(messages), sum(map(len, _entries(chats))))
    assert head.tokens == sum(message.tokens or 0 for message in messages)
    assert [message.number for message in messages] == list(range(head.base + 1, head.seq + 1))
    assert dict(zip(flat[::2], map(int, flat[1::2]), strict=True)) == {
        message.id.encode(): message.number for message in messages
    }


def test_erase(chats: Chats) -> None:
    """Text, id, turn and person go, with the summary; numbers stay; readers get the others, and read all again."""
    chats.append(row("a", 1), row("b", "planted", subject="eve", turn="t", tokens="9"), row("c", 3, subject="bob"))
    chats.append(row("d", "planted", subject="eve"))
    chats.run(scripts.summarize, text=b'"planted"', upto=1, version=1)
    before = chats.head()
    reply = _erase(chats, op="x")
    assert reply.rest == (4, 4, 2, 1)
    assert "planted" not in repr(chats.snapshot())
    assert "eve" not in repr(chats.snapshot())
    assert [(message.number, message.id) for message in chats.stored()] == [(1, "a"), (3, "c")]
    assert chats.since(before.rev, before.seq).word == "all"
    _check(chats)
    unchanged = chats.snapshot()
    assert _erase(chats, op="x").rest == (4, 4, 2, 1)
    assert chats.snapshot() == unchanged
    assert _erase(chats).rest == (4, 4, 0, 0)
    assert chats.append(row("e", 5)).rest == (5, 1, 0)
    assert [message.number for message in chats.stored()] == [1, 3, 5]
    _check(chats)


def test_what_comes_later(chats: Chats) -> None:
    """New messages about the person are refused until the time is over, alone, among others and as new versions."""
    chats.append(row("a", 1), row("b", 2, subject="eve"))
    _erase(chats)
    before = chats.snapshot()
    assert chats.append(row("x"), row("y", subject="eve")).status == "erased"
    assert chats.run(scripts.put, row=row("a", 5, version=7, subject="eve"), mode="newer").status == "erased"
    assert chats.snapshot() == before
    assert chats.append(row("x", subject="bob")).status == "ok"
    chats.sleep(20 * MINUTE_MS + 1)
    assert chats.append(row("y", subject="eve")).status == "ok"


def test_many(chats: Chats) -> None:
    """At most 500 messages or 1 MiB in a call; the reply says where to go on."""
    for first in range(0, 1000, 500):
        chats.append(*[row(f"m{n}", n, subject="eve" if n % 2 else "-") for n in range(first, first + 500)])
    assert _erase(chats).rest == (500, 1000, 250, 0)
    assert _erase(chats, after=500).rest == (1000, 1000, 250, 0)
    assert len(chats.stored()) == 500
    _check(chats)
    chats.sleep(20 * MINUTE_MS + 1)
    for n in range(30):
        chats.append(row(f"long{n}", "x" * 100_000, subject="eve"), source="long")
    seen = [0]
    while seen[-1] < 30:
        seen.append(_erase(chats, source="long", after=seen[-1]).rest[0])
    assert len(seen) == 4
    assert parse_entries(chats.store.execute("LRANGE", chats.key("q", "long"), 0, -1)) == ()


def test_a_summary_alone(chats: Chats) -> None:
    """Of a chat that has ended, the summary goes, and no key is made but the mark."""
    chats.append(row("a"))
    chats.run(scripts.summarize, text=b'"planted"', upto=1, version=1)
    for part in ("q", "id", "meta"):
        chats.store.execute("DEL", chats.key(part))
    chats.store.execute("DEL", chats.keys.key("ops"))
    assert _erase(chats).rest == (0, 0, 0, 1)
    assert {name.rpartition("}:")[2] for name in chats.names()} == {"chats", "erased"}


def test_restored_messages(chats: Chats) -> None:
    """A second storage does not bring back messages about the person."""
    chats.append(row("a", 1), row("b", 2, subject="eve"))
    _erase(chats)
    chats.store.execute("LTRIM", chats.key("q"), 2, -1)
    chats.store.execute("DEL", chats.key("q"), chats.key("meta"), chats.key("id"))
    chats.append(row("z", 9))
    base = chats.head().base
    rows = [
        scripts.RestoredRow(1, 1, 1, "a", 1, "null", "-", "-", "null,null", b"1"),
        scripts.RestoredRow(2, 2, 1, "b", 1, "null", "-", "eve", "null,null", b'"planted"'),
    ]
    reply = chats.run(scripts.restore, rows=rows, base=base, shift=2, trimmed=0)
    assert reply.status == "ok"
    assert [message.id for message in chats.stored()] == ["a", "z"]
