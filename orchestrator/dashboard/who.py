"""Finds out who sends a request: a bearer token, a session cookie, or the header of a trusted proxy."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StoreError
from orchestrator.dashboard.cookies import unseal
from orchestrator.dashboard.identity import Identity

if TYPE_CHECKING:
    from starlette.requests import Request

    from orchestrator.dashboard.dashboard import Dashboard

LINK_USER: Final = "local"
"""Name of who logged in by a one-time link."""
CHECK_S: Final = 15.0
"""How often an open stream looks whether its login still holds."""


async def identify(request: Request, dashboard: Dashboard) -> Identity | None:
    """Return who sends the request. A request with a token is judged by the token alone."""
    accounts = dashboard.accounts
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found = await accounts.token(token.strip())
        return None if found is None else Identity(found.name, found.role, found.scope, by_token=True)
    if dashboard.proxy_header and request.client and request.client.host in dashboard.proxies:
        name = request.headers.get(dashboard.proxy_header)
        if name is not None:
            user = await accounts.user(name)
            return None if user is None else Identity(user.name, user.role, user.scope)
    value = request.cookies.get(dashboard.cookie)
    if value is None:
        return None
    session = unseal(value, await accounts.cookie_key())
    if session is None:
        return None
    if session.login:
        user = await accounts.user(session.name)
        if user is None or user.number != session.login:
            return None
        return Identity(user.name, min(user.role, session.role), user.scope)
    return Identity(session.name, session.role)


@dataclass(slots=True)
class StreamLogin:
    """The login with which a stream was opened; the stream ends with it.

    Attributes:
        dashboard: that sends the stream.
        request: that opened it.
        identity: who sent the request.
    """

    dashboard: Dashboard
    request: Request
    identity: Identity
    _checked_s: float = field(default_factory=time.monotonic)

    async def holds(self) -> bool:
        """Return whether the login, its role and its scope are the same as before; looks every `CHECK_S` seconds."""
        if time.monotonic() - self._checked_s < CHECK_S:
            return True
        try:
            found = await identify(self.request, self.dashboard)
        except StoreError:
            return True  # Redis does not answer; the next look decides
        self._checked_s = time.monotonic()
        return found == self.identity
