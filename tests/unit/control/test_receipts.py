"""Receipts and what they say of jobs: read back as written, and what nobody of ours has written says nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.control.outcomes import in_words, progress, read_progress, read_words
from orchestrator.control.receipts import read_receipt
from tests.helpers.cases import each_case


@pytest.mark.parametrize("ends", [Counter(), Counter(requeued=1990, unknown=10)])
def test_outcomes(ends: Counter[str]) -> None:
    """What a job has come to is read back, and how far it is."""
    assert read_words(in_words(ends)) == ends
    assert read_progress(progress(500, 2000, ends)) == (500, ends)


@each_case("damage", ["", "x", "x/y z", "/", "9" * 5000, "1, 2", "²/³ ² x"])
def test_damaged_outcomes(damage: str) -> None:
    """Garbage counts nothing, and raises nothing: whoever leads reads it before each job."""
    assert read_words(damage) == Counter()
    assert read_progress(damage) == (0, Counter())


def test_receipt() -> None:
    """When, which word, and the rest, which may be empty or have blanks."""
    assert read_receipt(b"1700000000000 done ") == (1_700_000_000_000, "done", "")
    assert read_receipt(b"1700000000000 received 2 running") == (1_700_000_000_000, "received", "2 running")


@each_case("damage", [b"", b"x", b"1", b"x done ", b"\xff done x", b"9" * 5000 + b" done x", b"-1 done "])
def test_damaged_receipt(damage: bytes) -> None:
    """What nobody of ours has written answers nothing."""
    assert read_receipt(damage) is None
