"""The floor of a pool, as a program reads it."""

from __future__ import annotations

import pytest

from orchestrator.core.formats import read_floor


@pytest.mark.parametrize(
    ("stored", "floor"), [(None, None), (b"3", 3), (b"", None), (b"-1", None), (b"x", None), (b"9" * 5000, None)]
)
def test_a_damaged_floor_is_none(stored: bytes | None, floor: int | None) -> None:
    """Each client may write it, so no text of it raises."""
    assert read_floor(stored) == floor
