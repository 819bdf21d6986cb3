"""Fixtures of the fault tests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("tests.helpers.aftermath", "tests.helpers.main_path")

from tests.helpers.notebook import Notebook  # noqa: E402 - after the line above, here and below
from tests.helpers.team import Team  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.testing.servers import RedisServer


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    """Where the handlers of this test note their runs."""
    return Notebook(tmp_path / "notes")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that lets the skill `hold` go on once it exists."""
    return tmp_path / "gate"


@pytest.fixture
def make_team(redis_server: RedisServer, prefix: str, notebook: Notebook) -> Callable[..., Team]:
    """Make a team in the namespace of this test; arguments as for `Team`."""
    return partial(Team, redis_server, prefix, notebook)
