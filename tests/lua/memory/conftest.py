"""An agent of its own for each script test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.memory.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer


@pytest.fixture
def records(request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str) -> Iterator[Records]:
    """An empty memory; an indirect parameter (a dict) changes its settings."""
    records = Records(redis_server.url, prefix, **getattr(request, "param", {}))
    yield records
    records.close()
