"""`orc queues`: list, purge; pause, drain and resume are declared control commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal.active_commands import active_commands, read_desired_state, show_affected
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions
from orchestrator.cli.terminal.confirm import ask, ask_for_name
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, DryRun, Globals, Yes
from orchestrator.cli.terminal.parsing import positional
from orchestrator.cli.terminal.selections import Selecting, carry_out, find, show_dry_run
from orchestrator.core.errors import InvalidInput
from orchestrator.core.queue_name import QueueName
from orchestrator.core.slots import STOP_ALL, drain_slot, parse_slot, pause_slot, stop_slot

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = noun(
    "queues",
    "orc queues list",
    "orc queues list -o json",
    'orc queues pause skill:summarize --reason "the model is down"',
)
app = commands.app

COLUMNS: Final = ("queue", "tasks", "agents", "why")
HEADS: Final = 100
"""Of how many queues `why` of the first task is read."""
NAME_ABOVE: Final = 20
"""Above this number of tasks, the confirmation of a purge is the name of the queue."""


@commands.command("list", "orc queues list", "orc queues list -o json")
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the queues that hold tasks, are paused or drained, with the agents that serve them.

    For the first task of each queue, `why` tells what it waits for.
    """
    async with common.services() as services:
        rows = await queue_rows(services)
    show_affected(common.output, rows, COLUMNS, key="queue", empty="no tasks wait")


async def queue_rows(services: Services) -> list[dict[str, Any]]:
    """Return a row for each queue: its length, the live agents that serve it, and what its first task waits for."""
    from orchestrator.agents import queries as agents
    from orchestrator.tasks import queries as tasks
    from orchestrator.why import lookup

    now = await read_desired_state(services)
    lengths = {queue: count for queue, count in (await tasks.queue_lengths(services.store)).items() if count}
    ordered = [slot.name for slot in map(parse_slot, now.active) if slot.kind == "queue"]
    lengths |= {queue: 0 for queue in ordered if queue not in lengths}
    known = await agents.agents(services.store)
    heads = await lookup.heads(services.store, [queue for queue, count in lengths.items() if count][:HEADS])

    def row(queue: str, count: int) -> dict[str, Any]:
        head, status = heads.get(queue, (None, None))
        cause, why = (status.detail.cause, status.why) if status else (None, None)
        takers = agents.takers(queue, known)
        facts = {"queue": queue, "tasks": count, "agents": takers, "head": head, "cause": cause, "why": why}
        owner = QueueName.parse(queue)
        slots = (
            STOP_ALL,
            stop_slot(*owner),
            pause_slot(*owner),
            pause_slot("queue", queue),
            drain_slot("queue", queue),
        )
        return {**facts, "active_commands": active_commands(now, *slots)}

    return [row(queue, count) for queue, count in lengths.items()]


@commands.command(
    "purge", 'orc queues purge skill:send --reason "test data"', "orc queues purge agent:editor --dry-run"
)
def purge(
    queue: Annotated[str, positional("QUEUE", help="skill:NAME or agent:NAME.")],
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Cancel every task that waits in a queue now. Needs --reason; asks for confirmation.

    Above 20 tasks, the confirmation is the name of the queue.

    Exit code: 0 done, 4 not confirmed, 5 not done in time, 6 some tasks had left the queue, 69 no supervisor leads.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    from orchestrator.control.commands import PurgeQueue, make_command
    from orchestrator.tasks.model import TaskState
    from orchestrator.tasks.selecting import TaskFilter

    make_command("purge-queue", {"queue": queue, "count": 0})
    if not options.reason and not dry_run:
        raise InvalidInput("give a reason with --reason; the tasks in the queue are cancelled")
    chosen = Selecting(TaskFilter(queue=queue), {TaskState.READY}, None, dry_run=dry_run, yes=yes)
    found = find(chosen, common)
    if dry_run:
        return show_dry_run(found, chosen, common)
    many = len(found.tasks)
    action = f"cancel {many} task{'' if many == 1 else 's'} that wait{'s' if many == 1 else ''} in {queue}"
    if many > NAME_ABOVE:
        ask_for_name(action, queue, yes=yes)
    elif many:
        ask(action, yes=yes)
    command = PurgeQueue(queue=queue, count=many, filter=chosen.wanted.words)
    return anyio.run(carry_out, command, found, options, common)
