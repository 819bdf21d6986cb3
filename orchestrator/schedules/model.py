"""The values of a schedule: what it submits and when, and what has become of it. Pure; nothing here talks to Redis."""

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
"""How `next` is stored of a schedule that has no fire time any more; also its score, and that of a paused one."""


class Overlap(StrEnum):
    """What happens at a fire time when the previous task of the schedule has not ended."""

    ENQUEUE = "enqueue"
    SKIP = "skip"
    REPLACE = "replace"


class CatchUp(StrEnum):
    """Which of the fire times are made up for that passed while no supervisor ran."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


class FireOutcome(StrEnum):
    """What became of a fire time; each is also the name of a counter in the schedule's record."""

    FIRED = "fired"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a schedule submits, and when: its definition, as it is stored (JSON).

    Attributes:
        skill: name of the handler.
        args: JSON object of its arguments, as the caller's bytes.
        cron: five fields; None for an interval.
        zone: IANA name of the time zone of `cron`.
        every_ms: interval; None for cron.
        agent: as of a submission, and so are the fields below it.
        overlap: what to do when the previous task has not ended.
        catch_up: what to do about missed times.
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
        """Cron or interval in words."""
        if self.cron is not None:
            return f"{self.cron} {self.zone}"
        return f"every {span_text(self.every_ms or 0)}"

    def timing(self, anchor_ms: int) -> Timing:
        """What computes its fire times; intervals count from `anchor_ms`.

        Raises:
            InvalidInput: neither cron nor interval is possible, as in a record that is damaged, or on a machine that
                does not know the zone.
        """
        if (self.cron is None) == (self.every_ms is None):
            raise InvalidInput("a schedule needs either cron or every, and not both")
        if self.cron is not None:
            return check_cron(self.cron, self.zone)
        assert self.every_ms is not None
        return Every(check_every(self.every_ms), anchor_ms)

    def same_times(self, other: Plan) -> bool:
        """Whether the other one fires at the same times."""
        return (self.cron, self.zone, self.every_ms) == (other.cron, other.zone, other.every_ms)


_decode = msgspec.json.Decoder(Plan).decode
_encode = msgspec.json.Encoder().encode


def encode_plan(plan: Plan) -> bytes:
    """The definition as it is stored."""
    return _encode(plan)


def decode_plan(data: bytes) -> Plan:
    """Read a stored definition.

    Raises:
        InvalidInput: it is damaged, or a newer version of this program wrote it.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
        raise InvalidInput(f"its definition cannot be read: {unreadable}") from None


def digest_plan(plan: Plan) -> str:
    """The same for two definitions that say the same, in whatever order."""
    canonical = json.dumps(json.loads(_encode(plan)), sort_keys=True)
    return hashlib.blake2b(
        canonical.encode("utf-8", "surrogatepass"), digest_size=16, person=b"orc-schedule"
    ).hexdigest()


@dataclass(frozen=True, slots=True)
class Stored:
    """The record of a schedule as scripts keep it.

    Attributes:
        plan: packed definition.
        next: next fire time in ms, or `NEVER`.
        anchor_ms: where intervals count from.
        task: the task of the last fire.
        last: its fire time in ms.
        at: when that was submitted, ms.
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
    """What is known of one schedule.

    Attributes:
        name: of the schedule.
        skill: what it submits.
        args: its arguments.
        cron: the expression, or None.
        zone: the zone of `cron`.
        every: seconds of an interval, or None.
        agent: who gets the tasks; None: any agent with the skill.
        session: of its tasks.
        lane: of its tasks.
        priority: of its tasks.
        tags: of its tasks.
        timeout: seconds that one attempt may take.
        max_attempts: failures until a task is a dead letter.
        result_ttl: seconds that an ended task is kept.
        overlap: enqueue, skip or replace.
        catch_up: none, one or all.
        paused: whether it is paused.
        next: when it fires next; None: paused, or never again.
        last: the fire time of the newest task.
        last_at: when that was submitted.
        last_task: its id.
        last_error: why a fire time led to no task, the newest reason.
        last_error_at: when that was.
        fired: fire times that led to a task.
        missed: those that passed while no supervisor ran and were not made up for.
        skipped: those at which the previous task had not ended.
        refused: those whose task was refused.
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
        """Cron or interval in words."""
        if self.cron is not None:
            return f"{self.cron} {self.zone}"
        return f"every {span_text(round((self.every or 0) * 1000))}"


def to_schedule(stored: Stored) -> Schedule:
    """What people see of a record.

    Raises:
        InvalidInput: its definition cannot be read.
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
    """A duration as people type it: `90000` is `1m30s`."""
    parts = []
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _moment(ms: str) -> datetime | None:
    return from_instant_ms(int(ms)) if ms else None
