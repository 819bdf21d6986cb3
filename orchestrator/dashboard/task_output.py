"""Follows the output of one task for a page, by the ids of the task's stream, so that no event is lost or repeated.

A browser that lost its connection, or whose server was killed, asks any copy of the dashboard to go on behind the last
id that it has seen.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - as of other dataclasses
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import create_memory_object_stream

from orchestrator.core.errors import NotFound
from orchestrator.core.ids import check_task_id
from orchestrator.core.redaction import HIDDEN
from orchestrator.dashboard.event_stream import EventStream
from orchestrator.dashboard.live import event
from orchestrator.dashboard.who import StreamLogin
from orchestrator.tasks.output import check_place
from orchestrator.views.hidden_keys import mask_keys
from orchestrator.views.tasks import read_redaction

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from starlette.requests import Request
    from starlette.responses import Response

    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.event_stream import Write
    from orchestrator.dashboard.identity import Identity
    from orchestrator.tasks.model import TaskEvent

LINE_CHARS: Final = 8 * 1024
"""Characters of one chunk that a page shows."""
AT_ONCE: Final = 128
"""Events that one patch has at most, and that wait for a slow browser."""
LEAST_GAP_S: Final = 0.25
MOST_LINES: Final = 2000
"""Lines that an open page keeps; then it begins anew."""


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One event of a task, as a page shows it.

    Attributes:
        kind: of the event.
        cut: characters that are not shown.
    """

    id: str
    at: datetime
    kind: str
    attempt: int
    text: str
    cut: int = 0


def line_of(one: TaskEvent, *, hidden: bool) -> OutputLine:
    """Return the line of an event; `hidden` leaves out what its handler emitted."""
    text = one.reason
    if one.kind == "assigned":
        text = one.agent or ""
    elif one.progress is not None:
        done, total = one.progress.done, one.progress.total
        message = HIDDEN if hidden and one.progress.message else one.progress.message
        text = f"{done:g}{f' of {total:g}' if total is not None else ''}{f': {message}' if message else ''}"
    elif one.kind == "output":
        text = HIDDEN if hidden else text_of(one.data)
    elif hidden and one.kind in {"asked", "answered"}:
        text = HIDDEN
    elif one.kind == "answered":
        text = f"{text_of(one.data)} by {one.reason}"
    return OutputLine(one.id, one.at, one.kind, one.attempt, text[:LINE_CHARS], max(0, len(text) - LINE_CHARS))


def text_of(value: Any) -> str:
    """Return a text as it is, and other JSON values as JSON with masked secrets."""
    return value if isinstance(value, str) else mask_keys(json.dumps(value, ensure_ascii=False))


async def follow(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Answer with the events of a task behind a place: `Last-Event-ID`, else `after`."""
    id_ = check_task_id(request.path_params["id"])
    after = request.headers.get("last-event-id") or request.query_params.get("after") or None
    check_place(after)
    hidden = await read_redaction(dashboard.services, id_)
    template = dashboard.templates.get_template("output_lines.html")

    async def produce(write: Write) -> None:
        sending, receiving = create_memory_object_stream[OutputLine](AT_ONCE)
        async with anyio.create_task_group() as group:
            group.start_soon(_read, dashboard, id_, after, sending, hidden)
            async with receiving:
                shown = 0
                async for first in receiving:
                    lines = [first, *_waiting(receiving)]
                    shown += len(lines)
                    anew = shown > MOST_LINES
                    shown = len(lines) if anew else shown
                    swap = "innerHTML" if anew else "beforeend"
                    html = template.render(lines=lines, anew=anew)
                    patch = f'<hx-partial hx-target="#output" hx-swap="{swap}">{html}</hx-partial>'
                    await write(event(patch, id_=lines[-1].id))
                    await anyio.sleep(LEAST_GAP_S)
        await write(event("the task has ended", name="ended"))

    stream = EventStream(produce, stopping=dashboard.stopping, login=StreamLogin(dashboard, request, identity))
    return dashboard.streams.admit(identity, stream)


def _waiting(receiving: MemoryObjectReceiveStream[OutputLine]) -> list[OutputLine]:
    found: list[OutputLine] = []
    while len(found) < AT_ONCE:
        try:
            found.append(receiving.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            break
    return found


async def _read(
    dashboard: Dashboard,
    id_: str,
    after: str | None,
    sending: MemoryObjectSendStream[OutputLine],
    hidden: bool,  # noqa: FBT001 - `start_soon` passes no keywords
) -> None:
    async with sending:
        try:
            async with aclosing(dashboard.orc.task(id_).events(after)) as events:
                async for one in events:
                    await sending.send(line_of(one, hidden=hidden))
        except NotFound:
            return  # it was deleted while it was followed
