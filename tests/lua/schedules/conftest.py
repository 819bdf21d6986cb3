"""The schedules of the pool of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.schedules.shelf import Shelf

if TYPE_CHECKING:
    from tests.lua.pool import Pool


@pytest.fixture
def shelf(pool: Pool) -> Shelf:
    """No schedule yet."""
    return Shelf(pool)
