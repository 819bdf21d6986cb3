"""`orc tasks`: submit, list, show, result, wait, watch; `task_control` and `task_answer` add the others."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, Literal

from orchestrator.cli.commands import task_answer, task_control
from orchestrator.cli.terminal import history, inputs, output
from orchestrator.cli.terminal.failures import say_error
from orchestrator.cli.terminal.options import DEFAULTS, Globals, TaskId
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.cli.terminal.reveal import Reveal, may_show
from orchestrator.cli.terminal.selections import NO_CONDITIONS, TaskConditions
from orchestrator.cli.terminal.source import viewed
from orchestrator.cli.terminal.submitted import say_submitted, tell_end
from orchestrator.cli.terminal.task_options import Arguments, takes_options
from orchestrator.cli.terminal.warned import warnings_as_lines
from orchestrator.core.errors import InvalidInput, NotDurable, TaskError
from orchestrator.tasks.options import TASK_OPTIONS, TaskOptions

if TYPE_CHECKING:
    from orchestrator.why.model import TaskInfo

State = Literal[
    "scheduled",
    "ready",
    "assigned",
    "running",
    "cancelling",
    "awaiting_input",
    "joining",
    "awaiting_tasks",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
]

MOST_IN_TREE: Final = 1000
"""Tasks that `--tree` shows."""

commands = Commands(
    "tasks",
    "orc tasks submit greet -a name=Ada --wait",
    "orc tasks list --state dead",
)


@commands.command(
    "submit",
    "orc tasks submit greet -a name=Ada --wait",
    "orc tasks submit summarize @body.json --priority high --key order-17",
    'echo \'{"text": "…"}\' | orc tasks submit summarize - -o id',
)
@takes_options(TASK_OPTIONS.values())
async def submit(
    skill: Annotated[str, positional("SKILL", help="Skill that runs the task.")],
    body: Annotated[str | None, positional("JSON|@FILE|-", help="Arguments: a JSON object, @FILE or -.")] = None,
    /,
    *,
    arg: Arguments = (),
    options: TaskOptions,
    wait: Annotated[bool, option("--wait")] = False,
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    common: Globals = DEFAULTS,
) -> int:
    """Submit a task and print its id; with --wait, its result.

    Args:
        wait: Wait for the end; the exit code tells how the task ended.
        timeout: How long to wait.
    """
    # All input is checked before a server is asked.
    arguments = inputs.arguments(body, arg)
    timeout_s = inputs.duration_s("--timeout", timeout)
    if timeout is not None and not wait:
        raise InvalidInput("--timeout needs --wait; --attempt-timeout limits an attempt")
    from orchestrator.cli.terminal.waiting import wait_for_end, wait_through_outages

    async with common.client() as orc:
        code = 0
        try:
            with warnings_as_lines():
                handle = await orc.submit(skill, arguments, **options)
        except NotDurable as missed:
            # The task exists, so the caller needs its id.
            handle, code = missed.handle, missed.exit_code
            say_error(str(missed))
        if not wait:
            say_submitted(handle.id, common)
            return code
        output.hint(f"submitted as {handle.id}; Ctrl-C stops the waiting, not the task")
        async with wait_through_outages(orc, of=handle):
            end = await wait_for_end(handle, timeout_s, loads=orc.services.payloads)
    return tell_end(end, common, timeout)


@commands.command(
    "list",
    "orc tasks list",
    "orc tasks list --state dead -o id",
    "orc tasks list --session chat-7",
    "orc tasks list --tag eu --state dead --error Timeout",
)
async def list_(
    *,
    state: Annotated[tuple[State, ...], option("--state", metavar="STATE", many=True)] = (),
    conditions: TaskConditions = NO_CONDITIONS,
    parent: Annotated[str | None, option("--parent", metavar="ID")] = None,
    after: Annotated[str | None, option("--after", metavar="CURSOR")] = None,
    limit: Annotated[int, option("--limit", metavar="N")] = 50,
    common: Globals = DEFAULTS,
) -> None:
    """List tasks: running, waiting, then the latest that ended; of a session or tag the newest first.

    Args:
        state: Only tasks in this state; may be repeated.
        parent: Only children of this task (its id or the beginning of it), in the order of their submits.
        after: Go on behind a list of the same filter, which printed the cursor.
        limit: How many [50].
    """
    inputs.check_limit(limit, 10_000)
    from orchestrator.core.ids import check_task_prefix
    from orchestrator.tasks.model import TaskState
    from orchestrator.views.tasks import find_task, list_matching, list_tasks

    wanted = conditions.wanted(state)  # checked before a server is asked, like the parent
    if parent is not None:
        check_task_prefix(parent)
    cursor, looked = None, 0
    async with viewed(common) as services:
        if conditions == NO_CONDITIONS and parent is None and after is None:
            rows = list(await list_tasks(services, states={TaskState(one) for one in state}, limit=limit))
        else:
            if parent is not None:
                wanted = conditions.wanted(state, parent=await find_task(services, parent))
            page = await list_matching(services, wanted, after=after, limit=limit)
            rows, cursor, looked = list(page.tasks), page.cursor, page.looked
    columns: tuple[str, ...] = ("id", "state", "skill", "priority", "session", "submitted_at")
    if any(row.parent for row in rows):
        columns = (*columns, "depth", "parent")
    shown = [asdict(row) for row in rows]
    if common.output == "table":
        shown = [{**row, "priority": output.priority(row["priority"])} for row in shown]
    output.show_list(common.output, shown, columns, key="id", empty="no tasks")
    if cursor is not None:
        output.say(f"{looked} tasks were looked at; go on with --after {cursor}")
    elif looked == 0 and len(rows) == limit:
        output.hint(f"these are the first {limit}; raise --limit for more")


@commands.command("show", "orc tasks show 0192f0c1-…", "orc tasks show 0192f0c1-… --tree")
async def show(
    task: TaskId,
    /,
    *,
    tree: Annotated[bool, option("--tree")] = False,
    load: Annotated[bool, option("--load")] = False,
    reveal: Reveal = False,
    common: Globals = DEFAULTS,
) -> None:
    """Show a task: what it waits for, its attempts, errors and result.

    Args:
        tree: Show the tasks below it instead, each behind its parent, at most 1000.
        load: Also load large arguments and the result from the payload store.
    """
    if tree:
        if load or reveal:
            raise InvalidInput("--tree shows no arguments and results; give --load and --reveal without it")
        await _show_tree(task, common)
        return
    found, _ = await _info(task, common, reveal=reveal, load=load)
    record = asdict(found) | {"args": output.raw_json(found.args)}
    record["result"] = None if found.result is None else output.raw_json(found.result)
    for name in ("stored_args", "stored_result"):
        if record[name] is not None:
            del record[name]["packed"]
    record["questions"] = task_answer.question_rows(found.questions, table=common.output == "table")
    if common.output == "table":
        record["priority"] = output.priority(found.priority)
        if found.args == b"null" and found.stored_args is None:
            record["args"] = "not kept after the success (results.keep_arguments)"
        record["history"] = history.attempt_lines(found.history)
        record["children"] = history.child_ids(found)
        record["children_dropped"] = found.children_dropped or None
        record["snoozes"] = found.snoozes or None
        if found.parent is None:
            record["root"], record["depth"] = None, None
    named = (
        "why",
        "worker",
        "session",
        "tags",
        "key",
        "lane",
        "fair",
        "budgets",
        "after",
        "followers",
        "parent",
        "root",
        "depth",
        "trace_id",
    )
    optional = (
        *named,
        "stored_args",
        "stored_result",
        "due_at",
        "ended_at",
        "reason",
        "last_retry",
        "errors",
        "deaths",
        "requeues",
        "restored",
        "snoozes",
    )
    output.show_record(
        common.output,
        record,
        key="id",
        skip=(
            *optional,
            "result",
            "progress",
            "questions",
            "once",
            "effects",
            "history",
            "children",
            "children_dropped",
        ),
    )


async def _show_tree(task: str, common: Globals) -> None:
    from orchestrator.core.ids import check_task_prefix
    from orchestrator.views.families import read_tree
    from orchestrator.views.tasks import find_task

    check_task_prefix(task)  # before a server is asked
    async with viewed(common) as services:
        tree = await read_tree(services, await find_task(services, task), limit=MOST_IN_TREE)
    rows = [asdict(row) for row in tree.rows]
    if common.output == "table":
        top = min(row.depth for row in tree.rows)
        for row in rows:
            row["task"] = f"{'  ' * (row['depth'] - top)}{row['id']}"
    output.show_list(common.output, rows, ("task", "state", "skill", "agent", "reason"), key="id")
    if tree.more:
        output.say(f"these are the first {MOST_IN_TREE}; show the tree of a task below it for the others")
    elif gone := len(tree.ids) - len(tree.rows):
        output.say(f"{gone} more tasks are gone, because their retention has passed or they were deleted")


@commands.command("effects", "orc tasks effects 0192f0c1-…")
async def effects(task: TaskId, /, *, common: Globals = DEFAULTS) -> None:
    """List the effects of a task: whether each was begun or done, by which worker, and what was decided about it."""
    from orchestrator.core.ids import check_task_prefix
    from orchestrator.views.tasks import find_task, list_effects

    check_task_prefix(task)  # before a server is asked
    async with viewed(common) as services:
        found = await list_effects(services, await find_task(services, task))
    columns = ("name", "state", "begun_at", "ended_at", "worker", "question", "decisions")
    output.show_list(common.output, [asdict(one) for one in found], columns, key="name", empty="no effects")


@commands.command("result", "orc tasks result 0192f0c1-…", "orc tasks result 0192f0c1-… | jq .text")
async def result(task: TaskId, /, *, reveal: Reveal = False, common: Globals = DEFAULTS) -> None:
    """Print the result of a task: the JSON that its handler returned, byte for byte."""
    found, shown = await _info(task, common, reveal=reveal, load=True)
    task = found.id
    if found.state == "succeeded":
        if not shown:
            from orchestrator.cli.terminal.failures import CommandAborted

            raise CommandAborted(f"the result of task {task} is redacted; --reveal prints it, and records who did")
        output.write_bytes(output.result_line(found.result if found.result is not None else b"null"))
        return
    if not found.state.final:
        from orchestrator.cli.terminal.failures import TryAgain

        why = f" ({found.why})" if found.why else ""
        raise TryAgain(f"task {task} is {found.state}{why}; wait for it with `orc tasks wait {task}`")
    raise TaskError(task, f"has no result, it is {found.state}: {found.reason}; see `orc tasks show {task}`")


@commands.command("wait", "orc tasks wait 0192f0c1-…", "orc tasks wait ID ID ID --timeout 2m")
async def wait(
    *tasks: TaskId,
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    common: Globals = DEFAULTS,
) -> int:
    """Wait until tasks have ended. Exit code: 0 all succeeded, 1 failed, 3 unknown, 5 timed out, 6 mixed.

    Args:
        timeout: How long to wait. The time-out does not end the tasks.
    """
    if not tasks:
        raise InvalidInput("no tasks given; give ids (`orc tasks list -o id` prints them)")
    timeout_s = inputs.duration_s("--timeout", timeout)
    from orchestrator.cli.commands.task_bulk import checked, full_ids
    from orchestrator.cli.terminal.failures import joint_exit_code
    from orchestrator.cli.terminal.waiting import wait_for_all, wait_through_outages

    async with common.client() as orc:
        handles = [orc.task(task) for task in await full_ids(orc.services, checked(tasks))]
        async with wait_through_outages(orc, of=handles[0] if len(handles) == 1 else None):
            ends = await wait_for_all(handles, timeout_s)
    rows = [
        {
            "id": end.id,
            "state": end.state,
            "reason": f"has not ended after {timeout}; {end.reason}" if end.timed_out else end.reason,
        }
        for end in ends
    ]
    output.show_list(common.output, rows, ("id", "state", "reason"), key="id")
    return joint_exit_code(end.exit_code for end in ends)


@commands.command(
    "watch", "orc tasks watch 0192f0c1-…", "orc tasks watch 0192f0c1-… -o jsonl | jq 'select(.kind == \"output\").data'"
)
async def watch(
    task: TaskId,
    /,
    *,
    after: Annotated[str | None, option("--after", metavar="EVENT_ID")] = None,
    reveal: Reveal = False,
    common: Globals = DEFAULTS,
) -> int:
    """Follow the events of a task until it ends, with progress and output. Exit code: as of `orc tasks wait`.

    Args:
        after: Continue after this event; -o jsonl and -o id print event ids.
    """
    from orchestrator.cli.terminal.live import follow
    from orchestrator.cli.terminal.waiting import wait_through_outages
    from orchestrator.tasks.output import check_place

    check_place(after)
    info, shown = await _info(task, common, reveal=reveal)
    task = info.id
    async with common.client() as orc:
        handle = orc.task(task)
        status = await handle.status()
        why = f": {status.why}" if status.why else ""
        output.hint(f"it is {status.state}{why}; Ctrl-C stops the watching, not the task")
        async with wait_through_outages(orc):
            end = await follow(handle, after, common.output, show_data=shown)
        if end is None:  # no event follows
            info = await handle.info()
            state, reason = info.state.value, info.reason
        else:
            state, reason = end.kind, end.reason
    if state != "succeeded":
        because = f": {reason}" if reason else ""
        raise TaskError(task, f"is {state}{because}; see `orc tasks show {task}`")
    return 0


task_control.add_to(commands)
task_answer.add_to(commands)


async def _info(task: str, common: Globals, *, reveal: bool, load: bool = False) -> tuple[TaskInfo, bool]:
    """Return the task, and whether its data is shown; `load` gets large values from the payload store."""
    from orchestrator.core.ids import check_task_prefix
    from orchestrator.views.tasks import find_task, load_values, read_task

    check_task_prefix(task)  # before a server is asked
    async with common.services() as services:
        task = await find_task(services, task)
        found = await read_task(services, task)
        shown = await may_show(services, task, found.skill, reveal=reveal)
        if shown and reveal:
            found = await read_task(services, task, reveal=True)
        return await load_values(services, found) if shown and load else found, shown
