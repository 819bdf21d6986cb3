"""Reads budgets: limits, what is spent, held and left, and how many tasks wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - a part of public values
from typing import TYPE_CHECKING, Any

from orchestrator.budgets.model import explain_refusal
from orchestrator.budgets.queries import DAY_S, budget_reads, parse_budgets
from orchestrator.core.amounts import MICRO, NOTHING, UNITS
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound
from orchestrator.core.reading import read_text, read_whole
from orchestrator.views.paging import LIMIT, read_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.budgets.model import BudgetState
    from orchestrator.services import Services
    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import PoolKeys


@dataclass(frozen=True, slots=True)
class BudgetUnit:
    """A unit of a budget.

    Attributes:
        limit: None for no limit.
        held: taken by attempts that have not settled yet.
        left: what may still be taken; negative where more is spent, None without a limit.
    """

    unit: str
    limit: float | None
    spent: float
    held: float
    left: float | None


@dataclass(frozen=True, slots=True)
class BudgetView:
    """A budget.

    Attributes:
        budget: its name.
        state: `open`, `soft` (past the soft line), `exhausted` (nothing of a unit is left), `overspent` (more than a
            limit is spent and held), `undefined` or `damaged`.
        units: those with a limit, or of which something is spent or held.
        soft: share of a limit at which agents finish what they do.
        per: `day` or `ever`.
        at_hard: `ask` or `stop`.
        lost: what the holds of an attempt count as that died: `spent` or `free`.
        attempts: number of attempts that hold something.
        waiting: number of tasks that wait for room.
        past_soft: whether a unit has reached the soft line.
        resets_at: when a budget by day begins anew.
    """

    budget: str
    state: str
    units: tuple[BudgetUnit, ...] = ()
    soft: float = 0.0
    per: str = "ever"
    at_hard: str = "stop"
    lost: str = "spent"
    attempts: int = 0
    waiting: int = 0
    past_soft: bool = False
    resets_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BudgetList:
    """Budgets by name.

    Attributes:
        total: how many there are, including those beyond the limit.
    """

    budgets: tuple[BudgetView, ...]
    total: int


async def list_budgets(services: Services, *, limit: int = LIMIT) -> BudgetList:
    """Read at most `limit` budgets."""
    listed = await services.store.execute("SMEMBERS", services.keys.budgets)
    names = sorted(map(read_text, listed))
    return BudgetList(tuple(await read_views(services, names[:limit])), len(names))


async def show_budget(services: Services, name: str) -> BudgetView:
    """Read one budget.

    Raises:
        NotFound: it is not set.
    """
    (found,) = await read_views(services, [name])
    if found.state == "undefined":
        raise NotFound(explain_refusal(name, "undefined", None, NOTHING))
    return found


async def read_views(services: Services, names: Sequence[str]) -> list[BudgetView]:
    """Read budgets in one round trip, also those that are not set."""
    if not names:
        return []
    keys = services.keys
    commands = [("TIME",), *budget_reads(keys, names), *count_reads(keys, names)]
    time, *replies = await read_together(services, commands)
    return views_of(names, replies, seconds=read_whole(time[0]))


def count_reads(keys: PoolKeys, names: Sequence[str]) -> list[Sequence[Argument]]:
    """Return the commands that count the attempts that hold amounts, and the tasks that wait: two for each budget."""
    commands: list[Sequence[Argument]] = []
    for name in names:
        commands += [("HLEN", keys.holds(name)), ("ZCARD", keys.held(keys.budget_scope(name)))]
    return commands


def views_of(names: Sequence[str], replies: Sequence[Any], *, seconds: int) -> list[BudgetView]:
    """Return budgets from the replies to `budget_reads` and `count_reads`, at a time of Redis."""
    states = parse_budgets(names, replies[: len(names)], seconds=seconds)
    counts = [one or 0 for one in replies[len(names) :]]
    resets_at = from_instant_ms((seconds // DAY_S + 1) * DAY_S * 1000)
    return [
        _view(name, states[name], attempts, waiting, resets_at)
        for name, attempts, waiting in zip(names, counts[::2], counts[1::2], strict=True)
    ]


def _view(name: str, state: BudgetState | str, attempts: int, waiting: int, resets_at: datetime) -> BudgetView:
    if isinstance(state, str):
        return BudgetView(name, state, attempts=attempts, waiting=waiting)
    left = state.left
    units = tuple(
        BudgetUnit(unit, None if limit is None else limit / MICRO, spent / MICRO, held / MICRO, left.get(unit))
        for unit, limit, spent, held in zip(UNITS, state.limit, state.spent, state.held, strict=True)
        if limit is not None or spent or held
    )
    return BudgetView(
        name,
        _state(state),
        units,
        soft=state.soft,
        per="day" if state.per_day else "ever",
        at_hard=state.at_hard,
        lost=state.lost,
        attempts=attempts,
        waiting=waiting,
        past_soft=state.past_soft,
        resets_at=resets_at if state.per_day else None,
    )


def _state(state: BudgetState) -> str:
    least = min(state.left.values(), default=1.0)
    if least < 0:
        return "overspent"
    if least == 0:
        return "exhausted"
    return "soft" if state.past_soft else "open"
