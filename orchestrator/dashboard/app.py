"""Makes the ASGI application: routes, pages and their streams, actions, the JSON API, and what refuses a request."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from orchestrator.core.errors import InvalidInput, NotFound, OrchestratorError, ServerUnavailable
from orchestrator.dashboard import actions, assets, bulk, commands, login, pages
from orchestrator.dashboard.api import changing, reading, replay_reading, session_reading, streams
from orchestrator.dashboard.api.kept_answers import KeyReused
from orchestrator.dashboard.api.problems import is_of_api, problem
from orchestrator.dashboard.guard import BodyTooLarge, Guard
from orchestrator.dashboard.live import patches, stream
from orchestrator.dashboard.open_streams import RETRY_AFTER_S, TooManyStreams
from orchestrator.dashboard.page import PAGES, PageRequest
from orchestrator.dashboard.rendering import render_regions
from orchestrator.dashboard.route import ROUTES, DeclaredRoute, RouteRefused, allowed
from orchestrator.dashboard.who import StreamLogin, identify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.page import WebPage

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

assert pages.ALL  # the modules declare their pages and actions at import
assert actions.__name__
assert commands.GIVEN
assert bulk.JOBS
assert reading.__name__
assert session_reading.__name__
assert replay_reading.__name__
assert changing.__name__
assert streams.__name__


def declared_routes() -> list[DeclaredRoute]:
    """Return all routes, in the order in which they are matched."""
    return [
        DeclaredRoute("GET", "/login", login.show, open=True),
        DeclaredRoute("POST", "/login", login.log_in, open=True),
        DeclaredRoute("POST", "/logout", login.log_out, open=True),
        DeclaredRoute("GET", "/static/{digest}/{name:path}", _static, open=True),
        *ROUTES,
        *(DeclaredRoute("GET", "/live" + one.path, partial(_live, one), checks_scope=one.narrowed) for one in PAGES),
        *(DeclaredRoute("GET", one.path, partial(_show, one), checks_scope=one.narrowed) for one in PAGES),
    ]


def make_app(dashboard: Dashboard, *, hosts: Collection[str] = LOOPBACK) -> ASGIApp:
    """Return the ASGI application of an open dashboard.

    Args:
        dashboard: of one pool.
        hosts: names that requests may ask for in `Host`.
    """
    routes = [
        Route(one.path, _endpoint(dashboard, one), methods=[one.method], include_in_schema=False)
        for one in declared_routes()
    ]
    handlers: Any = {
        InvalidInput: partial(_problem, dashboard, 400),
        NotFound: partial(_problem, dashboard, 404),
        ServerUnavailable: partial(_problem, dashboard, 503),
        OrchestratorError: partial(_problem, dashboard, 409),
        BodyTooLarge: partial(_problem, dashboard, 413),
        KeyReused: partial(_problem, dashboard, 422),
        RouteRefused: partial(_refuse, dashboard),
        TooManyStreams: _refuse_stream,
        HTTPException: _no_route,
        Exception: _failed,
    }
    return Guard(_below(dashboard.base, Starlette(routes=routes, exception_handlers=handlers)), hosts=hosts)


def _below(base: str, app: ASGIApp) -> ASGIApp:
    """Serve an application below a path, also where a server or an outer application has mounted it there."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if base and scope["type"] == "http" and not scope.get("root_path", "").endswith(base):
            if not (scope["path"] + "/").startswith(base + "/"):
                await PlainTextResponse(f"the dashboard is at {base}/\n", 404)(scope, receive, send)
                return
            scope = {**scope, "root_path": scope.get("root_path", "") + base}
        await app(scope, receive, send)

    return serve


def _endpoint(dashboard: Dashboard, route: DeclaredRoute) -> Callable[[Request], Awaitable[Response]]:
    """Return the function that checks a request and answers it."""
    if route.open:
        return partial(route.act, dashboard)

    async def answer(request: Request) -> Response:
        return await route.act(dashboard, await allowed(dashboard, request, route), request)

    return answer


async def _static(dashboard: Dashboard, request: Request) -> Response:
    return await assets.serve(dashboard.assets, request)


async def _show(page: WebPage, dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    found = await dashboard.read(page, _asked(dashboard, identity, request))
    template = dashboard.templates.get_template(page.template)
    common = dashboard.context(identity, _path(request), request.url.query)
    return HTMLResponse(template.render({**common, **found}))


async def _live(page: WebPage, dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    asked = _asked(dashboard, identity, request)
    template = dashboard.templates.get_template(page.template)
    path = _path(request).removeprefix("/live") or "/"
    common = dashboard.context(identity, path, request.url.query)

    hurries = False

    async def render() -> dict[str, str]:
        nonlocal hurries
        try:
            found = await dashboard.read(page, asked)
        except OrchestratorError as failure:
            return {"problem": dashboard.templates.get_template("problem.html").render(text=str(failure))}
        hurries = bool(found.get("hurries"))
        return {"problem": "", **render_regions(template, {**common, **found})}

    seen = request.headers.get("last-event-id", "")
    login = StreamLogin(dashboard, request, identity)
    events = patches(
        dashboard.feed, render, stopping=dashboard.stopping, seen=seen, hurries=lambda: hurries, login=login
    )
    return dashboard.streams.admit(identity, stream(events))


def _asked(dashboard: Dashboard, identity: Identity, request: Request) -> PageRequest:
    path, query = dict(request.path_params), dict(request.query_params)
    return PageRequest(dashboard.services, identity, path, query, dashboard.displays)


def _path(request: Request) -> str:
    return str(request.scope["path"]).removeprefix(request.scope.get("root_path", "")) or "/"


async def _no_route(request: Request, refused: HTTPException) -> Response:
    """Answer a path that is no route, or a method that its route does not have."""
    text = f"{refused.detail}: {request.method} {_path(request)}"
    if is_of_api(_path(request)):
        return problem(refused.status_code, text, headers=refused.headers)
    return PlainTextResponse(text + "\n", refused.status_code, refused.headers)


async def _failed(request: Request, _: Exception) -> Response:
    """Answer a request that met an error of the dashboard itself, which the server logs."""
    text = "the dashboard failed; its log has the error"
    return problem(500, text) if is_of_api(_path(request)) else PlainTextResponse(text + "\n", 500)


async def _refuse(dashboard: Dashboard, request: Request, refused: RouteRefused) -> Response:
    """Lead a page without a login there; say all others why."""
    path = _path(request)
    if refused.status == 401 and not is_of_api(path):
        if request.method == "GET" and not path.startswith("/live"):
            return RedirectResponse(dashboard.url("/login"), 303)
        return PlainTextResponse(f"{refused}\n", 401)
    return await _problem(dashboard, refused.status, request, refused)


async def _refuse_stream(request: Request, refused: Exception) -> Response:
    """Say when a stream may be opened that is one too many now."""
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    if is_of_api(_path(request)):
        return problem(429, str(refused), error=type(refused).__name__, headers=headers)
    return PlainTextResponse(f"{refused}\n", 429, headers)


async def _problem(dashboard: Dashboard, status: int, request: Request, failure: Exception) -> Response:
    text = str(failure) or "the request is too large"
    if is_of_api(_path(request)):
        return problem(status, text, error=type(failure).__name__)
    identity = await identify(request, dashboard) if status != 503 else None
    if identity is None:
        return PlainTextResponse(text + "\n", status)
    common = dashboard.context(identity, _path(request), "")
    return HTMLResponse(
        dashboard.templates.get_template("refused.html").render({**common, "live": "", "text": text}), status
    )
