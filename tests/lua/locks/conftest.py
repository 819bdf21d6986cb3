"""A scope of its own for each test of the scripts of locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer


@pytest.fixture
def scope(redis_server: RedisServer, prefix: str) -> Iterator[Scope]:
    """An empty scope on a real server."""
    scope = Scope(redis_server.url, prefix)
    yield scope
    scope.close()
