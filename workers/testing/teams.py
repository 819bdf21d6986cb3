"""Makes the teams of one test in one namespace, and detects what they leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.testing.temporary_pool import new_prefix, remove_keys, temporary_settings
from orchestrator.workers.testing.team import Team

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.workers.agent import Agent


class Teams:
    """Makes teams on one server. A second team of a test finds the data of the first, as after a restart.

    Args:
        url: URL of the server.
    """

    def __init__(self, url: str) -> None:
        self._url, self._prefix = url, new_prefix()
        self._made: list[Team] = []

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which a client or a command reaches the same namespace."""
        return {"ORC_REDIS__URL": self._url, "ORC_PREFIX": self._prefix}

    def __call__(self, *agents: Agent, workers: int = 1, settings: Mapping[str, object] | None = None) -> Team:
        """Make a team for an `async with` block; see `Team` for the arguments."""
        team = Team(*agents, url=self._url, prefix=self._prefix, workers=workers, settings=settings)
        self._made.append(team)
        return team

    def close(self) -> list[str]:
        """Remove the keys, and return open teams and running asyncio tasks, a line each."""
        remove_keys(temporary_settings(self._url, self._prefix))
        leaks = [f"{team!r} is still open; use `async with`" for team in self._made if team.is_open]
        return leaks + [leak for team in self._made for leak in team.leaks]
