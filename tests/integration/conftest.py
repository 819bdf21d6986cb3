"""Fixtures of the integration tests: a team that runs in the test's own event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.local_team import LocalTeam, local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer


@pytest.fixture
def settings(request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str) -> Settings:
    """Fast settings on a namespace of the test's own; an indirect parameter (a dict) changes some."""
    return local_settings(redis_server.url, prefix, **getattr(request, "param", {}))


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A supervisor and a client; the test starts its workers."""
    async with run_local_team(settings) as running:
        yield running
