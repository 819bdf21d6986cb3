"""Gives control commands that pages send as forms.

The id of the command comes from the form, so that a second click, or a repeat after a lost answer, gives it once: the
second one leads to the receipts of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from orchestrator.control.commands import KINDS, Job, RecordCommand, make_command
from orchestrator.control.scripts import AppendStatus
from orchestrator.core.errors import CommandRefused, InvalidInput, NotFound
from orchestrator.core.ids import check_task_id
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.who import identify

if TYPE_CHECKING:
    from starlette.requests import Request

    from orchestrator.dashboard.dashboard import Dashboard


async def give(dashboard: Dashboard, request: Request) -> Response:
    """Give the command of a form; answer with the page of its receipts."""
    identity = await identify(request, dashboard.accounts, cookie=dashboard.cookie)
    if identity is None:
        return PlainTextResponse("log in first\n", 401)
    model = KINDS.get(request.path_params["kind"])
    if model is None or issubclass(model, (RecordCommand, Job)):
        raise NotFound(f"there is no command {request.path_params['kind']!r}")
    if not dashboard.can_send:
        return PlainTextResponse("this dashboard is read-only\n", 403)
    if not identity.may(model.danger):
        return PlainTextResponse(f"a {identity.role.word} may not give this command\n", 403)
    form = await read_form(request)
    id_, reason = form.pop("id", ""), form.pop("reason", "")
    try:
        check_task_id(id_)
    except InvalidInput:
        raise InvalidInput("the form has no id of its command; load the page again") from None
    if model.danger == "C" and not reason:
        raise InvalidInput("this command needs a reason")
    fields = {name: value for name, value in form.items() if value}
    command = make_command(model.model_fields["kind"].default, fields)
    try:
        await dashboard.orc.admin.give(command, id_=id_, actor=identity.actor, reason=reason)
    except CommandRefused as refused:
        if refused.status != AppendStatus.REPLAYED:
            raise
        return RedirectResponse(dashboard.url(f"/control/{id_}?replayed=1"), 303)
    dashboard.forget_reads()
    return RedirectResponse(dashboard.url(f"/control/{id_}"), 303)
