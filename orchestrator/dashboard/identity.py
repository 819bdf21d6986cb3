"""Says who asks, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.accounts.model import Role

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
        by_token: a bearer token has proved it.
    """

    name: str
    role: Role
    by_token: bool = False

    @property
    def actor(self) -> str:
        """The actor of its commands."""
        return f"web:{self.name}"

    def may(self, danger: Danger) -> bool:
        """Return whether it may give commands of a class."""
        return self.role >= ROLE_OF_DANGER[danger]
