"""`orc limits`: list; set, reset, hold and clear are declared control commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from orchestrator.cli.terminal.active_commands import active_commands, show_affected
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.output import say_rest
from orchestrator.cli.terminal.parsing import option
from orchestrator.cli.terminal.source import viewed

if TYPE_CHECKING:
    from orchestrator.views.limits import LimitView

commands = noun(
    "limits",
    "orc limits list",
    'orc limits set model:gpt 30/min --reason "half of the quota"',
    "orc limits reset model:gpt",
    "orc limits clear model:gpt",
)


@commands.command("list", "orc limits list", "orc limits list -o json")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 1000, common: Globals = DEFAULTS) -> None:
    """List the rate limits, with the rate that applies, the defined rate and the agents that have the limit.

    @AGENT is an agent's own limit. Of a provider that workers have called, also its state, until when and who told it,
    and how much of its windows is used and left; if pools share one, also whether its calls are those of all pools.

    Args:
        limit: How many, by name [1000].
    """
    from orchestrator.views.limits import list_limits

    check_limit(limit)
    async with viewed(common) as services:
        found = await list_limits(services, limit=limit)
    rows = [
        {**asdict(view), "active_commands": active_commands(view.active_commands), **_of_provider(view)}
        for view in found.limits
    ]
    columns: tuple[str, ...] = ("limit", "rate", "defined", "agents")
    if any(view.provider for view in found.limits):
        columns += ("state", "until", "told_by", "used", "left")
    if any(view.provider and view.provider.shared for view in found.limits):
        columns += ("counts",)
    show_affected(common.output, rows, columns, key="limit", empty="no limits")
    say_rest(len(rows), found.total)


def _of_provider(view: LimitView) -> dict[str, object]:
    provider = view.provider
    if provider is None:
        return {}
    return {
        "state": provider.state,
        "until": provider.until,
        "told_by": provider.told_by or None,
        "used": {usage.unit: usage.used for usage in provider.usage},
        "left": {usage.unit: usage.left for usage in provider.usage},
        "counts": "all pools" if provider.shared else "this pool",
    }
