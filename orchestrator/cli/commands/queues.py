"""`orc queues`: list, pause, resume, drain; `queue_purge` adds purge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.commands import queue_purge
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, in_words, read_desired_state
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions, send_and_show
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, positional

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = Commands(
    "queues",
    "Look at what waits; pause, resume and drain queues.",
    examples="""
        orc queues list
        orc queues list -o json
        orc queues pause skill:summarize --reason "the model is down"
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

    Queues that are paused or drained are listed too, by whose order and why.

    Args:
        common: Global options.
    """
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
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


@commands.command(
    "pause",
    examples="""
        orc queues pause skill:summarize --reason "the model is down"
        orc queues pause agent:editor
    """,
)
async def pause(
    queue: Annotated[str, positional("QUEUE")],
    /,
    *,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Take nothing more out of a queue, until `orc queues resume`. New tasks are accepted and wait.

    Args:
        queue: skill:NAME or agent:NAME.
        options: How to ask.
        common: Global options.
    """
    return await _give("pause-queue", queue, options, common)


@commands.command(
    "drain",
    examples="""
        orc queues drain skill:summarize
    """,
)
async def drain(
    queue: Annotated[str, positional("QUEUE")],
    /,
    *,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Refuse new tasks for a queue, until `orc queues resume`. What waits in it is worked off.

    Args:
        queue: skill:NAME or agent:NAME.
        options: How to ask.
        common: Global options.
    """
    return await _give("drain-queue", queue, options, common)


@commands.command(
    "resume",
    examples="""
        orc queues resume skill:summarize
    """,
)
async def resume(
    queue: Annotated[str, positional("QUEUE")],
    /,
    *,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """End the pause and the drain of a queue.

    Args:
        queue: skill:NAME or agent:NAME.
        options: How to ask.
        common: Global options.
    """
    return await _give("resume-queue", queue, options, common)


async def _give(kind: str, queue: str, options: CommandOptions, common: Globals) -> int:
    from orchestrator.control.commands import make_command
    from orchestrator.services import open_services

    command = make_command(kind, {"queue": queue})
    async with open_services(common.settings(), name="cli") as services:
        await _say_unknown(services, queue)
        return await send_and_show(services, command, options, common)


async def _say_unknown(services: Services, queue: str) -> None:
    from orchestrator.agents import queries as agents
    from orchestrator.tasks import queries as tasks

    known = await agents.agents(services.store)
    names = {f"agent:{agent.name}" for agent in known} | {f"skill:{skill}" for agent in known for skill in agent.skills}
    if queue not in names and queue not in await tasks.queue_lengths(services.store):
        output.say(f"nothing waits in {queue} and no agent that is known takes from it; the command holds all the same")


queue_purge.add_to(commands)
