"""`orc tasks`: why, cancel, retry, delete."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from orchestrator.cli.commands.task_bulk import UNKNOWN, Row, full_ids, say_unrecorded, show_rows
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions
from orchestrator.cli.terminal.failures import NOT_FOUND, TIMED_OUT
from orchestrator.cli.terminal.inputs import duration_s
from orchestrator.cli.terminal.options import DEFAULTS, DryRun, Globals, Reason, TaskId, Yes
from orchestrator.cli.terminal.parsing import option
from orchestrator.cli.terminal.selections import NO_FILTER, Filtering, selecting
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.terminal.parsing import Commands
    from orchestrator.cli.terminal.waiting import Ended as End
    from orchestrator.tasks import model

Open = Literal["scheduled", "ready", "assigned", "running", "cancelling", "awaiting_input", "joining", "awaiting_tasks"]
Retryable = Literal["dead", "cancelled", "expired"]
Ended = Literal["succeeded", "dead", "cancelled", "expired"]


def add_to(commands: Commands) -> None:
    """Add the commands to `orc tasks`."""
    commands.command("why", "orc tasks why 0192f0c1-…", "orc tasks why 0192f0c1-… -o json | jq .cause")(why)
    commands.command(
        "cancel",
        'orc tasks cancel 0192f0c1-… --reason "wrong input"',
        "orc tasks cancel ID ID --wait --timeout 30s",
        "orc tasks cancel ID --only-this",
        "orc tasks cancel --session 101 --older-than 1h",
    )(cancel)
    commands.command(
        "retry",
        'orc tasks retry 0192f0c1-… --reason "the disk has room again"',
        "orc tasks retry ID --with-children",
        'orc tasks retry --skill send --error "Connection refused"',
        "orc tasks retry --state cancelled --session 101 --dry-run",
    )(retry)
    commands.command("delete", "orc tasks delete 0192f0c1-…", "orc tasks delete --state expired --older-than 1d")(
        delete
    )


async def why(task: TaskId, /, *, common: Globals = DEFAULTS) -> None:
    """Show what a task waits for and, if something must be done, what to do."""
    from orchestrator.core.ids import check_task_prefix
    from orchestrator.views.tasks import find_task, read_task_status

    check_task_prefix(task)
    async with common.services() as services:
        task = await find_task(services, task)
        found = await read_task_status(services, task)
    if common.output == "table":
        output.write(f"{output.clean(f'{found.state}: {found.why}')}\n")
        return
    known = {name: value for name, value in asdict(found.detail).items() if value is not None}
    if found.detail.options is not None:
        known["options"] = output.user_json(found.detail.options)
    output.show_record(common.output, {"id": task, "state": found.state, **known}, key="id")


def cancel(
    *tasks: TaskId,
    state: Annotated[tuple[Open, ...], option("--state", metavar="STATE", many=True)] = (),
    with_children: Annotated[bool, option("--with-children")] = False,
    only_this: Annotated[bool, option("--only-this")] = False,
    reason: Reason = "",
    wait: Annotated[bool, option("--wait")] = False,
    no_wait: Annotated[bool, option("--no-wait")] = False,
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    filtering: Filtering = NO_FILTER,
    common: Globals = DEFAULTS,
) -> int:
    """Cancel tasks and all tasks below them. Waiting ones end at once, running ones are told to stop, ended ones stay.

    With a filter it asks for confirmation, and a supervisor cancels the tasks that match now.

    Exit code: 0 done, 3 unknown, 5 timed out waiting, 6 some are unknown, 69 no supervisor leads.

    Args:
        state: With a filter: only tasks in this state; may be repeated.
        with_children: Also cancel the tasks that they submitted, and those below (the default).
        only_this: Let the tasks below them go on.
        wait: Wait until the running tasks have ended.
        no_wait: With a filter: do not wait for the supervisor.
        timeout: How long to wait.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    from orchestrator.cli.commands.task_bulk import checked, run_job
    from orchestrator.tasks.selecting import OPEN

    if with_children and only_this:
        raise InvalidInput("give --with-children or --only-this, not both")
    chosen = selecting(tasks, filtering, among=OPEN, states=state, dry_run=dry_run, yes=yes)
    if chosen is not None:
        if wait:
            raise InvalidInput(
                "--wait needs ids; with a filter the command waits until every task is cancelled or told to stop"
            )
        fields = {"only_this": True} if only_this else {}
        return run_job("cancel", chosen, CommandOptions(reason, no_wait, timeout), common, fields)
    if timeout is not None and not wait:
        raise InvalidInput("--timeout needs --wait")
    return anyio.run(partial(_cancel, wait=wait, only_this=only_this), checked(tasks), reason, timeout, common)


async def _cancel(
    ids: Sequence[str], reason: str, timeout: str | None, common: Globals, *, wait: bool, only_this: bool
) -> int:
    timeout_s = duration_s("--timeout", timeout)
    from orchestrator.client import task_actions

    async with common.services() as services:
        ids = await full_ids(services, ids)
        done = await task_actions.cancel_tasks(services, ids, reason=reason, only_this=only_this)
    say_unrecorded("cancel", done.unrecorded)
    rows = [_cancelled(id_, *done.tasks[id_]) for id_ in ids]
    told = [row.id for row in rows if row.status == "signalled"]
    if wait and told:
        from orchestrator.cli.terminal.waiting import wait_for_all, wait_through_outages

        output.hint(f"told {len(told)} to stop; Ctrl-C stops the waiting, not the cancelling")
        async with common.client() as orc, wait_through_outages(orc):
            ends = await wait_for_all([orc.task(id_) for id_ in told], timeout_s)
        ended = {end.id: end for end in ends}
        rows = [_awaited(row, ended[row.id], timeout) if row.id in ended else row for row in rows]
    return show_rows(rows, common)


def retry(
    *tasks: TaskId,
    state: Annotated[tuple[Retryable, ...], option("--state", metavar="STATE", many=True)] = (),
    with_children: Annotated[bool, option("--with-children")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    filtering: Filtering = NO_FILTER,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Retry tasks that ended without a result. They keep their ids, keys and histories; failures count from zero.

    A filter selects dead letters, unless --state names cancelled or expired tasks, of which only the latest are kept.
    With a filter it asks for confirmation. With a filter or --with-children a supervisor retries the tasks.

    Exit code: 0 done, 3 unknown, 4 refused (they succeeded), 5 not done in time, 6 mixed, 69 no supervisor leads.

    Args:
        state: With a filter: only tasks in this state; may be repeated.
        with_children: First retry all tasks below them that ended without a result. Needs ids.
    """
    from orchestrator.cli.commands.task_bulk import retry_families, retry_tasks
    from orchestrator.tasks.model import TaskState
    from orchestrator.tasks.selecting import RETRYABLE

    among = RETRYABLE if state else {TaskState.DEAD}
    chosen = selecting(tasks, filtering, among=among, states=state, dry_run=dry_run, yes=yes)
    if not with_children:
        return retry_tasks(tasks, chosen, options, common)
    if chosen is not None:
        raise InvalidInput("--with-children needs ids")
    return retry_families(tasks, options, common)


def delete(
    *tasks: TaskId,
    state: Annotated[tuple[Ended, ...], option("--state", metavar="STATE", many=True)] = (),
    dry_run: DryRun = False,
    yes: Yes = False,
    filtering: Filtering = NO_FILTER,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Delete ended tasks with their results, errors, output and idempotency keys. Asks for confirmation.

    A filter selects dead letters, unless --state names other states, of which only the latest tasks are kept.

    Exit code: 0 deleted, 3 unknown, 4 refused (not ended, or not confirmed), 6 mixed, 69 no supervisor leads.

    Args:
        state: With a filter: only tasks in this state; may be repeated.
    """
    from orchestrator.cli.commands.task_bulk import delete as delete_tasks
    from orchestrator.tasks.model import TaskState
    from orchestrator.tasks.selecting import ENDED

    among = ENDED if state else {TaskState.DEAD}
    chosen = selecting(tasks, filtering, among=among, states=state, dry_run=dry_run, yes=yes)
    return delete_tasks(tasks, chosen, options, common, yes=yes)


# ----------------------------------------------------------------------------------------------------------------- rows


def _cancelled(id_: str, status: model.CancelStatus, state: model.TaskState | None) -> Row:
    from orchestrator.tasks.model import TaskState

    match status:
        case "ended":
            return Row(id_, status, state, "ended")
        case "signalled":
            return Row(id_, status, TaskState.CANCELLING, "told to stop")
        case "already":
            return Row(id_, status, state, f"had ended before: {state}")
    return Row(id_, status, None, UNKNOWN, NOT_FOUND)


def _awaited(row: Row, end: End, timeout: str | None) -> Row:
    if end.timed_out:
        return replace(row, text=f"told to stop, not ended after {timeout}", exit_code=TIMED_OUT)
    if end.state is None:
        return replace(row, state=None, text=UNKNOWN, exit_code=NOT_FOUND)
    return replace(row, state=end.state, text=f"told to stop, ended: {end.state}")
