"""Defines the causes for which a task waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from orchestrator.tasks.history import TaskAttempt  # noqa: TC001 - public dataclasses keep their types resolvable

if TYPE_CHECKING:
    from orchestrator.tasks.model import Progress, Question, TaskState


class Cause(StrEnum):
    """Obstacle of a task; docs/guides/results.md explains each."""

    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    SNOOZED = "snoozed"
    LOCKED = "locked"
    RECOVERING = "recovering"
    STOPPED = "stopped"
    PAUSED = "paused"
    NO_SUPERVISOR = "no_supervisor"
    LOST = "lost"
    LANE = "lane"
    SHARE = "share"
    BUDGET = "budget"
    AGENT_UNKNOWN = "agent_unknown"
    AGENT_DOWN = "agent_down"
    AGENT_DRAINING = "agent_draining"
    SKILL_MISSING = "skill_missing"
    SKILL_PARTIAL = "skill_partial"
    SKILL_OUTDATED = "skill_outdated"
    NO_AGENT = "no_agent"
    LIMIT_UNDEFINED = "limit_undefined"
    SUSPECTED = "suspected"
    NO_ROOM = "no_room"
    PROVIDER = "provider"
    LIMIT = "limit"
    TURN = "turn"
    UNREAD = "unread"
    RUNNING = "running"
    CHILDREN = "children"
    PREDECESSORS = "predecessors"
    WORKER_SILENT = "worker_silent"
    CANCELLING = "cancelling"
    AWAITING_INPUT = "awaiting_input"
    ENDED = "ended"


STUCK: Final = frozenset({
    Cause.STOPPED, Cause.PAUSED, Cause.AGENT_UNKNOWN, Cause.AGENT_DOWN, Cause.AGENT_DRAINING, Cause.SKILL_MISSING,
    Cause.NO_AGENT, Cause.LIMIT_UNDEFINED, Cause.LOST, Cause.BUDGET,
})  # fmt: skip
"""Causes that do not end by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The first obstacle of a task. Fields that do not belong to its cause are None.

    Attributes:
        text: the cause in words, with names and numbers, and what to do if anything.
        until: when the task can go on by itself, at the earliest, by the server's clock.
        since: when it was assigned, or ended, or when the obstacle began.
        actor: who stopped or paused it.
        seen: last heartbeat of the agent or worker that it waits for.
        supervisor: the leading supervisor.
        ahead: tasks in front of it in its queue or lane.
        lane: lane in which it waits for its turn.
        task: task that has the turn in that lane.
        key: key whose share it waits for.
        budget: budget that has no room for it.
        agent: agent that it is addressed to or assigned to.
        agents: live agents that have its skill.
        slots: slots of these agents.
        limit: name of a limit; `agent:A` is the agent's own rate.
        rate: rate of that limit, as `10/min`.
        worker: worker that has it, on `host` with the process id `pid`.
        workers: up to ten live workers that lack its skill, or whose version of it refused the task.
        attempt: current attempt, 1 for the first.
        attempts_left: failures until it is a dead letter, if its agent is known.
        deaths: workers that died with it; RECOVERING counts only those of which it was the only suspect, and with
            `max_deaths` of these it is a dead letter.
        reason: of the failure, snooze, refusal, death, cancellation or end; or the failure of the lifespan of an agent
            that could run it.
        number: number of its question, from 1.
        question: its question.
        options: allowed answers as JSON values, or empty for any answer.
        children: up to ten of the tasks that its handler awaits or joins, or after which it runs, and that have not
            ended.
        missing: number of these tasks.
        child: the one of them that is in the way: the first that does not go on by itself, else the first.
        child_cause: what that one waits for.
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
    key: str | None = None
    budget: str | None = None
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
    children: tuple[str, ...] | None = None
    missing: int | None = None
    child: str | None = None
    child_cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """State of a task, what it waits for, and its progress.

    Attributes:
        state: one of `TaskState`.
        why: what it waits for, in words.
        detail: the same as data.
    """

    state: TaskState
    why: str
    detail: Why
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value in the payload store.

    Attributes:
        name: of its object, below the part of the store that belongs to the pool.
        size: bytes of JSON.
        sha256: of the object, hexadecimal digits.
        packed: the reference as Redis has it.
    """

    name: str
    size: int
    sha256: str
    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Everything about one task.

    Attributes:
        id: id of the task.
        why: what it waits for, in words.
        skill: requested skill.
        agent: agent that has or had it, or that it is addressed to.
        worker: worker that runs it.
        priority: 0 to 9, lower first.
        session: as submitted, like `tags`, `key`, `lane` and `fair`.
        parent: id of the task that submitted it.
        submitted_at: aware time, like `due_at` (only while it is scheduled) and `ended_at`.
        reason: why it is put off now, or ended without a result, in one line; empty while it runs and after a success.
        last_retry: what an earlier attempt said when it was put off, once the task has gone on.
        args: JSON bytes, like `result`, which is None before success; null when the task
            succeeded and its arguments were not kept (`results.keep_arguments`).
        attempts: failed attempts and deaths, plus the current or successful one.
        budgets: budgets that it spends, its own and those of its parent.
        after: ids of the tasks of its flow after which it runs, ended ones included.
        followers: ids of the tasks of its flow that run after it.
        snoozes: how often its handler raised `Snooze`; counts no attempt.
        progress: last report of the current or last attempt.
        errors: traceback text of each failed attempt, oldest first.
        deaths: evidence of each death: time, worker, cause.
        questions: its questions and their answers, in order.
        once: names of the results that `ctx.once` keeps.
        effects: names of the effects that `ctx.effect` has begun; `orc.tasks.effects(id)` reads what is known of them.
        requeues: each retry after its end: time (ms), final state before, actor and reason.
        history: its latest attempts, oldest first: the last 20 that ended, and the one that runs.
        children: ids of the tasks that it submitted, in order; of more than 1000 the newest.
        children_dropped: number of older children that are not listed.
        root: first task of its family, itself without a parent; None if an older program has submitted it.
        depth: number of tasks above it.
        trace_id: the trace of its submit, 32 hexadecimal digits; None if the submit was not traced.
        stored_args: large arguments in the payload store; `args` is then null, like `result` with `stored_result`.
        restored: state in a backup, and the backup, if a restore made it ready again: it may run a second time.
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
    effects: tuple[str, ...] = ()
    history: tuple[TaskAttempt, ...] = ()
    children: tuple[str, ...] = ()
    children_dropped: int = 0
    root: str | None = None
    depth: int = 0
    trace_id: str | None = None
    restored: str = ""
    stored_args: StoredValue | None = None
    stored_result: StoredValue | None = None
    last_retry: str = ""
    snoozes: int = 0
    fair: str | None = None
    budgets: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    followers: tuple[str, ...] = ()
