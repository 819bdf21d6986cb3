"""Retries, cancels and deletes tasks: by ids in this process, by a filter as a job of the supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.failures import DONE, NOT_FOUND, REFUSED, joint_exit_code, say_error
from orchestrator.cli.terminal.selections import carry_out, describe_action, find, show_dry_run
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.cli.terminal.command_options import CommandOptions
    from orchestrator.cli.terminal.options import Globals
    from orchestrator.cli.terminal.selections import Selecting
    from orchestrator.client.action_records import TaskAction
    from orchestrator.services import Services
    from orchestrator.tasks import model

NO_FIELDS: Final[Mapping[str, object]] = {}
"""A job without fields of its own."""
UNKNOWN: Final = "does not exist, or its retention has passed"


@dataclass(frozen=True, slots=True)
class Row:
    """Outcome for one task: `status` and `state` for programs, `text` for people."""

    id: str
    status: str
    state: model.TaskState | None
    text: str
    exit_code: int = DONE


def checked(tasks: Sequence[str]) -> list[str]:
    """Return the ids and beginnings of ids without duplicates.

    Raises:
        InvalidInput: one is malformed.
    """
    from orchestrator.core.ids import check_task_prefix

    return [check_task_prefix(task) for task in dict.fromkeys(tasks)]


async def full_ids(services: Services, typed: Sequence[str]) -> list[str]:
    """Return the whole ids without duplicates.

    Raises:
        InvalidInput: several ids begin with one of them.
        NotFound: no id begins with one of them.
    """
    from orchestrator.views.tasks import find_task

    return list(dict.fromkeys([await find_task(services, task) for task in typed]))


def show_rows(rows: Sequence[Row], common: Globals) -> int:
    """Print the outcomes; `-o id` prints only the tasks for which it is success."""
    if common.output == "table":
        output.show_list("table", [{"id": row.id, "done": row.text} for row in rows], ("id", "done"), key="id")
    elif common.output == "id":
        output.show_list("id", [{"id": row.id} for row in rows if row.exit_code == DONE], (), key="id")
        for row in rows:
            if row.exit_code != DONE:
                output.say(f"task {row.id}: {row.text}")
    else:
        shown = [{"id": row.id, "status": row.status, "state": row.state} for row in rows]
        output.show_list(common.output, shown, (), key="id")
    return joint_exit_code([row.exit_code for row in rows])


def say_unrecorded(action: TaskAction, unrecorded: str) -> None:
    """Say why an action that succeeded was not recorded."""
    if unrecorded:
        say_error(f"the {action} succeeded but was not recorded: {unrecorded}")


# --------------------------------------------------------------------------------------------------------------- by ids


def retry_tasks(tasks: Sequence[str], selecting: Selecting | None, options: CommandOptions, common: Globals) -> int:
    """Retry tasks and return the exit code. Blocks."""
    import anyio

    if selecting is None:
        return anyio.run(_retry_by_ids, checked(tasks), options, common)
    return run_job("retry", selecting, options, common)


def retry_families(tasks: Sequence[str], options: CommandOptions, common: Globals) -> int:
    """Retry tasks and those below them by a job of the supervisor, and return the exit code. Blocks."""
    import anyio

    return anyio.run(_retry_families, checked(tasks), options, common)


async def _retry_families(ids: Sequence[str], options: CommandOptions, common: Globals) -> int:
    from orchestrator.control.commands import make_command
    from orchestrator.views.families import ids_to_retry

    async with common.services() as services:
        selected = await ids_to_retry(services, await full_ids(services, ids))
    command = make_command("retry-tasks", {"count": len(selected), "filter": "ids, with children"})
    return await carry_out(command, selected, options, common)


async def _retry_by_ids(ids: Sequence[str], options: CommandOptions, common: Globals) -> int:
    from orchestrator.client import task_actions

    async with common.services() as services:
        ids = await full_ids(services, ids)
        done = await task_actions.retry_tasks(services, ids, reason=options.reason)
    say_unrecorded("retry", done.unrecorded)
    return show_rows([_requeued(id_, *done.tasks[id_]) for id_ in ids], common)


def _requeued(id_: str, status: model.RequeueStatus, state: model.TaskState | None) -> Row:
    match status:
        case "requeued":
            return Row(id_, status, state, "retried")
        case "already":
            return Row(id_, status, state, f"has not ended, it is {state}")
        case "refused":
            return Row(id_, status, state, "has succeeded; submit it again as a new task", REFUSED)
        case "damaged":
            return Row(id_, status, state, "its record, or the list of its predecessors, is damaged", REFUSED)
    return Row(id_, status, None, UNKNOWN, NOT_FOUND)


def delete(
    tasks: Sequence[str], selecting: Selecting | None, options: CommandOptions, common: Globals, *, yes: bool
) -> int:
    """Delete ended tasks and return the exit code. Blocks.

    Raises:
        InvalidInput: with `yes`, one of the tasks is given by the beginning of its id.
    """
    import anyio

    if selecting is not None:
        return run_job("delete", selecting, options, common)
    from orchestrator.core.ids import TASK_ID_CHARS

    ids, named = checked(tasks), ""
    if cut := [id_ for id_ in ids if len(id_) < TASK_ID_CHARS]:
        # An older task may begin so too: a beginning is looked up among the latest tasks only.
        if yes:
            raise InvalidInput(f"--yes needs whole ids, and {cut[0]} is the beginning of one; give the whole id")
        ids = anyio.run(_find_all, ids, common)
        named = f" ({', '.join(ids)})"
    ask(f"delete {len(ids)} task{'' if len(ids) == 1 else 's'}{named}", yes=yes)
    return anyio.run(_delete, ids, options, common)


async def _find_all(ids: Sequence[str], common: Globals) -> list[str]:
    async with common.services() as services:
        return await full_ids(services, ids)


def run_job(
    action: TaskAction,
    selecting: Selecting,
    options: CommandOptions,
    common: Globals,
    fields: Mapping[str, object] = NO_FIELDS,
) -> int:
    """Start a job of the supervisor for the tasks that match a filter, and return the exit code. Blocks."""
    import anyio

    from orchestrator.control.commands import make_command

    found = find(selecting, common)
    if selecting.dry_run:
        return show_dry_run(found, selecting, common)
    ask(describe_action(action, found, selecting), yes=selecting.yes or not found.tasks, final=action != "retry")
    command = make_command(f"{action}-tasks", {"count": len(found.tasks), "filter": selecting.wanted.words, **fields})
    return anyio.run(carry_out, command, found.ids, options, common)


async def _delete(ids: Sequence[str], options: CommandOptions, common: Globals) -> int:
    from orchestrator.client import task_actions

    async with common.services() as services:
        ids = await full_ids(services, ids)
        done = await task_actions.delete_tasks(services, ids, reason=options.reason)
    say_unrecorded("delete", done.unrecorded)
    return show_rows([_deleted(id_, *done.tasks[id_]) for id_ in ids], common)


def _deleted(id_: str, status: model.DeleteStatus, state: model.TaskState | None) -> Row:
    match status:
        case "deleted":
            return Row(id_, status, None, "deleted")
        case "refused":
            return Row(id_, status, state, f"has not ended, it is {state}: cancel it first", REFUSED)
    return Row(id_, status, None, UNKNOWN, NOT_FOUND)
