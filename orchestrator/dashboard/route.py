"""Declares the routes of the dashboard, and checks each request before its route answers.

A route that is not open needs a login. One with a class (`danger`) changes something: it needs the role of the class,
and a dashboard that gives commands. A user who is narrowed to some agents, queues or sessions reaches the routes below
one of them, and those that say that they check it, so that a new page shows nothing that it should not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from orchestrator.core.ids import check_task_id
from orchestrator.dashboard.who import identify
from orchestrator.tasks.records import read_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from orchestrator.control.commands import Danger
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity

Act: TypeAlias = "Callable[[Dashboard, Identity, Request], Awaitable[Response]]"
_SUBJECT: Final = re.compile(r"(?:/live|/api/v1)?/(task|agent|queue|session)s/\{(\w+)(?::path)?\}")


class RouteRefused(Exception):
    """A request that its route does not answer.

    Args:
        status: of HTTP: 401 without a login, 403 without the right.
        text: why, and what to do.
    """

    def __init__(self, status: Literal[401, 403], text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class DeclaredRoute:
    """A method and path that the dashboard answers.

    Attributes:
        path: below the base path.
        act: takes dashboard, identity and request; of an open route, dashboard and request.
        danger: class of what it changes; None if it changes nothing of the pool.
        open: it needs no login.
        checks_scope: its function checks the scope of a narrowed user.
    """

    method: Literal["GET", "POST"]
    path: str
    act: Callable[..., Awaitable[Response]] = field(repr=False, compare=False)
    danger: Danger | None = None
    open: bool = False
    checks_scope: bool = False

    @property
    def subject(self) -> tuple[str, str] | None:
        """The kind of thing that the path names, and the parameter that names it; None if it names none."""
        found = _SUBJECT.match(self.path)
        return None if found is None else (found[1], found[2])

    @property
    def narrowed(self) -> bool:
        """True if narrowed users reach it."""
        return self.checks_scope or self.subject is not None


ROUTES: Final[list[DeclaredRoute]] = []
"""All routes that are no pages and need a login."""


def action(path: str, danger: Danger, *, checks_scope: bool = False) -> Callable[[Act], Act]:
    """Declare the decorated function as the answer to POST at a path, which changes something."""

    def declare(act: Act) -> Act:
        ROUTES.append(DeclaredRoute("POST", path, act, danger, checks_scope=checks_scope))
        return act

    return declare


def reads(path: str, *, checks_scope: bool = False) -> Callable[[Act], Act]:
    """Declare the decorated function as the answer to GET at a path."""

    def declare(act: Act) -> Act:
        ROUTES.append(DeclaredRoute("GET", path, act, checks_scope=checks_scope))
        return act

    return declare


async def allowed(dashboard: Dashboard, request: Request, route: DeclaredRoute) -> Identity:
    """Return who sends a request that its route may answer.

    Raises:
        RouteRefused: the request has no login, or the user may not do this.
        NotFound: a narrowed user may not see the thing that the path names.
    """
    identity = await identify(request, dashboard)
    if identity is None:
        raise RouteRefused(401, "log in first")
    await dashboard.look()
    if route.danger is not None:
        if dashboard.why_no_commands:
            raise RouteRefused(403, dashboard.why_no_commands)
        if not identity.may(route.danger):
            raise RouteRefused(403, f"the role {identity.role.word} may not do this")
    if identity.scope.narrowed:
        if route.subject is not None:
            kind, parameter = route.subject
            await _check_subject(dashboard, identity, kind, request.path_params[parameter])
        elif not route.checks_scope:
            raise RouteRefused(403, f"this is about the whole pool, and {identity.name} is narrowed to a part of it")
    return identity


async def _check_subject(dashboard: Dashboard, identity: Identity, kind: str, name: str) -> None:
    if kind != "task":
        named: dict[str, Any] = {kind: name}
        identity.check(**named)
        return
    record = await read_record(dashboard.services.store, check_task_id(name), "state", "env", "queue", "at")
    identity.check(agent=record.agent, queue=record.queue, session=record.session)
