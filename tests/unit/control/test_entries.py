"""Entries of the control stream: which are accepted, and which of two commands came later."""

from __future__ import annotations

import msgspec
import pytest

from orchestrator.control.commands import Start, Stop, encode_command
from orchestrator.control.desired import SKEW_MS
from orchestrator.control.entries import ControlEntry, named_entries, read_entry, refuse_replays
from orchestrator.control.signing import Signer
from orchestrator.core.command_record import VERSION, Issued, pack_issued
from tests.helpers.cases import each_case

SIGNER = Signer("the-secret-of-this-test", "", "a:b:c:{pool:p}")
NOW_MS = 1_700_000_000_000
ISSUED = Issued(VERSION, "id", encode_command(Stop(session="s")), "ann", "why", NOW_MS, NOW_MS + 60_000, 0, "key")


def entry(came_ms: int = NOW_MS, signature: str | None = None, **changed: object) -> ControlEntry:
    """An entry as the server stores it, read back."""
    packed = pack_issued(msgspec.structs.replace(ISSUED, **changed))
    signed = SIGNER.sign(packed) if signature is None else signature
    return read_entry(f"{came_ms}-3", [b"c", packed, b"s", signed.encode()], SIGNER)


@each_case(
    ("came_ms", "problem"),
    [
        (NOW_MS, ""),
        (NOW_MS + 60_000, ""),
        (NOW_MS + 60_001, "it arrived too late"),
        (NOW_MS - SKEW_MS, ""),
        (NOW_MS - SKEW_MS - 1, "its time of issue is in the future"),
    ],
)
def test_time(came_ms: int, problem: str) -> None:
    """A command is accepted until its last millisecond, and as early as the clocks may differ."""
    assert entry(came_ms).problem == problem


def test_problems() -> None:
    """An entry without a true signature, or with an unknown command, has a problem; what could be read stays."""
    assert entry(signature="").problem == "it is not signed"
    assert entry(signature="0" * 64).problem == "its signature is invalid"
    unknown = entry(command=b'{"kind":"dance"}')
    assert unknown.problem
    assert (unknown.id, unknown.command) == ("id", None)
    unreadable = read_entry("7-1", [b"c", b"\xc1"], SIGNER)
    assert (unreadable.id, unreadable.issued) == ("7-1", None)
    assert unreadable.problem.startswith("not a control command")


@each_case(("later_ms", "expected"), [(-1, False), (0, True), (1, True)])
def test_came_after(later_ms: int, expected: bool) -> None:  # noqa: FBT001
    """Of two commands of one millisecond, the one of the stream counts; an unreadable one came after none."""
    assert entry(issued_ms=NOW_MS + later_ms).came_after(ISSUED) is expected
    assert read_entry(f"{NOW_MS + later_ms}-1", [b"c", b"\xc1"], SIGNER).came_after(ISSUED) is False


def test_in_slot() -> None:
    """A command sets its own slot only; a start ends the stop of its slot."""
    assert entry().in_slot("stop:all") is None
    stop = entry().in_slot("stop:session:s")
    assert stop is not None
    assert (stop.ended, stop.issued, stop.signature) == (False, ISSUED, SIGNER.sign(pack_issued(ISSUED)))
    start = entry(command=encode_command(Start(session="s"))).in_slot("stop:session:s")
    assert start is not None
    assert start.ended
    assert read_entry("7-1", [b"c", b"\xc1"], SIGNER).in_slot("stop:session:s") is None


@pytest.mark.parametrize(
    ("nonce", "named"),
    [(None, ""), (f"{NOW_MS}-3 x", ""), (f"{NOW_MS}-2 x", f"{NOW_MS}-2"), ("", ""), ("x", ""), (f"{'9' * 20}-0 x", "")],
)
@pytest.mark.parametrize("first", ["the command", "another command", "damaged", "none"])
def test_replays(nonce: str | None, named: str, first: str) -> None:
    """The nonce of a command names its first entry; entries with another problem have no nonce."""
    late, given = entry(NOW_MS + 60_001), entry()
    found = named_entries([late, given], [[None if nonce is None else nonce.encode()]])
    assert found == ["", named]
    other = pack_issued(msgspec.structs.replace(ISSUED, id="other"))
    packed = {"the command": given.packed, "another command": other, "damaged": b"x"}
    page = [(named.encode(), [b"c", packed[first]])] if first in packed else []
    judged = refuse_replays([late, given], found, [page] if named else [])
    problem = "it was given before" if named and first == "the command" else ""
    assert [one.problem for one in judged] == ["it arrived too late", problem]
