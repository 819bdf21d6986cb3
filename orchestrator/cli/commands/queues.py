"""`orc queues`: list, purge; pause, drain and resume are declared control commands."""

from __future__ import annotations

from typing import Annotated, Final

from orchestrator.cli.terminal.active_commands import show_affected
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions
from orchestrator.cli.terminal.confirm import ask, ask_for_name
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, DryRun, Globals, Yes
from orchestrator.cli.terminal.output import say_rest
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.queue_rows import COLUMNS, queue_row
from orchestrator.cli.terminal.selections import Selecting, carry_out, find, show_dry_run
from orchestrator.cli.terminal.source import viewed
from orchestrator.core.errors import InvalidInput

commands = noun(
    "queues",
    "orc queues list",
    "orc queues list -o json",
    'orc queues pause skill:summarize --reason "the model is down"',
)

NAME_ABOVE: Final = 20
"""Above this number of tasks, the confirmation of a purge is the name of the queue."""


@commands.command("list", "orc queues list", "orc queues list -o json")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 1000, common: Globals = DEFAULTS) -> None:
    """List the queues that hold tasks, are paused or drained, with the agents that serve them.

    For the first task of each queue, `why` tells what it waits for.

    Args:
        limit: How many [1000].
    """
    from orchestrator.views.queues import list_queues

    check_limit(limit)
    async with viewed(common) as services:
        found = await list_queues(services, limit=limit)
    rows = [queue_row(view) for view in found.queues]
    show_affected(common.output, rows, COLUMNS, key="queue", empty="no tasks wait")
    say_rest(len(rows), found.total)


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
    return anyio.run(carry_out, command, found.ids, options, common)
