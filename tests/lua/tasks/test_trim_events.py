"""lua/tasks/trim_events.lua: the oldest ends go, the others stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.scripts import trim_events
from tests.lua.pool import row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_trim(pool: Pool) -> None:
    """What is older than the named entry goes, each call on its own; a repeat removes nothing."""
    for _ in range(4):
        pool.cancel(*pool.put(row(), row()))
    entries = pool.entries(pool.keys.events)
    call = trim_events(pool.keys, oldest=entries[2][0])
    assert [pool.call(call), pool.call(call)] == [2, 0]
    assert pool.entries(pool.keys.events) == entries[2:]


def test_without_ends(pool: Pool) -> None:
    """A pool in which no task has ended gets no stream."""
    assert pool.call(trim_events(pool.keys, oldest="5-0")) == 0
    assert pool.names() == []


def test_ends_are_kept_until_then(pool: Pool) -> None:
    """A stream keeps more entries than the default of the setting, so that only the supervisor trims it."""
    for _ in range(5):
        pool.execute("EVAL", "for i = 1, 2400 do redis.call('XADD', KEYS[1], '*', 't', 's') end", 1, pool.keys.events)
    pool.cancel(*pool.put())
    assert pool.execute("XLEN", pool.keys.events) == 12_001
