"""`orc agents`: list, show, top, limit; pause, hold and resume are declared control commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, show_affected, show_affected_record
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions, send_and_show
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.failures import CommandAborted
from orchestrator.cli.terminal.inputs import check_limit, day, duration_s
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.output import say_rest
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.source import viewed
from orchestrator.cli.terminal.targets import say_unknown
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from orchestrator.views.agents import AgentView

commands = noun(
    "agents",
    "orc agents list",
    "orc agents show editor -o json",
    'orc agents pause editor --reason "too many errors"',
)

COLUMNS = ("name", "workers", "slots", "inbox", "limits", "last_seen_at", "skills")


@commands.command("list", "orc agents list", "orc agents list --within 30s", "orc agents list -o json")
async def list_(
    *,
    within: Annotated[str | None, option("--within", metavar="DURATION")] = None,
    limit: Annotated[int, option("--limit", metavar="N")] = 1000,
    common: Globals = DEFAULTS,
) -> None:
    """List the agents of the pool, with their workers, slots, limits and skills.

    Args:
        within: Only agents with a heartbeat in this time, as 30s.
        limit: How many, those with the latest heartbeats first [1000].
    """
    from orchestrator.views.agents import list_agents

    within_s = duration_s("--within", within)
    check_limit(limit)
    async with viewed(common) as services:
        found = await list_agents(services, within_s=within_s, limit=limit)
    rows = [_row(view) for view in found.agents]
    if common.output == "table":
        rows = [{**row, "workers": len(row["workers"])} for row in rows]
    empty = "no agents; start one with `orc up MODULE:AGENT`"
    if within_s is not None:
        empty = f"no agent with a heartbeat in the last {within_s:g} s"
    show_affected(common.output, rows, COLUMNS, key="name", empty=empty)
    say_rest(len(rows), found.total)


@commands.command("show", "orc agents show editor", "orc agents show editor -o json")
async def show(
    name: Annotated[str, positional("AGENT", help="Name of the agent.")], /, *, common: Globals = DEFAULTS
) -> None:
    """Show one agent."""
    from orchestrator.views.agents import read_agent

    async with common.services() as services:
        record = _row(await read_agent(services, name))
    show_affected_record(common.output, record, key="name")


def _row(view: AgentView) -> dict[str, Any]:
    return {**asdict(view.agent), "active_commands": active_commands(view.active_commands)}


@commands.command("top", "orc agents top", "orc agents top --date 2026-11-20 -n 3 -o json")
async def top(
    *,
    date: Annotated[str | None, option("--date", metavar="DATE")] = None,
    count: Annotated[int, option("-n", metavar="N")] = 10,
    common: Globals = DEFAULTS,
) -> None:
    """Show the agents with the most succeeded tasks on one day.

    Days are in UTC, by the clock of Redis. The last eight days are kept.

    Args:
        date: The day, as 2026-11-20 [today].
        count: How many agents [10].
    """
    async with common.client() as orc:
        found = await orc.board(date=day("--date", date)).top(count)
    output.show_list(
        common.output, [asdict(standing) for standing in found], ("place", "member", "count"), key="member",
        empty="no task succeeded on this day",
    )  # fmt: skip


@commands.command("limit", "orc agents limit editor 10/min", "orc agents limit editor --reset")
async def limit(
    agent: Annotated[str, positional("AGENT")],
    rate: Annotated[str | None, positional("RATE")] = None,
    /,
    *,
    reset: Annotated[bool, option("--reset")] = False,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Change the rate of an agent's own limit. `orc limits set` changes named limits.

    Args:
        agent: Name of the agent.
        rate: Starts per time, as 10/s, 10/min, 10/h or 10/d.
        reset: Reset the limit to the rate that the agent defines.
    """
    from orchestrator.control.commands import make_command
    from orchestrator.views.targets import find_agent

    if reset == (rate is not None):
        raise InvalidInput("give RATE, as 10/min, or --reset")
    named = {"limit": f"@{agent}"}
    command = make_command("reset-limit", named) if reset else make_command("set-limit", {**named, "rate": rate})
    async with common.services() as services:
        known, unknown = await find_agent(services, agent)
        say_unknown(unknown)
        if known is not None and "rate" not in known.limits and not reset:
            named_limits = ", ".join(known.limits)
            others = f", or change its limits ({named_limits}) with `orc limits set`" if named_limits else ""
            raise CommandAborted(f"agent {agent!r} has no limit of its own; give it a rate in its declaration{others}")
        return await send_and_show(services, command, options, common)
