"""Acts on tasks by forms: submit, answer, cancel, retry, delete. Each is recorded with the actor and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from orchestrator.client.answering import answer as answer_question
from orchestrator.client.task_actions import cancel_tasks, delete_tasks, retry_tasks
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.ids import check_task_id
from orchestrator.core.payload import decode_json
from orchestrator.core.reading import read_whole
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.who import identify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from orchestrator.client.task_actions import ActionReport
    from orchestrator.control.commands import Danger
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity


@dataclass(frozen=True, slots=True)
class TaskButton:
    """An action on one task.

    Attributes:
        danger: its class, which decides about the role, and whether it needs a reason.
        act: takes services, ids, reason and actor.
    """

    danger: Danger
    act: Callable[..., Awaitable[ActionReport[Any]]]


BUTTONS: Final[Mapping[str, TaskButton]] = {
    "cancel": TaskButton("B", cancel_tasks),
    "retry": TaskButton("B", retry_tasks),
    "delete": TaskButton("C", delete_tasks),
}


async def act(dashboard: Dashboard, request: Request) -> Response:
    """Cancel, retry or delete a task; answer with its page."""
    name, id_ = request.path_params["action"], check_task_id(request.path_params["id"])
    button = BUTTONS.get(name)
    if button is None:
        raise NotFound(f"there is no action {name!r} on a task")
    identity = await _allowed(dashboard, request, button.danger)
    if isinstance(identity, Response):
        return identity
    form = await read_form(request)
    reason = form.get("reason", "")
    if button.danger == "C" and not reason:
        raise InvalidInput("this action needs a reason")
    report = await button.act(dashboard.services, [id_], reason=reason, actor=identity.actor)
    dashboard.forget_reads()
    ((status, _),) = report.tasks.values()
    where = "/tasks" if name == "delete" and status == "deleted" else f"/tasks/{id_}"
    return RedirectResponse(dashboard.url(f"{where}?said={name}:{status}"), 303)


async def answer(dashboard: Dashboard, request: Request) -> Response:
    """Answer the question of a task; answer with its page."""
    id_ = check_task_id(request.path_params["id"])
    identity = await _allowed(dashboard, request, "B")
    if isinstance(identity, Response):
        return identity
    form = await read_form(request)
    number = form.get("number", "")
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 6):
        raise InvalidInput("the form names no question; load the page again")
    typed = form.get("value", "")
    given = await answer_question(
        dashboard.services, id_, _json_or_text(typed), number=read_whole(number), actor=identity.actor
    )
    dashboard.forget_reads()
    return RedirectResponse(dashboard.url(f"/tasks/{id_}?said=answer:{given.status}"), 303)


async def submit(dashboard: Dashboard, request: Request) -> Response:
    """Submit a task; answer with its page. The key comes from the form, so that a second click submits nothing."""
    identity = await _allowed(dashboard, request, "B")
    if isinstance(identity, Response):
        return identity
    form = await read_form(request)
    text = form.get("args", "").strip() or "{}"
    try:
        args = decode_json(text.encode())
    except (ValueError, RecursionError):
        raise InvalidInput('the arguments are not JSON; an object is expected, as {"name": "Ada"}') from None
    if not isinstance(args, dict):
        raise InvalidInput('the arguments must be a JSON object, as {"name": "Ada"}')
    options: dict[str, Any] = {name: form[name] for name in ("agent", "session", "lane") if form.get(name)}
    handle = await dashboard.orc.submit(
        form.get("skill", ""), args, key=f"web {check_task_id(form.get('id', ''))}", **options
    )
    return RedirectResponse(dashboard.url(f"/tasks/{handle.id}"), 303)


async def _allowed(dashboard: Dashboard, request: Request, danger: Danger) -> Identity | Response:
    """Return who may do this, or the refusal."""
    identity = await identify(request, dashboard.accounts, cookie=dashboard.cookie)
    if identity is None:
        return PlainTextResponse("log in first\n", 401)
    if not dashboard.can_send:
        return PlainTextResponse("this dashboard is read-only\n", 403)
    if not identity.may(danger):
        return PlainTextResponse(f"a {identity.role.word} may not do this\n", 403)
    return identity


def _json_or_text(typed: str) -> Any:
    try:
        return decode_json(typed.encode())
    except (ValueError, RecursionError):
        return typed
