"""Attempts of a task: who ran it, when, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from typing import Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.tasks.model import TaskState

KEPT_ATTEMPTS: Final = 20
"""Ended attempts that a record keeps; `lua/includes/history.lua` drops older ones."""


class AttemptOutcome(StrEnum):
    """End of an attempt.

    `failed`: its handler raised, or rejected the task. `timed_out`: the worker stopped it at a time limit. `died`:
    its worker died. `snoozed`, `asked`, `joining`: its handler put the task off, asked a question, or joined
    tasks. `interrupted`: a stop, a drain or a lost lock ended it. `refused`: the arguments do not fit the worker's
    version of the skill.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    DIED = "died"
    SNOOZED = "snoozed"
    ASKED = "asked"
    JOINING = "joining"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt of a task.

    Attributes:
        number: counts the attempts of the task that began, from 1; a first number above 1 tells how many were dropped.
        attempt: number of the attempt in logs and in `ctx.attempt`, which counts failures and deaths only.
        outcome: how it ended; None while it runs.
        agent: that had the task.
        worker: that had the task; None if it is not known: of a first attempt that succeeded, no worker is stored.
        assigned_at: when it was assigned.
        began_at: when its handler began; None if it is not known.
        ended_at: when Redis stored its end; None while it runs.
        reason: beginning of the error or of the reason, in one line.
    """

    number: int
    attempt: int
    outcome: AttemptOutcome | None
    agent: str | None
    worker: str | None
    assigned_at: datetime
    began_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""


def parse_attempt(number: int, stored: str) -> TaskAttempt | None:
    """Return attempt `number` from its field in the record, or None if the field is damaged."""
    try:
        outcome, attempt, generation, began, ended, agent, worker, reason = stored.split(" ", 7)
        return TaskAttempt(
            number=number,
            attempt=int(attempt),
            outcome=AttemptOutcome(outcome),
            agent=agent,
            worker=None if worker == "-" else worker,
            assigned_at=from_instant_ms(int(generation)),
            began_at=from_instant_ms(int(began)) if int(began) else None,
            ended_at=from_instant_ms(int(ended)),
            # The script cuts the text at a byte, which may lie within a character.
            reason=reason.removesuffix("\N{REPLACEMENT CHARACTER}"),
        )
    except (ValueError, OverflowError):
        return None


def present_attempt(
    state: TaskState,
    *,
    number: int,
    attempt: int,
    generation: int,
    agent: str | None,
    worker: str | None,
    ended_ms: int | None,
    reason: str,
) -> TaskAttempt | None:
    """Return the attempt that runs or that ended the task, from the record; None if no agent had the task."""
    if agent is None:
        return None
    ended_as = {TaskState.SUCCEEDED: AttemptOutcome.SUCCEEDED, TaskState.DEAD: AttemptOutcome.FAILED}
    return TaskAttempt(
        number=number,
        attempt=attempt,
        outcome=ended_as.get(state),
        agent=agent,
        worker=worker,
        assigned_at=from_instant_ms(generation),
        ended_at=None if ended_ms is None else from_instant_ms(ended_ms),
        reason=reason if state is TaskState.DEAD else "",
    )
