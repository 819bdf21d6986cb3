"""`orc agents`: list, show, top, pause, resume, limit."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, in_words, read_desired_state
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions, send_and_show
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.failures import CommandAborted
from orchestrator.cli.terminal.inputs import day, duration_s
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.targets import known_agent
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from orchestrator.agents.model import AgentInfo
    from orchestrator.control.desired import Desired

commands = noun(
    "agents",
    "Look at the agents of the pool; pause, resume and limit them.",
    "orc agents list",
    "orc agents show editor -o json",
    'orc agents pause editor --reason "too many errors"',
)
app = commands.app


@commands.command("list", "orc agents list", "orc agents list --within 30s", "orc agents list -o json")
async def list_(
    *, within: Annotated[str | None, option("--within", metavar="DURATION")] = None, common: Globals = DEFAULTS
) -> None:
    """List the agents that the pool knows, with their skills, slots and limits.

    Args:
        within: Only those that gave a sign of life within so long, as 30s.
    """
    from orchestrator.agent_state.states import Agents
    from orchestrator.agents import queries

    within_s = duration_s("--within", within)
    async with common.services() as services:
        found = await queries.agents(services.store)
        if within_s is not None:
            living = await Agents(services.store, services.settings).active(within_s)
            found = [agent for agent in found if agent.name in living]
        now = await read_desired_state(services)
    rows = [with_active_commands(agent, now) for agent in found]
    shown = [agent_cells(row) for row in rows] if common.output == "table" else rows
    columns = agent_columns(rows)
    empty = "no agent is known; run some with `orc up MODULE:AGENT`"
    if within_s is not None:
        empty = f"no agent gave a sign of life within {within_s:g} s"
    output.show_list(common.output, shown, columns, key="name", empty=empty)


@commands.command("show", "orc agents show editor", "orc agents show editor -o json")
async def show(name: Annotated[str, positional("AGENT")], /, *, common: Globals = DEFAULTS) -> None:
    """Show one agent.

    Args:
        name: Its name.
    """
    from orchestrator.agents import queries

    async with common.services() as services:
        agent = await queries.agent(services.store, name)
        now = await read_desired_state(services)
    record = with_active_commands(agent, now)
    shown = {**record, "active_commands": in_words(record["active_commands"])} if common.output == "table" else record
    output.show_record(common.output, shown, key="name", skip=("active_commands",))


def with_active_commands(agent: AgentInfo, now: Desired) -> dict[str, Any]:
    """What is known of an agent, with what holds it back."""
    return {
        **asdict(agent),
        "active_commands": active_commands(now, "stop:all", f"stop:agent:{agent.name}", f"pause:agent:{agent.name}"),
    }


def agent_columns(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The columns of a table of agents; what holds them back only if something does."""
    columns = ("name", "workers", "slots", "inbox", "limits", "last_seen_at", "skills")
    return (*columns, "active_commands") if any(row["active_commands"] for row in rows) else columns


def agent_cells(row: dict[str, Any]) -> dict[str, Any]:
    """A row for a table."""
    return {**row, "workers": len(row["workers"]), "active_commands": in_words(row["active_commands"])}


@commands.command("top", "orc agents top", "orc agents top --date 2026-11-20 -n 3 -o json")
async def top(
    *,
    date: Annotated[str | None, option("--date", metavar="DATE")] = None,
    count: Annotated[int, option("-n", metavar="N")] = 10,
    common: Globals = DEFAULTS,
) -> None:
    """Show the agents that have done the most tasks on one day: those that ended with a result.

    Days are UTC, by the server's clock; eight of them are kept.

    Args:
        date: The day, as 2026-11-20 [today].
        count: Show so many at most.
    """
    async with common.client() as orc:
        found = await orc.board(date=day("--date", date)).top(count)
    output.show_list(
        common.output, [asdict(standing) for standing in found], ("place", "member", "count"), key="member",
        empty="no task has ended with a result on this day",
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
    """Give an agent's own limit another rate, from the next start on. `orc limits` is for named limits.

    Args:
        agent: Its name.
        rate: Starts per time, as 10/s, 10/min, 10/h or 10/d.
        reset: Let it have the rate again that the agent says.
    """
    from orchestrator.control.commands import make_command

    if reset == (rate is not None):
        raise InvalidInput("which rate? give one, as 10/min; or --reset")
    named = {"limit": f"@{agent}"}
    command = make_command("reset-limit", named) if reset else make_command("set-limit", {**named, "rate": rate})
    async with common.services() as services:
        known = await known_agent(services, agent)
        if known is not None and "rate" not in known.limits and not reset:
            named_limits = ", ".join(known.limits)
            others = f"; of its other limits ({named_limits}) `orc limits set` changes the rate" if named_limits else ""
            raise CommandAborted(f"agent {agent!r} has no limit of its own; give it a rate where it is made{others}")
        return await send_and_show(services, command, options, common)
