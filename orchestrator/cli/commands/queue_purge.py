"""`orc queues`: purge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.terminal.command_options import USUAL, CommandOptions
from orchestrator.cli.terminal.confirm import ask, ask_for_name
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.selections import Selecting, carry_out, find, show_dry_run
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from orchestrator.cli.terminal.parsing import Commands

NAME_ABOVE: Final = 20
"""Whoever purges more tasks types the name of the queue."""


def add_to(commands: Commands) -> None:
    """Add this command to those of `orc queues`."""
    commands.command(
        "purge", 'orc queues purge skill:send --reason "test data"', "orc queues purge agent:editor --dry-run"
    )(purge)


def purge(
    queue: Annotated[str, positional("QUEUE")],
    /,
    *,
    dry_run: Annotated[bool, option("--dry-run")] = False,
    yes: Annotated[bool, option("--yes")] = False,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Cancel all that waits in a queue now; what comes later stays. Needs --reason. Asks first, of many for the name.

    Exit code: 0 done, 4 nobody said yes, 5 not done in time, 6 some had gone, 69 no supervisor is there to do it.

    Args:
        queue: skill:NAME or agent:NAME, as `orc queues list` shows it.
        dry_run: Only print the ids of what waits there.
        yes: Do not ask.
    """
    # No coroutine, so that Ctrl-C ends the question.
    import anyio

    from orchestrator.control.commands import PurgeQueue, make_command
    from orchestrator.tasks.model import TaskState
    from orchestrator.tasks.selecting import TaskFilter

    make_command("purge-queue", {"queue": queue, "count": 0})
    if not options.reason and not dry_run:
        raise InvalidInput("say why with --reason; what waits there is cancelled")
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
