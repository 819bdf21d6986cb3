"""`orc workers`: list, show, drain, resume, stop."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, in_words, read_desired_state
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions, send_and_show
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from orchestrator.agents.model import WorkerInfo
    from orchestrator.control.desired import Desired
    from orchestrator.services import Services

commands = Commands(
    "workers",
    "Look at the worker processes; drain and stop them.",
    examples="""
        orc workers list
        orc workers list -o json
        orc workers drain host-7:4711 --wait
    """,
)
app = commands.app


@commands.command(
    "list",
    alias="ls",
    examples="""
        orc workers list
        orc workers list -o id
    """,
)
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the worker processes that live: where they run, and their slots per agent (0: it drains).

    Args:
        common: Global options.
    """
    from orchestrator.agents import queries
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        found = await queries.workers(services.store)
        now = await read_desired_state(services)
    rows = [with_active_commands(worker, now) for worker in found]
    columns: tuple[str, ...] = ("id", "host", "pid", "version", "last_seen_at", "agents")
    if common.output == "table" and any(row["active_commands"] for row in rows):
        columns = (*columns, "active_commands")
        rows = [{**row, "active_commands": in_words(row["active_commands"])} for row in rows]
    empty = "no worker lives; start some with `orc up MODULE:AGENT` or `orc worker run MODULE:AGENT`"
    output.show_list(common.output, rows, columns, key="id", empty=empty)


@commands.command(
    "show",
    alias="get",
    examples="""
        orc workers show host-7:4711
        orc workers show host-7:4711:9f0c1a2b -o json
    """,
)
async def show(worker: Annotated[str, positional("WORKER")], /, *, common: Globals = DEFAULTS) -> None:
    """Show one worker process: where it runs, since when, its slots per agent, and whether it is to drain or to end.

    Args:
        worker: Its id, or as much of it as is needed to tell it from the others.
        common: Global options.
    """
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        record = with_active_commands(await _find(services, worker), await read_desired_state(services))
    shown = {**record, "active_commands": in_words(record["active_commands"])} if common.output == "table" else record
    output.show_record(common.output, shown, key="id", skip=("active_commands",))


@commands.command(
    "drain",
    examples="""
        orc workers drain host-7:4711 --reason "new version"
        orc workers drain host-7:4711 --wait --timeout 10m
    """,
)
async def drain(
    worker: Annotated[str, positional("WORKER")],
    /,
    *,
    wait: Annotated[bool, option("--wait")] = False,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Give a worker nothing more, until `orc workers resume`; it finishes what it has, and stays.

    Args:
        worker: Its id, or the beginning of it.
        wait: Wait until it has finished what it has.
        options: How to ask.
        common: Global options.
    """
    return await _give("drain-worker", worker, options, common, wait=wait)


@commands.command(
    "resume",
    examples="""
        orc workers resume host-7:4711
    """,
)
async def resume(
    worker: Annotated[str, positional("WORKER")],
    /,
    *,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """End the drain of a worker.

    Args:
        worker: Its id, or the beginning of it.
        options: How to ask.
        common: Global options.
    """
    return await _give("resume-worker", worker, options, common)


@commands.command(
    "stop",
    examples="""
        orc workers stop host-7:4711 --reason "this machine is slow"
    """,
)
async def stop(
    worker: Annotated[str, positional("WORKER")],
    /,
    *,
    wait: Annotated[bool, option("--wait")] = False,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Let a worker finish what it has and end, as after SIGTERM; its host starts no other in its place.

    Args:
        worker: Its id, or the beginning of it.
        wait: Wait until it has finished what it has.
        options: How to ask.
        common: Global options.
    """
    return await _give("stop-worker", worker, options, common, wait=wait)


def with_active_commands(worker: WorkerInfo, now: Desired) -> dict[str, Any]:
    """What is known of a worker, with what it is told to do."""
    return {**asdict(worker), "active_commands": active_commands(now, f"drain:worker:{worker.id}")}


async def _find(services: Services, typed: str) -> WorkerInfo:
    """The worker of this id, or the only one whose id begins so.

    Raises:
        NotFound: no live worker is called so.
        InvalidInput: several are.
    """
    from orchestrator.agents import queries

    known = await queries.workers(services.store)
    found = [one for one in known if one.id == typed] or [one for one in known if one.id.startswith(typed)]
    if not found:
        raise NotFound(f"no live worker is called {typed!r}; `orc workers list` shows them")
    if len(found) > 1:
        raise InvalidInput(f"several workers are called so: {', '.join(one.id for one in found)}; give more of the id")
    return found[0]


async def _give(kind: str, worker: str, options: CommandOptions, common: Globals, *, wait: bool = False) -> int:
    from orchestrator.control.commands import make_command
    from orchestrator.services import open_services

    if wait and options.no_wait:
        raise InvalidInput("--wait and --no-wait contradict each other")
    async with open_services(common.settings(), name="cli") as services:
        command = make_command(kind, {"worker": (await _find(services, worker)).id})
        return await send_and_show(services, command, options, common, until_done=wait)
