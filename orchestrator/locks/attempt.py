"""What one attempt has of locks: its right to change shared state, and named locks for its handler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.locks.execution import ExecutionLocks
    from orchestrator.locks.named import Locks


@dataclass(frozen=True, slots=True)
class AttemptLocks:
    """Both kinds of locks of one attempt.

    Attributes:
        execution: presented by each change of shared state.
        named: of the session; of the pool for a task without one.
    """

    execution: ExecutionLocks
    named: Locks
