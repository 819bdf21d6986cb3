"""A pool of its own for each script test; the guards over keys and servers are those of all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer


@pytest.fixture
def pool(redis_server: RedisServer, prefix: str) -> Iterator[Pool]:
    """An empty pool on a real server, with a clock that the test moves."""
    pool = Pool(redis_server.url, prefix)
    yield pool
    pool.close()
