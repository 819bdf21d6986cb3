"""The kit for agents: declare agents and their skills, run them in workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.agent import Agent as Agent
    from workers.agent import CallNext as CallNext
    from workers.agent import Middleware as Middleware
    from workers.context import TaskContext as TaskContext
    from workers.run import run as run
    from workers.signals import Asked as Asked
    from workers.signals import Reject as Reject
    from workers.signals import Retry as Retry
    from workers.signals import Snooze as Snooze
    from workers.skill import Skill as Skill

__all__ = ["Agent", "Asked", "CallNext", "Middleware", "Reject", "Retry", "Skill", "Snooze", "TaskContext", "run"]

_HOMES = {
    "Agent": "workers.agent",
    "Asked": "workers.signals",
    "CallNext": "workers.agent",
    "Middleware": "workers.agent",
    "Reject": "workers.signals",
    "Retry": "workers.signals",
    "Skill": "workers.skill",
    "Snooze": "workers.signals",
    "TaskContext": "workers.context",
    "run": "workers.run",
}


if not TYPE_CHECKING:  # else every name, also a misspelt one, would be Any

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'workers' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES[name]), name)
        # Also because the function `run` and the module that holds it have one name.
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
