"""Checks each request before a page sees it: host, origin, size; and adds the headers that bind the browser.

Unsafe methods need `Sec-Fetch-Site: same-origin`, which no page of another site can forge. A client that does not send
it (an old browser) needs an `Origin` that names the host it asks. A bearer token needs neither, because a browser adds
none by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from orchestrator.dashboard.api.problems import is_of_api, problem

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY: Final = 2 << 20
"""Bytes of a request; larger arguments go through the client or the command line."""
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware.

    Args:
        app: the pages.
        hosts: names that `Host` may have, without ports.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            status, text = refusal
            answer = problem(status, text) if is_of_api(scope["path"]) else PlainTextResponse(text + "\n", status)
            await answer(scope, receive, _with_headers(send))
            return
        await self._app(scope, _bounded(receive), _with_headers(send))

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if host_name(host) not in self._hosts:
            return 421, "this host name is not one of the dashboard; name it in dashboard.hosts"
        if method in SAFE or headers.get("authorization", "").lower().startswith("bearer "):
            return None
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None:
            return None if site == "same-origin" else (403, "the request came from a page of another site")
        if origin is not None and origin.lower() in {f"http://{host.lower()}", f"https://{host.lower()}"}:
            return None
        return 403, "the request names no origin; a browser sends Sec-Fetch-Site or Origin"


def host_name(host: str) -> str:
    """Return the name in a `Host` header, without the port, in lower case."""
    name = host.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return send_with_headers


def _bounded(receive: Receive) -> Receive:
    read = 0

    async def receive_bounded() -> Message:
        nonlocal read
        message = await receive()
        if message["type"] == "http.request":
            read += len(message.get("body", b""))
            if read > MAX_BODY:
                raise BodyTooLarge
        return message

    return receive_bounded


class BodyTooLarge(Exception):
    """The request has more than `MAX_BODY` bytes."""
