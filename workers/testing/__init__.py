"""Tests of agents: one skill without a server, or a whole team on a real Redis. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.testing.submitted import Submitted as Submitted
    from workers.testing.attempt import Outcome as Outcome
    from workers.testing.attempt import RecordedContext as RecordedContext
    from workers.testing.attempt import make_context as make_context
    from workers.testing.attempt import run_skill as run_skill
    from workers.testing.crashes import Crash as Crash
    from workers.testing.team import Team as Team
    from workers.testing.teams import Teams as Teams

__all__ = ["Crash", "Outcome", "RecordedContext", "Submitted", "Team", "Teams", "make_context", "run_skill"]

_HOMES = {
    "Crash": "workers.testing.crashes",
    "Outcome": "workers.testing.attempt",
    "RecordedContext": "workers.testing.attempt",
    "Submitted": "orchestrator.testing.submitted",
    "Team": "workers.testing.team",
    "Teams": "workers.testing.teams",
    "make_context": "workers.testing.attempt",
    "run_skill": "workers.testing.attempt",
}


if not TYPE_CHECKING:  # else every name, also a misspelt one, would be Any

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'workers.testing' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
