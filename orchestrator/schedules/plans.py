"""Builds plans from the caller's options, and submissions from plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar

import msgspec
from msgspec.structs import replace

from orchestrator.core.durations import to_ms, to_seconds
from orchestrator.core.errors import InvalidInput, QueueFull, Stopped, SubmitRefused
from orchestrator.schedules.model import CatchUp, Overlap, Plan
from orchestrator.schedules.timing import check_zone
from orchestrator.tasks.scripts import ScheduledFire, UnusualRow
from orchestrator.tasks.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import StrEnum

    from orchestrator.tasks.scripts import SubmitAnswer
    from orchestrator.tasks.submission import Arguments, Duration, NamedSkill, SubmissionValidator

E = TypeVar("E", bound="StrEnum")
PREVIEW_MAX: Final = 1000


class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule and its tasks; see `build_plan`."""

    cron: str | None
    zone: str
    every: Duration | None
    agent: str | None
    session: str | None
    lane: str | None
    priority: str | int
    tags: Sequence[str]
    timeout: Duration | None
    max_attempts: int | None
    result_ttl: Duration | None
    overlap: str
    catch_up: str


def build_plan(
    validator: SubmissionValidator,
    skill: str | NamedSkill,
    args: Arguments = None,
    *,
    cron: str | None = None,
    zone: str = "UTC",
    every: Duration | None = None,
    agent: str | None = None,
    session: str | None = None,
    lane: str | None = None,
    priority: str | int = "normal",
    tags: Sequence[str] = (),
    timeout: Duration | None = None,
    max_attempts: int | None = None,
    result_ttl: Duration | None = None,
    overlap: str = Overlap.ENQUEUE,
    catch_up: str = CatchUp.ONE,
) -> Plan:
    """Build and check a plan.

    Args:
        validator: checks the tasks that the schedule will submit.
        skill: name of the handler, or the `Skill` itself.
        args: JSON object of its arguments, or a pydantic model.
        cron: five fields: minute, hour, day of the month, month, day of the week.
        zone: IANA time zone of `cron`.
        every: seconds or timedelta between two fire times, instead of `cron`.
        agent: as in a submission, like session, lane, priority, tags, timeout, max_attempts, result_ttl.
        session: see `agent`.
        lane: see `agent`.
        priority: see `agent`.
        tags: see `agent`.
        timeout: see `agent`.
        max_attempts: see `agent`.
        result_ttl: see `agent`.
        overlap: while the previous task has not ended: enqueue, skip, or replace (cancel the previous one).
        catch_up: fire times that passed without a supervisor: none, one (the newest), or all (at most 100).

    Raises:
        InvalidInput: an invalid option.
    """
    if (cron is None) == (every is None):
        raise InvalidInput("a schedule needs either cron or every, and not both")
    if every is not None and zone != "UTC":
        raise InvalidInput("an interval has no time zone; leave out zone, or give cron")
    name = skill if isinstance(skill, str) else skill.name
    plan = Plan(
        skill=name,
        args=msgspec.Raw(validator.arguments(name, args)),
        cron=None if cron is None else _one_line(cron),
        zone=check_zone(zone),
        every_ms=None if every is None else to_ms("every", every),
        agent=agent,
        session=session,
        lane=lane,
        priority=priority,
        tags=tags if isinstance(tags, str) else tuple(tags),  # type: ignore[arg-type]  # the validator refuses a text
        timeout_s=None if timeout is None else to_seconds("timeout", timeout),
        max_attempts=max_attempts,
        result_ttl_s=None if result_ttl is None else to_seconds("result_ttl", result_ttl),
        overlap=_choice("overlap", overlap, Overlap),
        catch_up=_choice("catch_up", catch_up, CatchUp),
    )
    plan.timing(0)
    validator.check(replace_skill(submission(plan, key="schedule:check:0"), skill))
    return plan


def replace_skill(task: Submission, skill: str | NamedSkill) -> Submission:
    """Replace the skill's name by the caller's `Skill`, so that the validator can check the arguments."""
    return task if isinstance(skill, str) else replace(task, skill=skill)


def submission(plan: Plan, *, key: str | None) -> Submission:
    """Return the submission of a plan's task."""
    return Submission(
        skill=plan.skill,
        args=json.loads(bytes(plan.args)),
        agent=plan.agent,
        session=plan.session,
        lane=plan.lane,
        priority=plan.priority,
        key=key,
        tags=plan.tags,
        timeout=plan.timeout_s,
        max_attempts=plan.max_attempts,
        result_ttl=plan.result_ttl_s,
    )


def fire_row(validator: SubmissionValidator, plan: Plan, fire: ScheduledFire) -> UnusualRow:
    """Return the row that fires a schedule in `tasks/submit`.

    The task's key is `schedule:NAME:FIRE_MS`. The fire itself makes sure that the task is submitted once.

    Raises:
        InvalidInput: the current settings do not allow the task.
    """
    row = validator.row(submission(plan, key=f"schedule:{fire.schedule}:{fire.fired}"))
    assert isinstance(row, UnusualRow)
    return replace(row, fire=fire, idem=None, digest=None)


def refusal(answer: SubmitAnswer, *, max_tasks: int) -> SubmitRefused:
    """Return the error for a task that was refused."""
    match answer.status:
        case "full":
            return QueueFull(answer.detail, max_tasks)
        case "stopped":
            return Stopped(answer.detail)
    return SubmitRefused(f"the task was refused: {answer.status} {answer.detail}")


def _choice(what: str, value: str, kind: type[E]) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(f"{what} {value!r} is not known; use {', '.join(kind)}") from None


def _one_line(cron: str) -> str:
    return " ".join(cron.split()) if isinstance(cron, str) else cron
