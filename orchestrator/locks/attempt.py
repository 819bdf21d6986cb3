"""Groups the locks of one attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.locks.execution import ExecutionLocks
    from orchestrator.locks.named import Locks


@dataclass(frozen=True, slots=True)
class AttemptLocks:
    """The locks of one attempt.

    Attributes:
        execution: locks that every change of shared state presents.
        named: locks of the session; of the pool for a task without a session.
    """

    execution: ExecutionLocks
    named: Locks
