"""How long a chat and its summary stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.chat import scripts
from tests.lua.chat.chats import CHANGES, fill, row

if TYPE_CHECKING:
    from tests.lua.chat.chats import Chats

pytestmark = pytest.mark.every_server

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def ends(chats: Chats) -> dict[str, int]:
    """The ms at which each key of the session ends, after the begin of the test; -1: never."""
    names = [name for name in chats.names() if ":ops" not in name]
    now_ms = chats.now_us // 1000
    found = {name.rpartition("}:")[2]: int(chats.store.execute("PEXPIRETIME", name)) for name in names}
    return {name: end if end == -1 else end - now_ms for name, end in found.items()}


def test_all_end_at_one_moment(chats: Chats) -> None:
    """All keys of the messages go in the same ms, a lifetime and an eighth after the change; the summary later."""
    for change in ("append", "meta", "summarize", "put"):
        CHANGES[change](chats)
    end = DAY_MS * 9 // 8
    assert ends(chats) == {
        "chat:main:meta": end,
        "chat:main:q": end,
        "chat:main:id": end,
        "chat:main:sum": 30 * DAY_MS,
        "chats": 30 * DAY_MS,
    }


def test_keys_that_come_later_end_with_the_others(chats: Chats) -> None:
    """Also when the messages come after the fields, or again after all were removed."""
    CHANGES["meta"](chats)
    chats.sleep(1000)
    fill(chats)
    assert len(set(ends(chats).values())) == 1
    chats.run(scripts.clear)
    fill(chats)
    assert len(set(ends(chats).values())) == 1


def test_a_change_moves_the_end(chats: Chats) -> None:
    """After an eighth of the lifetime a change gives all keys their whole time again, until the absolute end."""
    fill(chats)
    before = ends(chats)
    chats.sleep(3 * HOUR_MS - 1)
    chats.append(row("d"))
    assert ends(chats) == {name: end - 3 * HOUR_MS + 1 for name, end in before.items()}
    chats.sleep(1)
    chats.append(row("e"))
    assert ends(chats) == before
    for number in range(20):
        chats.sleep(8 * HOUR_MS)
        chats.append(row(f"m{number}"))
    born_ms = chats.head().born_ms
    assert set(ends(chats).values()) == {born_ms + 7 * DAY_MS - chats.now_us // 1000}


def test_a_shorter_life_keeps_what_is_written(chats: Chats) -> None:
    """When the setting allows less than the age of the chat, the next message is not deleted with its own write."""
    fill(chats)
    chats.sleep(2 * DAY_MS)
    chats.settings = chats.settings.model_copy(
        update={"chat": chats.settings.chat.model_copy(update={"ttl_s": 3600.0, "life_s": 3600.0})}
    )
    chats.append(row("d"))
    assert set(ends(chats).values()) == {900_000}


def test_a_chat_in_use_stays_at_the_end_of_its_life(chats: Chats) -> None:
    """A message that is accepted just before the absolute end stays for a turn; a read does not extend it."""
    fill(chats)
    for _ in range(14):
        chats.sleep(12 * HOUR_MS - 10)
        chats.append(row(f"m{chats.now_us}"))
    assert set(ends(chats).values()) == {900_000}
    chats.sleep(400_000)
    chats.append(row("early"))
    assert set(ends(chats).values()) == {500_000}
    chats.sleep(499_000)
    chats.append(row("late"))
    assert set(ends(chats).values()) == {900_000}
    end = chats.head().dies_ms
    touch = scripts.touch(chats.keys, source="main", ttl_ms=DAY_MS, life_ms=7 * DAY_MS)
    assert chats.call(touch) == end


def test_touch(chats: Chats) -> None:
    """A read extends the lifetime of all keys, never beyond the absolute end, and no change is told."""

    def touch() -> int:
        return chats.call(scripts.touch(chats.keys, source="main", ttl_ms=DAY_MS, life_ms=7 * DAY_MS))

    assert touch() == 0
    assert chats.names() == []
    fill(chats)
    rev, born_ms = chats.head().rev, chats.head().born_ms
    chats.sleep(20 * HOUR_MS)
    assert touch() == chats.now_us // 1000 + DAY_MS * 9 // 8
    assert set(ends(chats).values()) == {DAY_MS * 9 // 8}
    # A reader with a shorter setting does not shorten it.
    shorter = scripts.touch(chats.keys, source="main", ttl_ms=HOUR_MS, life_ms=7 * DAY_MS)
    assert chats.call(shorter) == chats.head().dies_ms
    assert set(ends(chats).values()) == {DAY_MS * 9 // 8}
    for _ in range(10):
        chats.sleep(20 * HOUR_MS - 1)
        if chats.now_us // 1000 < born_ms + 7 * DAY_MS:
            touch()
    assert chats.head().dies_ms == born_ms + 7 * DAY_MS
    assert chats.head().rev == rev
