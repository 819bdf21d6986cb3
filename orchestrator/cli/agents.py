"""`orc agents`: list, show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from orchestrator.cli import output
from orchestrator.cli.options import DEFAULTS, Globals
from orchestrator.cli.parsing import Commands, positional

commands = Commands(
    "agents",
    "Look at the agents of the pool.",
    examples="""
        orc agents list
        orc agents show editor -o json
    """,
)
app = commands.app


@commands.command(
    "list",
    alias="ls",
    examples="""
        orc agents list
        orc agents list -o json
    """,
)
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the agents that the pool knows, with their skills, slots and limits.

    Args:
        common: Global options.
    """
    from orchestrator.agents import queries
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        found = await queries.agents(services.store)
    rows = [asdict(agent) for agent in found]
    shown = [{**row, "workers": len(row["workers"])} for row in rows] if common.output == "table" else rows
    columns = ("name", "workers", "slots", "inbox", "limits", "last_seen_at", "skills")
    empty = "no agent is known; run some with `orc up MODULE:AGENT`"
    output.show_list(common.output, shown, columns, key="name", empty=empty)


@commands.command(
    "show",
    alias="get",
    examples="""
        orc agents show editor
        orc agents show editor -o json
    """,
)
async def show(name: Annotated[str, positional("AGENT")], /, *, common: Globals = DEFAULTS) -> None:
    """Show one agent.

    Args:
        name: Its name.
        common: Global options.
    """
    from orchestrator.agents import queries
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        agent = await queries.agent(services.store, name)
    output.show_record(common.output, asdict(agent), key="name")
