"""Names the owner of a memory: an agent, a user, a domain, or all programs of a prefix."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.errors import InvalidInput
from orchestrator.store.keys import GLOBAL, GLOBAL_ID, scope_words


class MemoryOwner(NamedTuple):
    """Kind and id of the scope that has the memory; `bind_scope` takes both."""

    kind: str
    id: str

    @classmethod
    def of(
        cls,
        agent: str | None = None,
        *,
        user: str | None = None,
        domain: str | None = None,
        global_: bool = False,
    ) -> MemoryOwner:
        """Return the one owner that is given.

        Raises:
            InvalidInput: none is given, or more than one.
        """
        named = (("agent", agent), ("user", user), ("domain", domain), (GLOBAL, GLOBAL_ID if global_ else None))
        given = [cls(kind, id_) for kind, id_ in named if id_ is not None]
        if len(given) != 1:
            raise InvalidInput(
                "a memory belongs to one agent, one user, one domain, or to all; "
                "name one of them, as user='u-17', domain='billing' or global_=True"
            )
        return given[0]

    @property
    def words(self) -> str:
        """The owner for people, as `agent 'ada'`."""
        return scope_words(self.kind, self.id)
