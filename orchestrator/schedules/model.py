"""Plans and records of schedules, and the `Schedule` that users see."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from typing import Any, Final

import msgspec

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.schedules.timing import Every, Timing, check_cron, check_every

NEVER: Final = "inf"
"""Stored `next` of a schedule without another fire time, and its score; also the score of a paused schedule."""


class Overlap(StrEnum):
    """Policy for a fire time while the schedule's previous task runs or waits."""

    ENQUEUE = "enqueue"
    SKIP = "skip"
    REPLACE = "replace"


class CatchUp(StrEnum):
    """Policy for fire times that passed without a supervisor."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


class FireOutcome(StrEnum):
    """Result of a fire time, and name of its counter in the schedule's record."""

    FIRED = "fired"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Definition of a schedule: what it submits, and when. Stored as JSON.

    Attributes:
        skill: name of the handler.
        args: JSON object of its arguments, as the caller's bytes.
        cron: five fields; None for an interval.
        zone: IANA time zone of `cron`.
        every_ms: interval; None for cron.
        agent: option of the submitted tasks, like the fields after it up to `result_ttl_s`.
        overlap: what to do while the previous task has not ended.
        catch_up: what to do about missed fire times.
    """

    skill: str
    args: msgspec.Raw
    cron: str | None = None
    zone: str = "UTC"
    every_ms: int | None = None
    agent: str | None = None
    session: str | None = None
    lane: str | None = None
    priority: int | str = "normal"
    tags: tuple[str, ...] = ()
    timeout_s: float | None = None
    max_attempts: int | None = None
    result_ttl_s: float | None = None
    overlap: Overlap = Overlap.ENQUEUE
    catch_up: CatchUp = CatchUp.ONE

    @property
    def when(self) -> str:
        """The cron expression with its zone, or the interval, as text."""
        if self.cron is not None:
            return f"{self.cron} {self.zone}"
        return f"every {span_text(self.every_ms or 0)}"

    def timing(self, anchor_ms: int) -> Timing:
        """Return the timing of the plan; intervals count from `anchor_ms`.

        Raises:
            InvalidInput: neither cron nor interval is valid: the record is damaged, or this machine lacks the time
                zone.
        """
        if (self.cron is None) == (self.every_ms is None):
            raise InvalidInput("a schedule needs either cron or every, and not both")
        if self.cron is not None:
            return check_cron(self.cron, self.zone)
        assert self.every_ms is not None
        return Every(check_every(self.every_ms), anchor_ms)

    def same_times(self, other: Plan) -> bool:
        """Return whether the other plan has the same fire times."""
        return (self.cron, self.zone, self.every_ms) == (other.cron, other.zone, other.every_ms)


_decode = msgspec.json.Decoder(Plan).decode
_encode = msgspec.json.Encoder().encode


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan as it is stored."""
    return _encode(plan)


def decode_plan(data: bytes) -> Plan:
    """Decode a stored plan.

    Raises:
        InvalidInput: it is damaged, or a newer version of this program wrote it.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
        raise InvalidInput(f"its plan cannot be decoded: {unreadable}") from None


def digest_plan(plan: Plan) -> str:
    """Return a digest that is equal for equal plans."""
    canonical = json.dumps(json.loads(_encode(plan)), sort_keys=True)
    return hashlib.blake2b(
        canonical.encode("utf-8", "surrogatepass"), digest_size=16, person=b"orc-schedule"
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """Record of a schedule, as scripts store it.

    Attributes:
        plan: encoded plan.
        next: next fire time in ms, or `NEVER`.
        anchor_ms: time from which intervals count.
        task: the newest task.
        last: fire time of the newest task in ms.
        at: time at which that task was submitted, ms.
    """

    name: str
    plan: bytes
    digest: str
    next: str
    anchor_ms: int
    paused: bool
    task: str
    last: str
    at: str
    error: str
    error_at: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule with its history.

    Attributes:
        name: name of the schedule.
        skill: name of the handler that its tasks run.
        args: arguments of its tasks.
        cron: cron expression, or None.
        zone: time zone of `cron`.
        every: interval in seconds, or None.
        agent: agent of its tasks; None: any agent with the skill.
        session: session of its tasks.
        lane: lane of its tasks.
        priority: priority of its tasks.
        tags: tags of its tasks.
        timeout: seconds that one attempt may take.
        max_attempts: failures until a task is a dead letter.
        result_ttl: seconds that an ended task is kept.
        overlap: enqueue, skip or replace.
        catch_up: none, one or all.
        paused: whether it is paused.
        next: next fire time; None: paused, or none left.
        last: fire time of the newest task.
        last_at: time at which the newest task was submitted.
        last_task: id of the newest task.
        last_error: latest reason why a fire time led to no task.
        last_error_at: time of that.
        fired: number of fire times that led to a task.
        missed: number of fire times that passed without a supervisor and were not made up for.
        skipped: number of fire times skipped because the previous task had not ended.
        refused: number of fire times whose task was refused.
    """

    name: str
    skill: str
    args: Any
    cron: str | None
    zone: str
    every: float | None
    agent: str | None
    session: str | None
    lane: str | None
    priority: int | str
    tags: tuple[str, ...]
    timeout: float | None
    max_attempts: int | None
    result_ttl: float | None
    overlap: str
    catch_up: str
    paused: bool
    next: datetime | None
    last: datetime | None
    last_at: datetime | None
    last_task: str | None
    last_error: str | None
    last_error_at: datetime | None
    fired: int
    missed: int
    skipped: int
    refused: int

    @property
    def when(self) -> str:
        """The cron expression with its zone, or the interval, as text."""
        if self.cron is not None:
            return f"{self.cron} {self.zone}"
        return f"every {span_text(round((self.every or 0) * 1000))}"


def to_schedule(stored: ScheduleRecord) -> Schedule:
    """Convert a record.

    Raises:
        InvalidInput: its plan cannot be decoded.
    """
    plan = decode_plan(stored.plan)
    return Schedule(
        name=stored.name,
        skill=plan.skill,
        args=json.loads(bytes(plan.args)),
        cron=plan.cron,
        zone=plan.zone,
        every=None if plan.every_ms is None else plan.every_ms / 1000,
        agent=plan.agent,
        session=plan.session,
        lane=plan.lane,
        priority=plan.priority,
        tags=plan.tags,
        timeout=plan.timeout_s,
        max_attempts=plan.max_attempts,
        result_ttl=plan.result_ttl_s,
        overlap=plan.overlap.value,
        catch_up=plan.catch_up.value,
        paused=stored.paused,
        next=None if stored.paused or stored.next == NEVER else _moment(stored.next),
        last=_moment(stored.last),
        last_at=_moment(stored.at),
        last_task=stored.task or None,
        last_error=stored.error or None,
        last_error_at=_moment(stored.error_at),
        **{outcome.value: stored.counts.get(outcome.value, 0) for outcome in FireOutcome},
    )


def span_text(ms: int) -> str:
    """Format a duration: `90000` is `1m30s`."""
    parts = []
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _moment(ms: str) -> datetime | None:
    return from_instant_ms(int(ms)) if ms else None
