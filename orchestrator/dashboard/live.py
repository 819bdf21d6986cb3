"""Keeps an open page current: a stream of server-sent events with the regions that changed.

Each event has only the regions whose HTML differs from the last that was sent, as `<hx-partial>` elements that htmx
morphs into the page: focus, typed text and open parts stay. Its id has the digest of each region that the page has, so
that a page which connects again, also to another copy of the dashboard, gets only what it lacks. At most one event a
second. Before the server stops, a stream says `bye`, and the page connects again.
"""

from __future__ import annotations

import re
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import anyio
from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from orchestrator.dashboard.feed import Feed
    from orchestrator.dashboard.who import StreamLogin

LEAST_GAP_S: Final = 1.0
AT_REST_S: Final = 15.0
"""How often a page is read again while nothing seems to change: heartbeats and times of waits change without notice.
All pages do so at the same moment, so that those that show the same share one read."""
_PASSING: Final = re.compile(r'(?<=>)[^<]*(?=</time>)|(?<=name="id" value=")[^"]*')
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def patches(
    feed: Feed,
    render: Callable[[], Awaitable[Mapping[str, str]]],
    *,
    stopping: anyio.Event,
    seen: str = "",
    hurries: Callable[[], bool] = lambda: False,
    login: StreamLogin | None = None,
) -> AsyncGenerator[str]:
    """Yield events until the server stops or the browser goes.

    Args:
        feed: tells of changes.
        render: returns the HTML of each region.
        stopping: set before the server stops.
        seen: the id of the last event that the browser has.
        hurries: whether the page waits for something that the feed does not tell, as the receipts of a command.
        login: the stream ends with it.
    """
    sent = dict(pair.split("=", 1) for pair in seen.split(",") if "=" in pair)
    changes = feed.changes
    yield "retry: 1000\n\n"
    with feed.reader():
        while True:
            regions = await render()
            changed = {name: html for name, html in regions.items() if sent.get(name) != _digest(html)}
            if changed:
                sent = {name: _digest(html) for name, html in regions.items()}
                id_ = ",".join(f"{name}={digest}" for name, digest in sent.items())
                yield event("".join(map(partial, changed, changed.values())), id_=id_)
            else:
                yield ": nothing changed\n\n"
            async with anyio.create_task_group() as group:
                group.start_soon(_until_stopped, stopping, group.cancel_scope)
                await anyio.sleep(LEAST_GAP_S)
                rest_s = AT_REST_S - time.monotonic() % AT_REST_S
                changes = await feed.wait(changes, most_s=0.0 if hurries() else rest_s)
                group.cancel_scope.cancel()
            if stopping.is_set():
                yield event("the server stops", name="bye")
                return
            if login is not None and not await login.holds():
                yield event("log in again", name="bye")
                return


async def _until_stopped(stopping: anyio.Event, scope: anyio.CancelScope) -> None:
    await stopping.wait()
    scope.cancel()


def partial(region: str, html: str) -> str:
    """Return the element that replaces what is inside a region."""
    return f'<hx-partial hx-target="#{region}" hx-swap="innerMorph">{html}</hx-partial>'


def event(data: str, *, id_: str | None = None, name: str | None = None) -> str:
    """Return one event; no line of the data ends it early."""
    lines = [f"event: {name}"] if name else []
    lines += [f"id: {id_}"] if id_ else []
    lines += [f"data: {line}" for line in data.replace("\r", "").split("\n")]
    return "\n".join(lines) + "\n\n"


def stream(events: AsyncGenerator[str]) -> StreamingResponse:
    """Return the response of a stream."""
    return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)


def _digest(html: str) -> str:
    # Ages of times and ids of forms are new in each rendering; a page needs no patch for them.
    return blake2b(_PASSING.sub("", html).encode(errors="replace"), digest_size=9).hexdigest()
