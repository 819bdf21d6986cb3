"""Signatures: any change of any byte is found, one secret gives way to the next, and nothing tells a secret."""

from __future__ import annotations

import pytest

from orchestrator.control.commands import Stop, encode_command
from orchestrator.control.signing import Signer
from orchestrator.core.command_record import VERSION, Issued, pack_issued, unpack_issued
from orchestrator.core.errors import InvalidInput
from tests.helpers.cases import each_case

OLD, NEW, ROOT = "the-old-secret-of-1980", "the-new-secret-of-1990", "a:b:c:{pool:p}"
PACKED = pack_issued(Issued(VERSION, "id", encode_command(Stop()), "ann@desk", "why", 1, 2, 0, "key"))


def signer(secret: str = OLD, previous: str = "", root: str = ROOT) -> Signer:
    """A signer of one pool."""
    return Signer(secret, previous, root)


def test_true() -> None:
    """Whoever has the secret finds it true."""
    assert signer().accepts(PACKED, signer().sign(PACKED))


def test_known_answer() -> None:
    """The bytes that are signed stay the same from version to version, so that programs of two versions agree."""
    assert (signer().sign(b"a command"), signer().key) == (
        "1cd2b4110e7627133d2e687e54a1684bd5a2f4970cf1a46795f0bde67551eae2",
        "67340c94",
    )


def test_each_byte_of_the_command_counts() -> None:
    """A signature does not fit a command in which one byte has changed."""
    true = signer().sign(PACKED)
    for at in range(len(PACKED)):
        for change in (0x01, 0x80, 0xFF):
            flipped = PACKED[:at] + bytes([PACKED[at] ^ change]) + PACKED[at + 1 :]
            assert not signer().accepts(flipped, true), (at, change)


def test_each_letter_of_the_signature_counts() -> None:
    """A signature with a wrong, a missing or an additional letter is refused."""
    true = signer().sign(PACKED)
    assert len(true) == 64
    for at in range(64):
        wrong = "0" if true[at] != "0" else "1"
        assert not signer().accepts(PACKED, true[:at] + wrong + true[at + 1 :]), at
        assert not signer().accepts(PACKED, true[:at] + true[at + 1 :]), at
        assert not signer().accepts(PACKED, true[:at] + true[at] + true[at:]), at


@each_case("signature", ["", " ", "é", "\ufffd" * 64, "\udcff", "0" * 64, "x" * 1_000_000])
def test_strange_signatures(signature: str) -> None:
    """Whatever somebody sends in place of a signature is not true, and breaks nothing."""
    assert not signer().accepts(PACKED, signature)


def test_another_pool() -> None:
    """What was signed for one pool says nothing in another, with the same secret."""
    assert not signer(root="a:b:c:{pool:q}").accepts(PACKED, signer().sign(PACKED))
    # Nor may the border between name and command be moved.
    assert not signer(root=ROOT + PACKED[:1].decode("latin-1")).accepts(PACKED[1:], signer().sign(PACKED))


def test_rotation() -> None:
    """While the secret changes both are accepted, the new one signs; afterwards the old one says nothing."""
    during, after = signer(NEW, OLD), signer(NEW)
    assert during.accepts(PACKED, signer(OLD).sign(PACKED))
    assert during.sign(PACKED) == after.sign(PACKED)
    assert after.accepts(PACKED, during.sign(PACKED))
    assert not after.accepts(PACKED, signer(OLD).sign(PACKED))


def test_without_a_secret() -> None:
    """Nothing is signed, and no signature is asked for."""
    none = signer("")
    assert (none.wanted, none.key, none.sign(PACKED)) == (False, "", "")
    assert none.accepts(PACKED, "")
    assert none.accepts(PACKED, signer().sign(PACKED))


def test_nothing_tells_the_secret() -> None:
    """Neither the name of the key nor what a signer looks like in a log."""
    assert len(signer().key) == 8
    assert signer().key != signer(NEW).key
    assert OLD not in repr(signer())
    assert OLD not in str(signer())


@each_case(
    "packed",
    [
        b"",
        b"\xc1",
        b"x" * 65_537,
        PACKED[:-1],
        b"\x92" + PACKED[1:],
        pack_issued(Issued(VERSION + 1, "id", b"{}", "", "", 1, 2, 0)),
        b"\x9a" + PACKED[1:] + b"\x91" * 50_000,
    ],
)
def test_unreadable(packed: bytes) -> None:
    """What is no command is said to be none, whatever it is."""
    with pytest.raises(InvalidInput):
        unpack_issued(packed)
