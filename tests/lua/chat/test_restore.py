"""Messages that come back from a second storage, and the mark of what it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.chat import scripts
from tests.lua.chat.chats import fill, restored, row

if TYPE_CHECKING:
    from orchestrator.chat.scripts import ChatReply, RestoredRow
    from tests.lua.chat.chats import Chats

pytestmark = pytest.mark.every_server


def restore(chats: Chats, *rows: RestoredRow, base: int, **args: Any) -> ChatReply:
    """Restore messages."""
    return chats.run(scripts.restore, rows=rows, base=base, **{"shift": 0, "trimmed": 0, **args})


def test_an_ended_chat(chats: Chats) -> None:
    """Messages keep numbers, revisions and times; later ones follow them."""
    reply = restore(
        chats, restored(6, "e"), restored(7, "f", tokens="9", turn="t", links='["c1"],null'), base=0, shift=7
    )
    assert reply.rest == (2, 5)
    assert [(each.number, each.revision, each.at_ms) for each in chats.stored()] == [(6, 6, 1006), (7, 7, 1007)]
    assert (chats.stored()[1].tokens, chats.stored()[1].calls) == (9, ("c1",))
    assert restore(chats, restored(4, "c"), restored(5, "d"), base=5, trimmed=2).rest == (2, 3)
    chats.check()
    head = chats.head()
    assert (head.trimmed, head.lost, head.saved, head.edited) == (2, 1, 1, head.rev)
    assert head.rev > 10**15
    assert chats.append(row("g")).rest == (8, 1, 0)
    assert [name for name in chats.names() if chats.store.execute("PTTL", name) < 0] == []
    chats.check()


def test_messages_that_came_since(chats: Chats) -> None:
    """They get the numbers behind the restored ones, and new revisions, so that readers and copies take them anew."""
    fill(chats)
    before = chats.head()
    assert restore(chats, restored(8, "y"), restored(9, "x"), base=0, shift=9).rest == (2, 7)
    assert [(each.id, each.number) for each in chats.stored()] == [
        ("y", 8), ("x", 9), ("a", 10), ("b", 11), ("c", 12),
    ]  # fmt: skip
    assert min(each.revision for each in chats.stored()[2:]) > before.rev
    assert chats.since(before.rev, 3).word == "all"
    chats.check()


def test_known_messages_stay(chats: Chats) -> None:
    """What the chat holds is newer than any copy."""
    fill(chats)
    reply = restore(chats, restored(1, "x"), restored(2, "b"), base=0, shift=2)
    assert reply.rest == (1, 1)
    assert chats.ids() == ["x", "a", "b", "c"]
    assert chats.stored()[2].data == {"m": 2}
    chats.check()


def test_a_hole(chats: Chats) -> None:
    """A message that does not precede the first one gets the number that does, and a new revision."""
    restore(chats, restored(9, "z"), base=0, shift=9)
    rev = chats.head().rev
    assert restore(chats, restored(4, "d"), restored(5, "e"), base=8, trimmed=3).rest == (2, 6)
    assert [(each.id, each.number) for each in chats.stored()] == [("d", 7), ("e", 8), ("z", 9)]
    assert min(each.revision for each in chats.stored()[:2]) > rev
    assert chats.head().lost == 3
    chats.check()


def test_refusals(chats: Chats) -> None:
    """Another first message than the caller knows, and too many messages to be numbered anew, change nothing."""
    fill(chats)
    chats.run(scripts.truncate, keep=1)
    reply = restore(chats, restored(1, "x"), base=1)
    assert (reply.status, reply.rest) == ("changed", (2, 1))
    for _ in range(2):
        chats.append(*[row(f"{number}-{_}") for number in range(250)])
    before = chats.store.execute("DUMP", chats.key("meta"))
    assert restore(chats, restored(1, "x"), base=2, shift=3).status == "late"
    assert chats.store.execute("DUMP", chats.key("meta")) == before
    chats.check()


def test_a_step_that_is_not_the_last(chats: Chats) -> None:
    """It leaves the number of missing messages open."""
    restore(chats, restored(9, "z"), base=0, shift=9, trimmed=-1)
    assert chats.store.execute("HGET", chats.key("meta"), "lost") is None
    assert restore(chats, base=8, trimmed=5).rest == (0, 8)
    assert (chats.head().lost, chats.head().trimmed) == (3, 5)


def test_the_mark_of_a_copy(chats: Chats) -> None:
    """It rises only, and makes no chat."""

    def saved(upto: int) -> bool:
        return chats.call(scripts.saved(chats.keys, source="main", upto=upto))

    assert not saved(5)
    assert not chats.names()
    fill(chats)
    assert [saved(5), saved(5), saved(4), saved(7)] == [True, False, False, True]
    assert chats.head().saved == 7
    rev = chats.head().rev
    chats.run(scripts.clear)
    assert chats.head().cleared > rev


def test_the_mark_of_a_summary(chats: Chats) -> None:
    """A reader sees that a summary was lost, until it was looked for in the copy."""
    fill(chats)
    chats.run(scripts.summarize, text=b'"s"', upto=1, version=4)
    assert chats.head().summed == 4
    restore(chats, base=0)
    assert chats.head().summed == 0
    chats.run(scripts.summarize, text=b'"s"', upto=1, version=5)
    chats.run(scripts.clear)
    assert chats.head().summed == 0
