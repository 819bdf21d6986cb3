"""Tools for tests of agents: one skill without a server, or a team on a real Redis. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.testing.submitted import Submitted as Submitted
    from orchestrator.workers.testing.attempt import Outcome as Outcome
    from orchestrator.workers.testing.attempt import RecordedContext as RecordedContext
    from orchestrator.workers.testing.attempt import make_context as make_context
    from orchestrator.workers.testing.attempt import run_skill as run_skill
    from orchestrator.workers.testing.crashes import Crash as Crash
    from orchestrator.workers.testing.team import Team as Team
    from orchestrator.workers.testing.teams import Teams as Teams


if not TYPE_CHECKING:  # Otherwise a type checker would accept misspelt names.

    def __getattr__(name: str) -> Any:
        from orchestrator.core.public_names import load

        return load(__name__, name)


def __dir__() -> list[str]:
    from orchestrator.core.public_names import homes

    return sorted({*globals(), *homes(__name__)})
