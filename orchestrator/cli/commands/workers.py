"""`orc workers`: list, show, drain, resume, stop."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, in_words, read_desired_state
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import positional
from orchestrator.cli.terminal.targets import find_worker

if TYPE_CHECKING:
    from orchestrator.agents.model import WorkerInfo
    from orchestrator.control.desired import Desired

commands = noun(
    "workers",
    "Look at the worker processes; drain and stop them.",
    "orc workers list",
    "orc workers list -o json",
    "orc workers drain host-7:4711 --wait",
)
app = commands.app


@commands.command("list", "orc workers list", "orc workers list -o id")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the worker processes that live: where they run, and their slots per agent (0: it drains)."""
    from orchestrator.agents import queries

    async with common.services() as services:
        found = await queries.workers(services.store)
        now = await read_desired_state(services)
    rows = [with_active_commands(worker, now) for worker in found]
    columns: tuple[str, ...] = ("id", "host", "pid", "version", "last_seen_at", "agents")
    if common.output == "table" and any(row["active_commands"] for row in rows):
        columns = (*columns, "active_commands")
        rows = [{**row, "active_commands": in_words(row["active_commands"])} for row in rows]
    empty = "no worker lives; start some with `orc up MODULE:AGENT` or `orc worker run MODULE:AGENT`"
    output.show_list(common.output, rows, columns, key="id", empty=empty)


@commands.command("show", "orc workers show host-7:4711", "orc workers show host-7:4711:9f0c1a2b -o json")
async def show(worker: Annotated[str, positional("WORKER")], /, *, common: Globals = DEFAULTS) -> None:
    """Show one worker process: where it runs, since when, its slots per agent, and whether it is to drain or to end.

    Args:
        worker: Its id, or as much of it as is needed to tell it from the others.
    """
    async with common.services() as services:
        record = with_active_commands(await find_worker(services, worker), await read_desired_state(services))
    shown = {**record, "active_commands": in_words(record["active_commands"])} if common.output == "table" else record
    output.show_record(common.output, shown, key="id", skip=("active_commands",))


def with_active_commands(worker: WorkerInfo, now: Desired) -> dict[str, Any]:
    """What is known of a worker, with what it is told to do."""
    return {**asdict(worker), "active_commands": active_commands(now, f"drain:worker:{worker.id}")}
