"""Schedules: their times in words, what they do next, and what became of their last tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse, Response

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.dashboard.route import action
from orchestrator.views.schedule_pages import page_schedules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from orchestrator.control.commands import Danger
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.page import PageRequest

ACTIONS: Final[Mapping[str, Danger]] = {"pause": "A", "resume": "A", "trigger": "B", "delete": "C"}
"""What a form does to one schedule, by its class."""


@page("/schedules", "schedules.html")
async def schedules(asked: PageRequest) -> Mapping[str, Any]:
    """Read the schedules, the next to fire first."""
    return {
        "found": await page_schedules(asked.services, after=asked.text("after")),
        "said": asked.text("said"),
        "without": asked.without,
        "line": command_line("schedules", "list"),
    }


async def _act(name: str, dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Pause, resume, trigger or delete a schedule; answer with the list, or with the task that it submitted."""
    form = await read_form(request)
    schedule, reason = check_name("schedule", request.path_params["schedule"]), form.get("reason", "")
    if ACTIONS[name] == "C" and (not reason or form.get("typed") != schedule):
        raise InvalidInput(f"give a reason, and type {schedule} to {name} it; nothing was changed")
    api, said = dashboard.orc.admin.schedules, {"reason": reason, "actor": identity.actor}
    try:
        if name == "trigger":
            task = await api.trigger(schedule, id_=form.get("id", ""), **said)
            return RedirectResponse(dashboard.url(f"/tasks/{task}"), 303)
        await getattr(api, name)(schedule, **said)
    finally:
        dashboard.forget_reads()
    return RedirectResponse(dashboard.url(f"/schedules?said={name}:{schedule}"), 303)


for _name, _danger in ACTIONS.items():
    action(f"/schedules/{{schedule}}/{_name}", _danger)(partial(_act, _name))
