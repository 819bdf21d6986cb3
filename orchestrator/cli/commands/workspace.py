"""`orc workspace`: get, set, log, events, export."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from orchestrator.workspace.model import Change, Versioned, WorkspaceEvent

commands = Commands(
    "workspace",
    "orc workspace get 101",
    "orc workspace events 101 --follow",
)

BEGINNING: Final = "0-0"
Session = Annotated[str, positional("SESSION", help="Id of the session.")]


@commands.command(
    "get", "orc workspace get 101", "orc workspace get 101 title | jq .", "orc workspace get 101 title outline -o json"
)
async def get(
    session: Session,
    /,
    *paths: Annotated[str, positional("PATH", help="Only these paths.")],
    common: Globals = DEFAULTS,
) -> None:
    """Show the document of a session; with one PATH, only its value as JSON."""
    async with common.client() as orc:
        found = await orc.workspace(session).get(*paths)
    if missing := [path for path in paths if path not in found]:
        raise NotFound(f"the workspace of session {session!r} has no {', '.join(map(repr, missing))}")
    if len(paths) == 1 and common.output == "table":
        output.write_bytes(output.result_line(bytes(output.user_json(found[paths[0]].value))))
        return
    rows = [_path_row(path, held) for path, held in sorted(found.items())]
    output.show_list(
        common.output, rows, ("path", "version", "agent", "value"), key="path", empty="the workspace is empty"
    )


@commands.command(
    "set",
    "orc workspace set 101 title '\"A better title\"'",
    "orc workspace set 101 outline @outline.json --if-version 3",
    "orc workspace set 101 draft --delete",
)
async def set_(
    session: Session,
    path: Annotated[str, positional("PATH")],
    value: Annotated[str | None, positional("VALUE|@FILE|-")] = None,
    /,
    *,
    delete: Annotated[bool, option("--delete")] = False,
    if_version: Annotated[int | None, option("--if-version", metavar="N")] = None,
    common: Globals = DEFAULTS,
) -> None:
    """Write or delete one path of the document. The event of the change keeps the previous value.

    Args:
        path: Path to write.
        value: JSON when it parses, otherwise text; @FILE; or - for standard input.
        delete: Delete the path.
        if_version: Write only if the path has this version; 0: only if it does not exist.
    """
    if delete == (value is not None):
        raise InvalidInput("give VALUE or --delete")
    wanted = inputs.value(value) if value is not None else None
    from orchestrator.workspace.model import DELETE

    async with common.client() as orc, orc.workspace(session).edit() as ws:
        expected = None if if_version is None else {path: if_version}
        done = await ws.patch({path: DELETE if delete else wanted}, if_versions=expected)
    record = {"path": path, "version": done.version, "revision": done.revision}
    output.show_record(common.output, record, key="version")


@commands.command("log", "orc workspace log 101 findings", "orc workspace log 101 findings --after 40 -o jsonl")
async def log(
    session: Session,
    name: Annotated[str, positional("LOG")],
    /,
    *,
    last: Annotated[int, option("--last", "-n", metavar="N")] = 100,
    after: Annotated[int | None, option("--after", metavar="NUMBER")] = None,
    common: Globals = DEFAULTS,
) -> None:
    """Show the newest entries of a log in order.

    Args:
        name: Name of the log.
        last: How many [100].
        after: Show the entries after this number.
    """
    if not 1 <= last <= 10_000 or (after is not None and after < 0):
        raise InvalidInput("--last must be between 1 and 10000, --after at least 0")

    async with common.client() as orc:
        entries = await orc.workspace(session).log(name, last=last, after=after)
    rows = [
        {"number": one.number, "at": one.at, "agent": one.agent, "value": output.user_json(one.value)}
        for one in entries
    ]
    output.show_list(
        common.output, rows, ("number", "at", "agent", "value"), key="number", empty="the workspace is empty"
    )


@commands.command("events", "orc workspace events 101", "orc workspace events 101 --follow -o jsonl")
async def events(
    session: Session,
    /,
    *,
    after: Annotated[str, option("--after", metavar="EVENT_ID")] = BEGINNING,
    follow: Annotated[bool, option("--follow", "-f")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Show the changes of the workspace in order, with author, new and previous value.

    Args:
        after: Continue after this event; -o jsonl and -o id print event ids.
        follow: Wait for more events until Ctrl-C.
    """
    from orchestrator.workspace.events import check_event_id

    check_event_id(after)
    rows: list[dict[str, Any]] = []
    async with common.client() as orc:
        told = orc.workspace(session).events(after, block=None if follow else 0)
        async with aclosing(told):
            async for event in told:
                row = _event_row(event)
                match common.output:
                    case "table":
                        output.write(_line(event))
                    case "jsonl":
                        output.write(output.json_text(row))
                    case "id":
                        output.write(f"{event.id}\n")
                    case "json":
                        rows.append(row)
    if common.output == "json":
        output.write(output.json_text({"items": rows}, indent=True))


@commands.command(
    "export", "orc workspace export 101 > session-101.json", "orc workspace export 101 | jq '.paths.title.value'"
)
async def export(session: Session, /, *, common: Globals = DEFAULTS) -> None:
    """Print a consistent snapshot of the workspace as JSON: paths, logs, sets, states and members."""
    async with common.client() as orc:
        exported = await orc.workspace(session).export()
    if common.output == "id":
        output.write(f"{exported['event']}\n")
    else:
        output.write(output.json_text(output.user_json(exported), indent=common.output != "jsonl"))


def _path_row(path: str, held: Versioned) -> dict[str, Any]:
    return {"path": path, "version": held.version, "agent": held.agent, "value": output.user_json(held.value)}


def _event_row(event: WorkspaceEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "kind": event.kind,
        "revision": event.revision,
        "agent": event.agent,
        "at": event.at,
        "detail": output.user_json(event.detail),
        "changes": [
            {
                "name": change.name,
                "version": change.version,
                "value": output.user_json(change.value),
                "previous": output.user_json(change.previous),
                "deleted": change.deleted,
                "told": change.told,
            }
            for change in event.changes
        ],
    }


def _line(event: WorkspaceEvent) -> str:
    by = f" by {output.clean(event.agent)}" if event.agent else ""
    changed = "; ".join(_changed(event, change) for change in event.changes)
    return f"{output.clock(event.at)} {event.revision:>5} {event.kind}{by}: {output.clean(changed)}\n"


def _changed(event: WorkspaceEvent, change: Change) -> str:
    match event.kind:
        case "transition":
            return f"{change.name} {event.detail['previous_state'] or '-'} -> {event.detail['state']}"
        case "join":
            return f"{change.name} {'joined' if event.detail['joined'] else 'left'}"
        case "direct":
            return f"{change.name} {event.detail['kind']} {_short(change.value)}"
    if change.deleted:
        return f"{change.name} deleted, was {_short(change.previous)}"
    value = _short(change.value) if change.told or change.value is not None else "(a large value)"
    return f"{change.name} = {value}" + (f", was {_short(change.previous)}" if change.previous is not None else "")


def _short(value: Any) -> str:
    text = bytes(output.user_json(value)).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"
