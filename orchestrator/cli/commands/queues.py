"""`orc queues`: list, pause, resume, drain; `queue_purge` adds purge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli.commands import queue_purge
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, in_words, read_desired_state
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = noun(
    "queues",
    "Look at what waits; pause, resume and drain queues.",
    "orc queues list",
    "orc queues list -o json",
    'orc queues pause skill:summarize --reason "the model is down"',
)
app = commands.app

COLUMNS: Final = ("queue", "tasks", "agents", "why")
HEADS: Final = 100
"""Of so many queues the first task is looked at."""


@commands.command("list", "orc queues list", "orc queues list -o json")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the queues that are not empty, which live agents take from them, and what the first task of each waits for.

    Queues that are paused or drained are listed too, by whose order and why.
    """
    async with common.services() as services:
        rows = await queue_rows(services)
    shown = [queue_cells(row) for row in rows] if common.output == "table" else rows
    output.show_list(common.output, shown, queue_columns(rows), key="queue", empty="nothing waits")


def queue_columns(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The columns of a table of queues; active commands only if there are some."""
    return (*COLUMNS, "active_commands") if any(row["active_commands"] for row in rows) else COLUMNS


def queue_cells(row: dict[str, Any]) -> dict[str, Any]:
    """A row for a table."""
    return {**row, "active_commands": in_words(row["active_commands"])}


async def queue_rows(services: Services) -> list[dict[str, Any]]:
    """Queues with their lengths, the live agents that serve them, and what their first tasks wait for."""
    from orchestrator.agents import queries as agents
    from orchestrator.tasks import queries as tasks
    from orchestrator.why import lookup

    now = await read_desired_state(services)
    lengths = {queue: count for queue, count in (await tasks.queue_lengths(services.store)).items() if count}
    ordered = [slot.partition(":queue:")[2] for slot in now.active if ":queue:" in slot]
    lengths |= {queue: 0 for queue in ordered if queue not in lengths}
    known = await agents.agents(services.store)
    heads = await lookup.heads(services.store, [queue for queue, count in lengths.items() if count][:HEADS])

    def row(queue: str, count: int) -> dict[str, Any]:
        head, status = heads.get(queue, (None, None))
        cause, why = (status.detail.cause, status.why) if status else (None, None)
        takers = agents.takers(queue, known)
        facts = {"queue": queue, "tasks": count, "agents": takers, "head": head, "cause": cause, "why": why}
        slots = ("stop:all", f"stop:{queue}", f"pause:{queue}", f"pause:queue:{queue}", f"drain:queue:{queue}")
        return {**facts, "active_commands": active_commands(now, *slots)}

    return [row(queue, count) for queue, count in lengths.items()]


queue_purge.add_to(commands)
