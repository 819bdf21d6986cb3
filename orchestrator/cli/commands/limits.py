"""`orc limits`: list; set and reset are declared control commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal.active_commands import active_commands, read_desired_state, show_affected
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.core.slots import limit_slot

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = noun(
    "limits",
    "orc limits list",
    'orc limits set model:gpt 30/min --reason "half of the quota"',
    "orc limits reset model:gpt",
)
app = commands.app


@commands.command("list", "orc limits list", "orc limits list -o json")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the rate limits, with the rate that applies, the defined rate and the agents that have the limit.

    @AGENT is an agent's own limit.
    """
    async with common.services() as services:
        rows = await _rows(services)
    columns = ("limit", "rate", "defined", "agents")
    show_affected(common.output, rows, columns, key="limit", empty="no limits")


async def _rows(services: Services) -> list[dict[str, Any]]:
    from orchestrator.agents import queries

    now = await read_desired_state(services)
    rates = await queries.limits(services.store)
    bound = {agent.name: agent.limits for agent in await queries.agents(services.store)}

    def row(name: str) -> dict[str, Any]:
        own = name.removeprefix("@") if name.startswith("@") else None
        agents = [agent for agent, its in bound.items() if (agent == own and "rate" in its) or name in its]
        found = active_commands(now, limit_slot(name))
        return {
            "limit": name,
            "rate": rates[name],
            "defined": rates.get(f"={name}") if found else rates[name],
            "agents": sorted(agents),
            "active_commands": found,
        }

    return [row(name) for name in sorted(rates) if not name.startswith("=")]
