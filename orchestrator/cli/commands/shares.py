"""`orc shares`: list; set and delete are declared control commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from orchestrator.cli.terminal.active_commands import active_commands, show_affected
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.output import say_rest
from orchestrator.cli.terminal.parsing import option
from orchestrator.cli.terminal.source import viewed

commands = noun(
    "shares",
    "orc shares list",
    'orc shares set acme --weight 3 --at-most 50 --reason "large contract"',
    "orc shares delete acme",
)


@commands.command("list", "orc shares list", "orc shares list -o json")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 20, common: Globals = DEFAULTS) -> None:
    """List the keys of tasks (`--fair`) with weight, cap, and how many tasks wait and run; the most tasks first.

    Args:
        limit: How many [20].
    """
    from orchestrator.views.shares import list_shares

    check_limit(limit)
    async with viewed(common) as services:
        found = await list_shares(services, limit=limit)
    rows = [{**asdict(view), "active_commands": active_commands(view.active_commands)} for view in found.shares]
    columns = ("key", "weight", "at_most", "waiting", "running")
    show_affected(common.output, rows, columns, key="key", empty="no tasks have a key, and no key has a share")
    say_rest(len(rows), found.total)
