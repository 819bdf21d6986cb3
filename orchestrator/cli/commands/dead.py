"""`orc dead`: list, show, retry, export, delete."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import TYPE_CHECKING, Annotated, Any, Literal

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions
from orchestrator.cli.terminal.options import DEFAULTS, DryRun, Globals, TaskId, Yes
from orchestrator.cli.terminal.parsing import Commands, option
from orchestrator.cli.terminal.reveal import Reveal, may_show
from orchestrator.cli.terminal.selections import NO_FILTER, Filtering, selecting
from orchestrator.cli.terminal.source import viewed
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

commands = Commands(
    "dead",
    "orc dead list --group error",
    'orc dead retry --skill send --reason-contains TimeoutError --reason "the mail server is back"',
)


@commands.command(
    "list", "orc dead list", "orc dead list --group error", "orc dead list --agent mailer --since 1h -o id"
)
async def list_(
    *,
    group: Annotated[Literal["error"] | None, option("--group", metavar="error")] = None,
    filtering: Filtering = NO_FILTER,
    common: Globals = DEFAULTS,
) -> None:
    """List dead letters, newest first.

    Args:
        group: Print one line per error, with the number of dead letters, the newest time and an example.
    """
    from orchestrator.views.tasks import DEAD, group_dead_letters, select_tasks

    wanted = filtering.wanted()
    columns: tuple[str, ...]
    async with viewed(common) as services:
        if group is None:
            found = await select_tasks(services, wanted, among=DEAD, limit=filtering.limit)
            columns, key = ("id", "skill", "agent", "attempts", "ended_at", "reason"), "id"
            rows, more = [asdict(task) for task in found.tasks], found.more
        else:
            grouped = await group_dead_letters(services, wanted, limit=filtering.limit)
            columns, key = ("error", "skill", "tasks", "newest", "example"), "example"
            rows, more = [asdict(one) for one in grouped.groups], grouped.more
    output.show_list(common.output, rows, columns, key=key, empty="no dead letters")
    if more:
        output.say(f"these are the newest {filtering.limit}; raise --limit for more")


@commands.command("show", "orc dead show 0192f0c1-…", "orc dead show 0192f0c1-… -o json | jq -r '.errors[-1]'")
async def show(task: TaskId, /, *, reveal: Reveal = False, common: Globals = DEFAULTS) -> None:
    """Show a dead letter: reason, arguments, the traceback of each attempt, deaths and retries."""
    from orchestrator.core.ids import check_task_prefix
    from orchestrator.views.tasks import find_task, read_dead_letter

    check_task_prefix(task)
    async with common.services() as services:
        task = await find_task(services, task)
        found = await read_dead_letter(services, task)
        if await may_show(services, task, found.info.skill, reveal=reveal) and reveal:
            found = await read_dead_letter(services, task, reveal=True)
    names = (
        "id",
        "skill",
        "agent",
        "session",
        "tags",
        "key",
        "parent",
        "attempts",
        "submitted_at",
        "ended_at",
        "reason",
    )
    record: dict[str, Any] = {name: getattr(found.info, name) for name in names}
    record |= {"args": output.raw_json(found.info.args), "errors": found.info.errors}
    notes = {"deaths": [asdict(note) for note in found.deaths], "requeues": [asdict(note) for note in found.requeues]}
    table = common.output == "table"
    record |= {name: [_line(note) for note in rows] if table else rows for name, rows in notes.items()}
    optional = ("session", "tags", "key", "parent", "errors", "deaths", "requeues")
    output.show_record(common.output, record, key="id", skip=optional)


def _line(note: dict[str, Any]) -> str:
    at, *words = note.values()
    return f"{output.ago(at)}: {' '.join(words)}".rstrip()


@commands.command(
    "retry",
    "orc dead retry 0192f0c1-… 0192f0c2-…",
    'orc dead retry --skill send --error "Connection refused" --reason "it is back"',
    "orc dead retry --all --dry-run",
)
def retry(
    *tasks: TaskId,
    dry_run: DryRun = False,
    yes: Yes = False,
    filtering: Filtering = NO_FILTER,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Retry dead letters. They keep their ids, keys and histories; failures and deaths count from zero.

    With a filter it asks for confirmation, and a supervisor retries the dead letters that match now.

    Exit code: 0 done, 3 unknown, 4 refused, 5 not done in time, 6 mixed, 69 no supervisor leads.
    """
    from orchestrator.cli.commands.task_bulk import retry_tasks
    from orchestrator.tasks.model import TaskState

    chosen = selecting(tasks, filtering, among={TaskState.DEAD}, dry_run=dry_run, yes=yes)
    return retry_tasks(tasks, chosen, options, common)


@commands.command("export", "orc dead export --all > dead.jsonl", "orc dead export --skill send --to send.jsonl")
async def export(
    *tasks: TaskId,
    to: Annotated[Path | None, option("--to", metavar="FILE")] = None,
    reveal: Reveal = False,
    filtering: Filtering = NO_FILTER,
    common: Globals = DEFAULTS,
) -> int:
    """Write dead letters as JSON lines, with their arguments and histories. The dead letters are kept.

    Args:
        to: A new file, in place of standard output.
    """
    from orchestrator.cli.commands.task_bulk import checked, full_ids
    from orchestrator.cli.terminal.failures import DONE, NOT_FOUND, joint_exit_code
    from orchestrator.views.tasks import DEAD, export_dead_letter, select_tasks

    chosen = selecting(tasks, filtering, among=DEAD)
    ids = checked(tasks)
    if to is not None and to.exists():
        raise InvalidInput(f"{to} exists; name a new file")
    codes: list[int] = []
    lines: list[str] = []
    async with common.services() as services:
        if chosen is not None:
            found = await select_tasks(services, chosen.wanted, among=chosen.among, limit=chosen.limit)
            ids = found.ids
            if found.more:
                output.say(f"these are the newest {filtering.limit}; raise --limit for more")
        for id_ in await full_ids(services, ids):
            record = await export_dead_letter(services, id_)
            if reveal and record is not None and await may_show(services, id_, record["skill"], reveal=True):
                record = await export_dead_letter(services, id_, reveal=True)
            if record is None:
                output.say(f"task {id_} is not a dead letter, or its record is unreadable")
                codes.append(NOT_FOUND)
                continue
            codes.append(DONE)
            lines.append(output.json_text(record))
            if to is None:
                output.write(lines.pop())
    if to is not None:
        _write(to, lines)
        output.say(f"wrote {len(lines)} dead letters to {to}")
    return joint_exit_code(codes) if codes else DONE


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as failed:
        raise InvalidInput(f"cannot write {path}: {failed.strerror}") from None


@commands.command("delete", "orc dead delete 0192f0c1-…", 'orc dead delete --older-than 7d --reason "obsolete"')
def delete(
    *tasks: TaskId,
    dry_run: DryRun = False,
    yes: Yes = False,
    filtering: Filtering = NO_FILTER,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Delete dead letters. Asks for confirmation.

    Exit code: 0 done, 3 unknown, 4 refused or not confirmed, 5 not done in time, 6 mixed, 69 no supervisor leads.
    """
    from orchestrator.cli.commands.task_bulk import delete as delete_tasks
    from orchestrator.tasks.model import TaskState

    chosen = selecting(tasks, filtering, among={TaskState.DEAD}, dry_run=dry_run, yes=yes)
    return delete_tasks(tasks, chosen, options, common, yes=yes)
