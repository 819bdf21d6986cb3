"""Declares operations of the API: a method and path, what the request has, and what the answer has.

An operation is a route of the dashboard too, so that roles, scopes, origins and read-only dashboards apply to it as to
a page or a form.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.control.commands import first_error
from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.core.reading import read_text, read_whole
from orchestrator.dashboard.api.kept_answers import claim, keep, read_key
from orchestrator.dashboard.api.problems import PREFIX
from orchestrator.dashboard.api.replies import JSON_TYPE, encode, encode_now, reply
from orchestrator.dashboard.page import PageRequest, WebPage
from orchestrator.dashboard.route import action, reads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from orchestrator.control.commands import Danger
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.route import Act

MOST_CHARS: Final = 2000
"""Characters of a parameter of the query."""


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter of the query.

    Attributes:
        text: its description.
        choices: its values; any text if there are none.
        most: of a whole number from 1, the largest.
        required: a request without it is refused.
    """

    name: str
    text: str
    choices: tuple[str, ...] = ()
    most: int | None = None
    required: bool = False

    def check(self, value: str) -> None:
        """Raise `InvalidInput` unless the parameter may have a value."""
        if self.most is not None:
            if not (value.isascii() and value.isdigit() and len(value) < 10 and 1 <= read_whole(value) <= self.most):
                raise InvalidInput(f"{self.name} must be a whole number from 1 to {self.most}")
        elif self.choices:
            if value not in self.choices:
                raise InvalidInput(f"{self.name} must be one of {', '.join(self.choices)}")
        elif len(value) > MOST_CHARS:
            raise InvalidInput(f"{self.name} has more than {MOST_CHARS} characters")
        elif self.required and not value:
            raise InvalidInput(f"{self.name} is empty")


AFTER: Final = QueryParameter("after", "`cursor` of the page before.")


def limit(most: int) -> QueryParameter:
    """Return the parameter for the size of a page."""
    return QueryParameter("limit", f"Entries of the page, {most} by default.", most=most)


def size_of(asked: PageRequest, most: int) -> int:
    """Return the number of entries that a page may have."""
    return read_whole(asked.query.get("limit", ""), most)


class Body(BaseModel):
    """JSON object of a request. Types are strict, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


BodyT = TypeVar("BodyT", bound=Body)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        path: below `/api/v1`.
        text: what it does.
        reply: type of the JSON that it answers; None: another media type, or JSON of any form.
        query: its parameters.
        body: JSON object of the request.
        danger: class of what it changes; None if it changes nothing.
        media: type of its answer.
    """

    method: Literal["GET", "POST"]
    path: str
    text: str
    reply: Any
    query: tuple[QueryParameter, ...] = ()
    body: type[Body] | None = None
    danger: Danger | None = None
    media: str = JSON_TYPE


OPERATIONS: Final[list[Operation]] = []
"""All operations, in the order of their declarations."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request that changes something.

    Attributes:
        path: the parts of the path that the operation names.
        id: new id of what the request makes; a repeat of the request has the same.
    """

    dashboard: Dashboard
    identity: Identity
    path: Mapping[str, str]
    id: str = field(repr=False)


Read: TypeAlias = "Callable[[PageRequest], Awaitable[Any]]"
Change: TypeAlias = "Callable[[ApiCall, BodyT], Awaitable[Any]]"


def reading(path: str, shape: Any, *query: QueryParameter, checks_scope: bool = False) -> Callable[[Read], Read]:
    """Declare the decorated function, which returns a `shape`, as the answer to GET."""

    def declare(read: Read) -> Read:
        OPERATIONS.append(Operation("GET", path, _text(read), shape, query))
        reads(PREFIX + path, checks_scope=checks_scope)(partial(_answer, _shared(path, read), query))
        return read

    return declare


def sending(path: str, media: str, *query: QueryParameter) -> Callable[[Act], Act]:
    """Declare the decorated function as the answer to GET with something that is no view."""

    def declare(act: Act) -> Act:
        OPERATIONS.append(Operation("GET", path, _text(act), None, query, media=media))
        reads(PREFIX + path)(act)
        return act

    return declare


def changing(
    path: str,
    danger: Danger,
    body: type[BodyT],
    shape: Any,
    *,
    checks_scope: bool = False,
    text: str = "",
    drains: bool = True,
) -> Callable[[Change[BodyT]], Change[BodyT]]:
    """Declare the decorated function, which takes a body and returns a `shape`, as the answer to POST.

    Its docstring says what it does, unless `text` does. One that `drains` is done also when Redis is full and stores no
    idempotency key. A repeat under another id must do no harm then.
    """

    def declare(change: Change[BodyT]) -> Change[BodyT]:
        OPERATIONS.append(Operation("POST", path, text or _text(change), shape, (), body, danger))
        action(PREFIX + path, danger, checks_scope=checks_scope)(partial(_change, body, change, drains=drains))
        return change

    return declare


def asked_by(
    query: tuple[QueryParameter, ...], dashboard: Dashboard, identity: Identity, request: Request
) -> PageRequest:
    """Return a request with a checked query.

    Raises:
        InvalidInput: it has an unknown parameter, one twice, or one with a wrong value.
    """
    given: dict[str, str] = {}
    known = {one.name: one for one in query}
    for name, value in request.query_params.multi_items():
        if name not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise InvalidInput(f"this address has no parameter {ascii(name)[:80]}; {allowed}")
        if name in given:
            raise InvalidInput(f"{name} is given twice")
        known[name].check(value)
        given[name] = value
    for one in query:
        if one.required and one.name not in given:
            raise InvalidInput(f"the parameter {one.name} is missing: {one.text}")
    return PageRequest(dashboard.services, identity, request.path_params, given, dashboard.displays)


def parse_body(model: type[BodyT], data: bytes) -> BodyT:
    """Return the body of a request.

    Raises:
        InvalidInput: it is no JSON object of that form; the message names the field.
    """
    try:
        return model.model_validate_json(data or b"{}")
    except ValidationError as invalid:
        raise InvalidInput(f"the body is refused: {first_error(invalid)}") from None


def _shared(path: str, read: Read) -> WebPage:
    async def found(asked: PageRequest) -> Mapping[str, Any]:
        return {"view": await read(asked)}

    return WebPage(PREFIX + path, "", found)


async def _answer(
    shared: WebPage, query: tuple[QueryParameter, ...], dashboard: Dashboard, identity: Identity, request: Request
) -> Response:
    found = await dashboard.read(shared, asked_by(query, dashboard, identity, request))
    return reply(await encode(found["view"]))


async def _change(
    model: type[BodyT],
    change: Change[BodyT],
    dashboard: Dashboard,
    identity: Identity,
    request: Request,
    *,
    drains: bool,
) -> Response:
    asked_by((), dashboard, identity, request)
    key = read_key(request)
    kind = request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise InvalidInput(f"the body must be sent as {JSON_TYPE}")
    data = await request.body()
    body = parse_body(model, data)
    services = dashboard.services
    first = await claim(services, identity, key, request, data, drains=drains)
    if first.answer is not None:
        return _replayed(first.answer)
    try:
        answer = encode_now(await change(ApiCall(dashboard, identity, request.path_params, first.id), body))
    finally:
        dashboard.forget_reads()
    mine = msgspec.structs.replace(first, answer=read_text(answer))
    # The change is made; without the kept answer, a repeat goes on under the same id.
    with suppress(StoreError):
        kept = await keep(services, identity, key, mine)
        if kept is not mine and kept.answer is not None:
            return _replayed(kept.answer)
    return reply(answer)


def _replayed(answer: str) -> Response:
    return reply(answer.encode(), headers={"Idempotent-Replayed": "true"})


def _text(function: Any) -> str:
    return inspect.cleandoc(inspect.unwrap(function).__doc__ or "")
