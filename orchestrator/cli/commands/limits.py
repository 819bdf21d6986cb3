"""`orc limits`: list, set, reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, in_words, read_desired_state
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = noun(
    "limits",
    "Look at the limits of starts; change their rates.",
    "orc limits list",
    'orc limits set model:gpt 30/min --reason "half of the quota"',
    "orc limits reset model:gpt",
)
app = commands.app


@commands.command("list", "orc limits list", "orc limits list -o json")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the limits: the rate that counts, the one that agents or settings define, who is bound by it.

    An agent's own limit is called @AGENT.
    """
    async with common.services() as services:
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
