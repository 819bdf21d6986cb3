"""A session of its own for each script test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.chat.chats import Chats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer


@pytest.fixture
def chats(request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str) -> Iterator[Chats]:
    """A session without chats; an indirect parameter (a dict) changes its settings."""
    chats = Chats(redis_server.url, prefix, **getattr(request, "param", {}))
    yield chats
    chats.close()
