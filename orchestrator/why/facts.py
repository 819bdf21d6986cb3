"""Decodes the facts that `lua/tasks/why.lua` returns about a task; `explanation.py` evaluates them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orchestrator.budgets.model import read_state, unpack_amounts
from orchestrator.core.command_record import read_slot_value
from orchestrator.core.errors import DamagedData, InvalidInput
from orchestrator.core.queue_name import QueueName
from orchestrator.core.rates import Rate
from orchestrator.core.reading import json_reader, read_text, read_whole, read_word
from orchestrator.limits.providers import BlockedState, read_blocked
from orchestrator.tasks.model import TaskState, decode_envelope
from orchestrator.tasks.questions import read_question
from orchestrator.tasks.records import TaskRecord, decode_lane

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.budgets.model import BudgetState
    from orchestrator.core.amounts import Amounts
    from orchestrator.tasks.model import Progress, Question


VERSION: Final = ("state", "gen", "at", "cancel")
"""Fields of a record that change with every transition."""
_FIELDS: Final = (
    *("state", "gen", "at", "cancel", "reason", "fails", "deaths"),
    *("left", "death", "ended", "skill", "queue", "progress"),
)
"""Fields of the record that `lua/tasks/why.lua` returns; `death` is the evidence of the last death."""


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """One limit of an agent.

    Attributes:
        rate: the limit, or None if it is not defined.
        used: starts inside the window.
        next_us: when this limit allows the start; 0: now.
    """

    name: str
    rate: Rate | None
    used: int = 0
    next_us: int = 0

    @property
    def used_up(self) -> bool:
        """True when the limit allows no start now."""
        return self.rate is not None and self.used >= self.rate.count


@dataclass(frozen=True, slots=True)
class SkillOffers:
    """Workers of an agent by whether they have a skill, when not all live ones do."""

    live: int = 0
    having: int = 0
    draining: int = 0
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """One agent that may run the task, or has it.

    Attributes:
        seen_ms: last heartbeat, or None if the agent is not known.
        slots: of its live workers; 0: all drain, or there are none.
        workers: registered workers, including draining ones.
        skilled: whether all live workers have the skill.
        refusing: up to ten live workers whose version of the skill refused the task.
        inbox: entries in its inbox.
        max_attempts: of the skill, as its workers declare it.
        max_deaths: of the skill, as its workers declare it.
    """

    name: str
    seen_ms: int | None
    slots: int
    backlog: int
    lease_ms: int
    grace_ms: int
    skilled: bool
    workers: int
    inbox: int
    max_attempts: int | None
    max_deaths: int | None
    limits: tuple[LimitFacts, ...]
    offers: SkillOffers
    refusing: tuple[str, ...] = ()

    @property
    def defined(self) -> bool:
        """True when all its limits are defined; otherwise the agent gets no tasks."""
        return all(limit.rate is not None for limit in self.limits)

    @property
    def room(self) -> int:
        """Free places in its inbox."""
        return self.slots * (1 + self.backlog) - self.inbox


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """The budget that a task waits for.

    Attributes:
        need: what its start takes.
        reason: why there is no room, as `lua/includes/budget.lua` names it; empty if there is room now.
        state: None for a budget that is not set, or damaged.
    """

    name: str
    need: Amounts
    reason: str
    state: BudgetState | None


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The worker that has a task.

    Attributes:
        idle_ms: since it read the entry or renewed its lease.
        seen_ms: last heartbeat, or None if the worker has expired.
        registered: whether it is registered for the agent.
    """

    id: str
    idle_ms: int
    seen_ms: int | None
    host: str
    pid: int | None
    registered: bool


@dataclass(frozen=True, slots=True)
class ActiveCommandFacts:
    """A stop or a pause that applies to a task.

    Attributes:
        slot: its slot, as `stop:agent:editor`.
        since_ms: when it was issued.
        until_ms: the end of a pause that has one.
    """

    slot: str
    actor: str
    reason: str
    since_ms: int
    until_ms: int | None = None


class _TimedPause(msgspec.Struct):
    """The part of a command that tells when its pause ends."""

    until_ms: int | None = None


_read_pause: Final = json_reader(_TimedPause)


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """The lane in which a task waits for its turn.

    Attributes:
        ahead: tasks in front of it, including the one that has the turn, or None if the lane does not list it.
        owner: the task that has the turn.
        owner_state: stored state, or None if it has no record; a running task counts as assigned.
    """

    name: str
    ahead: int | None
    owner: str
    owner_state: TaskState | None


@dataclass(frozen=True, slots=True)
class ShareFacts:
    """The key behind whose other tasks a task waits.

    Attributes:
        ahead: tasks of the key in front of it in its queue.
        running: tasks of the key that are with agents.
        at_most: how many may be, or None for any number.
    """

    key: str
    ahead: int
    running: int
    at_most: int | None


@dataclass(frozen=True, slots=True)
class Findings:
    """Facts about one task at one moment.

    Attributes:
        now_us: the moment, by the server's clock.
        version: values of the fields `VERSION`, to compare with a record that is read separately.
        left: how its last attempt ended without ending the task: `retry`, `snooze` or `death`.
        death: evidence of the last death: time (ms), worker, cause.
        due_ms: when it leaves `scheduled`, or the deadline of its question or join.
        joins_since_ms: when it began to wait for the tasks that it joins.
        own_attempts: its own `max_attempts`; read only if the task was retried.
        rank: tasks in front of it in its queue, or None if it is in no queue.
        forgiven_fails: failures from before it was requeued, which no longer count.
        forgiven_deaths: deaths from before it was requeued.
        entry_ms: when its inbox entry was written.
        in_inbox: whether that entry exists.
        question: the open question.
        lane: where it waits for its turn, or None if it has the turn or no lane.
        share: its key, if others of the key come before it or as many run as may.
        held: whether a stop, versions of its skill, or a budget hold it outside its queue.
        group: with how many suspects it may share a process, 0 for a task that must run alone; None if it does not wait
            for a process with room.
        refused: whether versions of its skill refused its arguments.
        budget: the budget that has no room for it.
        missing: number of tasks that it awaits, joins or runs after, and that have not ended.
        missing_tasks: up to ten of them.
        active: the stops and pauses that apply to it, by slot.
        blocked: what keeps calls from the providers among the limits of its agents, by limit.
        failed_start: why workers that could run it do not start; empty if they do, or that is not known.
    """

    id: str
    now_us: int
    supervisor: str | None
    state: TaskState
    version: tuple[bytes | None, ...]
    generation: int
    skill: str
    queue: str
    fails: int
    deaths: int
    cancel: str | None
    left: str
    reason: str
    death: str
    ended_ms: int | None
    progress: Progress | None
    own_attempts: int | None = None
    forgiven_fails: int = 0
    forgiven_deaths: int = 0
    due_ms: int | None = None
    joins_since_ms: int | None = None
    rank: int | None = None
    parked: bool = False
    entry_ms: int = 0
    in_inbox: bool = False
    question: Question | None = None
    lane: LaneFacts | None = None
    share: ShareFacts | None = None
    worker: WorkerFacts | None = None
    agents: tuple[AgentFacts, ...] = ()
    held: bool = False
    group: int | None = None
    refused: bool = False
    budget: BudgetFacts | None = None
    missing: int = 0
    missing_tasks: tuple[str, ...] = ()
    active: Mapping[str, ActiveCommandFacts] = field(default_factory=dict)
    blocked: Mapping[str, BlockedState] = field(default_factory=dict)
    failed_start: str = ""

    @property
    def now_ms(self) -> int:
        """The moment in ms."""
        return self.now_us // 1000

    @property
    def max_attempts(self) -> int | None:
        """Failures that make it a dead letter, as the task or an agent declares."""
        return self.own_attempts or next((agent.max_attempts for agent in self.agents), None)

    @property
    def max_deaths(self) -> int | None:
        """Deaths that make it a dead letter, as an agent declares."""
        return next((agent.max_deaths for agent in self.agents), None)

    @property
    def addressed(self) -> str | None:
        """The agent that it is addressed to, if any."""
        return QueueName.parse(self.queue).agent


def parse_findings(id_: str, reply: Sequence[Any]) -> Findings | None:
    """Decode the script's reply; return None if the task is unknown."""
    if not reply:
        return None
    now_us, leader, task, place, agents, active, blocked = reply
    *stored, forgiven_fails, forgiven_deaths, refused, missing, budget = task
    record = TaskRecord.from_reply(id_, _FIELDS, stored)
    state, facts = record.state, dict[str, Any]()
    match record.field("state"):
        case b"scheduled":
            facts = {"due_ms": _number(place[0]), "own_attempts": _own_attempts(place[1])}
        case b"ready":
            facts = {"rank": place[0], "parked": bool(place[1]), "held": bool(place[2])}
            facts["group"] = place[3] if place[3] >= 0 else None
            facts["share"] = _share(place[4:])
        case b"waiting":
            facts = {"lane": _lane(place)}
        case b"awaiting_input":
            facts = {"due_ms": _deadline(place[0]), "question": _question(place[1], place[2])}
        case b"joining":
            facts = {"due_ms": _deadline(place[0]), "joins_since_ms": _begun(place[1])}
        case b"assigned":
            facts = {"entry_ms": record.entered_ms, "in_inbox": bool(place[0]), "worker": _worker(place)}
            if facts["worker"]:
                state = TaskState.RUNNING if record.cancel is None else TaskState.CANCELLING
    return Findings(
        id=id_,
        now_us=now_us,
        supervisor=None if leader is None else _text(leader),
        state=state,
        version=tuple(map(record.field, VERSION)),
        generation=record.generation,
        skill=_text(record.field("skill")),
        queue=_text(record.field("queue")),
        fails=record.failures,
        deaths=record.deaths,
        forgiven_fails=forgiven_fails,
        forgiven_deaths=forgiven_deaths,
        refused=bool(refused),
        budget=_budget(budget),
        missing=missing[0] if missing else 0,
        missing_tasks=tuple(_text(id_) for id_ in missing[1:]),
        cancel=record.cancel,
        left=_text(record.field("left")),
        reason=record.stored_reason,
        death=_text(record.field("death")),
        ended_ms=record.ended_ms,
        agents=tuple(_agent(row) for row in agents),
        progress=record.progress,
        active=_active_commands(active),
        blocked={_text(name): _blocked(_text(state), until_ms, told) for name, state, until_ms, told in blocked},
        **facts,
    )


def _blocked(state: str, until_ms: int, told: bytes) -> BlockedState:
    # The state of a provider that a call tries is stored with the end of its block.
    return replace(read_blocked((state, told)), until_ms=until_ms)


def _lane(place: Sequence[Any]) -> LaneFacts:
    rank, owner, state, name = place
    return LaneFacts(
        decode_lane(_text(name)), rank, _text(owner), None if state is None else read_word(TaskState, state)
    )


def _budget(facts: Sequence[Any]) -> BudgetFacts | None:
    if not facts:
        return None
    name, need, reason, states = facts
    state = read_state(states[0]) if states else None
    return BudgetFacts(_text(name), unpack_amounts(_text(need)), _text(reason), state)


def _share(facts: Sequence[Any]) -> ShareFacts | None:
    if not facts:
        return None
    key, ahead, running, at_most = facts
    return ShareFacts(decode_lane(_text(key)), ahead, running, at_most or None)


def _active_commands(reply: Sequence[bytes]) -> dict[str, ActiveCommandFacts]:
    found: dict[str, ActiveCommandFacts] = {}
    for slot, value in zip(reply[::2], reply[1::2], strict=True):
        name = _text(slot)
        try:
            issued = read_slot_value(value).issued
        except InvalidInput:
            # It holds the task back all the same.
            found[name] = ActiveCommandFacts(name, "(unreadable)", "", 0)
        else:
            found[name] = ActiveCommandFacts(
                name, issued.actor, issued.reason, issued.issued_ms, _end_of_pause(issued.command)
            )
    return found


def _end_of_pause(command: bytes) -> int | None:
    try:
        return _read_pause(command).until_ms
    except DamagedData:
        return None


def _agent(row: Sequence[Any]) -> AgentFacts:
    name, seen, slots, backlog, lease, grace, skilled, workers, inbox, terms, limits, offers, refusing = row
    attempts, _, deaths = _text(terms).partition("/")
    return AgentFacts(
        name=_text(name),
        seen_ms=_number(seen),
        slots=read_whole(slots),
        backlog=read_whole(backlog),
        lease_ms=read_whole(lease),
        grace_ms=read_whole(grace),
        skilled=bool(skilled),
        workers=workers,
        inbox=inbox,
        max_attempts=read_whole(attempts) if attempts else None,
        max_deaths=read_whole(deaths) if deaths else None,
        limits=tuple(_limit(limit) for limit in limits),
        offers=_offers(offers) if offers else SkillOffers(),
        refusing=tuple(_text(name) for name in refusing),
    )


def _offers(row: Sequence[Any]) -> SkillOffers:
    live, having, draining, lacking = row
    return SkillOffers(live, having, draining, tuple(_text(name) for name in lacking))


def _limit(row: Sequence[Any]) -> LimitFacts:
    name, *known = row
    if not known:
        return LimitFacts(_text(name), None)
    count, window_us, used, next_us = known
    return LimitFacts(_text(name), Rate(count, window_us), used, next_us)


def _worker(place: Sequence[Any]) -> WorkerFacts | None:
    if place[1] is None:
        return None
    _, worker, idle_ms, seen, host, pid, registered = place
    return WorkerFacts(_text(worker), idle_ms, _number(seen), _text(host), _number(pid), bool(registered))


def _deadline(score: bytes | None) -> int | None:
    """Decode the deadline of a question; None without one."""
    return None if score in {None, b"inf"} else _number(score)


def _begun(stored: bytes | None) -> int | None:
    """Decode the begin of a join; None if it is lost."""
    began = (stored or b"").partition(b" ")[0]
    return read_whole(began) if began.isdigit() else None


def _question(number: bytes | None, stored: bytes | None) -> Question | None:
    return None if number is None or stored is None else read_question(read_whole(number), stored)


def _own_attempts(envelope: bytes | None) -> int | None:
    """Return the task's own `max_attempts`, if it was retried and has one."""
    try:
        return decode_envelope(envelope).max_attempts if envelope else None
    except DamagedData:
        return None


def _number(value: bytes | None) -> int | None:
    return None if value is None else read_whole(value)


def _text(value: bytes | None) -> str:
    return read_text(value or b"")
