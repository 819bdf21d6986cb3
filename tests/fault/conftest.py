"""Fixtures of the fault tests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("tests.helpers.end_state", "tests.fault.main_path")

from orchestrator.embedded.server_binary import ServerBinary, find_server_binary  # noqa: E402 - after the line above
from tests.faultkit.servers import find_binary_of_line  # noqa: E402
from tests.helpers.attempt_log import AttemptLog  # noqa: E402
from tests.helpers.team import Team  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faultkit.servers import RedisServer


@pytest.fixture(params=["newest", pytest.param("redis7", marks=pytest.mark.slow)])
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    """The program of a server that the test starts and harms itself: the newest and an old one in turn."""
    found = find_server_binary() if request.param == "newest" else find_binary_of_line("7.")
    if found is None:
        pytest.skip("needs a redis-server 7.x on the PATH")
    return found


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
