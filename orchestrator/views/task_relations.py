"""Reads the budgets of a task and the tasks that it joins, for its page, in two round trips at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.budgets.queries import budget_reads, read_held
from orchestrator.core.reading import read_whole
from orchestrator.views.budgets import BudgetView, count_reads, views_of
from orchestrator.views.joins import missing_reads, missing_tasks
from orchestrator.views.paging import read_together

if TYPE_CHECKING:
    from orchestrator.accounts.model import AccountScope
    from orchestrator.services import Services
    from orchestrator.views.joins import MissingTask
    from orchestrator.views.task_values import TaskDetails


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """A budget of a task.

    Attributes:
        budget: as it is now.
        own: the task names it, or a task above it does; else its agent does.
        held: amounts that its attempt holds, by unit.
        calls: number of open calls.
    """

    budget: BudgetView
    own: bool
    held: dict[str, float]
    calls: int


async def read_relations(
    services: Services, details: TaskDetails, scope: AccountScope
) -> tuple[tuple[TaskBudget, ...], tuple[MissingTask, ...]]:
    """Read the budgets of a task, and the first missing tasks of its join, as a user of a scope sees them."""
    keys, names = services.keys, details.budgets
    missing = (details.why.children or ()) if details.join is not None else ()
    if not names and not missing:
        return (), ()
    member = f"{details.info.id}:{details.generation}"
    time, *replies = await read_together(
        services,
        [
            ("TIME",),
            *budget_reads(keys, names),
            *count_reads(keys, names),
            *(("HGET", keys.holds(name), member) for name in names),
            *missing_reads(services, missing),
        ],
    )
    views = views_of(names, replies[: 3 * len(names)], seconds=read_whole(time[0]))
    held = map(read_held, replies[3 * len(names) : 4 * len(names)])
    own = set(details.info.budgets)
    budgets = tuple(
        TaskBudget(view, view.budget in own, amounts.plain, calls)
        for view, (amounts, calls) in zip(views, held, strict=True)
    )
    return budgets, await missing_tasks(services, details.info.id, missing, replies[4 * len(names) :], scope)
