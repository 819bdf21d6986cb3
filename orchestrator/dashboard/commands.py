"""Gives control commands that pages send as forms.

The id of the command comes from the form, so that a second click, or a repeat after a lost answer, gives it once: the
second one leads to the receipts of the first. A refused form is shown again as it was typed, with the reason.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, RedirectResponse, Response

from orchestrator.control.commands import KINDS, Job, RecordCommand, make_command
from orchestrator.control.scripts import AppendStatus
from orchestrator.core.errors import CommandRefused, InvalidInput
from orchestrator.core.ids import check_task_id
from orchestrator.dashboard.command_forms import command_form
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.route import RouteRefused, action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from orchestrator.control.commands import Command
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity

GIVEN: Final = {kind: model for kind, model in KINDS.items() if not issubclass(model, (RecordCommand, Job))}
"""Commands that a person gives. A job needs a selection, and records tell of what was done."""


def in_scope(identity: Identity, command: Command) -> bool:
    """Return whether a narrowed user may give a command: its target is an agent, queue or session of the scope."""
    limit = getattr(command, "limit", None) or ""
    return identity.includes(
        agent=getattr(command, "agent", None) or (limit[1:] if limit.startswith("@") else None),
        queue=getattr(command, "queue", None),
        session=getattr(command, "session", None),
        skill=getattr(command, "skill", None),
    )


async def send_given(
    dashboard: Dashboard, identity: Identity, model: type[Command], fields: Mapping[str, Any], *, id_: str, reason: str
) -> bool:
    """Give a command; return False if it was given before, with this id.

    Raises:
        InvalidInput: a field, the id or the reason is missing or wrong.
        RouteRefused: a narrowed user may not give it.
        CommandRefused: Redis did not accept it.
    """
    try:
        check_task_id(id_)
    except InvalidInput:
        raise InvalidInput("the form has no id of its command; load the page again") from None
    if model.danger == "C" and not reason:
        raise InvalidInput("this command needs a reason")
    command = make_command(model.model_fields["kind"].default, fields)
    if not in_scope(identity, command):
        raise RouteRefused(403, f"{identity.name} may give commands only about {identity.scope.words}")
    try:
        await dashboard.orc.admin.give(command, id_=id_, actor=identity.actor, reason=reason)
    except CommandRefused as refused:
        if refused.status != AppendStatus.REPLAYED:
            raise
        return False
    finally:
        dashboard.forget_reads()
    return True


async def _give(model: type[Command], dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Give the command of a form; answer with the page of its receipts, or with the form and why it was refused."""
    typed = await read_form(request)
    id_, reason = typed.get("id", ""), typed.get("reason", "")
    fields = {name: text for name, text in typed.items() if name not in ("id", "reason") and text.strip()}
    try:
        new = await send_given(dashboard, identity, model, fields, id_=id_, reason=reason)
    except (InvalidInput, CommandRefused) as refused:
        return _show_again(dashboard, identity, model, typed, refused)
    return RedirectResponse(dashboard.url(f"/control/{id_}" + ("" if new else "?replayed=1")), 303)


def _show_again(
    dashboard: Dashboard,
    identity: Identity,
    model: type[Command],
    typed: Mapping[str, str],
    refused: InvalidInput | CommandRefused,
) -> Response:
    """Answer with the form as it was typed. Its id is a new one, because Redis may have noted the refused command."""
    kind = model.model_fields["kind"].default
    common = dashboard.context(identity, f"/commands/{kind}", "")
    form = command_form(kind, model, typed, problem=str(refused))
    template = dashboard.templates.get_template("command_form.html")
    status = 400 if isinstance(refused, InvalidInput) else 409
    return HTMLResponse(template.render({**common, **form, "live": ""}), status)


for _kind, _model in GIVEN.items():
    action(f"/commands/{_kind}", _model.danger, checks_scope=True)(partial(_give, _model))
