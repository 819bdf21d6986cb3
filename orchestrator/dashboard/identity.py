"""Says who asks, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.accounts.model import EVERYTHING, AccountScope, Role
from orchestrator.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.control.commands import Danger

ROLE_OF_DANGER: Final[Mapping[Danger, Role]] = {"A": Role.OPERATOR, "B": Role.OPERATOR, "C": Role.ADMIN}


@dataclass(frozen=True, slots=True)
class Identity:
    """A person or program that has proved who it is.

    Attributes:
        name: of the user or token; commands have the actor `web:NAME`.
        role: what it may do.
        scope: what it may see and act on.
        by_token: a bearer token has proved it.
    """

    name: str
    role: Role
    scope: AccountScope = EVERYTHING
    by_token: bool = False

    @property
    def actor(self) -> str:
        """The actor of its commands."""
        return f"web:{self.name}"

    def may(self, danger: Danger) -> bool:
        """Return whether it may give commands of a class."""
        return self.role >= ROLE_OF_DANGER[danger]

    def includes(
        self,
        *,
        agent: str | None = None,
        queue: str | None = None,
        session: str | None = None,
        skill: str | None = None,
    ) -> bool:
        """Return whether it may see and act on what belongs to one of these; see `AccountScope`."""
        return self.scope.includes(agent=agent, queue=queue, session=session, skill=skill)

    def check(
        self,
        *,
        agent: str | None = None,
        queue: str | None = None,
        session: str | None = None,
        skill: str | None = None,
    ) -> None:
        """Raise `NotFound` unless it may see what belongs to one of these, so that it learns nothing of the rest."""
        if not self.includes(agent=agent, queue=queue, session=session, skill=skill):
            raise NotFound(f"it does not exist, or {self.name} may not see it")
