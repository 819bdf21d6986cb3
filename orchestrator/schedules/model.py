"""Plans and records of schedules, and the `Schedule` that users see."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from typing import Any, Final, get_type_hints

import msgspec

from orchestrator.core.durations import Duration, from_instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_whole
from orchestrator.schedules.timing import Every, Timing, check_cron, check_every
from orchestrator.tasks.options import REPEATABLE, TASK_OPTIONS

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


@dataclass(frozen=True, slots=True)
class Plan:
    """Definition of a schedule: what it submits, and when.

    Attributes:
        skill: name of the handler.
        args: JSON object of its arguments, as the caller's bytes.
        cron: five fields; None for an interval.
        zone: IANA time zone of `cron`.
        every_ms: interval; None for cron.
        overlap: what to do while the previous task has not ended.
        catch_up: what to do about missed fire times.
        options: options of the submitted tasks that differ from the default, durations in seconds.
    """

    skill: str
    args: msgspec.Raw
    cron: str | None = None
    zone: str = "UTC"
    every_ms: int | None = None
    overlap: Overlap = Overlap.ENQUEUE
    catch_up: CatchUp = CatchUp.ONE
    options: dict[str, Any] = field(default_factory=dict)

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


_OWN: Final = [each for each in fields(Plan) if each.name != "options"]
_STORED_NAMES: Final = {
    name: f"{name}_s" if option.type == Duration | None else name
    for name, option in TASK_OPTIONS.items()
    if name in REPEATABLE
}
_STORED_TYPES: Final[dict[Any, Any]] = {Duration | None: float | None, Sequence[str]: tuple[str, ...]}
_StoredPlan: Final[Any] = msgspec.defstruct(
    "StoredPlan",
    [
        ("skill", str),
        ("args", msgspec.Raw),
        *((each.name, get_type_hints(Plan)[each.name], each.default) for each in _OWN[2:]),
        *(
            (stored, _STORED_TYPES.get(TASK_OPTIONS[name].type, TASK_OPTIONS[name].type), TASK_OPTIONS[name].default)
            for name, stored in _STORED_NAMES.items()
        ),
    ],
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
)
_decode = msgspec.json.Decoder(_StoredPlan).decode
_encode = msgspec.json.Encoder().encode


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan as it is stored: as JSON, with the task options beside the other fields."""
    own = {each.name: getattr(plan, each.name) for each in _OWN}
    return _encode(_StoredPlan(**own, **{_STORED_NAMES[name]: value for name, value in plan.options.items()}))


def decode_plan(data: bytes) -> Plan:
    """Decode a stored plan.

    Raises:
        InvalidInput: it is damaged, or a newer version of this program wrote it.
    """
    try:
        stored = _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as unreadable:
        raise InvalidInput(f"its plan cannot be decoded: {unreadable}") from None
    options = {name: getattr(stored, field_) for name, field_ in _STORED_NAMES.items()}
    given = {name: value for name, value in options.items() if value != TASK_OPTIONS[name].default}
    return Plan(**{each.name: getattr(stored, each.name) for each in _OWN}, options=given)


def digest_plan(plan: Plan) -> str:
    """Return a digest that is equal for equal plans."""
    canonical = json.dumps(json.loads(encode_plan(plan)), sort_keys=True)
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
        options: options of its tasks by name: `agent`, `session`, `lane`, `priority`, ...; durations in seconds.
        overlap: enqueue, skip or replace.
        catch_up: none, one or all.
        paused: whether it is paused.
        next: next fire time, or None if it is paused or never fires again.
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
    options: dict[str, Any]
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
        options={name: plan.options.get(name, TASK_OPTIONS[name].default) for name in _STORED_NAMES},
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
    return from_instant_ms(read_whole(ms)) if ms else None
