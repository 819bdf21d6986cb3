"""`orc backup` and `orc restore`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.failures import DONE, FAILED
from orchestrator.cli.terminal.inputs import STDIN
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Yes
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.views.backup import BackupView, RestoredPool, SavedFile

STDOUT: Final = STDIN
"""The parser turns a lone hyphen into this word."""
TASKS: Final = "tasks"
OTHERS: Final = {
    "schedules": "schedule",
    "workspaces": "workspace",
    "output entries": "output entry",
    "other keys": "other key",
    "damaged": "damaged",
}
"""Names of counts that are no states of tasks, and their singular."""
OnlyPool = Annotated[bool, option("--only-pool")]

backup_commands = Commands(
    "backup", "orc backup", "orc backup /backups/pool.orc.gz", "orc backup - | ssh host 'cat > pool.orc.gz'"
)
restore_commands = Commands(
    "restore",
    "orc restore pool.orc.gz --into app:drill:default --dry-run",
    "orc restore pool.orc.gz --into app:drill:default --yes",
)


@backup_commands.itself
def backup(
    file: Annotated[str | None, positional("FILE|-")] = None,
    /,
    *,
    list_: Annotated[bool, option("--list")] = False,
    only_pool: OnlyPool = False,
    plain: Annotated[bool, option("--plain")] = False,
    common: Globals = DEFAULTS,
) -> int:
    """Save the pool and the shared state of its prefix to a file, while it works.

    The file has arguments and results of tasks, so only its owner may read it. It contains no secret of the settings.

    Args:
        file: New file, or - for standard output [POOL-TIME.orc.gz].
        list_: Check an existing file and print what it holds. Needs no Redis.
        only_pool: Leave out workspaces, agent states, boards and limits by name, which all pools of a prefix share.
        plain: Do not compress.

    Exit code: 0 saved, 1 damaged keys or tasks were left out, or the file is damaged.
    """
    import anyio

    if list_:
        if file is None or file == STDOUT:
            raise InvalidInput("--list needs the name of a file")
        return anyio.run(_list, _path(file), common)
    return anyio.run(_backup, file, not only_pool, not plain, common)


async def _list(path: Path, common: Globals) -> int:
    from orchestrator.views.backup import open_backup

    _show((await open_backup(path)).view, common)
    return DONE


async def _backup(file: str | None, shared: bool, compress: bool, common: Globals) -> int:  # noqa: FBT001
    import sys

    from orchestrator.views.backup import save_pool

    if file == STDOUT and output.is_terminal(sys.stdout):
        raise InvalidInput("a backup is no text for a terminal; name a file, or send the output to another program")
    path = None if file == STDOUT else _path(file or _name(common.settings().pool, compress=compress))
    async with common.services() as services:
        saved = await save_pool(
            services,
            path or output.write_bytes,
            shared=shared,
            compress=compress,
            on_step=lambda tasks: output.progress(f"saved {tasks} tasks"),
        )
    output.progress("")
    if path is None:
        output.say(_counted(saved.counts))
    elif common.output == "table":
        # A program that reads the output needs the name as it is.
        output.write(f"{output.clean(str(path)) if output.is_terminal(sys.stdout) else path}\n")
        output.say(f"{_counted(saved.counts)}; {saved.bytes} bytes in {saved.seconds:.1f} s")
    else:
        output.show_record(common.output, {"file": str(path), **asdict(saved)}, key="file")
    if saved.skipped:
        output.say(f"left out, because they are damaged: {output.clean(', '.join(saved.skipped))}")
        output.say("`orc keys check` tells what is wrong with them")
    return FAILED if saved.skipped else DONE


@restore_commands.itself
def restore(
    file: Annotated[str, positional("FILE")],
    /,
    *,
    into: Annotated[str, option("--into", metavar="APP:ENV:TENANT")],
    dry_run: Annotated[bool, option("--dry-run")] = False,
    only_pool: OnlyPool = False,
    yes: Yes = False,
    common: Globals = DEFAULTS,
) -> int:
    """Restore a backup into an empty pool, which stays stopped until `orc start`. Asks for confirmation.

    The file is checked as a whole before the first write. Tasks that ran when they were saved are ready again, and
    `orc tasks show` tells it. If a restore is interrupted, no program starts in the pool; the same command goes on.

    Args:
        file: A file of `orc backup`.
        into: Prefix of the restored pool; --pool gives it another name.
        dry_run: Check the file and the target, print what it holds, and change nothing.
        only_pool: Leave out workspaces, agent states, boards and limits by name.

    Exit code: 0 restored, 1 the file is damaged, 4 the target is not empty, or not confirmed.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    return anyio.run(partial(_restore, dry_run=dry_run, shared=not only_pool, yes=yes), _path(file), into, common)


async def _restore(path: Path, into: str, common: Globals, *, dry_run: bool, shared: bool, yes: bool) -> int:
    from anyio import to_thread

    from orchestrator.views.backup import open_backup

    found = await open_backup(path)
    settings = common.settings(prefix=into, pool=common.pool or found.view.pool)
    place = f"pool {settings.pool} of {settings.prefix}"
    goes_on = await found.check_target(settings, shared=shared)
    if dry_run or common.output == "table":
        _show(found.view, common)
    if goes_on:
        output.say(f"an interrupted restore of this file into {place} goes on")
    if dry_run:
        output.say(f"nothing was changed; without --dry-run this is restored into {place}")
        return DONE
    action = f"restore {found.view.counts.get('tasks', 0)} tasks into {place}"
    await to_thread.run_sync(lambda: ask(action, yes=yes), abandon_on_cancel=True)
    done = await found.restore(settings, shared=shared, on_step=lambda rows: output.progress(f"restored {rows} rows"))
    output.progress("")
    _tell(found, done, place, common)
    return DONE


def _tell(found: SavedFile, done: RestoredPool, place: str, common: Globals) -> None:
    if common.output != "table":
        output.show_record(common.output, asdict(done), key="tasks")
    else:
        again = f", {done.interrupted} of them ran when they were saved" if done.interrupted else ""
        output.write(f"restored {done.tasks} tasks{again}, {done.other_keys} other keys, {done.commands} commands\n")
    if done.refused_commands:
        output.say(f"no longer active: {output.clean(', '.join(done.refused_commands))}")
    if found.view.skipped:
        output.say(f"not in the file, because they were damaged: {output.clean(', '.join(found.view.skipped))}")
    output.say(
        f"{place} is stopped; stop the original if it still runs, then type `orc start` with this prefix and pool"
    )


def _show(view: BackupView, common: Globals) -> None:
    record = asdict(view)
    if common.output == "table":
        record["counts"] = _counted(view.counts)
        record["skipped"] = ", ".join(view.skipped)
    output.show_record(common.output, record, key="pool", skip=("skipped",))


def _counted(counts: Mapping[str, int]) -> str:
    """Return the numbers of a backup as a text: tasks with their states, then other things."""
    states = ", ".join(f"{counts[name]} {name}" for name in sorted(counts) if name not in {TASKS, *OTHERS})
    others = [f"{counts[name]} {one if counts[name] == 1 else name}" for name, one in OTHERS.items() if name in counts]
    return ", ".join([f"{counts.get(TASKS, 0)} tasks" + (f" ({states})" if states else ""), *others])


def _name(pool: str, *, compress: bool) -> str:
    return f"{pool}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.orc{'.gz' if compress else ''}"


def _path(text: str) -> Path:
    from pathlib import Path

    return Path(text).expanduser()
