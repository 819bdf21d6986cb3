"""What a task may wait for, and the value that says so. Pure; `reasons.py` finds out which it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """What a task waits for; docs/results.md says what to do about each."""

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
