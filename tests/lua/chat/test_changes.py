"""Changes of chats: what each does, whom it refuses, and that it is made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.chat import scripts
from tests.helpers.cases import each_case
from tests.lua.chat.chats import CHANGES, fill, row
from tests.lua.scope import task_id

if TYPE_CHECKING:
    from tests.lua.chat.chats import Chats

pytestmark = pytest.mark.every_server


def test_append(chats: Chats) -> None:
    """Messages get numbers without gaps and revisions of their own; what the caller says of them is kept."""
    first = chats.append(row("a", 1, tokens="7", turn="t-1", subject="ada"))
    assert (first.status, first.rest) == ("ok", (1, 1, 0))
    again = chats.append(row("b", "ä\n", links='["c1"],["c2"]'), row("naïve id", None))
    assert (again.rest, again.rev) == ((3, 2, 0), first.rev + 2)
    one, two, three = chats.stored()
    assert (one.number, one.tokens, one.turn, one.subject, one.version) == (1, 7, "t-1", "ada", 1)
    assert (two.number, two.data, two.calls, two.answers) == (2, {"m": "ä\n"}, ("c1",), ("c2",))
    assert (three.id, three.turn, three.tokens, three.calls) == ("naïve id", None, None, None)
    chats.check()
    assert {name.rpartition("}:")[2] for name in chats.names()} == {
        *("chat:main:q", "chat:main:id", "chat:main:meta", "chats", "ops")
    }


def test_known_ids(chats: Chats) -> None:
    """A message whose id the chat holds is not stored again, within one call neither; its number is told."""
    fill(chats)
    reply = chats.append(row("b", "other"), row("d"), row("d", "twice"), row("c"))
    assert reply.rest == (4, 1, 0, 1, 2, 3, 4, 4, 3)
    assert chats.ids() == ["a", "b", "c", "d"]
    assert chats.stored()[1].data == {"m": 2}
    chats.check()


@pytest.mark.parametrize("chats", [{"max_messages": 3}], indirect=True)
def test_cap_of_messages(chats: Chats) -> None:
    """The oldest are dropped with their ids, which may then be used again; more at once than fit leave the newest."""
    fill(chats)
    assert chats.append(row("d"), row("e")).rest == (5, 2, 2)
    assert chats.ids() == ["c", "d", "e"]
    assert chats.append(row("a")).rest == (6, 1, 1)
    assert chats.append(*[row(f"n{i}") for i in range(9)]).rest == (15, 9, 9)
    assert chats.ids() == ["n6", "n7", "n8"]
    assert chats.head().trimmed == 12
    chats.check()


@pytest.mark.parametrize("chats", [{"max_bytes": 1024}], indirect=True)
def test_cap_of_bytes(chats: Chats) -> None:
    """Also by size; the newest message stays, however long it is."""
    for number in range(30):
        chats.append(row(f"m{number}", "x" * 100))
        chats.check()
    assert chats.head().bytes <= 1024
    assert chats.ids()[-1] == "m29"
    assert 3 <= len(chats.ids()) <= 9
    chats.append(row("long", "x" * 5000))
    assert chats.ids() == ["long"]
    chats.check()


def test_lowered_cap(chats: Chats) -> None:
    """A cap that was lowered is reached in steps of 500, so that no call takes long."""
    for start in range(0, 1500, 500):
        chats.append(*[row(f"m{number}") for number in range(start, start + 500)])
    chats.settings = chats.settings.model_copy(
        update={"chat": chats.settings.chat.model_copy(update={"max_messages": 100})}
    )
    assert [chats.append(row(f"n{number}")).rest[2] for number in range(4)] == [501, 501, 401, 1]
    assert chats.head().count == 100
    chats.check()


def test_upsert(chats: Chats) -> None:
    """Only a newer version replaces a message, in its place and at its time; a new id is appended."""
    fill(chats)
    old = chats.stored()[0]
    chats.sleep(5)
    assert chats.run(scripts.put, row=row("a", 9, version=5, tokens="9"), mode="newer").rest == (1, 5, 1)
    new = chats.stored()[0]
    assert (new.number, new.data, new.version, new.at_ms, new.tokens) == (1, {"m": 9}, 5, old.at_ms, 9)
    assert new.revision > chats.stored()[2].revision
    before = chats.stored()
    for version in (4, 5):
        assert chats.run(scripts.put, row=row("a", 1, version=version), mode="newer").rest == (0, 5, 1)
    assert chats.stored() == before
    assert chats.run(scripts.put, row=row("z", 1, version=3), mode="newer").rest == (1, 3, 4)
    chats.check()


def test_patch(chats: Chats) -> None:
    """A message is replaced if it has the expected version; turn and person stay unless others are given."""
    chats.append(row("a", 1, turn="t", subject="ada"))
    assert chats.run(scripts.put, row=row("a", 2, version=1), mode="is").rest == (1, 2, 1)
    assert (chats.stored()[0].turn, chats.stored()[0].data) == ("t", {"m": 2})
    assert chats.run(scripts.put, row=row("a", 3, version=2, turn="u"), mode="is").rest == (1, 3, 1)
    (message,) = chats.stored()
    assert (message.turn, message.subject, message.data) == ("u", "ada", {"m": 3})
    before = chats.snapshot()
    for id_, version, present in (("a", 2, 3), ("a", 4, 3), ("none", 1, 0)):
        reply = chats.run(scripts.put, row=row(id_, 4, version=version), mode="is")
        assert (reply.status, reply.rest) == ("conflict", (present,))
    assert chats.snapshot() == before


def test_fields(chats: Chats) -> None:
    """Fields are written in one change; a version that is not newer writes none; a cap holds."""
    fields = [(f"f{number}", b"1") for number in range(3)]
    assert chats.run(scripts.meta, fields=fields, version=0, most=4).rest == (1, 1)
    assert chats.run(scripts.meta, fields=[("f0", None), ("g", b"[]")], version=7, most=4).rest == (1, 7)
    assert chats.head().fields == {"f1": 1, "f2": 1, "g": []}
    for version in (6, 7):
        assert chats.run(scripts.meta, fields=[("g", b"2")], version=version, most=4).rest == (0, 7)
    before = chats.snapshot()
    full = chats.run(scripts.meta, fields=[("h", b"1"), ("i", b"1")], version=0, most=4)
    assert (full.status, full.rest) == ("full", (b"fields",))
    assert chats.snapshot() == before


def test_summary(chats: Chats) -> None:
    """A summary is replaced by a newer one only, and lives longer than the messages."""
    fill(chats)
    assert chats.run(scripts.summarize, text=b'"one"', upto=2, version=2).rest == (1, 2)
    assert chats.run(scripts.summarize, text=b'"two"', upto=3, version=2).rest == (0, 2)
    assert chats.store.execute("HMGET", chats.key("sum"), "text", "upto", "version") == [b'"one"', b"2", b"2"]
    settings = chats.settings.chat
    now_ms = chats.now_us // 1000
    assert chats.store.execute("PEXPIRETIME", chats.key("sum")) == now_ms + round(settings.summary_ttl_s * 1000)
    assert int(chats.store.execute("HGET", chats.keys.key("chats"), "main")) == now_ms + round(
        settings.summary_ttl_s * 1000
    )


def test_pop(chats: Chats) -> None:
    """The last message goes if it is the expected one; its number is used again, its revision is not."""
    fill(chats)
    last = chats.stored()[-1]
    for number, revision in ((2, last.revision), (3, last.revision + 1)):
        assert chats.run(scripts.pop, number=number, revision=revision).status == "changed"
    assert chats.run(scripts.pop, number=3, revision=last.revision).rest == (3,)
    assert chats.ids() == ["a", "b"]
    chats.append(row("d"))
    assert chats.stored()[-1].number == 3
    assert chats.stored()[-1].revision > last.revision
    chats.check()


def test_truncate_and_clear(chats: Chats) -> None:
    """Both remove from the beginning; numbers and revisions go on, so that no reader mistakes new messages for old."""
    fill(chats)
    CHANGES["summarize"](chats)
    CHANGES["meta"](chats)
    assert chats.run(scripts.truncate, keep=2).rest == (1, 2)
    assert chats.run(scripts.truncate, keep=2).rest == (0, 2)
    assert chats.ids() == ["b", "c"]
    chats.check()
    rev = chats.head().rev
    assert chats.run(scripts.clear).rev == rev + 1
    assert {name.rpartition("}:")[2] for name in chats.names()} == {"chat:main:meta", "chats", "ops"}
    assert (chats.head().count, chats.head().fields, chats.head().base, chats.head().trimmed) == (0, {}, 3, 3)
    assert chats.append(row("a")).rest == (4, 1, 0)
    chats.check()


def test_sources_are_apart(chats: Chats) -> None:
    """A session has one chat per source, up to a cap; an op id counts for one of them."""
    chats.settings = chats.settings.model_copy(
        update={"chat": chats.settings.chat.model_copy(update={"max_sources": 2})}
    )
    assert chats.append(row("a"), op="one").status == "ok"
    assert chats.append(row("a"), op="one", source="web:1").status == "ok"
    before = chats.snapshot()
    full = chats.append(row("a"), source="third")
    assert (full.status, full.rest) == ("full", (b"sources",))
    assert chats.snapshot() == before
    chats.run(scripts.clear)
    assert chats.ids("web:1") == ["a"]
    # The place of a chat that has ended is free.
    chats.sleep(8 * 86_400_000)
    assert chats.append(row("a"), source="third").status == "ok"
    assert chats.store.execute("HKEYS", chats.keys.key("chats")) == [b"third"]


@each_case("name", CHANGES, fresh="chats")
def test_sent_twice(chats: Chats, name: str) -> None:
    """A repeat changes nothing, and is answered as the first call was."""
    fill(chats)
    first = CHANGES[name](chats, op="mine")
    before = chats.snapshot()
    if name == "pop":
        again = chats.run(scripts.pop, op="mine", number=3, revision=1)
    else:
        again = CHANGES[name](chats, op="mine")
    assert (again.status, again.rev, again.rest) == ("duplicate", first.rev, first.rest)
    assert chats.snapshot() == before


@each_case("name", CHANGES, fresh="chats")
def test_guards(chats: Chats, name: str) -> None:
    """A caller whose lock another one has changes nothing, nor does any while a task holds the session alone."""
    fill(chats)
    task, change = task_id(), CHANGES[name]
    lock = f"exec:{task}"
    old = chats.claim(lock, task, "10").value
    new = chats.claim(lock, task, "11").value
    before = chats.snapshot()
    late = change(chats, shown=(lock, old))
    assert (late.status, late.rest) == ("fenced", (new.encode(),))
    chats.lapse(lock)
    assert change(chats, shown=(lock, new)).rest == (b"",)
    held = chats.claim("exec", task_id()).value
    for shown in (("", ""), (lock, chats.claim(lock, task, "12").value)):
        busy = change(chats, shown=shown)
        assert (busy.status, busy.rest[0]) == ("occupied", held.encode())
    assert {name: value for name, value in chats.snapshot().items() if ":chat" in name} == {
        name: value for name, value in before.items() if ":chat" in name
    }
    assert change(chats, shown=("exec", held)).status == "ok"


def test_a_summary_of_what_is_not_there(chats: Chats) -> None:
    """A summary covers no message behind the last; one of a chat that has ended lets the numbers go on behind it."""
    fill(chats)
    assert chats.run(scripts.summarize, text=b'"s"', upto=4, version=1).rest == (3,)
    assert chats.store.execute("EXISTS", chats.key("sum")) == 0
    assert chats.run(scripts.summarize, text=b'"s"', upto=7, version=1, source="ended").status == "ok"
    assert chats.append(row("a"), source="ended").rest == (8, 1, 0)


@pytest.mark.parametrize("chats", [{"max_sources": 1}], indirect=True)
def test_nothing_to_remove(chats: Chats) -> None:
    """A chat that never was takes no place by its removal, and a session with all its places refuses none.

    `clear` leaves its mark for a copy in a second storage.
    """
    reply = CHANGES["truncate"](chats)
    assert (reply.status, reply.rev, reply.rest) == ("ok", 0, (0, 0))
    assert chats.names() == []
    assert CHANGES["clear"](chats, source="other").status == "ok"
    assert chats.store.execute("EXISTS", chats.keys.key("chats")) == 0
    assert chats.head("other").cleared > 0
    fill(chats)
    assert CHANGES["clear"](chats, source="third").status == "ok"
    assert CHANGES["truncate"](chats, source="third").status == "ok"
    assert chats.store.execute("HKEYS", chats.keys.key("chats")) == [b"main"]
    with_place = chats.append(row("a"), source="other")
    assert (with_place.status, with_place.rest) == ("full", (b"sources",))


def test_an_op_id_of_another_change(chats: Chats) -> None:
    """An op id names one change: other ids, or another way to replace a message, are refused."""
    chats.append(row("a"), op="o")
    assert chats.append(row("a", "other text"), op="o").status == "duplicate"
    assert chats.append(row("b"), op="o").status == "reused"
    assert chats.run(scripts.put, row=row("a", version=2), mode="newer", op="o").status == "ok"
    assert chats.run(scripts.put, row=row("a", version=2), mode="is", op="o").status == "reused"
    assert chats.run(scripts.put, row=row("b", version=2), mode="newer", op="o").status == "reused"
    assert chats.ids() == ["a"]
