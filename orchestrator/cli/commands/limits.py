"""`orc limits`: list, set, reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, in_words, read_desired_state
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions, send_and_show
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, positional

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = Commands(
    "limits",
    "Look at the limits of starts; change their rates.",
    examples="""
        orc limits list
        orc limits set model:gpt 30/min --reason "half of the quota"
        orc limits reset model:gpt
    """,
)
app = commands.app


@commands.command(
    "list",
    alias="ls",
    examples="""
        orc limits list
        orc limits list -o json
    """,
)
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the limits: the rate that counts, the one that agents or settings define, who is bound by it.

    An agent's own limit is called @AGENT.

    Args:
        common: Global options.
    """
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        rows = await _rows(services)
    shown = (
        [{**row, "active_commands": in_words(row["active_commands"])} for row in rows]
        if common.output == "table"
        else rows
    )
    columns = ("limit", "rate", "defined", "agents", "active_commands")
    output.show_list(common.output, shown, columns, key="limit", empty="no limit is known")


async def _rows(services: Services) -> list[dict[str, Any]]:
    from orchestrator.agents import queries

    now = await read_desired_state(services)
    rates = await queries.limits(services.store)
    bound = {agent.name: agent.limits for agent in await queries.agents(services.store)}

    def row(name: str) -> dict[str, Any]:
        own = name.removeprefix("@") if name.startswith("@") else None
        agents = [agent for agent, its in bound.items() if (agent == own and "rate" in its) or name in its]
        found = active_commands(now, f"limit:{name}")
        return {
            "limit": name,
            "rate": rates[name],
            "defined": rates.get(f"={name}") if found else rates[name],
            "agents": sorted(agents),
            "active_commands": found,
        }

    return [row(name) for name in sorted(rates) if not name.startswith("=")]


@commands.command(
    "set",
    examples="""
        orc limits set model:gpt 30/min --reason "half of the quota"
    """,
)
async def set_(
    limit: Annotated[str, positional("LIMIT")],
    rate: Annotated[str, positional("RATE")],
    /,
    *,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Give a limit another rate, from the next start on, until `orc limits reset`. It outlives restarts of everything.

    Args:
        limit: Its name.
        rate: Starts per time, as 10/s, 10/min, 10/h or 10/d.
        options: How to ask.
        common: Global options.
    """
    return await _give("set-limit", {"limit": limit, "rate": rate}, options, common)


@commands.command(
    "reset",
    examples="""
        orc limits reset model:gpt
    """,
)
async def reset(
    limit: Annotated[str, positional("LIMIT")],
    /,
    *,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Let a limit have the rate again that agents or settings define.

    Args:
        limit: Its name.
        options: How to ask.
        common: Global options.
    """
    return await _give("reset-limit", {"limit": limit}, options, common)


async def _give(kind: str, values: dict[str, Any], options: CommandOptions, common: Globals) -> int:
    from orchestrator.agents import queries
    from orchestrator.control.commands import make_command
    from orchestrator.services import open_services

    command = make_command(kind, values)
    async with open_services(common.settings(), name="cli") as services:
        known = await queries.limits(services.store)
        if values["limit"] not in known:
            names = ", ".join(sorted(name for name in known if not name.startswith("="))) or "none"
            said = output.clean(values["limit"])
            output.say(
                f"no agent is bound by a limit {said!r} now (known are: {names}); the command holds all the same"
            )
        return await send_and_show(services, command, options, common)
