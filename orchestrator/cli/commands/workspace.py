"""`orc workspace`: get, set, log, events, export."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from orchestrator.workspace.model import Change, Versioned, WorkspaceEvent

commands = noun(
    "workspace",
    "Look at what the agents of a session share; change it.",
    "orc workspace get 101",
    "orc workspace events 101 --follow",
)
app = commands.app

BEGINNING: Final = "0-0"
Session = Annotated[str, positional("SESSION")]


@commands.command(
    "get", "orc workspace get 101", "orc workspace get 101 title | jq .", "orc workspace get 101 title outline -o json"
)
async def get(session: Session, /, *paths: Annotated[str, positional("PATH")], common: Globals = DEFAULTS) -> None:
    """Show the document of a session; of one path its value alone, as JSON.

    Args:
        session: Whose workspace.
        paths: Only these.
    """
    async with common.client() as orc:
        found = await orc.workspace(session).get(*paths)
    if missing := [path for path in paths if path not in found]:
        raise NotFound(f"the workspace of session {session!r} holds nothing at {', '.join(map(repr, missing))}")
    if len(paths) == 1 and common.output == "table":
        output.write_bytes(output.result_line(bytes(output.user_json(found[paths[0]].value))))
        return
    rows = [_path_row(path, held) for path, held in sorted(found.items())]
    output.show_list(common.output, rows, ("path", "version", "agent", "value"), key="path", empty="nothing is there")


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
    """Write one path of the document, or delete it. Every change is told by an event that keeps what was there.

    Args:
        session: Whose workspace.
        path: What to write.
        value: JSON when it parses, otherwise text; a file; or standard input.
        delete: Delete the path.
        if_version: Only if the path has this version; 0: only if nothing is there.
    """
    if delete == (value is not None):
        raise InvalidInput("give a value, or --delete")
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
    """Show the newest entries of a log, the oldest first.

    Args:
        session: Whose workspace.
        name: The log.
        last: At most so many [100].
        after: The next ones behind the entry with this number.
    """
    if not 1 <= last <= 10_000 or (after is not None and after < 0):
        raise InvalidInput("--last must lie between 1 and 10000, --after not below 0")

    async with common.client() as orc:
        entries = await orc.workspace(session).log(name, last=last, after=after)
    rows = [
        {"number": one.number, "at": one.at, "agent": one.agent, "value": output.user_json(one.value)}
        for one in entries
    ]
    output.show_list(common.output, rows, ("number", "at", "agent", "value"), key="number", empty="nothing is there")


@commands.command("events", "orc workspace events 101", "orc workspace events 101 --follow -o jsonl")
async def events(
    session: Session,
    /,
    *,
    after: Annotated[str, option("--after", metavar="EVENT_ID")] = BEGINNING,
    follow: Annotated[bool, option("--follow", "-f")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Show what was changed, by whom and from what to what, in order.

    Args:
        session: Whose workspace.
        after: Go on behind this event; -o jsonl and -o id show the ids.
        follow: Go on until Ctrl-C.
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
    """Print all that is shared, at one moment, as one JSON document: paths, logs, sets, states, and who is there.

    Args:
        session: Whose workspace.
    """
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
    by = f" by {event.agent}" if event.agent else ""
    changed = "; ".join(_changed(event, change) for change in event.changes)
    return f"{event.at:%H:%M:%S} {event.revision:>5} {event.kind}{by}: {output.clean(changed)}\n"


def _changed(event: WorkspaceEvent, change: Change) -> str:
    match event.kind:
        case "transition":
            return f"{change.name} {event.detail['previous_state'] or '-'} -> {event.detail['state']}"
        case "join":
            return f"{change.name} {'came' if event.detail['joined'] else 'left'}"
        case "direct":
            return f"{change.name} {event.detail['kind']} {_short(change.value)}"
    if change.deleted:
        return f"{change.name} deleted, was {_short(change.previous)}"
    value = _short(change.value) if change.told or change.value is not None else "(a large value)"
    return f"{change.name} = {value}" + (f", was {_short(change.previous)}" if change.previous is not None else "")


def _short(value: Any) -> str:
    text = bytes(output.user_json(value)).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"
