"""A session of its own for each script test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.workspace.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer


@pytest.fixture
def space(request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str) -> Iterator[Space]:
    """An empty workspace under a held lock; an indirect parameter (a dict) changes its settings."""
    space = Space(redis_server.url, prefix, **getattr(request, "param", {}))
    yield space
    space.close()
