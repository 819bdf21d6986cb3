"""`orc schedules`: list, show, next, add, pause, resume, trigger, delete."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.failures import DONE, joint_exit_code
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.core.errors import InvalidInput, NotFound, SubmitRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from datetime import datetime

    from orchestrator.schedules.api import Schedules
    from orchestrator.schedules.model import Schedule

    ScheduleAction = Callable[[Schedules, str], Awaitable[dict[str, Any]]]

commands = noun(
    "schedules",
    "Submit tasks at times of a calendar or at intervals.",
    "orc schedules add nightly report --cron '30 2 * * *' --zone Europe/Berlin",
    "orc schedules list",
    "orc schedules next",
)
app = commands.app

COLUMNS: Final = ("name", "when", "skill", "next", "last", "state")
Names = Annotated[str, positional("NAME")]
Reason = Annotated[str, option("--reason", metavar="TEXT")]


@commands.command("list", "orc schedules list", "orc schedules list -o id | xargs orc schedules pause")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the schedules, that which fires next in front."""
    async with _opened(common) as schedules:
        found = await schedules.list()
    output.show_list(common.output, [_row(each) for each in found], COLUMNS, key="name", empty="no schedule is known")


@commands.command("show", "orc schedules show nightly", "orc schedules show nightly -o json | jq .next")
async def show(name: Names, /, *, common: Globals = DEFAULTS) -> None:
    """Show one schedule: what it submits, when, and what has become of its fire times.

    Args:
        name: Its name.
    """
    async with _opened(common) as schedules:
        found = await schedules.get(name)
    row = _row(found)
    optional = ("cron", "every", "agent", "session", "lane", "tags", "timeout", "max_attempts", "result_ttl")
    output.show_record(common.output, row, key="name", skip=(*optional, "last_error", "last_error_at"))


@commands.command("next", "orc schedules next", "orc schedules next nightly -n 10")
async def next_(
    name: Annotated[str | None, positional("NAME")] = None,
    /,
    *,
    count: Annotated[int, option("--count", "-n", metavar="N")] = 5,
    common: Globals = DEFAULTS,
) -> None:
    """Show the next fire times, of one schedule or of all, in UTC and in the zone of the schedule.

    Of a paused one those that it would have if it were resumed now, when it is named.

    Args:
        name: Only of this one.
        count: How many [5].
    """
    if not 1 <= count <= 1000:
        raise InvalidInput(f"--count {count} must lie between 1 and 1000")
    rows: list[dict[str, Any]] = []
    async with _opened(common) as schedules:
        known = [await schedules.get(name)] if name else [each for each in await schedules.list() if not each.paused]
        for each in known:
            rows += [_fire(each, at) for at in await schedules.next_fires(each.name, count)]
    rows = sorted(rows, key=lambda row: row["at"])[:count]
    if common.output == "table":
        rows = [{**row, "in": row["at"], "utc": f"{row['at']:%Y-%m-%d %H:%M:%S}"} for row in rows]
    columns = ("name", "in", "utc", "local", "zone")
    output.show_list(common.output, rows, columns, key="at", empty="nothing will be fired")


@commands.command(
    "add",
    "orc schedules add nightly report --cron '30 2 * * *' --zone Europe/Berlin -a scope=all",
    "orc schedules add poll fetch --every 5m --overlap skip",
    "orc schedules add nightly report @args.json --cron '0 3 * * MON-FRI' --replace",
)
async def add(
    name: Names,
    skill: Annotated[str, positional("SKILL")],
    body: Annotated[str | None, positional("JSON|@FILE|-")] = None,
    /,
    *,
    cron: Annotated[str | None, option("--cron", metavar="EXPRESSION")] = None,
    zone: Annotated[str, option("--zone", metavar="ZONE")] = "UTC",
    every: Annotated[str | None, option("--every", metavar="DURATION")] = None,
    overlap: Annotated[Literal["enqueue", "skip", "replace"], option("--overlap", metavar="POLICY")] = "enqueue",
    catch_up: Annotated[Literal["none", "one", "all"], option("--catch-up", metavar="POLICY")] = "one",
    arg: Annotated[tuple[str, ...], option("--arg", "-a", metavar="NAME=VALUE", many=True)] = (),
    agent: Annotated[str | None, option("--agent", metavar="AGENT")] = None,
    session: Annotated[str | None, option("--session", metavar="SESSION")] = None,
    lane: Annotated[str | None, option("--lane", metavar="LANE")] = None,
    priority: Annotated[str, option("--priority", metavar="LEVEL")] = "normal",
    tag: Annotated[tuple[str, ...], option("--tag", metavar="TAG", many=True)] = (),
    attempt_timeout: Annotated[str | None, option("--attempt-timeout", metavar="DURATION")] = None,
    max_attempts: Annotated[int | None, option("--max-attempts", metavar="N")] = None,
    result_ttl: Annotated[str | None, option("--result-ttl", metavar="DURATION")] = None,
    replace: Annotated[bool, option("--replace")] = False,
    reason: Reason = "",
    common: Globals = DEFAULTS,
) -> None:
    """Add a schedule. One of this name that says the same stays as it is.

    Exit code: 0 it is there, 2 its times or its task are not possible, 4 one of this name says something else.

    Args:
        name: Its name.
        skill: What it submits: the name of a handler.
        body: Arguments as a JSON object, a file with one, or standard input.
        cron: Minute, hour, day of the month, month, day of the week, as in '30 2 * * MON-FRI'.
        zone: Time zone of the expression, as Europe/Berlin [UTC].
        every: Interval in place of --cron: 90s, 5m, 2h.
        overlap: When the previous task has not ended: enqueue, skip, replace (cancel the previous one).
        catch_up: Times that passed while no supervisor ran: none, one (the newest), all (at most 100).
        arg: One argument; VALUE is JSON when it parses, otherwise text. Wins over the body.
        agent: Give the tasks to this agent.
        session: The conversation that they belong to.
        lane: Their lane.
        priority: critical, high, normal, low, or 0 to 9 (lower first).
        tag: A label of the tasks; may be repeated.
        attempt_timeout: How long one attempt may take.
        max_attempts: Failures until a task is a dead letter.
        result_ttl: How long an ended task is kept.
        replace: Take the place of one that says something else; it keeps its history.
        reason: Why; kept with the command.
    """
    options: dict[str, Any] = {
        "cron": cron,
        "zone": zone,
        "every": inputs.duration_s("--every", every),
        "overlap": overlap,
        "catch_up": catch_up,
        "agent": agent,
        "session": session,
        "lane": lane,
        "priority": inputs.priority(priority),
        "tags": tag,
        "timeout": inputs.duration_s("--attempt-timeout", attempt_timeout),
        "max_attempts": max_attempts,
        "result_ttl": inputs.duration_s("--result-ttl", result_ttl),
    }
    arguments = inputs.arguments(body, arg)
    _check_names([name])
    _check_plan(common, skill, arguments, options)
    async with _opened(common) as schedules:
        status = await schedules.add(name, skill, arguments, replace=replace, reason=reason, **options)
        found = await schedules.get(name)
    if common.output != "table":
        output.show_record(common.output, {**_row(found), "status": status}, key="name")
        return
    done = {"added": "added", "replaced": "replaced", "same": "was there already and says the same"}[status]
    waits = "it is paused" if found.paused else f"fires {output.ago(found.next)}"
    output.write(f"schedule {name} {done}; {waits}\n")


@commands.command(
    "pause",
    'orc schedules pause nightly --reason "the source is down"',
    "orc schedules list -o id | xargs orc schedules pause",
)
async def pause(*names: Names, reason: Reason = "", common: Globals = DEFAULTS) -> int:
    """Let schedules fire no more, until they are resumed. Tasks that they have submitted go on.

    Exit code: 0 they are paused, 3 unknown, 6 some are unknown.

    Args:
        names: Their names.
        reason: Why; kept with the command.
    """

    async def do(schedules: Schedules, name: str) -> dict[str, Any]:
        done = await schedules.pause(name, reason=reason)
        return {"status": "paused" if done else "already", "text": "paused" if done else "was paused already"}

    return await _each(names, do, common)


@commands.command("resume", "orc schedules resume nightly", "orc schedules list -o id | xargs orc schedules resume")
async def resume(*names: Names, reason: Reason = "", common: Globals = DEFAULTS) -> int:
    """Let paused schedules fire again, from their next times on. What passed meanwhile is not made up for.

    Exit code: 0 they fire, 3 unknown, 6 some are unknown.

    Args:
        names: Their names.
        reason: Why; kept with the command.
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
async def trigger(*names: Names, reason: Reason = "", common: Globals = DEFAULTS) -> int:
    """Submit the tasks of schedules now, also of paused ones, and print their ids. The fire times stay as they are.

    Exit code: 0 submitted, 3 unknown, 4 refused, 6 some of each.

    Args:
        names: Their names.
        reason: Why; kept with the command.
    """

    async def do(schedules: Schedules, name: str) -> dict[str, Any]:
        task = await schedules.trigger(name, reason=reason)
        return {"status": "triggered", "task": task, "text": f"submitted task {task}"}

    return await _each(names, do, common, key="task")


@commands.command("delete", "orc schedules delete nightly", "orc schedules delete nightly poll --yes", alias="rm")
def delete(
    *names: Names,
    yes: Annotated[bool, option("--yes")] = False,
    reason: Reason = "",
    common: Globals = DEFAULTS,
) -> int:
    """Delete schedules with their history. Tasks that they have submitted stay. Asks first.

    Exit code: 0 deleted, 3 unknown, 4 nobody said yes, 6 some are unknown.

    Args:
        names: Their names.
        yes: Do not ask.
        reason: Why; kept with the command.
    """
    # No coroutine, so that Ctrl-C ends the question.
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
    """The schedules of the pool, while its server is open."""
    from orchestrator.schedules.api import Schedules

    async with common.services() as services:
        yield Schedules(lambda: services)


async def _each(names: Sequence[str], do: ScheduleAction, common: Globals, key: str = "name") -> int:
    """Do something with each schedule, and print what; one that is unknown does not keep the others from it."""
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


def _row(schedule: Schedule) -> dict[str, Any]:
    """What is shown of one schedule; `state` and `when` are for people."""
    state = "paused" if schedule.paused else "active" if schedule.next else "over"
    known = {**asdict(schedule), "args": output.user_json(schedule.args)}
    return {"name": schedule.name, "when": schedule.when, "state": state, **known}


def _fire(schedule: Schedule, at: datetime) -> dict[str, Any]:
    from zoneinfo import ZoneInfo

    # An interval has no zone: the clock on this wall will do.
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
        raise InvalidInput("which schedules? give their names; `orc schedules list -o id` has them")
    return [check_name("schedule", name) for name in dict.fromkeys(names)]


def _check_plan(common: Globals, skill: str, arguments: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse what cannot be meant before a server is asked."""
    from orchestrator.core.ids import TaskIds
    from orchestrator.schedules.plans import build_plan
    from orchestrator.tasks.submission import SubmissionValidator

    build_plan(SubmissionValidator(common.settings(), ids=TaskIds(listens=False)), skill, arguments, **options)
