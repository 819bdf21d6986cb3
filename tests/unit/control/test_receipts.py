"""Receipts are read back as written; other bytes say nothing."""

from __future__ import annotations

from orchestrator.control.receipts import read_receipt
from tests.helpers.cases import each_case


def test_receipt() -> None:
    """When, which word, and the rest, which may be empty or have blanks."""
    assert read_receipt(b"1700000000000 done ") == (1_700_000_000_000, "done", "")
    assert read_receipt(b"1700000000000 received 2 running") == (1_700_000_000_000, "received", "2 running")


@each_case("damage", [b"", b"x", b"1", b"x done ", b"\xff done x", b"9" * 5000 + b" done x", b"-1 done "])
def test_damaged_receipt(damage: bytes) -> None:
    """What nobody of ours has written answers nothing."""
    assert read_receipt(damage) is None
