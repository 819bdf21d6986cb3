"""`orc dead`: list, show, retry, export, delete."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import TYPE_CHECKING, Annotated, Any, Literal

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.selections import NO_FILTER, Filtering, row, selecting
from orchestrator.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

commands = noun(
    "dead",
    "Look at dead letters, let them run again, export or delete them.",
    "orc dead list --group error",
    'orc dead retry --skill send --reason-contains TimeoutError --reason "the mail server is back"',
)
app = commands.app


@commands.command(
    "list", "orc dead list", "orc dead list --group error", "orc dead list --agent mailer --since 1h -o id"
)
async def list_(
    *,
    group: Annotated[Literal["error"] | None, option("--group", metavar="error")] = None,
    filtering: Filtering = NO_FILTER,
    common: Globals = DEFAULTS,
) -> None:
    """List dead letters, the newest first.

    Args:
        group: One line for those that failed alike: how many, the newest, an example.
    """
    from orchestrator.tasks.model import TaskState
    from orchestrator.tasks.selecting import group_by_error, select

    wanted = filtering.wanted()
    async with common.services() as services:
        found = await select(services.store, wanted, among={TaskState.DEAD}, limit=filtering.limit)
    columns: tuple[str, ...]
    if group is None:
        columns = ("id", "skill", "agent", "attempts", "ended_at", "reason")
        rows = [row(task) for task in found.tasks]
        output.show_list(common.output, rows, columns, key="id", empty="no dead letters")
    else:
        columns = ("error", "skill", "tasks", "newest", "example")
        groups = [asdict(one) for one in group_by_error(found.tasks)]
        output.show_list(common.output, groups, columns, key="example", empty="no dead letters")
    if found.more:
        output.say(f"these are the newest {filtering.limit}; --limit shows more")


@commands.command("show", "orc dead show 0192f0c1-…", "orc dead show 0192f0c1-… -o json | jq -r '.errors[-1]'")
async def show(task: Annotated[str, positional("ID")], /, *, common: Globals = DEFAULTS) -> None:
    """Show why a task is a dead letter: its reason, arguments, all attempts with tracebacks, deaths, requeues.

    Args:
        task: Its id.
    """
    from orchestrator.core.ids import check_task_id
    from orchestrator.why import lookup

    check_task_id(task)
    async with common.services() as services:
        info = await lookup.info(services.store, task)
    if info.state != "dead":
        raise NotFound(f"task {task} is no dead letter, it is {info.state}; `orc tasks show {task}` shows it")
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
    record: dict[str, Any] = {name: getattr(info, name) for name in names}
    record |= {"args": output.raw_json(info.args), "errors": info.errors}
    record |= {name: [_told(line, parts) for line in getattr(info, name)] for name, parts in _NOTES.items()}
    if common.output == "table":
        record |= {name: [_line(note) for note in record[name]] for name in _NOTES}
    optional = ("session", "tags", "key", "parent", "errors", "deaths", "requeues")
    output.show_record(common.output, record, key="id", skip=optional)


_NOTES = {"deaths": ("worker", "how"), "requeues": ("state", "who")}
"""What stands behind the time in a piece of evidence: a word, and a text."""


def _told(note: str, names: Sequence[str]) -> dict[str, Any]:
    from orchestrator.core.durations import from_instant_ms

    at_ms, word, text = [*note.split(" ", 2), "", ""][:3]
    return {"at": from_instant_ms(int(at_ms)) if at_ms.isdigit() else None, names[0]: word, names[1]: text}


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
    *tasks: Annotated[str, positional("ID")],
    dry_run: Annotated[bool, option("--dry-run")] = False,
    yes: Annotated[bool, option("--yes")] = False,
    filtering: Filtering = NO_FILTER,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Let dead letters run again: the same tasks, with ids, keys and histories; failures and deaths count anew.

    By filter it asks first, and a supervisor does it; what dies later is not meant.

    Exit code: 0 done, 3 unknown, 4 refused, 5 not done in time, 6 some of each, 69 no supervisor is there to do it.

    Args:
        tasks: Their ids.
        dry_run: Only print the ids that the filter means.
        yes: Do not ask.
    """
    from orchestrator.cli.commands.task_bulk import retry_tasks
    from orchestrator.tasks.model import TaskState

    chosen = selecting(tasks, filtering, among={TaskState.DEAD}, dry_run=dry_run, yes=yes)
    return retry_tasks(tasks, chosen, options, common)


@commands.command("export", "orc dead export --all > dead.jsonl", "orc dead export --skill send --to send.jsonl")
async def export(
    *tasks: Annotated[str, positional("ID")],
    to: Annotated[Path | None, option("--to", metavar="FILE")] = None,
    filtering: Filtering = NO_FILTER,
    common: Globals = DEFAULTS,
) -> int:
    """Write dead letters as JSON lines: what was asked for, and all that happened. They stay where they are.

    Args:
        tasks: Their ids.
        to: A new file; standard output otherwise.
    """
    from orchestrator.cli.commands.task_bulk import checked
    from orchestrator.cli.terminal.failures import DONE, NOT_FOUND, joint_exit_code
    from orchestrator.tasks.model import TaskState
    from orchestrator.tasks.selecting import select
    from orchestrator.why.lookup import export_task

    chosen = selecting(tasks, filtering, among={TaskState.DEAD})
    ids = checked(tasks)
    if to is not None and to.exists():
        raise InvalidInput(f"{to} exists; name a file that does not")
    codes: list[int] = []
    lines: list[str] = []
    async with common.services() as services:
        if chosen is not None:
            found = await select(services.store, chosen.wanted, among=chosen.among, limit=chosen.limit)
            ids = found.ids
            if found.more:
                output.say(f"these are the newest {filtering.limit}; --limit exports more")
        for id_ in ids:
            record = await export_task(services.store, id_)
            if record is None or record["state"] != "dead":
                output.say(f"task {id_} is no dead letter, or its record cannot be read")
                codes.append(NOT_FOUND)
                continue
            codes.append(DONE)
            lines.append(output.json_text(record))
            if to is None:
                output.write(lines.pop())
    if to is not None:
        _write(to, lines)
        output.say(f"wrote {len(lines)} to {to}")
    return joint_exit_code(codes) if codes else DONE


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as failed:
        raise InvalidInput(f"{path} cannot be written: {failed.strerror}") from None


@commands.command("delete", "orc dead delete 0192f0c1-…", 'orc dead delete --older-than 7d --reason "nobody will look"')
def delete(
    *tasks: Annotated[str, positional("ID")],
    dry_run: Annotated[bool, option("--dry-run")] = False,
    yes: Annotated[bool, option("--yes")] = False,
    filtering: Filtering = NO_FILTER,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Delete dead letters for good. Asks first.

    Exit code: as of retry.

    Args:
        tasks: Their ids.
        dry_run: Only print the ids that the filter means.
        yes: Do not ask.
    """
    from orchestrator.cli.commands.task_bulk import delete as delete_tasks
    from orchestrator.tasks.model import TaskState

    chosen = selecting(tasks, filtering, among={TaskState.DEAD}, dry_run=dry_run)
    return delete_tasks(tasks, chosen, options, common, yes=yes)
