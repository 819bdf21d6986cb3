"""Names of stops in keys and in the desired state: a key cannot hold every sign that the id of a session may have."""

from __future__ import annotations

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import decode_foreign


def slot_of(scope: str) -> str:
    """The slot of the stop whose held tasks are kept under `held:SCOPE`; the session in that is encoded."""
    kind, _, name = scope.partition(":")
    if kind != "session":
        return f"stop:{scope}"
    try:
        return f"stop:session:{decode_foreign(name)}"
    except InvalidInput:
        return f"stop:{scope}"
