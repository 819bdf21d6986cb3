"""What users import: a name that is not there is an error, although names are loaded when they are first used."""

import orchestrator
import orchestrator.sync
import orchestrator.workers.testing
from orchestrator import Orchestrater  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from orchestrator.workers.testing import run_skil  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

print(
    orchestrator.TaskHandle, orchestrator.sync.Orchestrator, orchestrator.Agent, orchestrator.workers.testing.run_skill
)
__all__ = ["Orchestrater", "run_skil"]
print(orchestrator.TaskHandel)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
print(orchestrator.sync.Submision)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
print(orchestrator.Agnet)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
print(orchestrator.workers.testing.run_skil)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
