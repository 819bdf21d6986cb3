"""Answers POST with a JSON object: does what forms do, from submit, answer and cancel to every command."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, create_model

from orchestrator.client.lock_actions import release_lock
from orchestrator.control.commands import given_fields
from orchestrator.core.command_record import SAID_CHARS
from orchestrator.core.ids import check_name, check_task_id
from orchestrator.dashboard.actions import act_on_task, check_submit, give_answer, submit_task
from orchestrator.dashboard.api.operation import Body, changing
from orchestrator.dashboard.bulk import JOBS, give_job
from orchestrator.dashboard.commands import GIVEN, send_given
from orchestrator.dashboard.pages.schedules import ACTIONS as SCHEDULE_ACTIONS
from orchestrator.dashboard.task_buttons import BUTTONS
from orchestrator.views.limit_pages import find_held_lock
from orchestrator.views.selections import MOST

if TYPE_CHECKING:
    from orchestrator.control.commands import Command
    from orchestrator.dashboard.api.operation import ApiCall

Text = Annotated[str, Field(max_length=2000)]
Reason = Annotated[str, Field(max_length=SAID_CHARS, description="Kept with the record of the action.")]
NeededReason = Annotated[
    str, Field(min_length=1, max_length=SAID_CHARS, description="Needed: the action loses data, or can run work twice.")
]


class ReasonBody(Body):
    """Reason of an action."""

    reason: Reason = ""


class NeededReasonBody(Body):
    """Reason of an action of class C."""

    reason: NeededReason


# ---------------------------------------------------------------------------------------------------------------- tasks


class SubmitBody(Body):
    """A task."""

    skill: Text
    args: dict[str, Any] = Field(default={}, description="Arguments of the skill.")
    agent: Text | None = Field(default=None, description="Only this agent.")
    session: Text | None = None
    lane: Text | None = Field(default=None, description="Tasks of one lane run one after the other.")
    priority: Literal["critical", "high", "normal", "low"] | Annotated[int, Field(ge=0, le=9)] | None = None
    tags: tuple[Text, ...] | None = None
    budget: Text | Annotated[tuple[Text, ...], Field(max_length=8)] | None = Field(
        default=None, description="Budgets that it spends beside those of its agent, each of which is set."
    )
    delay: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Seconds before it may start.")
    timeout: Annotated[float, Field(gt=0)] | None = Field(default=None, description="Seconds of one attempt.")


@dataclass(frozen=True, slots=True)
class SubmittedTask:
    """The id of a task that was submitted, now or by an earlier request with the same `Idempotency-Key`."""

    task: str


@changing("/tasks", "B", SubmitBody, SubmittedTask, checks_scope=True, drains=False)
async def submit(call: ApiCall, body: SubmitBody) -> SubmittedTask:
    """Submit a task. With its `Idempotency-Key`, a repeat submits nothing more."""
    options = body.model_dump(exclude={"skill", "args"}, exclude_none=True)
    budget = (body.budget,) if isinstance(body.budget, str) else body.budget or ()
    check_submit(call.identity, skill=body.skill, agent=body.agent, session=body.session, budget=budget)
    task = await submit_task(call.dashboard, body.skill, body.args, key=f"web {call.id}", options=options)
    return SubmittedTask(task)


class AnswerBody(Body):
    """An answer to a question of a task."""

    value: Any = Field(description="JSON value; one of the options, if the question has some.")
    question: Annotated[int, Field(ge=1, le=99_999)] = Field(
        description="Number of the question, so that a repeat answers no later one."
    )


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer that stands.

    Attributes:
        status: `answered`, or `already` if the question has this answer already.
        question: its number.
    """

    status: str
    question: int


@changing("/tasks/{id}/answer", "B", AnswerBody, GivenAnswer)
async def answer(call: ApiCall, body: AnswerBody) -> GivenAnswer:
    """Answer the question that a task waits with. The first answer stands; another one is refused."""
    id_ = check_task_id(call.path["id"])
    given = await give_answer(call.dashboard, call.identity, id_, body.value, number=body.question)
    return GivenAnswer(str(given.status), given.number)


@dataclass(frozen=True, slots=True)
class ActionReply:
    """Outcome for a task, as `orc tasks cancel`, `retry` and `delete` print it."""

    status: str


async def _act(name: str, call: ApiCall, body: ReasonBody | NeededReasonBody) -> ActionReply:
    id_ = check_task_id(call.path["id"])
    status = await act_on_task(name, call.dashboard, call.identity, id_, reason=body.reason, record_id=call.id)
    return ActionReply(status)


_TEXTS: Final = {
    "cancel": "Cancel a task and those below it: waiting ones end at once, running ones are told to stop.",
    "retry": "Retry a task that ended without a result.",
    "delete": "Delete an ended task with all that is stored of it.",
}
for _name, _button in BUTTONS.items():
    _body: Any = NeededReasonBody if _button.danger == "C" else ReasonBody
    changing(f"/tasks/{{id}}/{_name}", _button.danger, _body, ActionReply, text=_TEXTS[_name], drains=_name != "retry")(
        partial(_act, _name)
    )


# ------------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class GivenCommand:
    """The id of a command; `/control/ID` has its receipts. `new` is false if it was given before."""

    command: str
    new: bool


def body_of(model: type[Command]) -> type[Body]:
    """Return the body of a command: the fields that its giver chooses, and the reason."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in given_fields(model).items()}
    reason = (NeededReason, ...) if model.danger == "C" else (Reason, "")
    return create_model(f"{model.__name__}Body", __base__=Body, __doc__=model.__doc__, reason=reason, **fields)


async def _give(model: type[Command], call: ApiCall, body: Body) -> GivenCommand:
    fields = body.model_dump(exclude_unset=True)
    reason = fields.pop("reason", "")
    new = await send_given(call.dashboard, call.identity, model, fields, id_=call.id, reason=reason)
    return GivenCommand(call.id, new)


for _kind, _model in GIVEN.items():
    changing(
        f"/commands/{_kind}",
        _model.danger,
        body_of(_model),
        GivenCommand,
        checks_scope=True,
        text=inspect.cleandoc(_model.__doc__ or ""),
    )(partial(_give, _model))


class JobBody(Body):
    """A job for many tasks."""

    reason: Reason = ""
    typed: Text | None = Field(
        default=None,
        description="Queue, skill or agent of the filter, else the pool. Needed for above 20 tasks, and to delete or "
        "purge.",
    )


class TasksBody(JobBody):
    """Tasks, and the filter that selected them, which the record tells. At least one condition is needed."""

    tasks: tuple[Text, ...] = Field(min_length=1, max_length=MOST, description="Ids of the tasks.")
    skill: Text | None = None
    agent: Text | None = None
    session: Text | None = None
    tag: Text | None = None
    parent: Text | None = None
    state: Text | None = None


class PurgeBody(JobBody):
    """Tasks of a queue that were there at a time, for a purge."""

    queue: Text = Field(description="skill:NAME or agent:NAME.")
    until_ms: Annotated[int, Field(ge=1, lt=10**14)] = Field(
        description="Unix time in milliseconds; tasks that came later stay."
    )


async def _give_job(name: str, call: ApiCall, body: JobBody) -> GivenCommand:
    given = body.model_dump(exclude_none=True)
    form = {key: str(value) for key, value in given.items()}
    form |= {"tasks": " ".join(given.get("tasks", ())), "until": str(given.get("until_ms", ""))}
    new = await give_job(name, call.dashboard, call.identity, form, id_=call.id)
    return GivenCommand(call.id, new)


for _name, _model in JOBS.items():
    changing(
        f"/bulk/{_name}",
        _model.danger,
        PurgeBody if _name == "purge" else TasksBody,
        GivenCommand,
        text=inspect.cleandoc(_model.__doc__ or ""),
        drains=_name != "retry",
    )(partial(_give_job, _name))


# -------------------------------------------------------------------------------------------------- schedules and locks


@dataclass(frozen=True, slots=True)
class ScheduleReply:
    """A schedule, and the task that a trigger has submitted."""

    schedule: str
    task: str | None


async def _act_on_schedule(name: str, call: ApiCall, body: ReasonBody | NeededReasonBody) -> ScheduleReply:
    schedule = check_name("schedule", call.path["schedule"])
    api, said = call.dashboard.orc.admin.schedules, {"reason": body.reason, "actor": call.identity.actor}
    if name == "trigger":
        return ScheduleReply(schedule, await api.trigger(schedule, id_=call.id, **said))
    await getattr(api, name)(schedule, id_=call.id, **said)
    return ScheduleReply(schedule, None)


_WHAT: Final = {
    "pause": "Pause a schedule: it submits nothing.",
    "resume": "Resume a paused schedule.",
    "trigger": "Submit the task of a schedule now; its times stay.",
    "delete": "Delete a schedule.",
}
for _name, _danger in SCHEDULE_ACTIONS.items():
    _body = NeededReasonBody if _danger == "C" else ReasonBody
    changing(
        f"/schedules/{{schedule}}/{_name}",
        _danger,
        _body,
        ScheduleReply,
        text=_WHAT[_name],
        drains=_name != "trigger",
    )(partial(_act_on_schedule, _name))


class ReleaseBody(NeededReasonBody):
    """A lock as `/locks` shows it."""

    scope: Text
    at: Text
    nonce: Text = Field(description="Of the ownership, so that a later holder keeps the lock.")


@dataclass(frozen=True, slots=True)
class ReleasedLock:
    """Outcome of a release; `released` is false if the holder has changed."""

    released: bool


@changing("/locks/release", "C", ReleaseBody, ReleasedLock)
async def release(call: ApiCall, body: ReleaseBody) -> ReleasedLock:
    """Take a lock from its holder."""
    services = call.dashboard.services
    lock = await find_held_lock(services, body.scope, body.at, body.nonce)
    locks = call.dashboard.orc.locks(body.scope)
    taken = await release_lock(services, locks, lock, reason=body.reason, actor=call.identity.actor)
    return ReleasedLock(taken.released)
