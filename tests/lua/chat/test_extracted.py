"""The note up to which message a skill has extracted a chat: it never falls, and covers nothing that was not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.chat import scripts
from tests.helpers.cases import each_case
from tests.lua.chat.chats import CHANGES, fill, restored, row
from tests.lua.scope import task_id

if TYPE_CHECKING:
    from tests.lua.chat.chats import Chats

pytestmark = pytest.mark.every_server


def test_it_never_falls(chats: Chats) -> None:
    """A lower number, as of an old task, changes nothing; each skill and each chat has a number of its own."""
    fill(chats)
    before = chats.head()
    assert chats.extracted(2).rest == (2,)
    assert chats.extracted(1).rest == (2,)
    assert chats.extracted(2).rest == (2,)
    assert chats.extracted(3, name="ed/other").rest == (3,)
    assert chats.head().extracted == {"ed/extract": 2, "ed/other": 3}
    assert chats.extracted(9).rest == (3,), "a number beyond the last message"
    assert chats.head().rev == before.rev
    assert chats.head().version == before.version
    chats.append(row("d"), source="mail")
    assert chats.head("mail").extracted == {}
    chats.check()


def test_a_chat_that_is_not_there(chats: Chats) -> None:
    """Nothing is noted of a chat that has ended, so that no key without a lifetime is left."""
    reply = chats.extracted(3)
    assert (reply.status, reply.rev, reply.rest) == ("ok", 0, (0,))
    assert not chats.names()


def test_messages_that_came_after_the_read(chats: Chats) -> None:
    """Messages that got their number after the caller has read are not covered, and neither is a replaced last one."""
    fill(chats)
    rev = chats.head().rev
    CHANGES["pop"](chats)
    chats.append(row("other", 3))
    assert chats.extracted(3, rev=rev).rest == (2,)
    rev = chats.head().rev
    chats.run(scripts.put, row=row("other", 4, version=2), mode="newer")
    assert chats.extracted(3, rev=rev).rest == (2,)
    assert chats.extracted(3, rev=chats.head().rev).rest == (3,)
    chats.append(*[row(f"n{number}") for number in range(490)])
    chats.append(*[row(f"o{number}") for number in range(490)])
    assert chats.extracted(983, rev=rev).rest == (483,), "a call looks at 500 messages"


def test_pop_lowers_it(chats: Chats) -> None:
    """The next message gets the number of the popped one, so the note goes back to the messages that are left."""
    fill(chats)
    chats.extracted(3)
    chats.extracted(1, name="ed/other")
    CHANGES["pop"](chats)
    assert chats.head().extracted == {"ed/extract": 2, "ed/other": 1}
    chats.append(row("d"))
    assert chats.head().extracted == {"ed/extract": 2, "ed/other": 1}


@each_case("change", sorted(CHANGES.keys() - {"pop", "restore"}), fresh="chats")
def test_other_changes_keep_it(chats: Chats, change: str) -> None:
    """Numbers continue over all other changes, and the note with them."""
    fill(chats)
    chats.extracted(2)
    assert CHANGES[change](chats).status == "ok"
    assert chats.head().extracted == {"ed/extract": 2}


def test_a_restore_that_renumbers_removes_it(chats: Chats) -> None:
    """Messages with other numbers are extracted again; a restore that keeps the numbers keeps the note."""
    fill(chats)
    chats.extracted(2)
    rows = [restored(1, "x"), restored(2, "y")]
    assert chats.run(scripts.restore, rows=rows, base=0, shift=0, trimmed=0).status == "ok"
    assert chats.head().extracted == {"ed/extract": 2}
    chats.store.execute("HDEL", chats.key("meta"), "saved")
    assert chats.run(scripts.restore, rows=rows, base=0, shift=2, trimmed=0).status == "ok"
    assert chats.head().extracted == {}


def test_who_is_refused(chats: Chats) -> None:
    """An attempt that lost its lock notes nothing, and neither does a caller while a task holds the session alone."""
    fill(chats)
    task = task_id()
    lock = f"exec:{task}"
    old = chats.claim(lock, task, "10").value
    new = chats.claim(lock, task, "11").value
    late = chats.extracted(2, shown=(lock, old))
    assert (late.status, late.rest) == ("fenced", (new.encode(),))
    assert chats.extracted(1, shown=(lock, new)).rest == (1,)
    chats.lapse(lock)
    held = chats.claim("exec", task_id()).value
    busy = chats.extracted(2)
    assert (busy.status, busy.rest[0]) == ("occupied", held.encode())
    assert chats.head().extracted == {"ed/extract": 1}
    assert chats.extracted(2, shown=("exec", held)).rest == (2,)
