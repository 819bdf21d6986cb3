"""Builds plans from the caller's options, and submissions from plans."""

import json
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, Literal, Unpack, cast

import msgspec
from msgspec.structs import replace

from orchestrator.core.durations import Duration, to_ms
from orchestrator.core.errors import InvalidInput, Stopped, SubmitRefused
from orchestrator.core.settings import QueueSettings
from orchestrator.schedules.model import CatchUp, Overlap, Plan
from orchestrator.schedules.timing import check_zone
from orchestrator.tasks.options import REPEATABLE, Option, RepeatableOptions, options_of
from orchestrator.tasks.scripts import ScheduledFire, SubmitAnswer, UnusualRow
from orchestrator.tasks.submission import Arguments, NamedSkill, Submission, SubmissionValidator, queue_full


def _choice(kind: type[StrEnum], name: str, value: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(f"{name} {value!r} is not known; use {', '.join(kind)}") from None


def _check_cron(_name: str, cron: str) -> str:
    return " ".join(cron.split()) if isinstance(cron, str) else cron


def _check_zone(_name: str, zone: str) -> str:
    return check_zone(zone)


class ScheduleOptions(RepeatableOptions, total=False):
    """Options of a schedule: when it fires, and the options of its tasks."""

    cron: Annotated[
        str | None,
        Option(
            "Minute, hour, day of the month, month, day of the week: '30 2 * * MON-FRI'.", _check_cron, "EXPRESSION"
        ),
    ]
    zone: Annotated[str, Option("Time zone of the expression: Europe/Berlin.", _check_zone, "ZONE", default="UTC")]
    every: Annotated[Duration | None, Option("Interval, in place of cron.", to_ms, "DURATION")]
    overlap: Annotated[
        Literal["enqueue", "skip", "replace"],
        Option(
            "When the previous task has not ended: enqueue, skip, or replace (cancel the previous one).",
            partial(_choice, Overlap),
            "POLICY",
            default="enqueue",
        ),
    ]
    catch_up: Annotated[
        Literal["none", "one", "all"],
        Option(
            "Fire times that passed while no supervisor ran: none, one (the newest) or all (at most 100).",
            partial(_choice, CatchUp),
            "POLICY",
            default="one",
        ),
    ]


SCHEDULE_OPTIONS: Final = options_of(ScheduleOptions)


def build_plan(
    validator: SubmissionValidator, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[ScheduleOptions]
) -> Plan:
    """Build and check a plan.

    Args:
        validator: checks the tasks that the schedule will submit.
        skill: name of the skill, or the `Skill` itself.
        args: JSON object of its arguments, or a pydantic model.
        options: when it fires, and the options of its tasks.

    Raises:
        InvalidInput: an option is invalid, or two contradict each other.
    """
    if unknown := options.keys() - SCHEDULE_OPTIONS.keys():
        raise TypeError(f"a schedule has no option {', '.join(unknown)}")
    if (options.get("cron") is None) == (options.get("every") is None):
        raise InvalidInput("a schedule needs either cron or every, and not both")
    if options.get("every") is not None and options.get("zone", "UTC") != "UTC":
        raise InvalidInput("an interval has no time zone; leave out zone, or give cron")
    given = {name: value for name, value in options.items() if value != SCHEDULE_OPTIONS[name].default}
    own = {name: SCHEDULE_OPTIONS[name].convert(name, given.pop(name)) for name in given.keys() - REPEATABLE}
    if "every" in own:
        own["every_ms"] = own.pop("every")
    for name, value in given.items():
        SCHEDULE_OPTIONS[name].convert(name, value)
        if isinstance(value, timedelta):
            given[name] = value.total_seconds()
    if "tags" in given:
        given["tags"] = tuple(cast("Any", given["tags"]))
    if "budget" in given:
        given["budget"] = SCHEDULE_OPTIONS["budget"].convert("budget", given["budget"])
    name = skill if isinstance(skill, str) else skill.name
    plan = Plan(name, msgspec.Raw(validator.arguments(name, args)), **own, options=given)
    plan.timing(0)
    task = submission(plan, key="schedule:check:0")
    task.skill = skill
    validator.check(task)
    return plan


def submission(plan: Plan, *, key: str | None) -> Submission:
    """Return the submission of a plan's task."""
    return Submission(plan.skill, json.loads(bytes(plan.args)), key=key, **cast("RepeatableOptions", plan.options))


def fire_row(validator: SubmissionValidator, plan: Plan, fire: ScheduledFire, *, trace: str = "") -> UnusualRow:
    """Return the row that fires a schedule in `tasks/submit`.

    The task's key is `schedule:NAME:FIRE_MS`. The fire itself makes sure that the task is submitted once.

    Raises:
        InvalidInput: the current settings do not allow the task.
    """
    task = submission(plan, key=f"schedule:{fire.schedule}:{fire.fired}")
    # No repeat is recognised by the key, so it does not prolong the lifetime.
    task.options.setdefault("result_ttl", validator.result_ttl_s)
    row = validator.row(task, trace=trace)
    assert isinstance(row, UnusualRow)
    return replace(row, fire=fire, idem=None, digest=None)


def refusal(answer: SubmitAnswer, queue: QueueSettings) -> SubmitRefused:
    """Return the error for a task that was refused."""
    match answer.status:
        case "full":
            return queue_full(answer.detail, queue)
        case "stopped":
            return Stopped(answer.detail)
    return SubmitRefused(f"the task was refused: {answer.status} {answer.detail}")
