"""`orc queues`: list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli import output
from orchestrator.cli.options import DEFAULTS, Globals
from orchestrator.cli.parsing import Commands

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = Commands(
    "queues",
    "Look at what waits.",
    examples="""
        orc queues list
        orc queues list -o json
    """,
)
app = commands.app

COLUMNS: Final = ("queue", "tasks", "agents", "why")
HEADS: Final = 100
"""Of so many queues the first task is looked at."""


@commands.command(
    "list",
    alias="ls",
    examples="""
        orc queues list
        orc queues list -o json
    """,
)
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the queues that are not empty, which live agents take from them, and what the first task of each waits for.

    Args:
        common: Global options.
    """
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        rows = await queue_rows(services)
    output.show_list(common.output, rows, COLUMNS, key="queue", empty="nothing waits")


async def queue_rows(services: Services) -> list[dict[str, Any]]:
    """Queues with their lengths, the live agents that serve them, and what their first tasks wait for."""
    from orchestrator.agents import queries as agents
    from orchestrator.tasks import queries as tasks

    lengths = {queue: count for queue, count in (await tasks.queue_lengths(services.store)).items() if count}
    known = await agents.agents(services.store)
    heads = await tasks.heads(services.store, list(lengths)[:HEADS])

    def row(queue: str, count: int) -> dict[str, Any]:
        head, status = heads.get(queue, (None, None))
        cause, why = (status.detail.cause, status.why) if status else (None, None)
        takers = agents.takers(queue, known)
        return {"queue": queue, "tasks": count, "agents": takers, "head": head, "cause": cause, "why": why}

    return [row(queue, count) for queue, count in lengths.items()]
