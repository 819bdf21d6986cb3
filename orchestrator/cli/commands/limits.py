"""`orc limits`: list; set, reset and hold are declared control commands."""

from __future__ import annotations

from dataclasses import asdict

from orchestrator.cli.terminal.active_commands import active_commands, show_affected
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.source import viewed

commands = noun(
    "limits",
    "orc limits list",
    'orc limits set model:gpt 30/min --reason "half of the quota"',
    "orc limits reset model:gpt",
)


@commands.command("list", "orc limits list", "orc limits list -o json")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the rate limits, with the rate that applies, the defined rate and the agents that have the limit.

    @AGENT is an agent's own limit.
    """
    from orchestrator.views.limits import list_limits

    async with viewed(common) as services:
        found = await list_limits(services)
    rows = [{**asdict(view), "active_commands": active_commands(view.active_commands)} for view in found]
    columns = ("limit", "rate", "defined", "agents")
    show_affected(common.output, rows, columns, key="limit", empty="no limits")
