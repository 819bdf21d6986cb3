"""A browser without a screen: keeps cookies, says where its requests come from, and follows no redirects by itself."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import anyio
import httpx2

from orchestrator.dashboard.app import make_app
from orchestrator.dashboard.dashboard import Dashboard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.client.client import Orchestrator

STREAM_S = 20.0
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


class WebClient:
    """A client of a dashboard that runs in the test's own event loop."""

    def __init__(self, orc: Orchestrator, *, read_only: bool = False, base: str = "") -> None:
        self.dashboard = Dashboard(orc, read_only=read_only, base=base)
        self.base = base
        self.app = make_app(self.dashboard)
        transport = httpx2.ASGITransport(app=self.app)
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://localhost")

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """Send a GET; a header is written with `_` for the hyphen."""
        return await self.http.get(self.base + path, headers=_names(headers))

    async def post(self, path: str, form: dict[str, str] | None = None, **headers: str) -> httpx2.Response:
        """Send a form as a page of the dashboard does."""
        return await self.http.post(self.base + path, data=form or {}, headers=SAME_ORIGIN | _names(headers))

    async def stream(
        self, path: str, write: Callable[[str], Awaitable[None]], done: anyio.Event, **headers: str
    ) -> None:
        """Read a stream of events until `done` is set or the server ends it; then go away."""
        url = httpx2.URL("http://localhost" + self.base + path)
        sent = {"host": "localhost", **_names(headers)}
        if self.http.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        scope = {
            "type": "http", "method": "GET", "path": url.path, "raw_path": url.raw_path, "query_string": url.query,
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()], "scheme": "http",
            "http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("localhost", 80), "root_path": "",
        }  # fmt: skip
        requested = False

        async def receive() -> dict[str, Any]:
            nonlocal requested
            if not requested:
                requested = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert message["status"] == 200
            elif not done.is_set():
                await write(message["body"].decode())

        with anyio.fail_after(STREAM_S):
            await self.app(scope, receive, send)

    async def log_in(self) -> None:
        """Log in as admin by a one-time link."""
        secret = await self.dashboard.accounts.make_link()
        page = await self.get(f"/login?link={secret}")
        assert secret in page.text
        answer = await self.post("/login", {"link": secret})
        assert answer.status_code == 303, answer.text

    async def form(self, path: str, action: str) -> dict[str, str]:
        """Return the hidden fields of the form of a page that goes to `action`."""
        page = (await self.get(path)).text
        found = re.search(
            rf'<form(?: class="[^"]*")? method="post" action="{re.escape(self.base + action)}">(.*?)</form>',
            page,
            re.DOTALL,
        )
        assert found is not None, f"{path} has no form for {action}"
        hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', found.group(1))
        return {name: html.unescape(value) for name, value in hidden}


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
