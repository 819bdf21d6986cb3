"""Keys of a chat that the server has lost, as an evicting one does: numbers go on, and what is missing is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.chat import scripts
from orchestrator.chat.scripts import ChatCall
from orchestrator.locks.fenced_writer import CallerRow
from tests.lua.chat.chats import CHANGES, fill, row

if TYPE_CHECKING:
    from tests.lua.chat.chats import Chats

pytestmark = pytest.mark.every_server


def lose(chats: Chats, *parts: str) -> None:
    """Delete keys of the chat."""
    chats.store.execute("DEL", *[chats.key(part) for part in parts])


def test_lost_messages(chats: Chats) -> None:
    """New messages get numbers behind the lost ones, whose ids are free again; the counts tell how many are missing."""
    fill(chats)
    lose(chats, "q")
    assert chats.since(chats.head().rev, 3).word == "all"
    assert chats.append(row("a"), row("d")).rest == (5, 2, 0)
    head = chats.head()
    assert (head.base, head.count, head.base - head.trimmed) == (3, 2, 3)
    assert chats.ids() == ["a", "d"]
    chats.check()


def test_lost_counts(chats: Chats) -> None:
    """The counts are made again from the messages; revisions stay above all that were told."""
    fill(chats)
    rev = chats.run(scripts.truncate, keep=2).rev
    fields = CHANGES["meta"](chats).rev
    lose(chats, "meta")
    chats.sleep(1)
    reply = chats.append(row("d"), row("b"))
    assert reply.rest == (4, 1, 0, 2, 2)
    assert reply.rev > max(rev, fields)
    chats.check()


def test_lost_ids(chats: Chats) -> None:
    """Ids of the messages are stored again, so that a repeat is not appended twice."""
    fill(chats)
    lose(chats, "id")
    assert chats.append(row("a"), row("d")).rest == (4, 1, 0, 1, 1)
    chats.check()
    lose(chats, "id")
    assert chats.run(scripts.put, row=row("b", 9, version=4), mode="newer").rest == (1, 4, 2)
    chats.check()


def test_lost_ids_of_many(chats: Chats) -> None:
    """All come back, in steps of 500, before anything is changed: no id is stored twice."""
    for start in range(0, 1200, 400):
        chats.append(*[row(f"m{number}") for number in range(start, start + 400)])
    lose(chats, "id")
    assert chats.append(row("m1199"), row("m800")).rest == (1200, 0, 0, 1, 1200, 2, 801)
    assert chats.store.execute("HLEN", chats.key("id")) == 1200
    assert chats.run(scripts.put, row=row("m10", version=2), mode="newer").rest == (1, 2, 11)
    chats.check()


@pytest.mark.parametrize("chats", [{"max_bytes": 1_000_000, "max_message_bytes": 100_000}], indirect=True)
@pytest.mark.parametrize("part", ["id", "meta"])
def test_the_size_is_counted_exactly(chats: Chats, part: str) -> None:
    """Few long messages at the end of many short ones do not make the chat seem too large: nothing is dropped."""
    for start in range(0, 2000, 500):
        chats.append(*[row(f"m{number}") for number in range(start, start + 500)])
    chats.append(*[row(f"long{number}", "x" * 90_000) for number in range(8)])
    lose(chats, part)
    assert chats.append(row("d")).rest == (2009, 1, 0)
    chats.check()


def test_the_list_changes_during_a_count(chats: Chats) -> None:
    """A key that is lost between two steps makes the count begin again."""
    for start in range(0, 1500, 500):
        chats.append(*[row(f"m{number}") for number in range(start, start + 500)])
    for part in ("id", "meta"):
        lose(chats, part)
        caller = CallerRow(f"step-{part}", "", "", "ada", "")
        head = ChatCall(chats.keys, caller, scripts.pack_limits(chats.settings), "main")
        assert chats.call(scripts.append(head, rows=[row("m1")])).status == "again"
        assert chats.store.execute("HLEN", chats.key("id")) == 500
        lose(chats, part)
        assert chats.append(row("m1")).rest == (1500, 0, 0, 1, 2)
        chats.check()


def test_a_failover_loses_a_change(chats: Chats) -> None:
    """What is appended to the older state has another revision than what was lost; a reader of that reads all."""
    fill(chats)
    before = {part: chats.store.execute("DUMP", chats.key(part)) for part in ("q", "id", "meta")}
    chats.sleep(1)
    lost = chats.append(row("lost"))
    for part, value in before.items():
        chats.store.execute("RESTORE", chats.key(part), 60_000, value, "REPLACE")
    chats.sleep(1)
    assert chats.append(row("kept")).rev > lost.rev
    assert chats.since(lost.rev, 4).word == "all"


def test_a_lost_summary_is_told(chats: Chats) -> None:
    """A reader that knows the chat is sent all of it, without the summary."""
    fill(chats)
    rev = chats.run(scripts.summarize, text=b'"s"', upto=2, version=1).rev
    assert chats.since(rev, 3).word == "same"
    lose(chats, "sum")
    assert chats.since(rev, 3).word == "all"


def test_all_but_the_summary(chats: Chats) -> None:
    """Numbers go on behind those that the summary covers, also after the messages have ended as they should."""
    fill(chats)
    chats.run(scripts.summarize, text=b'"s"', upto=3, version=1)
    lose(chats, "q", "id", "meta")
    assert chats.append(row("d")).rest == (4, 1, 0)
    assert chats.head().base - chats.head().trimmed == 0
    chats.check()


def test_lost_list_of_chats(chats: Chats) -> None:
    """The next change lists the chat again."""
    fill(chats)
    chats.store.execute("DEL", chats.keys.key("chats"))
    chats.append(row("d"))
    assert chats.store.execute("HKEYS", chats.keys.key("chats")) == [b"main"]


@pytest.mark.parametrize("name", ["pop", "truncate", "clear", "put"])
def test_every_change_finds_the_loss(chats: Chats, name: str) -> None:
    """Whichever change comes next after the counts or ids were lost leaves a consistent chat."""
    for part in ("meta", "id"):
        fill(chats)
        lose(chats, part)
        CHANGES[name](chats)
        chats.check()
        chats.start_afresh()
