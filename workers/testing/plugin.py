"""Pytest plugin: a server per test process, teams with a namespace per test. Imports are delayed until first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.workers.testing.attempt import RecordedContext
    from orchestrator.workers.testing.teams import Teams


@pytest.fixture(scope="session")
def orc_redis() -> Iterator[str]:
    """Start a Redis for this test process, without persistence, on a unix socket, and return its URL."""
    from orchestrator.testing.temporary_server import temporary_server

    with temporary_server() as url:
        yield url


@pytest.fixture
def orc_team(orc_redis: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Teams]:
    """Start teams on the server of `orc_redis`. The teams of one test share a namespace of its own.

    Use: `async with orc_team(agent) as team:`; see `orchestrator.workers.testing.Team`. The fixture sets
    `ORC_REDIS__URL` and `ORC_PREFIX`, so that other clients in the test reach the team too. Afterwards it removes the
    keys, and fails the test if a team is still open or an asyncio task of the test still runs.
    """
    from orchestrator.workers.testing.teams import Teams

    teams = Teams(orc_redis)
    for name, value in teams.environment.items():
        monkeypatch.setenv(name, value)
    yield teams
    if leaks := teams.close():
        pytest.fail("left behind by this test:\n" + "\n".join(leaks), pytrace=False)


@pytest.fixture
def orc_context() -> Callable[..., RecordedContext]:
    """Make contexts without a server, for functions that take one.

    Use: `ctx = orc_context(session="101")`; see `orchestrator.workers.testing.make_context`.
    """
    from orchestrator.workers.testing.attempt import make_context

    return make_context
