"""The text that a task carries, and the envelope around it."""

from __future__ import annotations

import msgspec
import pytest

from orchestrator.tasks.model import Envelope, decode_envelope, encode_envelope
from orchestrator.tracing.header import STATE_CHARS, pack, trace_id_of, unpack

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
SPAN = 0x00F067AA0BA902B7
PLAIN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class OldEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """The envelope as programs read it before there were traces."""

    skill: str
    args: bytes
    priority: int = 2
    session: str | None = None
    tags: tuple[str, ...] = ()
    timeout_s: float | None = None
    max_attempts: int | None = None
    key: str | None = None
    parent: str | None = None
    depth: int = 0


def test_round_trip() -> None:
    """What is packed is read again, with the state of vendors."""
    assert pack(TRACE, SPAN, 1) == PLAIN
    assert unpack(PLAIN) == (TRACE, SPAN, 1, "")
    assert unpack(pack(TRACE, SPAN, 3, "a=1,b=x y")) == (TRACE, SPAN, 3, "a=1,b=x y")
    assert trace_id_of(PLAIN) == "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        PLAIN.upper(),
        PLAIN[:-1],
        "ff" + PLAIN[2:],
        f"00-{0:032x}-00f067aa0ba902b7-01",
        f"00-{TRACE:032x}-{0:016x}-01",
        "\n" + PLAIN,
    ],
)
def test_garbage_is_no_context(text: str) -> None:
    """Another program may have written anything there."""
    assert unpack(text) is None
    assert trace_id_of(text) is None


def test_a_later_version_is_read() -> None:
    """Of a later version the four known fields count."""
    assert unpack("01" + PLAIN[2:] + "-more") == (TRACE, SPAN, 1, "")


def test_state_is_bounded() -> None:
    """Long members go first, then the last ones; so a task grows by a bounded number of bytes."""
    members = [f"v{number}={'x' * 20}" for number in range(40)]
    kept = pack(TRACE, SPAN, 1, ",".join(["long=" + "y" * 200, *members])).partition(" ")[2]
    assert 0 < len(kept) <= STATE_CHARS
    assert members[: kept.count(",") + 1] == kept.split(",")
    assert pack(TRACE, SPAN, 1, "long=" + "y" * 600) == PLAIN


def test_programs_without_traces_read_the_envelope() -> None:
    """The context is the last field, which old programs ignore; without one the envelope is the same as before."""
    new = Envelope("work", b"{}", session="s", depth=3)
    old = OldEnvelope("work", b"{}", session="s", depth=3)
    assert encode_envelope(new) == msgspec.msgpack.encode(old)
    traced = encode_envelope(msgspec.structs.replace(new, trace=PLAIN))
    assert msgspec.msgpack.decode(traced, type=OldEnvelope) == old
    assert decode_envelope(traced).trace == PLAIN
    assert decode_envelope(msgspec.msgpack.encode(old)) == new
    assert encode_envelope(Envelope("work", b"{}")) == msgspec.msgpack.encode(("work", b"{}"))
