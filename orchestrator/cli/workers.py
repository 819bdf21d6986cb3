"""`orc workers`: list."""

from __future__ import annotations

from dataclasses import asdict

from orchestrator.cli import output
from orchestrator.cli.options import DEFAULTS, Globals
from orchestrator.cli.parsing import Commands

commands = Commands(
    "workers",
    "Look at the worker processes.",
    examples="""
        orc workers list
        orc workers list -o json
    """,
)
app = commands.app


@commands.command(
    "list",
    alias="ls",
    examples="""
        orc workers list
        orc workers list -o id
    """,
)
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the worker processes that live: where they run, and their slots per agent (0: it drains).

    Args:
        common: Global options.
    """
    from orchestrator.agents import queries
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        rows = [asdict(worker) for worker in await queries.workers(services.store)]
    columns = ("id", "host", "pid", "version", "last_seen_at", "agents")
    empty = "no worker lives; start some with `orc up MODULE:AGENT` or `orc worker run MODULE:AGENT`"
    output.show_list(common.output, rows, columns, key="id", empty=empty)
