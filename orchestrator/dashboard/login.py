"""Logs people in: by name and password, or by the one-time link that `orc up` and `orc web` print.

A GET changes nothing: the page of a link has a button that uses it, so that no preview of the link does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, RedirectResponse, Response

from orchestrator.accounts.model import Role
from orchestrator.dashboard.cookies import Session, seal
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.who import LINK_USER
from orchestrator.limits.limits import Limits

if TYPE_CHECKING:
    from starlette.requests import Request

    from orchestrator.dashboard.dashboard import Dashboard

SESSION_S: Final = 12 * 3600
TRIES: Final = 10
"""Logins that one address, and one name, may try in `TRIES_S`."""
TRIES_S: Final = 300.0


async def show(dashboard: Dashboard, request: Request) -> Response:
    """Answer with the form of a login."""
    return _page(dashboard, link=request.query_params.get("link", ""))


async def log_in(dashboard: Dashboard, request: Request) -> Response:
    """Check what the form says, and begin a session."""
    form = await read_form(request)
    wait_s = await _wait_s(dashboard, request, form.get("name", ""))
    if wait_s:
        page = _page(dashboard, problem=f"too many logins were tried; try again in {wait_s:.0f} s", status=429)
        page.headers["Retry-After"] = f"{wait_s:.0f}"
        return page
    ends_s = round(time.time()) + SESSION_S
    if link := form.get("link"):
        if not await dashboard.accounts.use_link(link):
            problem = "this link was used before or is older than 10 minutes; `orc web login` prints a new one"
            return _page(dashboard, problem=problem, status=403)
        session, narrowed = Session(LINK_USER, Role.ADMIN, ends_s), False
    else:
        user = await dashboard.accounts.log_in(form.get("name", ""), form.get("password", ""))
        if user is None:
            return _page(dashboard, problem="name or password is wrong", status=403)
        session, narrowed = Session(user.name, user.role, ends_s, user.number), user.scope.narrowed
    answer = RedirectResponse(dashboard.url("/tasks" if narrowed else "/"), 303)
    answer.set_cookie(
        dashboard.cookie,
        seal(session, await dashboard.accounts.cookie_key()),
        max_age=SESSION_S,
        path=dashboard.base or "/",
        secure=dashboard.secure,
        httponly=True,
        samesite="strict",
    )
    return answer


async def log_out(dashboard: Dashboard, _: Request) -> Response:
    """End the session of this browser."""
    answer = RedirectResponse(dashboard.url("/login"), 303)
    answer.delete_cookie(
        dashboard.cookie, path=dashboard.base or "/", secure=dashboard.secure, httponly=True, samesite="strict"
    )
    return answer


async def _wait_s(dashboard: Dashboard, request: Request, name: str) -> float:
    """Count this try by address and by name; return how long to wait if there were too many, else 0."""
    services = dashboard.services
    limits = Limits(services.store, prefix=services.settings.prefix, retry_for_s=0.0)
    address = request.client.host if request.client else "local"
    waits = [0.0]
    for subject in (f"web-login-address-{address}", *([f"web-login-name-{name}"] if name else [])):
        decision = await limits.check(subject, TRIES, TRIES_S)
        waits.append(decision.retry_after)
    return max(waits)


def _page(dashboard: Dashboard, *, link: str = "", problem: str = "", status: int = 200) -> Response:
    common = {
        "url": dashboard.url,
        "asset": lambda name: f"{dashboard.base}/static/{dashboard.assets[name].digest}/{name}",
        "integrity": lambda name: dashboard.assets[name].integrity,
    }
    template = dashboard.templates.get_template("login.html")
    return HTMLResponse(template.render(**common, link=link, problem=problem), status)
