"""The workspace of a session: its document with versions and authors, logs, sets, states, directives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_whole
from orchestrator.dashboard.page import PageRequest, page
from orchestrator.dashboard.route import reads
from orchestrator.dashboard.texts import Texts, as_command, json_text, without_secrets
from orchestrator.dashboard.workspace_rows import session_of, version_lines
from orchestrator.views import workspaces
from orchestrator.workspace.difference import lines_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity

VALUE_CHARS: Final = 200
WHOLE_CHARS: Final = 16_000


@page("/sessions/workspace", "session_workspace.html", narrowed=True)
async def workspace(asked: PageRequest) -> Mapping[str, Any]:
    """Read what the workspace holds, and a page of one part: the document unless the query names another."""
    id_ = session_of(asked)
    outline = await workspaces.read_outline(asked.services, id_)
    part, read = next(((name, read) for name, read in _PARTS.items() if asked.query.get(name)), ("document", _document))
    return {
        "id": id_,
        "outline": outline,
        "part": part,
        "part_name": asked.query.get(part, ""),
        "texts_of_part": Texts.of_part,
        "value": lambda value, name="": json_text(value, most=VALUE_CHARS, name=name),
        "chars": VALUE_CHARS,
        "without": asked.without,
        **await read(asked, id_, outline),
    }


@page("/sessions/path", "session_path.html", narrowed=True)
async def path(asked: PageRequest) -> Mapping[str, Any]:
    """Read one path of the document, and its versions among 1,000 events."""
    id_, texts = session_of(asked), Texts()
    name = asked.query.get("path", "")
    if not name:
        raise InvalidInput("the address names no path; it ends as ?id=SESSION&path=PATH")
    held, size = await workspaces.read_path(asked.services, id_, name)
    versions, cursor, looked = await workspaces.read_versions(
        asked.services, id_, name, before=check_event(asked.text("after"))
    )
    shown = without_secrets(held.value, name)
    lines = lines_of(shown)
    whole = json_text(shown, most=WHOLE_CHARS) if lines is None else "\n".join(lines)
    return {
        "id": id_,
        "name": name,
        "held": held,
        "size": size,
        "text": texts.cut(whole, WHOLE_CHARS),
        "versions": [(one, *version_lines(texts, one.change)) for one in versions],
        "cursor": cursor,
        "looked": looked,
        "texts_of_part": Texts.of_part,
        "commands": [as_command("orc", "workspace", "get", id_, name)],
    }


@reads("/sessions/path/download", checks_scope=True)
async def download(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Answer with the whole value of a path as a file, with masked secrets."""
    asked = PageRequest(dashboard.services, identity, {}, dict(request.query_params))
    id_, name = session_of(asked), asked.query.get("path", "")
    held, _ = await workspaces.read_path(asked.services, id_, name)
    data = json.dumps(without_secrets(held.value, name), ensure_ascii=False).encode(errors="replace")
    headers = {
        "Content-Disposition": 'attachment; filename="path.json"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Response(data, media_type="application/json", headers=headers)


def check_event(text: str | None) -> str | None:
    """Return a cursor among events.

    Raises:
        InvalidInput: it is no id of an event.
    """
    ms, _, number = (text or "0-0").partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in (ms, number)):
        raise InvalidInput(f"{ascii(text)[:80]} is not the id of an event")
    return text


async def _document(asked: PageRequest, id_: str, outline: workspaces.WorkspaceOutline) -> Mapping[str, Any]:
    contains = asked.text("contains")
    found = await workspaces.read_document(
        asked.services, id_, outline, after=asked.query.get("after") or None, contains=contains
    )
    return {"found": found, "contains": contains, "commands": [as_command("orc", "workspace", "get", id_)]}


async def _states(asked: PageRequest, id_: str, outline: workspaces.WorkspaceOutline) -> Mapping[str, Any]:
    contains = asked.text("contains")
    found = await workspaces.read_state_machines(
        asked.services, id_, outline, after=asked.query.get("after") or None, contains=contains
    )
    return {"found": found, "contains": contains, "commands": [as_command("orc", "workspace", "export", id_)]}


async def _log(asked: PageRequest, id_: str, outline: workspaces.WorkspaceOutline) -> Mapping[str, Any]:
    del outline
    name, before = asked.query["log"], asked.text("after")
    if before is not None and not (before.isascii() and before.isdigit() and len(before) < 16):
        raise InvalidInput(f"{ascii(before)[:80]} is not the number of an entry")
    entries, cursor = await workspaces.read_log_page(
        asked.services, id_, name, before=None if before is None else read_whole(before)
    )
    return {"entries": entries, "cursor": cursor, "commands": [as_command("orc", "workspace", "log", id_, name)]}


async def _set(asked: PageRequest, id_: str, outline: workspaces.WorkspaceOutline) -> Mapping[str, Any]:
    del outline
    members, total = await workspaces.read_set_page(asked.services, id_, asked.query["set"])
    return {"members": members, "total": total, "commands": [as_command("orc", "workspace", "export", id_)]}


async def _inbox(asked: PageRequest, id_: str, outline: workspaces.WorkspaceOutline) -> Mapping[str, Any]:
    del outline
    found = await workspaces.read_inbox(asked.services, id_, asked.query["inbox"])
    return {"directives": found, "commands": [as_command("orc", "workspace", "events", id_)]}


_PARTS: Final = {"log": _log, "set": _set, "states": _states, "inbox": _inbox}
