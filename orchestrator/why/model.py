"""What a task may wait for, and the value that says so. Pure; `explanation.py` finds out which it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.tasks.model import Progress, Question, TaskState


class Cause(StrEnum):
    """What a task waits for; docs/guides/results.md says what to do about each."""

    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    SNOOZED = "snoozed"
    RECOVERING = "recovering"
    STOPPED = "stopped"
    PAUSED = "paused"
    NO_SUPERVISOR = "no_supervisor"
    LOST = "lost"
    LANE = "lane"
    AGENT_UNKNOWN = "agent_unknown"
    AGENT_DOWN = "agent_down"
    AGENT_DRAINING = "agent_draining"
    SKILL_MISSING = "skill_missing"
    SKILL_PARTIAL = "skill_partial"
    NO_AGENT = "no_agent"
    LIMIT_UNDEFINED = "limit_undefined"
    NO_ROOM = "no_room"
    LIMIT = "limit"
    TURN = "turn"
    UNREAD = "unread"
    RUNNING = "running"
    WORKER_SILENT = "worker_silent"
    CANCELLING = "cancelling"
    AWAITING_INPUT = "awaiting_input"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The one thing that a task waits for; what does not belong to its cause is None.

    Attributes:
        text: the cause in words, with names and numbers, and what to do if something must be done.
        until: when it goes on by itself, at the earliest; all times are those of the server's clock.
        since: when it was given to its agent, or ended, or when what holds it back began.
        actor: who stopped or paused it.
        seen: the last sign of life of the agent or worker that it waits for.
        ahead: tasks that stand before it in its queue, or in its lane.
        lane: in which it waits for its turn.
        task: the one that has the turn there.
        agent: the one that it is for, or with.
        agents: the live ones that have its skill.
        slots: that these have together.
        limit: name of a limit; `agent:A` is the agent's own rate.
        rate: what that limit allows, as `10/min`.
        worker: the one that has it.
        workers: live ones that lack its skill, ten at most.
        attempt: the present one, 1 for the first.
        attempts_left: failures until it is a dead letter, if its agent is still known.
        reason: of the failure, the snooze, the death or the cancellation, or how it ended.
        number: of its question, which counts from 1 in each task.
        question: what it asks a person.
        options: the answers that are allowed, JSON values; empty: any.
    """

    cause: Cause
    text: str
    until: datetime | None = None
    since: datetime | None = None
    seen: datetime | None = None
    supervisor: str | None = None
    skill: str | None = None
    queue: str | None = None
    ahead: int | None = None
    lane: str | None = None
    task: str | None = None
    agent: str | None = None
    agents: tuple[str, ...] | None = None
    slots: int | None = None
    limit: str | None = None
    rate: str | None = None
    worker: str | None = None
    workers: tuple[str, ...] | None = None
    host: str | None = None
    pid: int | None = None
    attempt: int | None = None
    failures: int | None = None
    attempts_left: int | None = None
    deaths: int | None = None
    max_deaths: int | None = None
    reason: str | None = None
    actor: str | None = None
    number: int | None = None
    question: str | None = None
    options: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """State of a task, what it waits for, and how far it has come.

    Attributes:
        why: what it waits for, in words.
        detail: the same for programs.
    """

    state: TaskState
    why: str
    detail: Why
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Everything that is known of one task.

    Attributes:
        attempts: executions that failed or died so far, plus the present or successful one.
        progress: what the present or last attempt reported last.
        errors: traceback text of each failed attempt, oldest first.
        deaths: evidence of each death: when, which worker, how.
        questions: what it has asked people, in order, and what they answered.
        once: names of what `ctx.once` did and will not do again.
        requeues: each time it was let run again after its end: when (ms), the state that it had ended in, who and why.
    """

    id: str
    state: TaskState
    why: str
    skill: str
    agent: str | None
    worker: str | None
    priority: int
    session: str | None
    tags: tuple[str, ...]
    key: str | None
    parent: str | None
    attempts: int
    submitted_at: datetime
    due_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    args: bytes = field(default=b"", repr=False)
    result: bytes | None = field(default=None, repr=False)
    errors: tuple[str, ...] = field(default=(), repr=False)
    deaths: tuple[str, ...] = ()
    requeues: tuple[str, ...] = ()
    progress: Progress | None = None
    lane: str | None = None
    questions: tuple[Question, ...] = ()
    once: tuple[str, ...] = ()
