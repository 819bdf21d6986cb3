"""Answers with server-sent events that a coroutine writes, and ends with the browser or with the server.

A coroutine may read from several sources at a time, which a generator behind a `StreamingResponse` may not: no task
group may stay open while a generator waits to be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
from starlette.responses import Response

from orchestrator.dashboard.live import HEADERS, event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from orchestrator.dashboard.who import StreamLogin

BEAT_S: Final = 15.0
"""How often a comment goes out, so that proxies keep the connection, and one that is dead is noticed."""
LOOK_S: Final = 1.0
Write: TypeAlias = "Callable[[str], Awaitable[None]]"


class EventStream(Response):
    """A stream of events.

    Args:
        produce: writes the events and returns at the end of the stream.
        stopping: set when the server stops; the browser then connects again.
        login: the stream ends with it.
    """

    media_type = "text/event-stream"

    def __init__(
        self, produce: Callable[[Write], Awaitable[None]], *, stopping: anyio.Event, login: StreamLogin
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._produce, self._stopping, self._login = produce, stopping, login

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def write(text: str) -> None:
            await send({"type": "http.response.body", "body": text.encode(errors="replace"), "more_body": True})

        async with anyio.create_task_group() as group:
            group.start_soon(_until_gone, receive, group.cancel_scope)
            group.start_soon(_until_stopped, self._stopping, write, group.cancel_scope)
            group.start_soon(_beat, write)
            group.start_soon(_until_refused, self._login, write, group.cancel_scope)
            await write("retry: 1000\n\n")
            await self._produce(write)
            group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _until_stopped(stopping: anyio.Event, write: Write, scope: anyio.CancelScope) -> None:
    await stopping.wait()
    await write(event("the server stops", name="bye"))
    scope.cancel()


async def _until_refused(login: StreamLogin, write: Write, scope: anyio.CancelScope) -> None:
    while True:
        await anyio.sleep(LOOK_S)
        if not await login.holds():
            break
    await write(event("log in again", name="bye"))
    scope.cancel()


async def _beat(write: Write) -> None:
    while True:
        await anyio.sleep(BEAT_S)
        await write(": beat\n\n")
