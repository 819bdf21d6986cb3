"""Answers GET with JSON: reads what pages show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypedDict

from orchestrator.core.redaction import HIDDEN
from orchestrator.dashboard.api.operation import AFTER, QueryParameter, limit, reading, size_of
from orchestrator.dashboard.pages import control as control_page
from orchestrator.dashboard.pages import questions as questions_page
from orchestrator.dashboard.pages import task_tree as tree_page
from orchestrator.dashboard.pages import tasks as tasks_page
from orchestrator.dashboard.pages.doctor import run_checks
from orchestrator.tasks.families import TaskTree
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.selecting import TaskFilter, TaskPage, read_page
from orchestrator.views import (
    active_commands,
    agent_pages,
    budget_pages,
    control,
    dead_groups,
    families,
    health,
    joins,
    limit_detail,
    limit_pages,
    questions,
    queue_pages,
    schedule_pages,
    skills,
    task_values,
    worker_pages,
)
from orchestrator.views.doctor import Diagnosis
from orchestrator.views.redaction import redacted_skills

if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.control.receipts import Receipts
    from orchestrator.control.records import ControlRecord
    from orchestrator.dashboard.page import PageRequest
    from orchestrator.locks.model import LockInfo
    from orchestrator.tasks.effects import TaskEffect
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.why.model import TaskInfo

STARTS: Final = QueryParameter("starts", "Only names that begin with this text.")
SKILLS: Final = 200


class _Named(TypedDict):
    after: str | None
    starts: str
    limit: int


def _named(asked: PageRequest, most: int) -> _Named:
    """Return the arguments of a list by name, from the query."""
    return {"after": asked.text("after"), "starts": asked.text("starts") or "", "limit": size_of(asked, most)}


# ------------------------------------------------------------------------------------------------------------- the pool


@reading("/overview", health.PoolHealth)
async def overview(asked: PageRequest) -> health.PoolHealth:
    """Read the state of the pool: counters, rates of the last hour, active commands, the server."""
    return await health.read_health(asked.services)


@reading("/queues", queue_pages.QueuePage, AFTER, STARTS, limit(queue_pages.QUEUES))
async def queues(asked: PageRequest) -> queue_pages.QueuePage:
    """Read the queues that hold tasks, are paused or drained, by name."""
    return await queue_pages.page_queues(asked.services, **_named(asked, queue_pages.QUEUES))


@reading("/queues/{queue}", queue_pages.QueueDetail)
async def queue(asked: PageRequest) -> queue_pages.QueueDetail:
    """Read one queue, `skill:NAME` or `agent:NAME`: its first tasks, and the agents that take from it."""
    return await queue_pages.read_queue(asked.services, asked.path["queue"])


@reading("/agents", agent_pages.AgentPage, AFTER, STARTS, limit(agent_pages.AGENTS))
async def agents(asked: PageRequest) -> agent_pages.AgentPage:
    """Read the agents by name."""
    return await agent_pages.page_agents(asked.services, **_named(asked, agent_pages.AGENTS))


@reading("/agents/{agent}", agent_pages.AgentDetail)
async def agent(asked: PageRequest) -> agent_pages.AgentDetail:
    """Read one agent: its workers, limits and counters."""
    return await agent_pages.read_agent_page(asked.services, asked.path["agent"])


@reading("/workers", worker_pages.WorkerPage, AFTER, STARTS, limit(worker_pages.WORKERS))
async def workers(asked: PageRequest) -> worker_pages.WorkerPage:
    """Read the live workers by id."""
    return await worker_pages.page_workers(asked.services, **_named(asked, worker_pages.WORKERS))


@reading("/workers/{worker}", worker_pages.WorkerDetail)
async def worker(asked: PageRequest) -> worker_pages.WorkerDetail:
    """Read one worker and the tasks that it has."""
    return await worker_pages.read_worker_page(asked.services, asked.path["worker"])


@reading("/skills", skills.SkillList, limit(SKILLS))
async def skill_list(asked: PageRequest) -> skills.SkillList:
    """Read the skills of the live agents by name."""
    return await skills.list_skills(asked.services, limit=size_of(asked, SKILLS))


@reading("/skills/{skill}", skills.SkillView)
async def skill(asked: PageRequest) -> skills.SkillView:
    """Read one skill with the JSON schemas of its arguments and its result."""
    return await skills.read_skill(asked.services, asked.path["skill"])


@reading("/schedules", schedule_pages.SchedulePage, AFTER, limit(schedule_pages.SCHEDULES))
async def schedules(asked: PageRequest) -> schedule_pages.SchedulePage:
    """Read the schedules, the next to fire first."""
    most = size_of(asked, schedule_pages.SCHEDULES)
    page = await schedule_pages.page_schedules(asked.services, after=asked.text("after"), limit=most)
    hidden = await redacted_skills(asked.services) if page.schedules else frozenset()
    return replace(page, schedules=tuple(_without_args(row, hidden) for row in page.schedules))


def _without_args(row: schedule_pages.ScheduleRow, hidden: Collection[str]) -> schedule_pages.ScheduleRow:
    """Return a schedule without the arguments of a redacted skill."""
    one = row.schedule
    return replace(row, schedule=replace(one, args=HIDDEN)) if one.skill in hidden else row


@reading("/limits", limit_pages.LimitPage, AFTER, STARTS, limit(limit_pages.LIMITS))
async def limits(asked: PageRequest) -> limit_pages.LimitPage:
    """Read the rate limits by name, and of providers their state and the use of their windows."""
    return await limit_pages.page_limits(asked.services, **_named(asked, limit_pages.LIMITS))


@reading("/limits/{limit}", limit_detail.LimitDetail)
async def limit_of_name(asked: PageRequest) -> limit_detail.LimitDetail:
    """Read one limit: of a provider its state and the calls that run, its agents, and their queues."""
    return await limit_detail.read_limit_page(asked.services, asked.path["limit"])


@reading("/budgets", budget_pages.BudgetPage, AFTER, STARTS, limit(budget_pages.BUDGETS))
async def budgets(asked: PageRequest) -> budget_pages.BudgetPage:
    """Read the budgets by name: limits, what is spent, held and left, and how many tasks wait for room."""
    return await budget_pages.page_budgets(asked.services, **_named(asked, budget_pages.BUDGETS))


@reading(
    "/budgets/{budget}",
    budget_pages.BudgetDetail,
    QueryParameter("after", "`cursor` of the page before: goes on with the tasks that wait."),
    QueryParameter("holds_after", "`holds_cursor` of the page before: goes on with what attempts hold."),
    limit(budget_pages.ENTRIES),
)
async def budget(asked: PageRequest) -> budget_pages.BudgetDetail:
    """Read one budget, what attempts hold of it, and the tasks that wait for it."""
    return await budget_pages.read_budget_page(
        asked.services,
        asked.path["budget"],
        after=asked.text("after"),
        holds_after=asked.text("holds_after"),
        limit=size_of(asked, budget_pages.ENTRIES),
    )


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """Held locks of a scope, those that lapse first in front."""

    locks: tuple[LockInfo, ...]


@reading("/locks", HeldLocks, QueryParameter("scope", "`pool` by default, or `session:ID`."))
async def locks(asked: PageRequest) -> HeldLocks:
    """Read the held locks of a scope, at most 100."""
    return HeldLocks(tuple(await limit_pages.read_locks(asked.services, asked.text("scope") or "pool")))


@reading("/doctor", Diagnosis)
async def doctor(asked: PageRequest) -> Diagnosis:
    """Run the checks of the doctor at the server and in the pool, at most once a minute."""
    found, _ = await run_checks(asked.services)
    return found


# -------------------------------------------------------------------------------------------------------------- control


@dataclass(frozen=True, slots=True)
class CommandPage:
    """A part of the record of commands, newest first.

    Attributes:
        records: those that match, maybe none although more follow.
        cursor: for the next page; None at the end.
        looked: number of commands that were looked at.
        active: active commands by slot, at most 50.
        active_total: number of all.
    """

    records: tuple[ControlRecord, ...]
    cursor: str | None
    looked: int
    active: tuple[ActiveCommandView, ...]
    active_total: int


@reading(
    "/control",
    CommandPage,
    AFTER,
    limit(control_page.SHOWN),
    QueryParameter("actor", "Only commands of this actor."),
    QueryParameter("kind", "Only commands of this kind."),
    QueryParameter("refused", "Only refused commands.", choices=("1",)),
)
async def command_page(asked: PageRequest) -> CommandPage:
    """Read the newest commands, and those that are active."""
    now = await active_commands.read_desired(asked.services)
    found = await control.page_commands(
        asked.services,
        actor=asked.text("actor"),
        kind=asked.text("kind"),
        refused=asked.text("refused") is not None,
        before=asked.text("after"),
        limit=size_of(asked, control_page.SHOWN),
    )
    active = [active_commands.view(one) for _, one in sorted(now.active.items())]
    return CommandPage(
        tuple(found.records), found.cursor, found.looked, tuple(active[: control_page.SHOWN]), len(active)
    )


@dataclass(frozen=True, slots=True)
class CommandReply:
    """A command, its receipts, and of a job its state."""

    record: ControlRecord
    receipts: Receipts
    job: control.JobState | None


@reading("/control/{id}", CommandReply)
async def command(asked: PageRequest) -> CommandReply:
    """Read one command and its receipts; of a job, its progress."""
    found = await control.read_command(asked.services, asked.path["id"])
    job = control.job_state(found.receipts) if found.record.kind in control_page.JOB_KINDS else None
    return CommandReply(found.record, found.receipts, job)


# ---------------------------------------------------------------------------------------------------------------- tasks


@reading(
    "/tasks",
    TaskPage,
    AFTER,
    limit(tasks_page.SHOWN),
    QueryParameter("state", "Only tasks in this state.", choices=tuple(TaskState)),
    *(QueryParameter(name, f"Only tasks of this {name}.") for name in tasks_page.FILTERS[:-2]),
    QueryParameter("reason", "Only tasks whose reason contains this text."),
    QueryParameter("error", "Only tasks with this text in a traceback."),
)
async def tasks(asked: PageRequest) -> TaskPage:
    """Read one page of the tasks that match, and say how far it looked."""
    wanted: dict[str, Any] = {name: asked.text(name) for name in tasks_page.FILTERS}
    state, most = asked.text("state"), size_of(asked, tasks_page.SHOWN)
    return await read_page(
        asked.services.store,
        TaskFilter(**wanted, states=(state,) if state else ()),
        after=asked.text("after"),
        limit=most,
        at_once=tasks_page.at_once(wanted),
        most=tasks_page.LOOKED,
    )


@reading("/tasks/{id}", task_values.TaskDetails)
async def task(asked: PageRequest) -> task_values.TaskDetails:
    """Read one task without its arguments and result: its state, what it waits for, attempts, errors, questions."""
    found = await task_values.read_details(asked.services, asked.path["id"], asked.identity.scope)
    return replace(found, info=_without_words(found.info)) if found.redacted else found


def _without_words(info: TaskInfo) -> TaskInfo:
    """Return a task of a redacted skill without what its handler and its people said."""
    progress = info.progress
    if progress is not None and progress.message:
        progress = replace(progress, message=HIDDEN)
    questions = tuple(
        replace(
            one,
            answer=HIDDEN if one.answered else None,
            default=None if one.default is None else HIDDEN,
            options=one.options if one.open else (),
        )
        for one in info.questions
    )
    return replace(info, progress=progress, questions=questions)


@reading("/tasks/{id}/tree", TaskTree, limit(tree_page.SHOWN))
async def tree(asked: PageRequest) -> TaskTree:
    """Read a task and the tasks below it, each behind its parent."""
    return await families.read_tree(asked.services, asked.path["id"], limit=size_of(asked, tree_page.SHOWN))


@reading("/tasks/{id}/join", joins.JoinPage, AFTER, limit(joins.MISSING))
async def join(asked: PageRequest) -> joins.JoinPage:
    """Read the tasks that a task joins and that have not ended, and the tasks that join it."""
    most = size_of(asked, joins.MISSING)
    id_, scope = asked.path["id"], asked.identity.scope
    return await joins.read_join(asked.services, id_, scope, after=asked.text("after"), limit=most)


@dataclass(frozen=True, slots=True)
class TaskEffects:
    """The effects of a task, in the order of their last begin."""

    effects: tuple[TaskEffect, ...]


@reading("/tasks/{id}/effects", TaskEffects)
async def effects(asked: PageRequest) -> TaskEffects:
    """Read what `ctx.effect` has begun in a task, how it ended, and what was decided."""
    return TaskEffects((await task_values.read_details(asked.services, asked.path["id"])).effects)


@reading("/questions", questions.QuestionPage, AFTER, limit(questions_page.SHOWN))
async def question_page(asked: PageRequest) -> questions.QuestionPage:
    """Read one page of the tasks that wait for an answer."""
    most = size_of(asked, questions_page.SHOWN)
    return await questions.list_questions(asked.services, after=asked.text("after"), limit=most)


@reading("/dead", dead_groups.DeadGroups, QueryParameter("skill", "Only dead letters of this skill."))
async def dead(asked: PageRequest) -> dead_groups.DeadGroups:
    """Read the groups of the newest 1,000 dead letters by skill and error; `/tasks?state=dead` lists them."""
    return await dead_groups.read_dead_groups(asked.services, skill=asked.text("skill"))
