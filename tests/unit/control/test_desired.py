"""The desired state as a value: who is stopped, what counts of what stands there, what is passed over."""

from __future__ import annotations

from typing import Any, Final

import pytest

from orchestrator.control.commands import Command, encode_command, make_command
from orchestrator.control.desired import NOTHING, Desired, read_desired
from orchestrator.control.signing import Signer
from orchestrator.core.command_record import VERSION, Issued, pack_issued
from tests.helpers.cases import each_case

ROOT: Final = "a:b:c:{pool:p}"
OPEN, SIGNER = Signer("", "", ROOT), Signer("the-secret-of-the-pool", "", ROOT)


def value(command: Command, mark: str | None = None, *, signer: Signer = OPEN, at_ms: int = 1_000_000) -> bytes:
    """A field of the hash, as `append` writes it."""
    issued = Issued(VERSION, f"id-{at_ms}", encode_command(command), "ann", "why", at_ms, at_ms + 60_000, 0)
    packed = pack_issued(issued)
    own = command.changes[0].mark if command.changes else "-"
    mark = own if mark is None else mark
    return b"%b%b%-64b%b" % (b"1" if mark else b"0", mark.encode() or b"-", signer.sign(packed).encode(), packed)


def read(fields: dict[str, bytes], signer: Signer = OPEN) -> Desired:
    """The value of a hash."""
    return read_desired([part for name, each in fields.items() for part in (name.encode(), each)], signer)


def stops(**values: Any) -> tuple[str, bytes]:
    """A stop in its slot."""
    command = make_command("stop", values)
    return command.changes[0].slot, value(command)


def test_nothing() -> None:
    """An empty hash orders nothing."""
    assert read({}) == NOTHING
    assert NOTHING.stop_of(agent="ed", skill="sum", session="s") is None
    assert NOTHING.interrupts(agent="ed", skill="sum", session=None) is None


@each_case(
    ("stopped", "found"),
    [
        ({}, "stop:all"),
        ({"agent": "ed"}, "stop:agent:ed"),
        ({"skill": "sum"}, "stop:skill:sum"),
        ({"session": "a:b ü"}, "stop:session:a:b ü"),
        ({"agent": "other"}, None),
        ({"skill": "ed"}, None),
        ({"session": "sum"}, None),
    ],
)
def test_scopes(stopped: dict[str, str], found: str | None) -> None:
    """A stop holds for its own scope, and only one that interrupts does."""
    desired = read(dict([stops(**stopped)]))
    stop = desired.stop_of(agent="ed", skill="sum", session="a:b ü")
    assert (stop and stop.slot) == found
    assert desired.interrupts(agent="ed", skill="sum", session="a:b ü") is None
    hard = read(dict([stops(**stopped, now=True)])).interrupts(agent="ed", skill="sum", session="a:b ü")
    assert (hard and hard.slot) == found


def test_the_widest_answers() -> None:
    """Of several stops the widest is named."""
    desired = read(dict([stops(agent="ed"), stops(), stops(skill="sum")]))
    stop = desired.stop_of(agent="ed", skill="sum")
    assert stop is not None
    assert stop.slot == "stop:all"
    assert stop.issued.words == "ann: why"


def test_others() -> None:
    """Drains, log levels, numbers and jobs are found."""
    drain = make_command("stop-worker", {"worker": "h:1:a"})
    level = make_command("set-log-level", {"level": "debug"})
    job = make_command("cancel-tasks", {"count": 1})
    desired = read(
        {
            "seq": b"7",
            "epoch": b"2",
            "sessions": b"0",
            "drain:worker:h:1:a": value(drain),
            "log:level": value(level),
            "do:id-1000000": value(job),
        }
    )
    found = desired.drain_of("h:1:a")
    assert found is not None
    assert found.ends_process
    assert (desired.log_level, desired.seq, desired.epoch) == ("debug", 7, 2)
    assert [one.command for one in desired.jobs] == [job]
    assert "do:id-1000000" not in desired.active


@each_case(
    "field",
    [
        ("stop:all", b""),
        ("stop:all", b"1"),
        ("stop:all", b"1" * 200),
        ("stop:all", b"\xff" * 200),
        ("stop:all", value(make_command("stop", {"agent": "ed"}))),
        ("stop:agent:ed", value(make_command("stop", {}))),
        ("stop:all", value(make_command("stop", {}), "n")),
        ("stop:all", value(make_command("start", {}), "-")),
        ("limit:l", value(make_command("stop", {}))),
        ("do:id-1", value(make_command("cancel-tasks", {"count": 1}))),
        ("do:id-1000000", value(make_command("stop", {}))),
    ],
)
def test_damaged_and_swapped(field: tuple[str, bytes]) -> None:
    """What is damaged, says more than its command, or lies in another's place, orders nothing and is reported."""
    desired = read(dict([field]))
    assert (desired.active, desired.jobs) == ({}, ())
    assert desired.doubtful == {field[0]}


@each_case("number", [b"nonsense", b"", b"-1", b"1.5", b"inf", b"9" * 16, b"9" * 5000])
def test_damaged_numbers(number: bytes) -> None:
    """They count as none."""
    assert read({"seq": number, "epoch": number}) == NOTHING


def test_signed() -> None:
    """With a secret only what it signed counts."""
    stop = make_command("stop", {})
    assert read({"stop:all": value(stop, signer=SIGNER)}, SIGNER).active
    for signer in (OPEN, Signer("another-secret-altogether", "", ROOT), Signer(SIGNER.secret, "", "x:y:z:{pool:p}")):
        desired = read({"stop:all": value(stop, signer=signer)}, SIGNER)
        assert desired.active == {}
        assert desired.doubtful == {"stop:all"}


@pytest.mark.parametrize(
    "present",
    [
        value(make_command("start", {})),
        b"garbage",
        None,
        value(make_command("start", {}), signer=SIGNER, at_ms=999_999),
    ],
    ids=["unsigned", "garbage", "removed", "an old one again"],
)
def test_verified(present: bytes | None) -> None:
    """What was verified goes on, whatever somebody else writes over it, takes away, or puts back."""
    verified = value(make_command("stop", {}), signer=SIGNER)
    fields = {"verified:stop:all": verified} | ({} if present is None else {"stop:all": present})
    desired = read(fields, SIGNER)
    assert set(desired.active) == {"stop:all"}
    assert desired.doubtful == {"stop:all"}


def test_truly_ended() -> None:
    """A signed start ends the stop at once."""
    verified = value(make_command("stop", {}), signer=SIGNER)
    ended = value(make_command("start", {}), signer=SIGNER, at_ms=1_000_001)
    assert read({"verified:stop:all": verified, "stop:all": ended}, SIGNER).active == {}
