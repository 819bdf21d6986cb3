"""Finds out who sends a request: a bearer token, a session cookie, or the header of a trusted proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.dashboard.cookies import unseal
from orchestrator.dashboard.identity import Identity

if TYPE_CHECKING:
    from starlette.requests import Request

    from orchestrator.accounts.accounts import Accounts

LINK_USER: Final = "local"
"""Name of who logged in by a one-time link."""


async def identify(request: Request, accounts: Accounts, *, cookie: str) -> Identity | None:
    """Return who sends the request. A request with a token is judged by the token alone."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found = await accounts.token(token.strip())
        return None if found is None else Identity(found.name, found.role, by_token=True)
    value = request.cookies.get(cookie)
    if value is None:
        return None
    session = unseal(value, await accounts.cookie_key())
    if session is None:
        return None
    if session.login:
        user = await accounts.user(session.name)
        if user is None or user.number != session.login:
            return None
        return Identity(user.name, min(user.role, session.role))
    return Identity(session.name, session.role)
