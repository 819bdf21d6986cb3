"""Reads budgets page by page, one budget with its holds and waiting tasks, and budgets without room for tasks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - a part of public values
from typing import TYPE_CHECKING, Any, Final

from orchestrator.budgets.model import explain_refusal
from orchestrator.budgets.queries import budget_reads, read_amounts, read_held
from orchestrator.core.amounts import NOTHING
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, NotFound
from orchestrator.core.ids import check_name
from orchestrator.core.reading import read_text, read_whole
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import TaskRow, row_of
from orchestrator.tasks.records import LISTED, TaskRecord, read_command
from orchestrator.views.budgets import BudgetView, count_reads, read_views, views_of
from orchestrator.views.paging import cut, page_sorted, read_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services

BUDGETS: Final = 50
MOST_BUDGETS: Final = 20_000
"""Names that a page is cut from."""
ENTRIES: Final = 25
"""Attempts that hold amounts, and waiting tasks, of a page."""
MOST_HOLDS: Final = 10_000
"""Attempts that a page is cut from. Of more than these, Redis chooses others for each page."""
CONCERNS: Final = 10
"""Budgets without room for which tasks wait, that the overview names."""
MOST_LOOKED: Final = 200
"""Budgets for which tasks wait, among which it looks for those in one minute."""
MOST_SCOPES: Final = 5000
"""Scopes with waiting tasks, among which it looks for budgets."""
_ATTEMPT: Final = ("state", "gen", "fails", "deaths", "cancel")
_WAITING: Final = (*LISTED, "need")
_WITHOUT_ROOM: Final = frozenset({"overspent", "exhausted", "undefined", "damaged"})


@dataclass(frozen=True, slots=True)
class BudgetPage:
    """A part of the budgets by name; the fields are those of `NamePage`."""

    budgets: tuple[BudgetView, ...]
    cursor: str | None
    looked: int
    more: bool


@dataclass(frozen=True, slots=True)
class BudgetHold:
    """The amounts that an attempt holds of a budget.

    Attributes:
        task: id of its task.
        attempt: its number; None if it has ended, or the task is gone.
        state: of the task; None if it is gone.
        amounts: by unit.
        calls: number of its open calls.
        since: when the attempt was assigned.
    """

    task: str
    attempt: int | None
    state: TaskState | None
    amounts: dict[str, float]
    calls: int
    since: datetime


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that waits for a budget; `need` has the amounts that its start takes, by unit."""

    task: TaskRow
    need: dict[str, float]


@dataclass(frozen=True, slots=True)
class BudgetDetail:
    """One budget.

    Attributes:
        budget: as in a list.
        holds: what attempts hold, those of the oldest tasks first.
        holds_cursor: goes on behind them; None at the end.
        holds_more: more attempts than the 10,000 that were looked at hold amounts, so that pages may leave some out.
        waiting: tasks that wait for room, in their order.
        cursor: goes on behind these; None at the end.
    """

    budget: BudgetView
    holds: tuple[BudgetHold, ...]
    holds_cursor: str | None
    holds_more: bool
    waiting: tuple[WaitingTask, ...]
    cursor: str | None


async def page_budgets(
    services: Services, *, after: str | None = None, starts: str = "", limit: int = BUDGETS
) -> BudgetPage:
    """Read the budgets behind the cursor `after` whose names begin with `starts`."""
    (listed,) = await read_together(services, [("SRANDMEMBER", services.keys.budgets, MOST_BUDGETS)])
    names = [name for name in map(read_text, listed or ()) if name.startswith(starts)]
    page = cut(names, after=after, limit=limit)
    views = await read_views(services, page.names)
    return BudgetPage(tuple(views), page.cursor, page.looked, len(listed or ()) >= MOST_BUDGETS)


async def read_budget_page(
    services: Services,
    name: str,
    *,
    after: str | None = None,
    holds_after: str | None = None,
    limit: int = ENTRIES,
) -> BudgetDetail:
    """Read one budget, also one that is not set if tasks wait for it; at most `limit` entries of each list.

    Raises:
        InvalidInput: no name of a budget, or no cursor of it.
        NotFound: it is not set, and no task waits for it.
    """
    check_name("budget", name)
    keys = services.keys
    time, listed, *replies = await read_together(
        services,
        [
            ("TIME",),
            ("HRANDFIELD", keys.holds(name), MOST_HOLDS),
            *budget_reads(keys, [name]),
            *count_reads(keys, [name]),
        ],
    )
    (view,) = views_of([name], replies, seconds=read_whole(time[0]))
    if view.state == "undefined" and not view.waiting:
        raise NotFound(explain_refusal(name, "undefined", None, NOTHING))
    holding = cut(list(map(read_text, listed or ())), after=holds_after, limit=limit, most=MOST_HOLDS)
    waiting = await page_sorted(services, keys.held(keys.budget_scope(name)), after=after, limit=limit)
    members, ids = holding.names, [id_ for id_, _ in waiting.members]
    held, *records = await read_together(
        services,
        [
            ("HMGET", keys.holds(name), *members) if members else ("TIME",),
            *(read_command(keys, _task_of(member), *_ATTEMPT) for member in members),
            *(read_command(keys, id_, *_WAITING) for id_ in ids),
        ],
    )
    held = (held or [None] * len(members)) if members else []
    return BudgetDetail(
        view,
        tuple(map(_hold, members, held, records[: len(members)])),
        holding.cursor,
        view.attempts > MOST_HOLDS,
        tuple(one for one in map(_waiting, ids, records[len(members) :]) if one is not None),
        waiting.cursor,
    )


async def budgets_without_room(
    services: Services, scopes: Sequence[bytes], minute: int
) -> tuple[tuple[BudgetView, ...], int]:
    """Read the budgets without room for which tasks wait, at most `CONCERNS`; return also the number of the rest.

    The rest are further ones, and those that were not looked at.

    Args:
        services: of the pool.
        scopes: scopes with waiting tasks, or some of them.
        minute: number of the minute: the next one looks at the next `MOST_LOOKED`, so that each budget has its turn.
    """
    keys, known = services.keys, map(read_text, scopes)
    names = sorted(scope.removeprefix(keys.budget_scope("")) for scope in known if keys.is_budget_scope(scope))
    first = minute * MOST_LOOKED % len(names) if len(names) > MOST_LOOKED else 0
    views = await read_views(services, (names[first:] + names[:first])[:MOST_LOOKED])
    found = [view for view in views if _lacks_room(view)]
    rest = len(names) - len(views) + max(0, len(found) - CONCERNS)
    return tuple(found[:CONCERNS]), rest


def _lacks_room(view: BudgetView) -> bool:
    """Return whether tasks wait for a budget that has nothing left, or too little and no attempt that may free some."""
    return bool(view.waiting) and (view.state in _WITHOUT_ROOM or not view.attempts)


def _task_of(member: str) -> str:
    return member.rpartition(":")[0]


def _hold(member: str, stored: bytes | None, reply: Sequence[Any] | None) -> BudgetHold:
    task, _, generation = member.rpartition(":")
    record = TaskRecord.from_reply(task, _ATTEMPT, reply or [None] * len(_ATTEMPT))
    state, (amounts, calls) = _state_of(record), read_held(stored)
    runs = state is TaskState.ASSIGNED and str(record.generation) == generation
    if runs and calls:
        state = record.known_as(TaskState.RUNNING).state  # only a handler that runs has made calls
    return BudgetHold(
        task=task,
        attempt=record.attempts + 1 if runs else None,
        state=state,
        amounts=amounts.plain,
        calls=calls,
        since=from_instant_ms(read_whole(generation)),
    )


def _state_of(record: TaskRecord) -> TaskState | None:
    """Return the state of a task; None if the task is gone or its record is damaged."""
    with suppress(DamagedData):
        return record.state if record.exists else None
    return None


def _waiting(id_: str, reply: Sequence[Any] | None) -> WaitingTask | None:
    record = TaskRecord.from_reply(id_, _WAITING, reply or [None] * len(_WAITING))
    state = _state_of(record)
    if state is None:
        return None
    _, _, amounts = read_text(record.field("need") or b"").partition(" ")
    return WaitingTask(row_of(record, state), read_amounts(amounts).plain)
