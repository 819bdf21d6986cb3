"""The schedules of the pool of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.schedules.schedule_pool import SchedulePool

if TYPE_CHECKING:
    from tests.lua.pool import Pool


@pytest.fixture
def schedule_pool(pool: Pool) -> SchedulePool:
    """No schedule yet."""
    return SchedulePool(pool)
