"""Fixtures of the fault tests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.helpers.attempt_log import AttemptLog
from tests.helpers.server_matrix import ALL_SERVERS_RARELY, binary_of
from tests.helpers.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.faultkit.servers import RedisServer


@pytest.fixture(params=ALL_SERVERS_RARELY)
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    """The program of a server that the test starts and harms itself, each of the matrix in turn."""
    return binary_of(request.param)


@pytest.fixture
def attempt_log(tmp_path: Path) -> AttemptLog:
    """Where the handlers of this test note their runs."""
    return AttemptLog(tmp_path / "notes")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that lets the skill `hold` go on once it exists."""
    return tmp_path / "gate"


@pytest.fixture
def make_team(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> Callable[..., Team]:
    """Make a team in the namespace of this test; arguments as for `Team`."""
    return partial(Team, redis_server, prefix, attempt_log)
