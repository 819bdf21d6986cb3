"""Rate limits with the states of providers, one limit, and the locks of one scope."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse, Response

from orchestrator.client.lock_actions import release_lock
from orchestrator.core.errors import InvalidInput
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.dashboard.route import action
from orchestrator.views.limit_detail import read_limit_page
from orchestrator.views.limit_pages import LOCKS, find_held_lock, page_limits, read_locks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.page import PageRequest
    from orchestrator.views.limit_pages import LimitRow


PROVIDER_STATES: Final = {
    "open": ("○", "good", "open"),
    "throttled": ("◷", "ask", "throttled"),
    "quota": ("⊘", "bad", "out of quota"),
    "broken": ("✕", "bad", "broken"),
    "trial": ("▶", "run", "being tried"),
    "unknown": ("?", "off", "unknown"),
}
"""Icon, class and words of each state of a provider."""
SOON: Final = timedelta(seconds=20)


@page("/limits", "limits.html")
async def limits(asked: PageRequest) -> Mapping[str, Any]:
    """Read the rate limits by name, and the locks of the scope that the query names."""
    starts, scope = asked.text("starts") or "", asked.text("scope") or "pool"
    found = await page_limits(asked.services, after=asked.text("after"), starts=starts)
    return {
        "found": found,
        "hurries": any(map(_changes_soon, found.limits)),
        "states": PROVIDER_STATES,
        "starts": starts,
        "scope": scope,
        "locks": await read_locks(asked.services, scope),
        "most_locks": LOCKS,
        "said": asked.text("said"),
        "without": asked.without,
        "lines": (command_line("limits", "list"), command_line("locks", "list", scope)),
    }


@page("/limits/{limit}", "limit.html")
async def limit(asked: PageRequest) -> Mapping[str, Any]:
    """Read one limit: of a provider its state and the calls that run, its agents, and their queues."""
    name = asked.path["limit"]
    found = await read_limit_page(asked.services, name)
    return {
        "found": found,
        "hurries": _changes_soon(found.limit),
        "states": PROVIDER_STATES,
        "lines": (command_line("limits", "list"), command_line("limits", "clear", name)),
    }


def _changes_soon(row: LimitRow) -> bool:
    """Return whether the page looks each second: the state of a provider ends soon, or a call tries it."""
    if row.provider is None or row.provider.state == "open":
        return False
    until = row.provider.until
    return row.provider.state == "trial" or (until is not None and until - datetime.now(UTC) < SOON)


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
