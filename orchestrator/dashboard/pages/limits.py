"""Rate limits, and the locks of one scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response

from orchestrator.client.lock_actions import release_lock
from orchestrator.core.errors import InvalidInput
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.dashboard.route import action
from orchestrator.views.limit_pages import LOCKS, find_held_lock, page_limits, read_locks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.page import PageRequest


@page("/limits", "limits.html")
async def limits(asked: PageRequest) -> Mapping[str, Any]:
    """Read the rate limits by name, and the locks of the scope that the query names."""
    starts, scope = asked.text("starts") or "", asked.text("scope") or "pool"
    return {
        "found": await page_limits(asked.services, after=asked.text("after"), starts=starts),
        "starts": starts,
        "scope": scope,
        "locks": await read_locks(asked.services, scope),
        "most_locks": LOCKS,
        "said": asked.text("said"),
        "without": asked.without,
        "lines": (command_line("limits", "list"), command_line("locks", "list", scope)),
    }


@action("/limits/locks/release", "C")
async def release(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Take a lock from the holder that the page showed; answer with the page."""
    form = await read_form(request)
    scope, name, reason = form.get("scope", ""), form.get("name", ""), form.get("reason", "")
    if not name or not reason or form.get("typed") != name:
        raise InvalidInput("give a reason, and type the name of the lock to release it; nothing was changed")
    lock = await find_held_lock(dashboard.services, scope, form.get("at", ""), form.get("nonce", ""))
    locks = dashboard.orc.locks(scope)
    taken = await release_lock(dashboard.services, locks, lock, reason=reason, actor=identity.actor)
    dashboard.forget_reads()
    said = "released" if taken.released else "the holder has changed, nothing was released"
    return RedirectResponse(dashboard.url(f"/limits?{_query(scope, f'{name}: {said}')}"), 303)


def _query(scope: str, said: str) -> str:
    from urllib.parse import urlencode

    return urlencode({"scope": scope, "said": said})
