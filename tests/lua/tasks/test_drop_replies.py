"""lua/tasks/drop_replies.lua: the named entries go, those of other clients and calls stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.scripts import drop_replies
from tests.lua.pool import node, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_drop(pool: Pool) -> None:
    """An entry goes with all its replies; a repeat removes nothing."""
    for _ in range(3):
        pool.cancel(*pool.put(row(reply="c1"), row(reply="c1"), row(reply="c2")))
    kept = pool.replies("c2")
    replies_key = pool.keys.replies(node("c1"))
    entries = pool.entries(replies_key)
    call = drop_replies(pool.keys, rows=[(node("c1"), entries[0][0]), (node("c1"), entries[2][0]), ("none", "5-0")])
    assert [pool.call(call), pool.call(call)] == [2, 0]
    assert pool.entries(replies_key) == entries[1:2]
    assert pool.replies("c2") == kept
