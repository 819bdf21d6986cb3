"""A key of a scope, as the scan of scopes passes it to its checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.store.key_kinds import KeyKind
    from orchestrator.store.keys import ScopeKeys


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """A key of a scope; `name` is the name in its suffix, encoded."""

    full: bytes
    keys: ScopeKeys
    suffix: str
    name: str
    kind: KeyKind

    @property
    def type(self) -> str:
        """The type that it must have, in the words of Redis."""
        return self.kind.type
