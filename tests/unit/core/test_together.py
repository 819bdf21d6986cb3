"""Reads that run at the same time."""

from __future__ import annotations

import anyio
import pytest

from orchestrator.core.errors import NotFound
from orchestrator.core.together import read_at_once


async def test_in_their_order() -> None:
    """The results have the order of the functions, although the first one ends last."""
    ended = anyio.Event()

    async def first() -> int:
        await ended.wait()
        return 1

    async def second() -> int:
        ended.set()
        return 2

    assert await read_at_once([first, second]) == [1, 2]
    assert await read_at_once([]) == []


async def test_a_failure_is_raised_by_itself() -> None:
    """It is in no group, so that callers catch it as that of one read."""

    async def fail() -> int:
        raise NotFound("gone")

    async def work() -> int:
        return 1

    with pytest.raises(NotFound, match="gone"):
        await read_at_once([work, fail, work])
