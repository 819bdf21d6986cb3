"""`orc tasks`: submit, list, show, result, wait, watch; `task_steering` and `task_answering` add the others."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from orchestrator.cli.commands import task_answer, task_control
from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.core.errors import InvalidInput, NotFound, TaskError

if TYPE_CHECKING:
    from orchestrator.cli.terminal.waiting import Ended
    from orchestrator.why.model import TaskInfo

OnBusy = Literal["enqueue", "reject", "interrupt", "replace"]
State = Literal[
    "scheduled",
    "ready",
    "assigned",
    "running",
    "cancelling",
    "awaiting_input",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
]

commands = noun(
    "tasks",
    "Submit tasks, look at them, wait for them, answer and cancel them.",
    "orc tasks submit greet -a name=Ada --wait",
    "orc tasks list --state dead",
)
app = commands.app


@commands.command(
    "submit",
    "orc tasks submit greet -a name=Ada --wait",
    "orc tasks submit summarize @body.json --priority high --key order-17",
    'echo \'{"text": "…"}\' | orc tasks submit summarize - -o id',
)
async def submit(
    skill: Annotated[str, positional("SKILL")],
    body: Annotated[str | None, positional("JSON|@FILE|-")] = None,
    /,
    *,
    arg: Annotated[tuple[str, ...], option("--arg", "-a", metavar="NAME=VALUE", many=True)] = (),
    agent: Annotated[str | None, option("--agent", metavar="AGENT")] = None,
    session: Annotated[str | None, option("--session", metavar="SESSION")] = None,
    priority: Annotated[str, option("--priority", metavar="LEVEL")] = "normal",
    delay: Annotated[str | None, option("--delay", metavar="DURATION")] = None,
    at: Annotated[str | None, option("--at", metavar="TIME")] = None,
    start_by: Annotated[str | None, option("--start-by", metavar="TIME")] = None,
    key: Annotated[str | None, option("--key", metavar="KEY")] = None,
    attempt_timeout: Annotated[str | None, option("--attempt-timeout", metavar="DURATION")] = None,
    max_attempts: Annotated[int | None, option("--max-attempts", metavar="N")] = None,
    tag: Annotated[tuple[str, ...], option("--tag", metavar="TAG", many=True)] = (),
    result_ttl: Annotated[str | None, option("--result-ttl", metavar="DURATION")] = None,
    lane: Annotated[str | None, option("--lane", metavar="LANE")] = None,
    on_busy: Annotated[OnBusy, option("--on-busy", metavar="POLICY")] = "enqueue",
    wait: Annotated[bool, option("--wait")] = False,
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    common: Globals = DEFAULTS,
) -> int:
    """Submit a task and print its id; with --wait, its result.

    Args:
        skill: What is asked for: the name of a handler.
        body: Arguments as a JSON object, a file with one, or standard input.
        arg: One argument; VALUE is JSON when it parses, otherwise text. Wins over the body.
        agent: Give it to this agent; by default any agent with the skill takes it.
        session: The conversation it belongs to.
        priority: critical, high, normal, low, or 0 to 9 (lower first).
        delay: Start no earlier than in so long: 90s, 5m, 2h.
        at: Start no earlier than at this time: 2030-01-31T12:00:00Z.
        start_by: Do not start later than at this time.
        key: The same key and body again gives the same task.
        attempt_timeout: How long one attempt may take.
        max_attempts: Failures until it is a dead letter.
        tag: A label; may be repeated.
        result_ttl: How long the ended task is kept.
        lane: Tasks of one lane run one after another, in the order in which they were submitted.
        on_busy: What if the lane has a task: enqueue, reject, interrupt (cancel it, run this next) or replace (drop
            those that have not begun).
        wait: Wait for the end; the exit code tells how it ended.
        timeout: How long to wait; the task goes on afterwards.
    """
    # Everything that can be wrong on the command line is found before anything is loaded or sent.
    arguments = inputs.arguments(body, arg)
    timeout_s = inputs.duration_s("--timeout", timeout)
    if timeout is not None and not wait:
        raise InvalidInput("--timeout says how long to --wait; the limit of one attempt is --attempt-timeout")
    wishes: dict[str, Any] = {
        "agent": agent,
        "session": session,
        "priority": inputs.priority(priority),
        "delay": inputs.duration_s("--delay", delay),
        "at": inputs.moment("--at", at),
        "start_by": inputs.moment("--start-by", start_by),
        "key": key,
        "timeout": inputs.duration_s("--attempt-timeout", attempt_timeout),
        "max_attempts": max_attempts,
        "tags": tag,
        "result_ttl": inputs.duration_s("--result-ttl", result_ttl),
        "lane": lane,
        "on_busy": on_busy,
    }
    from orchestrator.cli.terminal.waiting import wait_for_end, wait_through_outages

    async with common.client() as orc:
        handle = await orc.submit(skill, arguments, **wishes)
        if not wait:
            _say_submitted(handle.id, common)
            return 0
        output.hint(f"submitted as {handle.id}; Ctrl-C stops the waiting, not the task")
        async with wait_through_outages(orc, of=handle):
            end = await wait_for_end(handle, timeout_s)
    return _tell_end(end, common, timeout)


@commands.command("list", "orc tasks list", "orc tasks list --state dead -o id")
async def list_(
    *,
    state: Annotated[tuple[State, ...], option("--state", metavar="STATE", many=True)] = (),
    limit: Annotated[int, option("--limit", metavar="N")] = 50,
    common: Globals = DEFAULTS,
) -> None:
    """List tasks: what runs, what waits, then what ended lately.

    Args:
        state: Only tasks in this state; may be repeated.
        limit: At most so many (50).
    """
    if not 1 <= limit <= 10_000:
        raise InvalidInput(f"--limit {limit} must lie between 1 and 10000")
    from orchestrator.tasks import queries
    from orchestrator.tasks.model import TaskState

    async with common.services() as services:
        rows = await queries.listing(services.store, states={TaskState(one) for one in state}, limit=limit)
    columns = ("id", "state", "skill", "priority", "session", "submitted_at")
    output.show_list(common.output, [asdict(row) for row in rows], columns, key="id", empty="no tasks")
    if len(rows) == limit:
        output.hint(f"these are the first {limit}; --limit shows more")


@commands.command("show", "orc tasks show 0192f0c1-…", "orc tasks show 0192f0c1-… -o json")
async def show(task: Annotated[str, positional("ID")], /, *, common: Globals = DEFAULTS) -> None:
    """Show everything that is known of a task: what it waits for, its attempts, errors and result.

    Args:
        task: Its id.
    """
    found = await _info(task, common)
    record = asdict(found) | {"args": output.raw_json(found.args)}
    record["result"] = None if found.result is None else output.raw_json(found.result)
    record["questions"] = task_answer.question_rows(found.questions, table=common.output == "table")
    named = ("why", "worker", "session", "tags", "key", "lane", "parent")
    optional = (*named, "due_at", "ended_at", "reason", "errors", "deaths")
    output.show_record(common.output, record, key="id", skip=(*optional, "result", "progress", "questions", "once"))


@commands.command("result", "orc tasks result 0192f0c1-…", "orc tasks result 0192f0c1-… | jq .text")
async def result(task: Annotated[str, positional("ID")], /, *, common: Globals = DEFAULTS) -> None:
    """Print the result of a task: the JSON that its handler returned, byte for byte.

    Args:
        task: Its id.
    """
    found = await _info(task, common)
    if found.state == "succeeded":
        output.write_bytes(output.result_line(found.result if found.result is not None else b"null"))
        return
    if not found.state.final:
        from orchestrator.cli.terminal.failures import TryAgain

        why = f" ({found.why})" if found.why else ""
        raise TryAgain(f"task {task} is {found.state}{why}; wait for it with `orc tasks wait {task}`")
    raise TaskError(task, f"has no result, it is {found.state}: {found.reason}; `orc tasks show {task}` tells more")


@commands.command("wait", "orc tasks wait 0192f0c1-…", "orc tasks wait ID ID ID --timeout 2m")
async def wait(
    *tasks: Annotated[str, positional("ID")],
    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None,
    common: Globals = DEFAULTS,
) -> int:
    """Wait until tasks have ended. Exit code: 0 all succeeded, 1 failed, 3 unknown, 5 timed out, 6 some of each.

    Args:
        tasks: Their ids.
        timeout: How long to wait; the tasks go on afterwards.
    """
    if not tasks:
        raise InvalidInput("which tasks? give their ids; `orc tasks list -o id` has them")
    timeout_s = inputs.duration_s("--timeout", timeout)
    from orchestrator.cli.terminal.failures import joint_exit_code
    from orchestrator.cli.terminal.waiting import wait_for_all, wait_through_outages

    async with common.client() as orc:
        handles = [orc.task(task) for task in dict.fromkeys(tasks)]
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
    task: Annotated[str, positional("ID")],
    /,
    *,
    after: Annotated[str | None, option("--after", metavar="EVENT_ID")] = None,
    common: Globals = DEFAULTS,
) -> int:
    """Show what happens to a task, its progress and output included, until it ends. Exit code: as of wait.

    Args:
        task: Its id.
        after: Go on behind this event; -o jsonl and -o id show the ids of events.
    """
    from orchestrator.cli.terminal.live import follow
    from orchestrator.cli.terminal.waiting import wait_through_outages
    from orchestrator.tasks.output import check_place

    check_place(after)
    async with common.client() as orc:
        handle = orc.task(task)
        status = await handle.status()
        why = f": {status.why}" if status.why else ""
        output.hint(f"it is {status.state}{why}; Ctrl-C stops the watching, not the task")
        async with wait_through_outages(orc):
            end = await follow(handle, after, common.output)
        if end is None:  # it had ended before that event
            info = await handle.info()
            state, reason = info.state.value, info.reason
        else:
            state, reason = end.kind, end.reason
    if state != "succeeded":
        because = f": {reason}" if reason else ""
        raise TaskError(task, f"is {state}{because}; `orc tasks show {task}` tells more")
    return 0


task_control.add_to(commands)
task_answer.add_to(commands)


async def _info(task: str, common: Globals) -> TaskInfo:
    from orchestrator.core.ids import check_task_id
    from orchestrator.why import lookup

    check_task_id(task)
    async with common.services() as services:
        return await lookup.info(services.store, task)


def _say_submitted(task: str, common: Globals) -> None:
    match common.output:
        case "json" | "jsonl":
            output.write(output.json_text({"id": task}))
        case _:
            # The id alone, so that `ID=$(orc tasks submit …)` works in every form; the friendly part is for eyes only.
            output.hint(f"submitted; `orc tasks wait {task}` waits for it")
            output.write(f"{task}\n")


def _tell_end(end: Ended, common: Globals, timeout: str | None) -> int:
    """Print the result of a task that was waited for, or raise what it came to."""
    if end.timed_out:
        where = f" ({end.reason})" if end.reason else ""
        raise TimeoutError(
            f"task {end.id} has not ended after {timeout}{where}; it goes on, `orc tasks wait {end.id}` waits more"
        )
    if end.state is None:
        raise NotFound(f"task {end.id} {end.reason}")
    result = b"null" if end.result is None else end.result
    if common.output in {"json", "jsonl"}:
        shown = output.raw_json(result) if end.state == "succeeded" else None
        record = {"id": end.id, "state": end.state, "reason": end.reason, "result": shown}
        output.show_record(common.output, record, key="id")
    elif common.output == "id":
        output.write(f"{end.id}\n")
    elif end.state == "succeeded":
        output.write_bytes(output.result_line(result))
    if end.state != "succeeded":
        raise TaskError(end.id, f"is {end.state}: {end.reason}; `orc tasks show {end.id}` tells more")
    return 0
