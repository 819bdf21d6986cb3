"""Acts on many tasks by a form: what it acts on is frozen when the question is asked.

The form carries the ids of the tasks, or of a purge the time of the question, so that the job changes no task that came
later. A supervisor runs it, and the page of the command tells its progress and what became of each task.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import RedirectResponse, Response, StreamingResponse

from orchestrator.control.commands import CancelTasks, DeleteTasks, PurgeQueue, RetryTasks, make_command
from orchestrator.control.scripts import AppendStatus
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import CommandRefused, InvalidInput, NotFound
from orchestrator.core.ids import check_task_id
from orchestrator.core.reading import read_text, read_whole
from orchestrator.dashboard.forms import read_form
from orchestrator.dashboard.route import action, reads
from orchestrator.tasks.selecting import TaskFilter
from orchestrator.views.dead_groups import read_dead_group
from orchestrator.views.hidden_keys import mask_keys
from orchestrator.views.selections import MOST, UNASKED, select_waiting
from orchestrator.views.tasks import export_dead_letter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from starlette.requests import Request

    from orchestrator.control.commands import Command, Job
    from orchestrator.dashboard.dashboard import Dashboard
    from orchestrator.dashboard.identity import Identity

JOBS: Final[Mapping[str, type[Job]]] = {
    "cancel": CancelTasks,
    "retry": RetryTasks,
    "delete": DeleteTasks,
    "purge": PurgeQueue,
}
FILTERS: Final = ("skill", "agent", "session", "tag", "parent", "queue", "reason", "error")
"""Parameters of a filter, beside `state`."""


@dataclass(frozen=True, slots=True)
class BulkQuestion:
    """Filter and action of a bulk action.

    Attributes:
        action: a key of `JOBS`.
        wanted: what to select; of a group of dead letters, the skill.
        line: first line of the error of a group of dead letters; None: no group.
    """

    action: str
    wanted: TaskFilter
    line: str | None

    @property
    def words(self) -> str:
        """The selection for people and for the record."""
        return self.wanted.words if self.line is None else f"{self.wanted.words}, error {self.line!r}"[:2000]

    def name(self, pool: str) -> str:
        """Return the name that a large or dangerous action asks to be typed."""
        wanted = self.wanted
        return wanted.queue or wanted.skill or wanted.agent or pool

    def asks_name(self, count: int) -> bool:
        """Return whether the name must be typed."""
        return count > UNASKED or JOBS[self.action].danger == "C"


def read_question(action: str, given: Mapping[str, str]) -> BulkQuestion:
    """Return what a query or a form asks for.

    Raises:
        NotFound: there is no such action.
        InvalidInput: the filter is invalid, or empty.
    """
    if action not in JOBS:
        raise NotFound(f"there is no bulk action {action!r}")
    values: dict[str, Any] = {name: given.get(name) or None for name in FILTERS}
    state, line = given.get("state"), given.get("line") or None
    wanted = TaskFilter(**values, states=(state,) if state else ())
    if action == "purge":
        make_command("purge-queue", {"queue": wanted.queue or "", "count": 0})
        if wanted != TaskFilter(queue=wanted.queue) or line is not None:
            raise InvalidInput("a purge cancels all that waits in a queue, and takes no other filter")
    if wanted.empty or (line is not None and wanted.skill is None):
        raise InvalidInput("a bulk action needs a filter; choose a state, skill, agent, session, tag or queue first")
    return BulkQuestion(action, wanted, line)


async def give_job(name: str, dashboard: Dashboard, identity: Identity, form: Mapping[str, str], *, id_: str) -> bool:
    """Give the job of a form; return False if it was given before, with this id.

    Raises:
        InvalidInput: the filter, the tasks, the reason or the typed name are missing or wrong.
        CommandRefused: Redis did not accept it.
    """
    # `reason` is why the job is given, not what the reasons of its tasks contain.
    question = read_question(name, {**form, "reason": form.get("filter-reason", "")})
    reason = form.get("reason", "")
    if JOBS[name].danger == "C" and not reason:
        raise InvalidInput("this action needs a reason")
    ids = await _selected(dashboard, question, form)
    typed = question.name(dashboard.services.settings.pool)
    if question.asks_name(len(ids)) and form.get("typed", "") != typed:
        raise InvalidInput(f"type {typed} to {name} {len(ids)} tasks; nothing was changed")
    command = _command(question, len(ids))
    try:
        await dashboard.orc.admin.give(command, id_=id_, actor=identity.actor, reason=reason, tasks=ids)
    except CommandRefused as refused:
        if refused.status != AppendStatus.REPLAYED:
            raise
        return False
    finally:
        dashboard.forget_reads()
    return True


async def _give(name: str, dashboard: Dashboard, identity: Identity, request: Request) -> Response:
    """Give the job of a form; answer with the page of its command."""
    form = await read_form(request)
    try:
        id_ = check_task_id(form.get("id", ""))
    except InvalidInput:
        raise InvalidInput("the form has no id of its command; load the page again") from None
    new = await give_job(name, dashboard, identity, form, id_=id_)
    return RedirectResponse(dashboard.url(f"/control/{id_}" + ("" if new else "?replayed=1")), 303)


for _name, _model in JOBS.items():
    action(f"/bulk/{_name}", _model.danger)(partial(_give, _name))


async def _selected(dashboard: Dashboard, question: BulkQuestion, form: Mapping[str, str]) -> list[str]:
    if question.action != "purge":
        ids = [check_task_id(id_) for id_ in dict.fromkeys(form.get("tasks", "").split())]
        if not 0 < len(ids) <= MOST:
            raise InvalidInput(f"the form names {len(ids)} tasks; it may have 1 to {MOST}")
        return ids
    until_ms = read_whole(form.get("until", ""))
    if until_ms <= 0:
        raise InvalidInput("the form has no time of its question; load the page again")
    wanted = TaskFilter(queue=question.wanted.queue, until=from_instant_ms(until_ms))
    ids, _ = await select_waiting(dashboard.services, wanted)
    return ids


def _command(question: BulkQuestion, count: int) -> Command:
    model = JOBS[question.action]
    queue = {"queue": question.wanted.queue} if question.action == "purge" else {}
    return make_command(model.model_fields["kind"].default, {"count": count, "filter": question.words, **queue})


# -------------------------------------------------------------------------------------------------------------- export


@reads("/dead/export")
async def export(dashboard: Dashboard, _: Identity, request: Request) -> Response:
    """Send the dead letters of a group as JSON lines, for a file."""
    query = dict(request.query_params)
    skill, line = query.get("skill", ""), query.get("line", "")
    if not skill or not line:
        raise InvalidInput("an export names the skill and the line of a group")
    ids = await read_dead_group(dashboard.services, skill, line)
    headers = {"Content-Disposition": 'attachment; filename="dead-letters.jsonl"'}
    return StreamingResponse(_lines(dashboard, ids), media_type="application/x-ndjson", headers=headers)


async def _lines(dashboard: Dashboard, ids: Sequence[str]) -> AsyncIterator[bytes]:
    for id_ in ids:
        record = await export_dead_letter(dashboard.services, id_)
        if record is not None:
            yield mask_keys(read_text(msgspec.json.encode(record))).encode() + b"\n"
