"""How long a workspace and its parts stay, and how long a change that is sent twice is told from a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.lua.workspace.space import Space

pytestmark = pytest.mark.every_server

DAY_MS = 86_400_000


def everything(space: Space) -> None:
    """Make a key of every kind."""
    space.patch(("p",))
    space.patch(("p",), owner="ada")
    space.append("l", b"1")
    space.members("s", "add", "x")
    space.transition("t", "open")
    space.join("ada", 1000)
    space.direct("bob")


def lifetimes(space: Space) -> dict[str, int]:
    """Milliseconds that each key of the workspace has left, by what follows the root."""
    root = f"{space.keys.root}:"
    ours = [name.removeprefix(root) for name in space.names()]
    return {suffix: space.ttl_ms(suffix) for suffix in ours if not suffix.startswith(("exec", "ops"))}


def test_all_die_at_one_moment(space: Space) -> None:
    """Every key goes in the same millisecond, a lifetime and an eighth after the first change; none stays for ever."""
    everything(space)
    assert set(lifetimes(space)) == {
        "meta", "ws:doc", "ws:parts", "ws:ev", "ws:task", "ws:log:l", "ws:set:s", "dir", "dir:info", "inbox:bob",
        "agent:ada:kv",
    }  # fmt: skip
    moments = {int(space.execute("PEXPIRETIME", space.keys.key(suffix))) for suffix in lifetimes(space)}
    assert moments == {1_800_000_000_000 + DAY_MS * 9 // 8}


def test_a_change_moves_the_end_of_all(space: Space) -> None:
    """After an eighth of the lifetime a change of one key gives all of them their whole time again."""
    everything(space)
    before = lifetimes(space)
    space.sleep(3 * 3600 - 1)
    space.patch(("p",))
    assert all(abs(left - before[suffix]) < 5000 for suffix, left in lifetimes(space).items())
    space.sleep(1)
    space.patch(("p",))
    assert all(abs(left - before[suffix] - 3 * 3_600_000) < 5000 for suffix, left in lifetimes(space).items())


def test_the_absolute_end(space: Space) -> None:
    """No change moves the end beyond the longest life, which counts from the first change."""
    everything(space)
    for _ in range(13):
        space.sleep(43_200)
        everything(space)
    ends = {int(space.execute("PEXPIRETIME", space.keys.key(suffix))) for suffix in lifetimes(space)}
    assert ends == {1_800_000_000_000 + 7 * DAY_MS}


def test_a_key_that_was_gone_gets_its_lifetime(space: Space) -> None:
    """A document that was emptied and is filled again between two moves of the end dies with the others."""
    everything(space)
    space.patch(("p", "del", b""))
    space.sleep(60)
    space.patch(("p",))
    assert lifetimes(space)["ws:doc"] == pytest.approx(lifetimes(space)["meta"], abs=1000)


def test_expiry(space: Space) -> None:
    """A workspace that nobody changes goes as a whole; the next change begins another one."""
    space.now_us = None
    space.settings = space.settings.model_copy(update={"ttl_s": 0.2, "dedup_s": 0.2})
    everything(space)
    wait_until(lambda: [name for name in space.names() if ":exec:" not in name] == [], "the end of the workspace")
    assert (space.patch(("p",)).revision, space.append("l", b"1").rest) == (1, (1, 0))


@pytest.mark.parametrize("space", [{"dedup_s": 600}], indirect=True)
def test_windows_of_time(space: Space) -> None:
    """A change is told from a new one for the length of a window at least, and forgotten after two."""
    space.append("l", b"1", op="mine")
    space.sleep(599)
    assert space.append("l", b"1", op="mine").status == "duplicate"
    space.sleep(2)
    space.append("l", b"2", op="begins the next window")
    assert space.append("l", b"1", op="mine").status == "duplicate"
    space.sleep(600)
    space.append("l", b"3", op="and the next")
    assert space.append("l", b"1", op="mine").status == "ok"
    assert len([name for name in space.names() if ":ops" in name]) == 1


@pytest.mark.parametrize("space", [{"max_dedup": 3}], indirect=True)
def test_windows_of_changes(space: Space) -> None:
    """A window that is full makes room: at least as many changes as it holds are remembered, at most twice that."""
    for number in range(20):
        assert space.append("l", b"1", op=f"c{number}").status == "ok"
        for back in range(min(number, 2) + 1):
            assert space.append("l", b"1", op=f"c{number - back}").status == "duplicate"
    held = sum(int(space.execute("HLEN", name)) for name in space.names() if ":ops" in name)
    assert held <= 6
    assert space.append("l", b"1", op="c0").status == "ok"


def test_windows_have_a_lifetime(space: Space) -> None:
    """What remembers changes goes by itself, after two windows."""
    space.append("l", b"1")
    (window,) = [name for name in space.names() if ":ops" in name]
    assert 1_190_000 < int(space.execute("PTTL", window)) <= 1_200_000


def test_every_key_that_was_lost_gets_its_lifetime(space: Space) -> None:
    """Whichever key somebody deletes: the changes that make it again give it a lifetime."""
    everything(space)
    for lost in [name for name in space.names() if ":exec:" not in name]:
        space.execute("DEL", lost)
        everything(space)
        assert [name for name in space.names() if int(space.execute("PTTL", name)) < 0] == [], lost


def test_one_name_for_two_kinds_of_change(space: Space) -> None:
    """The same id for another kind of change is another change: each answers in its own form."""
    assert space.append("l", b"1", op="mine").rest == (1, 0)
    assert space.patch(("p",), op="mine").rest == (1, b"")
    assert space.patch(("p",), op="mine", owner="ada").status == "ok"
