"""Reads budgets: limits, what is spent, held and left, and how many tasks wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.budgets.queries import read_budgets
from orchestrator.core.amounts import MICRO, UNITS
from orchestrator.core.errors import NotFound, StoreError
from orchestrator.core.reading import read_text
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.budgets.model import BudgetState
    from orchestrator.services import Services


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
    return BudgetList(tuple(await _views(services, names[:limit])), len(names))


async def show_budget(services: Services, name: str) -> BudgetView:
    """Read one budget.

    Raises:
        NotFound: it is not set.
    """
    (found,) = await _views(services, [name])
    if found.state == "undefined":
        raise NotFound(f"budget {name!r} is not set; set it with `orc budgets set {name} --usd N`")
    return found


async def _views(services: Services, names: Sequence[str]) -> list[BudgetView]:
    store, keys = services.store, services.keys
    states = await read_budgets(store, names)
    commands = [
        command
        for name in names
        for command in (("HLEN", keys.holds(name)), ("ZCARD", keys.held(keys.budget_scope(name))))
    ]
    counts = [0 if isinstance(one, StoreError) else one for one in await store.pipeline(commands)] if commands else []
    return [
        _view(name, states[name], attempts, waiting)
        for name, attempts, waiting in zip(names, counts[::2], counts[1::2], strict=True)
    ]


def _view(name: str, state: BudgetState | str, attempts: int, waiting: int) -> BudgetView:
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
    )


def _state(state: BudgetState) -> str:
    least = min(state.left.values(), default=1.0)
    if least < 0:
        return "overspent"
    if least == 0:
        return "exhausted"
    return "soft" if state.past_soft else "open"
