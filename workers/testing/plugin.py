"""The pytest plugin: a server per test process, teams with a namespace per test. Loads nothing until a test asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.workers.testing.attempt import RecordedContext
    from orchestrator.workers.testing.teams import Teams


@pytest.fixture(scope="session")
def orc_redis() -> Iterator[str]:
    """URL of a real Redis of this test process, without persistence, on a unix socket; gone at the end."""
    from orchestrator.testing.temporary_server import temporary_server

    with temporary_server() as url:
        yield url


@pytest.fixture
def orc_team(orc_redis: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Teams]:
    """Teams on that server, each test's in a namespace of its own.

    Use: `async with orc_team(agent) as team:`; see `orchestrator.workers.testing.Team`. Code under test that opens a
    client of its own reaches it too: `ORC_REDIS__URL` and `ORC_PREFIX` are set. Afterwards the keys are removed, and
    the test fails if a team was left open or an asyncio task was left behind.
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
    """Contexts without a server, for functions that take one.

    Use: `ctx = orc_context(session="101")`; see `orchestrator.workers.testing.make_context`.
    """
    from orchestrator.workers.testing.attempt import make_context

    return make_context
