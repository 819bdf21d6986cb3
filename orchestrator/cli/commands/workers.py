"""`orc workers`: list, show; drain, resume and stop are declared control commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal.active_commands import active_commands, show_affected, show_affected_record
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.output import say_rest
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.source import viewed

if TYPE_CHECKING:
    from orchestrator.views.workers import WorkerView

commands = noun(
    "workers",
    "orc workers list",
    "orc workers list -o json",
    "orc workers drain host-7:4711 --wait",
)

COLUMNS = ("id", "host", "pid", "version", "last_seen_at", "agents")


@commands.command("list", "orc workers list", "orc workers list -o id")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 1000, common: Globals = DEFAULTS) -> None:
    """List the live worker processes, with their slots per agent (0: the worker drains).

    Args:
        limit: How many, those with the latest heartbeats first [1000].
    """
    from orchestrator.views.workers import list_workers

    check_limit(limit)
    async with viewed(common) as services:
        found = await list_workers(services, limit=limit)
    rows = [_row(view) for view in found.workers]
    empty = "no live worker; start one with `orc up MODULE:AGENT` or `orc worker run MODULE:AGENT`"
    show_affected(common.output, rows, COLUMNS, key="id", empty=empty)
    say_rest(len(rows), found.total)


@commands.command("show", "orc workers show host-7:4711", "orc workers show host-7:4711:9f0c1a2b -o json")
async def show(
    worker: Annotated[str, positional("WORKER", help="Id of the worker, or the beginning of it.")],
    /,
    *,
    common: Globals = DEFAULTS,
) -> None:
    """Show one live worker process."""
    from orchestrator.views.workers import read_worker

    async with common.services() as services:
        record = _row(await read_worker(services, worker))
    show_affected_record(common.output, record, key="id")


def _row(view: WorkerView) -> dict[str, Any]:
    return {**asdict(view.worker), "active_commands": active_commands(view.active_commands)}
