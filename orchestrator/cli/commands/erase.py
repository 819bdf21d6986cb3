"""`orc erase`: erases all text about a person."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Reason, Yes
from orchestrator.cli.terminal.parsing import Commands, option, positional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.erasure.model import ErasureReport
    from orchestrator.subjects.places import Place

commands = Commands(
    "erase",
    'orc erase customer-17 --asked-by "ticket 2041"',
    'orc erase customer-17 --asked-by "ticket 2041" --sqlite /var/lib/orc/copies.db --yes',
    'orc erase customer-17 --asked-by "ticket 2041" --dry-run',
)
SHOWN: Final = 500
"""Places that a call reads."""


@commands.itself
def erase(
    subject: Annotated[str, positional("SUBJECT", help="Id of the person, as `subject` of records and messages.")],
    /,
    *,
    asked_by: Annotated[str, option("--asked-by", metavar="TEXT")],
    sqlite: Annotated[tuple[Path, ...], option("--sqlite", metavar="FILE", many=True)] = (),
    json_lines: Annotated[tuple[Path, ...], option("--json-lines", metavar="FOLDER", many=True)] = (),
    dry_run: Annotated[bool, option("--dry-run")] = False,
    reason: Reason = "",
    yes: Yes = False,
    common: Globals = DEFAULTS,
) -> int:
    """Erase all text about a person: records, messages, summaries, assigned sessions. Asks for confirmation.

    For 20 minutes, text about the person is refused. A repeat goes on where a run was interrupted. Backups, logs,
    traces, ids, and text that names no person are not reached; after a restore, erase again.

    Exit code: 0 erased, 4 not confirmed, or not recorded, so that nothing was erased; 6 something is left.

    Args:
        asked_by: Who asked for it, as a ticket; kept with the record, which must not name the person.
        sqlite: A second storage that may have copies, a file of SqliteStore; may be repeated.
        json_lines: A second storage that may have copies, a folder of JsonLinesStore; may be repeated.
        dry_run: Print the places that may hold text about the person, and change nothing.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    from orchestrator.cli.terminal.confirm import ask
    from orchestrator.cli.terminal.failures import DONE
    from orchestrator.core.errors import InvalidInput

    for path in (*sqlite, *json_lines):
        if not path.exists():
            raise InvalidInput(f"{path} does not exist; name a second storage that has copies")
    places = anyio.run(_places, subject, common)
    if dry_run:
        rows = [asdict(place) | {"place": place.words} for place in places]
        output.show_list(common.output, rows, ("kind", "id", "part"), key="place", empty="no place is noted")
        return DONE
    more = " or more" if len(places) == SHOWN else ""
    stores = f" and {len(sqlite) + len(json_lines)} second storages" if sqlite or json_lines else ""
    ask(f"erase all text about {output.clean(subject)} from {len(places)}{more} places{stores}", yes=yes)
    return anyio.run(_erase, subject, asked_by, reason, (sqlite, json_lines), common)


async def _places(subject: str, common: Globals) -> list[Place]:
    async with common.client() as orc:
        return await orc.subjects.places(subject)


async def _erase(
    subject: str,
    asked_by: str,
    reason: str,
    copies: tuple[Sequence[Path], Sequence[Path]],
    common: Globals,
) -> int:
    from contextlib import AsyncExitStack

    from orchestrator.cli.terminal.failures import DONE, PARTLY_DONE, say_error
    from orchestrator.secondary.json_lines import JsonLinesStore
    from orchestrator.secondary.sqlite import SqliteStore

    async with common.client() as orc, AsyncExitStack() as opened:
        databases = [await opened.enter_async_context(SqliteStore(path)) for path in copies[0]]
        folders = [await opened.enter_async_context(JsonLinesStore(path)) for path in copies[1]]
        report = await orc.subjects.erase(subject, asked_by=asked_by, reason=reason, stores=[*databases, *folders])
    if report.unrecorded:
        say_error(f"the text was erased, which was not recorded: {report.unrecorded}")
    if common.output == "table":
        output.write(f"erased {_said(report)}\n")
        for problem in report.left:
            output.say(f"left: {output.clean(problem)}")
    else:
        output.show_record(common.output, asdict(report), key="command")
    return PARTLY_DONE if report.left else DONE


def _said(report: ErasureReport) -> str:
    counts = {
        "records": report.records,
        "messages": report.messages,
        "summaries": report.summaries,
        "sessions": report.sessions,
        "tasks": report.tasks,
        "copies": report.stored,
    }
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number) or "nothing"
