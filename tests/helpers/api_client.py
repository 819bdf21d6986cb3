"""A program that uses the HTTP API with a token, in the test's own event loop."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import uvicorn

from orchestrator.accounts.model import EVERYTHING, AccountScope, Role
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from orchestrator.client.client import Orchestrator


class ApiClient:
    """Sends requests with a bearer token."""

    def __init__(self, web: WebClient, token: str) -> None:
        self.web = web
        self.headers = {"Authorization": f"Bearer {token}"}

    async def get(self, path: str, /, **query: str | int) -> httpx2.Response:
        """Send a GET below `/api/v1`."""
        return await self.web.http.get("/api/v1" + path, params=query or None, headers=self.headers)

    async def read(self, path: str, /, **query: str | int) -> Any:
        """Return the JSON of a GET that succeeds; what was read before this call does not count."""
        self.web.dashboard.forget_reads()
        answer = await self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: object = None, *, key: str | None = None) -> httpx2.Response:
        """Send a POST with a key, by default a new one; `body` may be bytes that are no JSON."""
        content = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        headers = {**self.headers, "Idempotency-Key": key or str(uuid4()), "Content-Type": "application/json"}
        return await self.web.http.post("/api/v1" + path, content=content, headers=headers)

    async def events(self, task: str, *, after: str = "", until: str = "event: ended") -> list[dict[str, Any]]:
        """Follow a task until a text has come, and return its events with their ids."""
        done, text = anyio.Event(), ""

        async def write(part: str) -> None:
            nonlocal text
            text += part
            if until in text:
                done.set()

        headers = {"authorization": self.headers["Authorization"]} | ({"last-event-id": after} if after else {})
        await self.web.stream(f"/api/v1/tasks/{task}/events", write, done, **headers)
        found = []
        for block in text.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "id" in fields:
                found.append(json.loads(fields["data"]))
                assert found[-1]["id"] == fields["id"]
        return found


@asynccontextmanager
async def served(web: WebClient) -> AsyncIterator[int]:
    """Serve the dashboard of a client over HTTP, and yield the port."""
    config = uvicorn.Config(
        web.app, port=0, log_config=None, lifespan="off", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as group:
        group.start_soon(server._serve)
        await wait_for(lambda: server.started, "the server")
        try:
            yield server.servers[0].sockets[0].getsockname()[1]
        finally:
            server.should_exit = True


async def api_client(
    orc: Orchestrator,
    role: Role = Role.ADMIN,
    *,
    scope: AccountScope = EVERYTHING,
    read_only: bool = False,
    base: str = "",
) -> ApiClient:
    """Return a program with a new token."""
    web = WebClient(orc, read_only=read_only, base=base)
    return ApiClient(web, await web.dashboard.accounts.make_token(f"program-{uuid4().hex}", role, days=1, scope=scope))
