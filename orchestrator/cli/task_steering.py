"""`orc tasks`: why, cancel, delete."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli import output
from orchestrator.cli.consent import ask
from orchestrator.cli.failures import DONE, NOT_FOUND, REFUSED, TIMED_OUT, joint_exit_code
from orchestrator.cli.inputs import duration_s
from orchestrator.cli.options import DEFAULTS, Globals
from orchestrator.cli.parsing import option, positional
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.parsing import Commands
    from orchestrator.cli.waiting import Ended
    from orchestrator.tasks import model

_UNKNOWN: Final = "does not exist, or its retention has passed"


def add_to(commands: Commands) -> None:
    """Add these commands to those of `orc tasks`."""
    commands.command(
        "why",
        examples="""
            orc tasks why 0192f0c1-…
            orc tasks why 0192f0c1-… -o json | jq .cause
        """,
    )(why)
    commands.command(
        "cancel",
        examples="""
            orc tasks cancel 0192f0c1-… --reason "wrong input"
            orc tasks list --state ready -o id | xargs orc tasks cancel
            orc tasks cancel ID ID --wait --timeout 30s
        """,
    )(cancel)
    commands.command(
        "delete",
        examples="""
            orc tasks delete 0192f0c1-…
            orc tasks list --state dead -o id | xargs orc tasks delete --yes
        """,
    )(delete)


@dataclass(frozen=True, slots=True)
class Row:
    """What was done with one task. `status` and `state` are for programs, `text` for people."""

    id: str
    status: str
    state: model.TaskState | None
    text: str
    exit_code: int = DONE


async def why(task: Annotated[str, positional("ID")], /, *, common: Globals = DEFAULTS) -> None:
    """Say what a task waits for: the one thing that must go first, and what to do about it.

    Args:
        task: Its id.
        common: Global options.
    """
    from orchestrator.core.ids import check_task_id
    from orchestrator.services import open_services
    from orchestrator.tasks import queries

    check_task_id(task)
    async with open_services(common.settings(), name="cli") as services:
        found = await queries.status(services.store, task)
    if common.output == "table":
        output.write(f"{output.clean(f'{found.state}: {found.why}')}\n")
        return
    known = {name: value for name, value in asdict(found.detail).items() if value is not None}
    if found.detail.options is not None:
        known["options"] = output.user_json(found.detail.options)
    output.show_record(common.output, {"id": task, "state": found.state, **known}, key="id")


async def cancel(
    *tasks: Annotated[str, positional("ID")],
    reason: Annotated[str, option("--reason", metavar="TEXT")] = "",
    wait: Annotated[bool, option("--wait")] = False,
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    common: Globals = DEFAULTS,
) -> int:
    """Cancel tasks: those that wait end at once, those that run are told to stop. What has ended stays as it ended.

    Exit code: 0 none will run on, 3 unknown, 5 timed out waiting, 6 some are unknown.

    Args:
        tasks: Their ids.
        reason: Why; shown to whoever waits for them.
        wait: Wait until those that run have ended.
        timeout: How long to wait.
        common: Global options.
    """
    ids = _checked(tasks)
    timeout_s = duration_s("--timeout", timeout)
    if timeout is not None and not wait:
        raise InvalidInput("--timeout says how long to --wait")
    from orchestrator.services import open_services
    from orchestrator.tasks import steering

    settings = common.settings()
    async with open_services(settings, name="cli") as services:
        patience_s = settings.redis.command_timeout_s
        done = await steering.cancel(services.store, ids, reason=reason, patience_s=patience_s)
    rows = [_cancelled(id_, *done[id_]) for id_ in ids]
    told = [row.id for row in rows if row.status == "signalled"]
    if wait and told:
        from orchestrator.cli.waiting import patiently, wait_for_all
        from orchestrator.client.client import Orchestrator

        output.hint(f"told {len(told)} to stop; Ctrl-C stops the waiting, they stop all the same")
        async with Orchestrator(settings=settings) as orc, patiently(orc):
            ends = await wait_for_all([orc.task(id_) for id_ in told], timeout_s)
        ended = {end.id: end for end in ends}
        rows = [_awaited(row, ended[row.id], timeout) if row.id in ended else row for row in rows]
    return _show(rows, common)


def delete(
    *tasks: Annotated[str, positional("ID")],
    yes: Annotated[bool, option("--yes")] = False,
    common: Globals = DEFAULTS,
) -> int:
    """Delete ended tasks for good: result, errors, output, idempotency key. Asks first.

    Exit code: 0 deleted, 3 unknown, 4 refused (it has not ended, or nobody said yes), 6 some of each.

    Args:
        tasks: Their ids.
        yes: Do not ask.
        common: Global options.
    """
    # No coroutine, so that Ctrl-C ends the question.
    import anyio

    ids = _checked(tasks)
    ask(f"delete {len(ids)} task{'' if len(ids) == 1 else 's'}", yes=yes)
    return anyio.run(_delete, ids, common)


async def _delete(ids: Sequence[str], common: Globals) -> int:
    from orchestrator.services import open_services
    from orchestrator.tasks import steering

    settings = common.settings()
    async with open_services(settings, name="cli") as services:
        done = await steering.delete(services.store, ids, patience_s=settings.redis.command_timeout_s)
    return _show([_deleted(id_, *done[id_]) for id_ in ids], common)


# ----------------------------------------------------------------------------------------------------------------- rows


def _checked(tasks: Sequence[str]) -> list[str]:
    from orchestrator.core.ids import check_task_id

    if not tasks:
        raise InvalidInput("which tasks? give their ids; `orc tasks list -o id` has them")
    return [check_task_id(task) for task in dict.fromkeys(tasks)]


def _cancelled(id_: str, status: model.CancelStatus, state: model.TaskState | None) -> Row:
    from orchestrator.tasks.model import TaskState

    match status:
        case "ended":
            return Row(id_, status, state, "ended")
        case "signalled":
            return Row(id_, status, TaskState.CANCELLING, "told to stop")
        case "already":
            return Row(id_, status, state, f"had ended already: {state}")
    return Row(id_, status, None, _UNKNOWN, NOT_FOUND)


def _awaited(row: Row, end: Ended, timeout: str | None) -> Row:
    if end.timed_out:
        return replace(row, text=f"told to stop, has not ended after {timeout}", exit_code=TIMED_OUT)
    if end.state is None:
        return replace(row, state=None, text=_UNKNOWN, exit_code=NOT_FOUND)
    return replace(row, state=end.state, text=f"told to stop, ended: {end.state}")


def _deleted(id_: str, status: model.DeleteStatus, state: model.TaskState | None) -> Row:
    match status:
        case "deleted":
            return Row(id_, status, None, "deleted")
        case "refused":
            return Row(id_, status, state, f"has not ended, it is {state}: cancel it first", REFUSED)
    return Row(id_, status, None, _UNKNOWN, NOT_FOUND)


def _show(rows: Sequence[Row], common: Globals) -> int:
    """Print what was done with each; as ids only those with which it was done, for what comes behind a pipe."""
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
