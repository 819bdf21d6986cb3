"""Acts on tasks by forms: submit, answer, cancel, retry, delete. Each is recorded with the actor and the reason.

Cancel, retry and delete are recorded before they are done, under the id that the form has: Redis refuses the second
record of a double click, so that the action happens once. A second submit has the key of the first, and the first
answer to a question stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from orchestrator.client.answering import answer as answer_question
from orchestrator.control.scripts import AppendStatus
from orchestrator.core.errors import (
    CommandRefused,
    InvalidInput,
    NotDurable,
    NotFound,
    OrchestratorError,
    ServerUnavailable,
)
from orchestrator.core.ids import check_task_id
from orchestrator.core.payload import decode_json
from orchestrator.core.reading import read_whole
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.pages.submit import OPTIONS, form_of
from orchestrator.dashboard.pages.task_value import find_value, masked_bytes
from orchestrator.dashboard.rendering import visible
from orchestrator.dashboard.schema_form import STEM, Typed, read_typed
from orchestrator.dashboard.task_buttons import BUTTONS
from orchestrator.dashboard.task_output import follow
from orchestrator.dashboard.who import identify
from orchestrator.views.tasks import read_task_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from orchestrator.client.answering import Given
    from orchestrator.control.commands import Danger
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity


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
    reason, record_id = form.get("reason", ""), command_id(form)
    if button.danger == "C" and not reason:
        raise InvalidInput("this action needs a reason")
    try:
        report = await button.act(dashboard.services, [id_], reason=reason, actor=identity.actor, record_id=record_id)
    except CommandRefused as refused:
        if refused.status != AppendStatus.REPLAYED:
            raise
        status = "replayed"
    else:
        ((status, _),) = report.tasks.values()
    dashboard.forget_reads()
    gone = name == "delete" and await _is_gone(dashboard, id_)
    return RedirectResponse(dashboard.url(f"/tasks{'' if gone else f'/{id_}'}?said={name}:{status}"), 303)


async def _is_gone(dashboard: Dashboard, id_: str) -> bool:
    try:
        await read_task_status(dashboard.services, id_)
    except NotFound:
        return True
    return False


def command_id(form: Mapping[str, str]) -> str:
    """Return the id that a form gives to its command.

    Raises:
        InvalidInput: it has none.
    """
    try:
        return check_task_id(form.get("id", ""))
    except InvalidInput:
        raise InvalidInput("the form has no id of its command; load the page again") from None


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
    typed = form.get("value", "").replace("\r\n", "\n")
    given = await _give_answer(dashboard, id_, typed, number=read_whole(number), actor=identity.actor)
    dashboard.forget_reads()
    where = "/questions" if form.get("to") == "questions" else f"/tasks/{id_}"
    return RedirectResponse(dashboard.url(f"{where}?said=answer:{given.status}"), 303)


async def _give_answer(dashboard: Dashboard, id_: str, typed: str, *, number: int, actor: str) -> Given:
    """Give JSON if it parses, else the text, which may also be an option that looks like JSON."""
    try:
        value = decode_json(typed.encode())
    except (ValueError, RecursionError):
        value = typed
    try:
        return await answer_question(dashboard.services, id_, value, number=number, actor=actor)
    except InvalidInput:
        if isinstance(value, str):
            raise
        return await answer_question(dashboard.services, id_, typed, number=number, actor=actor)


async def submit(dashboard: Dashboard, request: Request) -> Response:
    """Submit a task; answer with its page, or with the form as it was typed and what is wrong with it.

    The key of the task comes from the form, so that a second click submits nothing.
    """
    identity = await _allowed(dashboard, request, "B")
    if isinstance(identity, Response):
        return identity
    form = await read_form(request)
    key, skill = f"web {command_id(form)}", form.get("skill", "")
    shown = await form_of(dashboard.services, skill, as_json=form.get("as") == "json")
    typed = read_typed(shown["fields"], form) if shown["fields"] is not None else _json_object(form.get("args", ""))
    problem, status = "The task was not submitted; see beside the fields.", 400
    if not typed.errors:
        try:
            task = await _submitted(dashboard, skill, typed, key=key, options=_options(form))
            return RedirectResponse(dashboard.url(f"/tasks/{task}"), 303)
        except ServerUnavailable:
            raise
        except OrchestratorError as refused:
            problem, status = str(refused), 400 if isinstance(refused, InvalidInput) else 409
    filled = {name: visible(form.get(name, "")) for name in ("skill", "args", *OPTIONS)}
    filled |= {name: visible(text) for name, text in form.items() if name.startswith(STEM)}
    context = {
        **dashboard.context(identity, "/submit", ""),
        **shown,
        "typed": filled,
        "errors": typed.errors,
        "problem": problem,
        "notes": (),
        "from": "",
    }
    return HTMLResponse(dashboard.templates.get_template("submit.html").render(context), status)


async def _submitted(dashboard: Dashboard, skill: str, typed: Typed, *, key: str, options: dict[str, Any]) -> str:
    """Submit, and return the id of the task; one that is less durable than asked is accepted too."""
    try:
        handle = await dashboard.orc.submit(skill, typed.args, key=key, **options)
    except NotDurable as missed:
        handle = missed.handle
    return handle.id


def _json_object(text: str) -> Typed:
    try:
        args = decode_json((text.strip() or "{}").encode())
    except (ValueError, RecursionError):
        return Typed({}, {"args": 'the arguments are not JSON; an object is expected, as {"name": "Ada"}'})
    if not isinstance(args, dict):
        return Typed({}, {"args": 'the arguments must be a JSON object, as {"name": "Ada"}'})
    return Typed(args, {})


def _options(form: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {name: form[name] for name in ("agent", "session", "lane") if form.get(name)}
    priority = form.get("priority", "")
    if priority:
        options["priority"] = read_whole(priority) if priority.isdecimal() and len(priority) == 1 else priority
    tags = [line.strip() for line in form.get("tags", "").splitlines()]
    if any(tags):
        options["tags"] = [tag for tag in tags if tag]
    return options


async def download(dashboard: Dashboard, request: Request) -> Response:
    """Answer with the whole arguments or the whole result as a file, with masked secrets."""
    identity = await identify(request, dashboard.accounts, cookie=dashboard.cookie)
    if identity is None:
        return PlainTextResponse("log in first\n", 401)
    id_, part = check_task_id(request.path_params["id"]), request.path_params["part"]
    value = await find_value(dashboard.services, id_, part)
    async with dashboard.downloads:
        data = await masked_bytes(dashboard.services, value)
    headers = {
        "Content-Disposition": f'attachment; filename="task-{id_}-{value.part}.json"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Response(data, media_type="application/json", headers=headers)


async def output(dashboard: Dashboard, request: Request) -> Response:
    """Follow the output of a task."""
    identity = await identify(request, dashboard.accounts, cookie=dashboard.cookie)
    if identity is None:
        return PlainTextResponse("log in first\n", 401)
    return await follow(dashboard, request)


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
