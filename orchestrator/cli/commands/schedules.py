"""`orc schedules`: list, show, next, add, pause, resume, trigger, delete."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.failures import DONE, joint_exit_code
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Reason, Yes
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.source import viewed
from orchestrator.cli.terminal.task_options import Arguments, takes_options
from orchestrator.cli.terminal.warned import warnings_as_lines
from orchestrator.core.errors import InvalidInput, NotFound, SubmitRefused
from orchestrator.core.redaction import hidden_value
from orchestrator.schedules.plans import SCHEDULE_OPTIONS, ScheduleOptions
from orchestrator.tasks.options import TASK_OPTIONS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
    from datetime import datetime

    from orchestrator.schedules.api import Schedules
    from orchestrator.schedules.model import Schedule

    ScheduleAction = Callable[[Schedules, str], Awaitable[dict[str, Any]]]

commands = noun(
    "schedules",
    "orc schedules add nightly report --cron '30 2 * * *' --zone Europe/Berlin",
    "orc schedules list",
    "orc schedules next",
)

COLUMNS: Final = ("name", "when", "skill", "next", "last", "state")
Name = Annotated[str, positional("NAME", help="Name of the schedule.")]


@commands.command("list", "orc schedules list", "orc schedules list -o id | xargs orc schedules pause")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 1000, common: Globals = DEFAULTS) -> None:
    """List the schedules in the order of their next fire times.

    Args:
        limit: How many [1000].
    """
    from orchestrator.views.redaction import redacted_skills
    from orchestrator.views.schedules import list_schedules

    inputs.check_limit(limit)
    async with viewed(common) as services:
        found = await list_schedules(services, limit=limit)
        hidden = await redacted_skills(services)
    rows = [_row(each, hidden) for each in found.schedules]
    output.show_list(common.output, rows, COLUMNS, key="name", empty="no schedules")
    output.say_rest(len(rows), found.total)


@commands.command("show", "orc schedules show nightly", "orc schedules show nightly -o json | jq .next")
async def show(name: Name, /, *, common: Globals = DEFAULTS) -> None:
    """Show one schedule: its task, its times, and the outcomes of its fire times."""
    from orchestrator.schedules.api import Schedules
    from orchestrator.views.redaction import redacted_skills

    async with common.services() as services:
        found = await Schedules(lambda: services).get(name)
        hidden = await redacted_skills(services)
    row = _row(found, hidden)
    if common.output == "table":
        del row["cron"], row["every"]  # `when` has them in words
        if isinstance(row["priority"], int):
            row["priority"] = output.priority(row["priority"])
    optional = [name for name, option in TASK_OPTIONS.items() if not option.default]
    output.show_record(common.output, row, key="name", skip=(*optional, "last_error", "last_error_at"))


@commands.command("next", "orc schedules next", "orc schedules next nightly -n 10")
async def next_(
    name: Annotated[str | None, positional("NAME", help="Only this schedule.")] = None,
    /,
    *,
    count: Annotated[int, option("--count", "-n", metavar="N")] = 5,
    common: Globals = DEFAULTS,
) -> None:
    """Show the next fire times of one schedule or of all, in UTC and in the zone of the schedule.

    A paused schedule is shown only by its name, with the times that it has when it is resumed now.

    Args:
        count: How many [5].
    """
    if not 1 <= count <= 1000:
        raise InvalidInput(f"--count {count} is not between 1 and 1000")
    rows: list[dict[str, Any]] = []
    async with _opened(common) as schedules:
        known = [await schedules.get(name)] if name else [each for each in await schedules.list() if not each.paused]
        for each in known:
            rows += [_fire(each, at) for at in await schedules.next_fires(each.name, count)]
    rows = sorted(rows, key=lambda row: row["at"])[:count]
    if common.output == "table":
        rows = [{**row, "in": row["at"], "utc": f"{row['at']:%Y-%m-%d %H:%M:%S}"} for row in rows]
    columns = ("name", "in", "utc", "local", "zone")
    output.show_list(common.output, rows, columns, key="at", empty="no fire times")


@commands.command(
    "add",
    "orc schedules add nightly report --cron '30 2 * * *' --zone Europe/Berlin -a scope=all",
    "orc schedules add poll fetch --every 5m --overlap skip",
    "orc schedules add nightly report @args.json --cron '0 3 * * MON-FRI' --replace",
)
@takes_options(SCHEDULE_OPTIONS.values())
async def add(
    name: Name,
    skill: Annotated[str, positional("SKILL", help="Skill that runs its tasks.")],
    body: Annotated[str | None, positional("JSON|@FILE|-", help="Arguments: a JSON object, @FILE or -.")] = None,
    /,
    *,
    arg: Arguments = (),
    options: ScheduleOptions,
    replace: Annotated[bool, option("--replace")] = False,
    require_agent: Annotated[bool, option("--require-agent")] = False,
    reason: Reason = "",
    common: Globals = DEFAULTS,
) -> None:
    """Add a schedule. An equal schedule of this name is left unchanged.

    Exit code: 0 added, replaced or equal, 2 invalid times or task, 4 another schedule has this name.

    Args:
        replace: Replace another schedule of this name; its history is kept.
        require_agent: Refuse the schedule when no live agent has the skill.
    """
    from orchestrator.schedules.api import Schedules
    from orchestrator.views.redaction import redacted_skills

    arguments = inputs.arguments(body, arg)
    _check_names([name])
    _check_plan(common, skill, arguments, options)
    async with common.services() as services:
        schedules = Schedules(lambda: services)
        with warnings_as_lines():
            status = await schedules.add(
                name, skill, arguments, replace=replace, require_agent=require_agent, reason=reason, **options
            )
        found = await schedules.get(name)
        hidden = await redacted_skills(services)
    if common.output != "table":
        output.show_record(common.output, {**_row(found, hidden), "status": status}, key="name")
        return
    done = {"added": "added", "replaced": "replaced", "same": "is unchanged"}[status]
    waits = "it is paused" if found.paused else f"it fires {output.ago(found.next)}"
    output.write(f"schedule {name} {done}; {waits}\n")


@commands.command(
    "pause",
    'orc schedules pause nightly --reason "the source is down"',
    "orc schedules list -o id | xargs orc schedules pause",
)
async def pause(*names: Name, reason: Reason = "", common: Globals = DEFAULTS) -> int:
    """Pause schedules until `orc schedules resume`. Submitted tasks are not affected.

    Exit code: 0 paused, 3 unknown, 6 some are unknown.
    """

    async def do(schedules: Schedules, name: str) -> dict[str, Any]:
        done = await schedules.pause(name, reason=reason)
        return {"status": "paused" if done else "already", "text": "paused" if done else "was paused already"}

    return await _each(names, do, common)


@commands.command("resume", "orc schedules resume nightly", "orc schedules list -o id | xargs orc schedules resume")
async def resume(*names: Name, reason: Reason = "", common: Globals = DEFAULTS) -> int:
    """Resume paused schedules from their next fire times on. Fire times during the pause are skipped.

    Exit code: 0 resumed, 3 unknown, 6 some are unknown.
    """

    async def do(schedules: Schedules, name: str) -> dict[str, Any]:
        done = await schedules.resume(name, reason=reason)
        at = (await schedules.get(name)).next
        text = f"{'resumed' if done else 'was not paused'}; fires {output.ago(at)}"
        return {"status": "resumed" if done else "already", "next": at, "text": text}

    return await _each(names, do, common)


@commands.command(
    "trigger", "orc schedules trigger nightly", "orc schedules trigger nightly -o id | xargs orc tasks wait"
)
async def trigger(*names: Name, reason: Reason = "", common: Globals = DEFAULTS) -> int:
    """Submit the tasks of schedules now, also of paused ones, and print their ids. Fire times do not change.

    Exit code: 0 submitted, 3 unknown, 4 refused, 6 mixed.
    """

    async def do(schedules: Schedules, name: str) -> dict[str, Any]:
        task = await schedules.trigger(name, reason=reason)
        return {"status": "triggered", "task": task, "text": f"submitted task {task}"}

    return await _each(names, do, common, key="task")


@commands.command("delete", "orc schedules delete nightly", "orc schedules delete nightly poll --yes", alias="rm")
def delete(
    *names: Name,
    yes: Yes = False,
    reason: Reason = "",
    common: Globals = DEFAULTS,
) -> int:
    """Delete schedules with their histories. Submitted tasks are kept. Asks for confirmation.

    Exit code: 0 deleted, 3 unknown, 4 not confirmed, 6 some are unknown.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    known = _check_names(names)
    ask(f"delete {len(known)} schedule{'' if len(known) == 1 else 's'}: {', '.join(known)}", yes=yes)

    async def do(schedules: Schedules, name: str) -> dict[str, Any]:
        await schedules.delete(name, reason=reason)
        return {"status": "deleted", "text": "deleted"}

    return anyio.run(_each, known, do, common)


# ----------------------------------------------------------------------------------------------------------------- rows


@asynccontextmanager
async def _opened(common: Globals) -> AsyncIterator[Schedules]:
    """Open the schedules of the pool."""
    from orchestrator.schedules.api import Schedules

    async with common.services() as services:
        yield Schedules(lambda: services)


async def _each(names: Sequence[str], do: ScheduleAction, common: Globals, key: str = "name") -> int:
    """Apply an action to each schedule and print the outcomes; a failure does not stop the rest."""
    known = _check_names(names)
    rows: list[dict[str, Any]] = []
    codes: list[int] = []
    async with _opened(common) as schedules:
        for name in known:
            try:
                row = await do(schedules, name)
                codes.append(DONE)
            except (NotFound, SubmitRefused) as failure:
                word = "unknown" if isinstance(failure, NotFound) else "refused"
                row = {"status": word, "error": str(failure), "text": str(failure)}
                codes.append(failure.exit_code)
            rows.append({"name": name, **row})
    if common.output == "id":
        for row in rows:
            if "error" in row:
                output.say(row["error"])
        rows = [row for row in rows if "error" not in row]
    if common.output == "table":
        rows = [{"name": row["name"], "done": row["text"]} for row in rows]
    else:
        rows = [{name: value for name, value in row.items() if name != "text"} for row in rows]
    output.show_list(common.output, rows, ("name", "done"), key=key)
    return joint_exit_code(codes)


def _row(schedule: Schedule, hidden: Collection[str]) -> dict[str, Any]:
    """Return the row of a schedule; `state` and `when` are for people, arguments of `hidden` skills show their size."""
    state = "paused" if schedule.paused else "active" if schedule.next else "over"
    args = output.user_json(schedule.args)
    if schedule.skill in hidden:
        args = hidden_value(len(bytes(args)))
    known = {**asdict(schedule), "args": args}
    options = known.pop("options")
    return {"name": schedule.name, "when": schedule.when, "state": state, **known, **options}


def _fire(schedule: Schedule, at: datetime) -> dict[str, Any]:
    from zoneinfo import ZoneInfo

    # An interval has no zone, so the local one is used.
    local = at.astimezone() if schedule.cron is None else at.astimezone(ZoneInfo(schedule.zone))
    shown = f"{local:%Y-%m-%d %H:%M:%S %z}"
    return {
        "name": schedule.name,
        "at": at,
        "local": shown,
        "zone": schedule.zone if schedule.cron else str(local.tzinfo),
    }


def _check_names(names: Sequence[str]) -> list[str]:
    from orchestrator.core.ids import check_name

    if not names:
        raise InvalidInput("no schedules given; give names (`orc schedules list -o id` prints them)")
    return [check_name("schedule", name) for name in dict.fromkeys(names)]


def _check_plan(common: Globals, skill: str, arguments: dict[str, Any], options: ScheduleOptions) -> None:
    """Check the schedule before a server is asked."""
    from orchestrator.core.ids import TaskIds
    from orchestrator.schedules.plans import build_plan
    from orchestrator.tasks.submission import SubmissionValidator

    build_plan(SubmissionValidator(common.settings(), ids=TaskIds(listens=False)), skill, arguments, **options)
