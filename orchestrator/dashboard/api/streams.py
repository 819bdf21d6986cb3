"""Sends what is no view: arguments, results, the events of a task, and the OpenAPI document."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import NotFound
from orchestrator.core.ids import check_task_id
from orchestrator.core.reading import read_json, read_text
from orchestrator.core.redaction import HIDDEN
from orchestrator.dashboard.api.operation import QueryParameter, asked_by, sending
from orchestrator.dashboard.api.problems import PREFIX
from orchestrator.dashboard.api.replies import JSON_TYPE, encode, reply
from orchestrator.dashboard.event_stream import EventStream
from orchestrator.dashboard.live import event
from orchestrator.dashboard.pages.task_value import masked_bytes, wanted
from orchestrator.dashboard.route import reads
from orchestrator.dashboard.who import StreamLogin
from orchestrator.tasks.output import check_place
from orchestrator.views.task_values import read_details
from orchestrator.views.tasks import read_redaction

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.event_stream import Write
    from orchestrator.dashboard.identity import Identity
    from orchestrator.tasks.model import TaskEvent

DOCUMENT: Final = Path(__file__).with_name("openapi.json")
"""The OpenAPI document, which `tools/openapi.py` writes."""
EVENTS: Final = "text/event-stream"
BEHIND: Final = QueryParameter("after", "Id of an event; the stream goes on behind it. `Last-Event-ID` goes before it.")


@sending("/tasks/{id}/events", EVENTS, BEHIND)
async def events(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Follow the life of a task: states, progress, output, questions. Each event is a JSON object with its id.

    The last event is `ended`. Before the server stops it says `bye`; connect again with `Last-Event-ID`.
    """
    asked = asked_by((BEHIND,), dashboard, identity, request)
    id_ = check_task_id(request.path_params["id"])
    after = request.headers.get("last-event-id") or asked.text("after")
    check_place(after)
    hidden = await read_redaction(dashboard.services, id_)

    async def produce(write: Write) -> None:
        try:
            async with aclosing(dashboard.orc.task(id_).events(after)) as found:
                async for one in found:
                    await write(event(read_text(await encode(_hide(one) if hidden else one)), id_=one.id))
        except NotFound:
            pass  # it was deleted while it was followed
        await write(event("{}", name="ended"))

    stream = EventStream(produce, stopping=dashboard.stopping, login=StreamLogin(dashboard, request, identity))
    return dashboard.streams.admit(identity, stream)


def _hide(one: TaskEvent) -> TaskEvent:
    """Return an event of a redacted skill without what its handler and its people said."""
    if one.progress is not None and one.progress.message:
        return replace(one, progress=replace(one.progress, message=HIDDEN))
    match one.kind:
        case "output":
            return replace(one, data=HIDDEN)
        case "asked":
            return replace(one, data=None, reason=HIDDEN)
        case "answered":
            return replace(one, data=HIDDEN)
    return one


async def _send_value(part: str, dashboard: Dashboard, request: Request) -> Response:
    value = wanted(await read_details(dashboard.services, check_task_id(request.path_params["id"])), part)
    async with dashboard.downloads:
        return reply(await masked_bytes(dashboard.services, value))


@sending("/tasks/{id}/args", JSON_TYPE)
async def args(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Read the arguments of a task as they were submitted; secrets are masked."""
    asked_by((), dashboard, identity, request)
    return await _send_value("args", dashboard, request)


@sending("/tasks/{id}/result", JSON_TYPE)
async def result(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Read the result of a task; secrets are masked."""
    asked_by((), dashboard, identity, request)
    return await _send_value("result", dashboard, request)


@reads(f"{PREFIX}/openapi.json", checks_scope=True)
async def document(dashboard: Dashboard, _identity: Identity, _request: Request) -> Response:
    """Send the OpenAPI document, with the base path of the dashboard in the address of the server."""
    return reply(_document_below(dashboard.base))


@cache
def _document_below(base: str) -> bytes:
    found = read_json(DOCUMENT.read_bytes())
    found["servers"][0]["url"] = base + PREFIX
    return json.dumps(found, ensure_ascii=False).encode()
