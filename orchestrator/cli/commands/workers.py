"""`orc workers`: list, show; drain, resume and stop are declared control commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal.active_commands import (
    active_commands,
    read_desired_state,
    show_affected,
    show_affected_record,
)
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import positional
from orchestrator.cli.terminal.targets import find_worker
from orchestrator.core.slots import drain_slot

if TYPE_CHECKING:
    from orchestrator.agents.model import WorkerInfo
    from orchestrator.control.desired import Desired

commands = noun(
    "workers",
    "orc workers list",
    "orc workers list -o json",
    "orc workers drain host-7:4711 --wait",
)
app = commands.app

COLUMNS = ("id", "host", "pid", "version", "last_seen_at", "agents")


@commands.command("list", "orc workers list", "orc workers list -o id")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the live worker processes, with their slots per agent (0: the worker drains)."""
    from orchestrator.agents import queries

    async with common.services() as services:
        found = await queries.workers(services.store)
        now = await read_desired_state(services)
    rows = [_row(worker, now) for worker in found]
    empty = "no live worker; start one with `orc up MODULE:AGENT` or `orc worker run MODULE:AGENT`"
    show_affected(common.output, rows, COLUMNS, key="id", empty=empty)


@commands.command("show", "orc workers show host-7:4711", "orc workers show host-7:4711:9f0c1a2b -o json")
async def show(
    worker: Annotated[str, positional("WORKER", help="Id of the worker, or the beginning of it.")],
    /,
    *,
    common: Globals = DEFAULTS,
) -> None:
    """Show one live worker process."""
    async with common.services() as services:
        record = _row(await find_worker(services, worker), await read_desired_state(services))
    show_affected_record(common.output, record, key="id")


def _row(worker: WorkerInfo, now: Desired) -> dict[str, Any]:
    return {**asdict(worker), "active_commands": active_commands(now, drain_slot("worker", worker.id))}
