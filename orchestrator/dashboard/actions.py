"""Acts on tasks by forms: submit, answer, cancel, retry, delete. Each is recorded with the actor and the reason.

Cancel, retry and delete are recorded before they are done, under the id that the form has. A double click makes one
record, and its second action finds the task as the first has left it. A second submit has the key of the first, and the
first answer to a question stands.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse, RedirectResponse, Response

from orchestrator.budgets.model import budget_asked_for, granted
from orchestrator.client.answering import answer as answer_question
from orchestrator.core.amounts import NOTHING
from orchestrator.core.errors import (
    AnswerRefused,
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
from orchestrator.dashboard.pages.task_value import masked_bytes, wanted
from orchestrator.dashboard.rendering import visible
from orchestrator.dashboard.route import RouteRefused, action, reads
from orchestrator.dashboard.schema_form import STEM, Typed, read_typed
from orchestrator.dashboard.task_buttons import BUTTONS
from orchestrator.dashboard.task_output import follow
from orchestrator.tasks.records import numbered_field, read_record
from orchestrator.views.hidden_keys import mask_keys
from orchestrator.views.task_values import read_details
from orchestrator.views.tasks import read_task_status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request

    from orchestrator.client.answering import Given
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity


async def act_on_task(
    name: str, dashboard: Dashboard, identity: Identity, id_: str, *, reason: str, record_id: str
) -> str:
    """Cancel, retry or delete a task; return what became of it. A repeat does what its first try has not done.

    Raises:
        InvalidInput: the reason is missing.
        CommandRefused: the record was not accepted, or has this id for something else; nothing was changed.
    """
    button = BUTTONS[name]
    if button.danger == "C" and not reason:
        raise InvalidInput("this action needs a reason")
    try:
        report = await button.act(dashboard.services, [id_], reason=reason, actor=identity.actor, record_id=record_id)
    finally:
        dashboard.forget_reads()
    ((status, _),) = report.tasks.values()
    return str(status)


async def _act(name: str, dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Cancel, retry or delete a task; answer with its page."""
    id_ = check_task_id(request.path_params["id"])
    form = await read_form(request)
    reason, record_id = form.get("reason", ""), command_id(form)
    status = await act_on_task(name, dashboard, identity, id_, reason=reason, record_id=record_id)
    gone = name == "delete" and await _is_gone(dashboard, id_)
    return RedirectResponse(dashboard.url(f"/tasks{'' if gone else f'/{id_}'}?said={name}:{status}"), 303)


for _name, _button in BUTTONS.items():
    action(f"/tasks/{{id}}/{_name}", _button.danger)(partial(_act, _name))


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


@action("/tasks/{id}/answer", "B")
async def answer(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Answer the question of a task; answer with its page."""
    id_ = check_task_id(request.path_params["id"])
    form = await read_form(request)
    number = form.get("number", "")
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 6):
        raise InvalidInput("the form names no question; load the page again")
    typed = form.get("value", "").replace("\r\n", "\n")
    given = await _give_answer(dashboard, identity, id_, typed, number=read_whole(number))
    dashboard.forget_reads()
    where = "/questions" if form.get("to") == "questions" else f"/tasks/{id_}"
    return RedirectResponse(dashboard.url(f"{where}?said=answer:{given.status}"), 303)


async def _give_answer(dashboard: Dashboard, identity: Identity, id_: str, typed: str, *, number: int) -> Given:
    """Give JSON if it parses, else the text, which may also be an option that looks like JSON."""
    try:
        value = decode_json(typed.encode())
    except (ValueError, RecursionError):
        value = typed
    try:
        return await give_answer(dashboard, identity, id_, value, number=number)
    except InvalidInput:
        if isinstance(value, str):
            raise
        return await give_answer(dashboard, identity, id_, typed, number=number)


async def give_answer(dashboard: Dashboard, identity: Identity, id_: str, value: Any, *, number: int) -> Given:
    """Answer a question of a task; secrets in an earlier answer are masked in the text of the refusal.

    Raises:
        AnswerRefused: the question has another answer, or the task does not ask it.
        InvalidInput: the value is none of the options.
        RouteRefused: it would add to a budget, which belongs to the whole pool, and the user is narrowed.
    """
    if identity.scope.narrowed and (budget := await _budget_of(dashboard, id_, number, value)):
        raise RouteRefused(
            403, f"{identity.name} may not add to budget {budget!r}, which belongs to the whole pool; 0 refuses"
        )
    try:
        return await answer_question(dashboard.services, id_, value, number=number, actor=identity.actor)
    except AnswerRefused as refused:
        raise AnswerRefused(mask_keys(str(refused))) from None


async def _budget_of(dashboard: Dashboard, id_: str, number: int, value: Any) -> str | None:
    """Return the budget to which an answer would add."""
    field = numbered_field("ask", number)
    asked = (await read_record(dashboard.services.store, id_, field)).stored_question(number)
    if asked is None or granted(asked.effect, value).endswith(f" {NOTHING.packed}"):
        return None
    return budget_asked_for(asked.effect)


@action("/submit", "B", checks_scope=True)
async def submit(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Submit a task; answer with its page, or with the form as it was typed and what is wrong with it.

    The key of the task comes from the form, so that a second click submits nothing.
    """
    form = await read_form(request)
    key, skill = f"web {command_id(form)}", form.get("skill", "")
    agent, session, budget = form.get("agent"), form.get("session"), form.get("budget", "").split()
    check_submit(identity, skill=skill, agent=agent, session=session, budget=budget)
    shown = await form_of(dashboard.services, skill, as_json=form.get("as") == "json")
    typed = read_typed(shown["fields"], form) if shown["fields"] is not None else _json_object(form.get("args", ""))
    problem, status = "The task was not submitted; see beside the fields.", 400
    if not typed.errors:
        try:
            task = await submit_task(dashboard, skill, typed.args, key=key, options=_options(form))
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


async def submit_task(
    dashboard: Dashboard, skill: str, args: Mapping[str, Any], *, key: str, options: dict[str, Any]
) -> str:
    """Submit, and return the id of the task; one that is less durable than asked is accepted too."""
    try:
        handle = await dashboard.orc.submit(skill, dict(args), key=key, **options)
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
    if budget := form.get("budget", "").split():
        options["budget"] = budget
    tags = [line.strip() for line in form.get("tags", "").splitlines()]
    if any(tags):
        options["tags"] = [tag for tag in tags if tag]
    return options


@reads("/tasks/{id}/{part}/download")
async def download(dashboard: Dashboard, _: Identity, request: Request) -> Response:
    """Answer with the whole arguments or the whole result as a file, with masked secrets."""
    id_, part = check_task_id(request.path_params["id"]), request.path_params["part"]
    value = wanted(await read_details(dashboard.services, id_), part)
    async with dashboard.downloads:
        data = await masked_bytes(dashboard.services, value)
    headers = {
        "Content-Disposition": f'attachment; filename="task-{id_}-{value.part}.json"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Response(data, media_type="application/json", headers=headers)


@reads("/tasks/{id}/output")
async def output(dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Follow the output of a task."""
    return await follow(dashboard, identity, request)


def check_submit(
    identity: Identity, *, skill: str, agent: str | None, session: str | None, budget: Sequence[str] = ()
) -> None:
    """Refuse a task outside of the scope of its sender; budgets belong to the whole pool."""
    if budget and identity.scope.narrowed:
        raise RouteRefused(403, f"{identity.name} may submit only tasks without a budget")
    if not identity.includes(agent=agent, session=session, skill=skill):
        raise RouteRefused(403, f"{identity.name} may submit only tasks about {identity.scope.words}")
