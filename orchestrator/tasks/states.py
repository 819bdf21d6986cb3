"""Lists every legal transition of a task's stored state.

Tests check the scripts against this table; docs/internals/reliability.md is drawn from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.tasks.model import WAITING, StoredState, TaskState


@dataclass(frozen=True, slots=True)
class Step:
    """One legal transition.

    Attributes:
        before: stored state, or None if there is no record.
        event: short description.
        after: next stored state, or None if only a stub of the record remains.
        script: script under `lua/tasks` that makes it.
    """

    before: StoredState | None
    event: str
    after: StoredState | None
    script: str


_SCHEDULED, _READY, _ASSIGNED = TaskState.SCHEDULED, TaskState.READY, TaskState.ASSIGNED
_AWAITING_INPUT, _JOINING = TaskState.AWAITING_INPUT, TaskState.JOINING
_AWAITING_TASKS = TaskState.AWAITING_TASKS
_ENDING: Final = (
    *("finish", "cancel", "cancel_children", "promote", "assign", "dispatch", "adopt", "abandon", "recover"),
    *("return_unseen", "submit", "repair"),
)
"""Scripts that end tasks, and so move their followers."""
_SUCCEEDED, _DEAD = TaskState.SUCCEEDED, TaskState.DEAD
_CANCELLED, _EXPIRED = TaskState.CANCELLED, TaskState.EXPIRED

STEPS: Final = (
    Step(None, "submitted", _READY, "submit"),
    Step(None, "submitted into a busy lane", WAITING, "submit"),
    Step(None, "submitted, and cancelled for a later one of the same call", _CANCELLED, "submit"),
    Step(None, "submitted with a delay", _SCHEDULED, "submit"),
    *(
        Step(WAITING, "its turn has come: the one before it ended", _READY, script)
        for script in (
            *("finish", "cancel", "cancel_children", "promote", "assign", "dispatch", "adopt", "abandon", "recover"),
        )
    ),
    Step(WAITING, "no task had the turn of its lane", _READY, "repair"),
    Step(WAITING, "not started in time", _EXPIRED, "promote"),
    Step(WAITING, "cancelled", _CANCELLED, "cancel"),
    Step(WAITING, "a task above it was cancelled", _CANCELLED, "cancel_children"),
    Step(WAITING, "replaced by a later one of its lane", _CANCELLED, "submit"),
    Step(WAITING, "its record is damaged", _DEAD, "repair"),
    Step(_SCHEDULED, "due", _READY, "promote"),
    Step(_SCHEDULED, "its lock is kept for it", _READY, "wake"),
    Step(_SCHEDULED, "due, its lane is busy", WAITING, "promote"),
    Step(_SCHEDULED, "not started in time", _EXPIRED, "promote"),
    Step(_SCHEDULED, "cancelled", _CANCELLED, "cancel"),
    Step(_SCHEDULED, "a task above it was cancelled", _CANCELLED, "cancel_children"),
    Step(_SCHEDULED, "interrupted by a later one of its lane", _CANCELLED, "submit"),
    Step(_READY, "handed to an agent", _ASSIGNED, "assign"),
    Step(_READY, "handed to the least loaded agent of its skill", _ASSIGNED, "dispatch"),
    Step(_READY, "handed to a worker process with room for it", _ASSIGNED, "take_suspects"),
    Step(_READY, "not started in time", _EXPIRED, "assign"),
    Step(_READY, "not started in time", _EXPIRED, "dispatch"),
    Step(_READY, "not started in time", _EXPIRED, "promote"),
    Step(_READY, "cancelled", _CANCELLED, "cancel"),
    Step(_READY, "a task above it was cancelled", _CANCELLED, "cancel_children"),
    Step(_READY, "interrupted or replaced by a later one of its lane", _CANCELLED, "submit"),
    Step(_READY, "another one of its lane has the turn", WAITING, "repair"),
    Step(_ASSIGNED, "result stored", _SUCCEEDED, "finish"),
    Step(_ASSIGNED, "rejected, or failed too often", _DEAD, "finish"),
    Step(_ASSIGNED, "cancelled", _CANCELLED, "finish"),
    Step(_ASSIGNED, "given back, or tried again at once", _READY, "finish"),
    Step(_ASSIGNED, "tried again later, snoozed, or waits for a lock", _SCHEDULED, "finish"),
    Step(_ASSIGNED, "asks a person", _AWAITING_INPUT, "finish"),
    Step(_AWAITING_INPUT, "answered", _READY, "answer"),
    Step(_AWAITING_INPUT, "not answered in time", _READY, "promote"),
    Step(_AWAITING_INPUT, "cancelled", _CANCELLED, "cancel"),
    Step(_AWAITING_INPUT, "a task above it was cancelled", _CANCELLED, "cancel_children"),
    Step(_AWAITING_INPUT, "interrupted by a later one of its lane", _CANCELLED, "submit"),
    Step(_ASSIGNED, "joins tasks that have not ended", _JOINING, "finish"),
    *(
        Step(_JOINING, "enough of the tasks that it joins have ended", _READY, script)
        for script in (
            *("finish", "cancel", "cancel_children", "promote", "assign", "dispatch", "adopt", "abandon", "recover"),
            *("return_unseen", "submit", "repair"),
        )
    ),
    Step(_JOINING, "cancelled", _CANCELLED, "cancel"),
    Step(_JOINING, "a task above it was cancelled", _CANCELLED, "cancel_children"),
    Step(_JOINING, "interrupted by a later one of its lane", _CANCELLED, "submit"),
    Step(_JOINING, "its record is damaged", _DEAD, "repair"),
    Step(None, "submitted behind others of its flow", _AWAITING_TASKS, "submit"),
    *(Step(_AWAITING_TASKS, "its predecessors have ended", _READY, script) for script in _ENDING),
    *(Step(_AWAITING_TASKS, "its predecessors have ended, its lane is busy", WAITING, script) for script in _ENDING),
    *(Step(_AWAITING_TASKS, "its predecessors have ended, it has a delay", _SCHEDULED, script) for script in _ENDING),
    *(Step(_AWAITING_TASKS, "a predecessor failed, or it was cancelled", _CANCELLED, script) for script in _ENDING),
    Step(_AWAITING_TASKS, "not started in time", _EXPIRED, "promote"),
    Step(_AWAITING_TASKS, "its record is damaged", _DEAD, "repair"),
    *(
        Step(ended, "requeued, predecessors have not ended", _AWAITING_TASKS, "retry")
        for ended in (_DEAD, _CANCELLED, _EXPIRED)
    ),
    Step(_ASSIGNED, "cancelled before it was read", _CANCELLED, "cancel"),
    Step(_ASSIGNED, "a task above it was cancelled before it was read", _CANCELLED, "cancel_children"),
    Step(_ASSIGNED, "interrupted or replaced before it was read", _CANCELLED, "submit"),
    Step(_ASSIGNED, "taken over", _ASSIGNED, "adopt"),
    Step(_ASSIGNED, "taken back, no room in a limit, or died too often to be taken over", _READY, "adopt"),
    Step(_ASSIGNED, "taken back, died alone twice or more", _SCHEDULED, "adopt"),
    Step(_ASSIGNED, "taken back, died too often", _DEAD, "adopt"),
    Step(_ASSIGNED, "taken back, cancelled meanwhile", _CANCELLED, "adopt"),
    Step(_ASSIGNED, "lost on its way to its worker, too late to start", _EXPIRED, "adopt"),
    Step(_ASSIGNED, "taken back", _READY, "abandon"),
    Step(_ASSIGNED, "taken back, died alone twice or more", _SCHEDULED, "abandon"),
    Step(_ASSIGNED, "taken back, died too often", _DEAD, "abandon"),
    Step(_ASSIGNED, "taken back, cancelled meanwhile", _CANCELLED, "abandon"),
    Step(_ASSIGNED, "taken back", _READY, "recover"),
    Step(_ASSIGNED, "taken back, died alone twice or more", _SCHEDULED, "recover"),
    Step(_ASSIGNED, "taken back, died too often", _DEAD, "recover"),
    Step(_ASSIGNED, "taken back, cancelled meanwhile", _CANCELLED, "recover"),
    Step(_ASSIGNED, "taken back before it was read, too late to start", _EXPIRED, "recover"),
    Step(_ASSIGNED, "its worker did not see it", _READY, "return_unseen"),
    Step(_ASSIGNED, "its worker did not see it, cancelled meanwhile", _CANCELLED, "return_unseen"),
    Step(_ASSIGNED, "its worker did not see it, too late to start", _EXPIRED, "return_unseen"),
    Step(_ASSIGNED, "its entry was lost", _READY, "repair"),
    Step(_ASSIGNED, "its entry was lost, cancelled meanwhile", _CANCELLED, "repair"),
    Step(_ASSIGNED, "its entry was lost, too late to start", _EXPIRED, "repair"),
    Step(_READY, "its record is damaged", _DEAD, "repair"),
    Step(_SCHEDULED, "its record is damaged", _DEAD, "repair"),
    Step(_ASSIGNED, "its record is damaged", _DEAD, "repair"),
    Step(_AWAITING_INPUT, "its record is damaged", _DEAD, "repair"),
    Step(_DEAD, "requeued", _READY, "retry"),
    Step(_CANCELLED, "requeued", _READY, "retry"),
    Step(_EXPIRED, "requeued", _READY, "retry"),
    *(Step(ended, "requeued, its lane is busy", WAITING, "retry") for ended in (_DEAD, _CANCELLED, _EXPIRED)),
    Step(_SUCCEEDED, "deleted", None, "delete"),
    Step(_DEAD, "deleted", None, "delete"),
    Step(_CANCELLED, "deleted", None, "delete"),
    Step(_EXPIRED, "deleted", None, "delete"),
)
