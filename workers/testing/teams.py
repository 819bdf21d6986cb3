"""The teams of one test: one namespace for all of them, and a look at what they leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.testing.temporary_pool import new_prefix, remove_keys, temporary_settings
from orchestrator.workers.testing.team import Team

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.workers.agent import Agent


class Teams:
    """Makes teams on one server. A second team of a test finds what the first has left, as after a restart.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._url, self._prefix = url, new_prefix()
        self._made: list[Team] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a client, or a command, reaches the same namespace."""
        return {"ORC_REDIS__URL": self._url, "ORC_PREFIX": self._prefix}

    def __call__(self, *agents: Agent, workers: int = 1, settings: Mapping[str, object] | None = None) -> Team:
        """Make a team, to be used in an `async with` block; see `Team` for the arguments."""
        team = Team(*agents, url=self._url, prefix=self._prefix, workers=workers, settings=settings)
        self._made.append(team)
        return team

    def close(self) -> list[str]:
        """Remove the keys; answers what was left behind, a line each."""
        remove_keys(temporary_settings(self._url, self._prefix))
        leaks = [f"{team!r} is still open; use `async with`" for team in self._made if team.is_open]
        return leaks + [leak for team in self._made for leak in team.leaks]
