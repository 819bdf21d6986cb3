"""Makes the ASGI application: routes, identities, pages and their streams, commands."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from orchestrator.core.errors import InvalidInput, NotFound, OrchestratorError, ServerUnavailable
from orchestrator.dashboard import actions, assets, commands, login, pages
from orchestrator.dashboard.guard import BodyTooLarge, Guard
from orchestrator.dashboard.live import patches, stream
from orchestrator.dashboard.page import PAGES, PageRequest
from orchestrator.dashboard.who import identify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.page import WebPage

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

assert pages.ALL  # the modules declare their pages at import


def make_app(dashboard: Dashboard, *, hosts: Collection[str] = LOOPBACK) -> ASGIApp:
    """Return the ASGI application of an open dashboard.

    Args:
        dashboard: of one pool.
        hosts: names that requests may ask for in `Host`.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(dashboard.feed.run)
            try:
                yield
            finally:
                dashboard.stopping.set()
                group.cancel_scope.cancel()

    routes = [
        Route("/login", partial(login.show, dashboard), methods=["GET"]),
        Route("/login", partial(login.log_in, dashboard), methods=["POST"]),
        Route("/logout", partial(login.log_out, dashboard), methods=["POST"]),
        Route("/static/{digest}/{name:path}", partial(assets.serve, dashboard.assets), methods=["GET"]),
        Route("/commands/{kind}", partial(commands.give, dashboard), methods=["POST"]),
        Route("/submit", partial(actions.submit, dashboard), methods=["POST"]),
        Route("/tasks/{id}/answer", partial(actions.answer, dashboard), methods=["POST"]),
        Route("/tasks/{id}/output", partial(actions.output, dashboard), methods=["GET"]),
        Route("/tasks/{id}/{part}/download", partial(actions.download, dashboard), methods=["GET"]),
        Route("/tasks/{id}/{action}", partial(actions.act, dashboard), methods=["POST"]),
        *(Route("/live" + page.path, partial(_live, dashboard, page), methods=["GET"]) for page in PAGES),
        *(Route(page.path, partial(_show, dashboard, page), methods=["GET"]) for page in PAGES),
    ]
    handlers: Any = {
        InvalidInput: partial(_problem, dashboard, 400),
        NotFound: partial(_problem, dashboard, 404),
        ServerUnavailable: partial(_problem, dashboard, 503),
        OrchestratorError: partial(_problem, dashboard, 409),
        BodyTooLarge: partial(_problem, dashboard, 413),
    }
    inner: list[Any] = [Mount(dashboard.base, routes=routes)] if dashboard.base else routes
    return Guard(Starlette(routes=inner, lifespan=lifespan, exception_handlers=handlers), hosts=hosts)


async def _show(dashboard: Dashboard, page: WebPage, request: Request) -> Response:
    identity = await identify(request, dashboard.accounts, cookie=dashboard.cookie)
    if identity is None:
        return RedirectResponse(dashboard.url("/login"), 303)
    found = await dashboard.read(page, _asked(dashboard, identity, request))
    template = dashboard.templates.get_template(page.template)
    common = dashboard.context(identity, _path(dashboard, request), request.url.query)
    return HTMLResponse(template.render({**common, **found}))


async def _live(dashboard: Dashboard, page: WebPage, request: Request) -> Response:
    identity = await identify(request, dashboard.accounts, cookie=dashboard.cookie)
    if identity is None:
        return PlainTextResponse("log in first\n", 401)
    asked = _asked(dashboard, identity, request)
    template = dashboard.templates.get_template(page.template)
    path = _path(dashboard, request).removeprefix("/live") or "/"
    common = dashboard.context(identity, path, request.url.query)

    async def render() -> dict[str, str]:
        try:
            found = await dashboard.read(page, asked)
        except OrchestratorError as failure:
            return {"problem": dashboard.templates.get_template("problem.html").render(text=str(failure))}
        context = template.new_context({**common, **found})
        regions = {
            name.removeprefix("region_"): "".join(block(context))
            for name, block in template.blocks.items()
            if name.startswith("region_")
        }
        return {"problem": "", **regions}

    return stream(patches(dashboard.feed, render, stopping=dashboard.stopping))


def _asked(dashboard: Dashboard, identity: Identity, request: Request) -> PageRequest:
    return PageRequest(dashboard.services, identity, dict(request.path_params), dict(request.query_params))


def _path(dashboard: Dashboard, request: Request) -> str:
    return request.url.path.removeprefix(dashboard.base)


async def _problem(dashboard: Dashboard, status: int, request: Request, failure: Exception) -> Response:
    text = str(failure) or "the request is too large"
    identity = await identify(request, dashboard.accounts, cookie=dashboard.cookie) if status != 503 else None
    if identity is None:
        return PlainTextResponse(text + "\n", status)
    common = dashboard.context(identity, _path(dashboard, request), "")
    return HTMLResponse(
        dashboard.templates.get_template("refused.html").render({**common, "live": "", "text": text}), status
    )
