"""Budgets as scripts tell them, and questions of tasks that need more than a budget has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from orchestrator.core.amounts import MICRO, UNITS, Amounts, parse_amounts, show_amount
from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_score, read_text, read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

AtHard: TypeAlias = Literal["ask", "stop"]
"""What an attempt does that has no room left: ask a person for more, or end."""
Lost: TypeAlias = Literal["spent", "free"]
"""What the holds of an attempt are that died."""
MOST_CALLS: Final = 64
"""The most open calls of an attempt."""
SOFT: Final = 0.8
"""Share of a limit at which agents finish what they do, without `soft`."""
_ASKS: Final = "budget "
"""How the name begins by which the question of a budget is stored; no effect is called so, because it has a blank."""


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget at one moment; amounts in millionths.

    Attributes:
        limit: by unit, in the order of `UNITS`; None for a unit without a limit.
        spent: of this day, for a budget by day.
        held: taken by attempts that have not settled yet.
        soft: share of a limit at which agents finish what they do.
        per_day: whether it begins anew each day (UTC).
    """

    name: str
    limit: tuple[int | None, ...]
    spent: Amounts
    held: Amounts
    soft: float = SOFT
    at_hard: str = "stop"
    per_day: bool = False
    lost: str = "spent"

    @property
    def left(self) -> dict[str, float]:
        """Amounts that may still be taken, by unit with a limit; negative where more is spent and held."""
        found = zip(UNITS, self.limit, self.spent, self.held, strict=True)
        return {unit: (limit - spent - held) / MICRO for unit, limit, spent, held in found if limit is not None}

    @property
    def past_soft(self) -> bool:
        """True once spent and held of a unit have reached the soft line."""
        found = zip(self.limit, self.spent, self.held, strict=True)
        return any(limit is not None and spent + held >= limit * self.soft for limit, spent, held in found)

    @property
    def overspent(self) -> Amounts:
        """Amounts that are spent and held beyond the limits."""
        found = zip(self.limit, self.spent, self.held, strict=True)
        return Amounts(*(0 if limit is None else max(0, spent + held - limit) for limit, spent, held in found))

    def lacking(self, need: Amounts) -> list[str]:
        """Return the units of which the budget has less left than needed, or nothing."""
        found = zip(UNITS, self.limit, self.spent, self.held, need, strict=True)
        return [
            unit
            for unit, limit, spent, held, amount in found
            if limit is not None and spent + held + max(amount, 1) > limit
        ]

    def describe(self, need: Amounts) -> str:
        """Return what is left and needed of each lacking unit: `0.01 of 2 usd is left, and 0.05 is needed`."""
        parts: list[str] = []
        for unit in self.lacking(need) or [unit for unit, limit in zip(UNITS, self.limit, strict=True) if limit]:
            place = UNITS.index(unit)
            limit, left = self.limit[place] or 0, self.left[unit]
            has = f"{show_amount(max(0, round(left * MICRO)))} of {show_amount(limit)} {unit} is left"
            if left < 0:
                over = show_amount(round(-left * MICRO))
                has = f"{over} {unit} more than the limit of {show_amount(limit)} is spent or held"
            wants = f", and {show_amount(need[place])} is needed" if need[place] else ""
            parts.append(has + wants)
        return "; ".join(parts)


def unpack_amounts(text: str) -> Amounts:
    """Decode amounts of a script."""
    return Amounts(*map(read_whole, text.split()))


def read_state(row: Sequence[bytes]) -> BudgetState:
    """Decode a budget as scripts return it: name, limit, spent, held, soft, at_hard, per, and maybe lost."""
    name, limit, spent, held, soft, at_hard, per, *rest = map(read_text, row)
    return BudgetState(
        name,
        tuple(None if word == "-" else read_whole(word) for word in limit.split()),
        unpack_amounts(spent),
        unpack_amounts(held),
        soft=read_score(soft, SOFT),
        at_hard=at_hard or "stop",
        per_day=per == "day",
        lost=(rest[0] if rest else "") or "spent",
    )


def asks_about(budget: str, unit: str) -> str:
    """Return the name by which the question of a task is stored that needs more of a budget."""
    return f"{_ASKS}{unit} {budget}"


def budget_asked_for(asked: str) -> str | None:
    """Return the budget of which a question needs more, from the name by which it is stored; None: of none."""
    return asked.removeprefix(_ASKS).partition(" ")[2] if asked.startswith(_ASKS) else None


def granted(asked: str, answer: Any) -> str:
    """Return what `tasks/answer` reads of an answer to a question: the budget and the amounts; '' for another question.

    Raises:
        InvalidInput: the answer is no amount.
    """
    budget = budget_asked_for(asked)
    if budget is None:
        return ""
    unit = asked.removeprefix(_ASKS).partition(" ")[0]
    match answer:
        case bool() | None:
            amounts = None if answer else Amounts()
        case int() | float() | str():
            amounts = parse_amounts({unit: answer})
        case dict():
            amounts = parse_amounts(answer)
        case _:
            amounts = None
    if amounts is None:
        raise InvalidInput(
            f"the answer must be the amount of {unit} to add to budget {budget!r}, as 1.5, or amounts by unit, as "
            f'{{"{unit}": 1.5}}; 0 refuses'
        )
    return f"{budget} {amounts.packed}"


def explain_refusal(budget: str, reason: str, state: BudgetState | None, need: Amounts) -> str:
    """Return why a budget has no room for amounts, and the command that helps."""
    if reason == "undefined":
        return f"budget {budget!r} is not set; set it with `orc budgets set {budget} --usd N`"
    if reason == "damaged" or state is None:
        return f"keys of budget {budget!r} are damaged; `orc doctor` names them"
    if reason == "used":
        return f"the task has had its last call beyond budget {budget!r}, and there is one per task"
    unit = (state.lacking(need) or ["usd"])[0]
    helps = f"raise it with `orc budgets set {budget} --{unit} N`"
    if reason == "last":
        most = f"a last call may take 5 % of each limit of budget {budget!r}, and so may all tasks together"
        return f"{most}; {need.readable} is needed; {helps}"
    if reason == "above":
        above = [
            f"{show_amount(amount)} {unit} of {show_amount(limit)}"
            for unit, amount, limit in zip(UNITS, need, state.limit, strict=True)
            if limit is not None and amount > limit
        ]
        return f"{', '.join(above)} is needed, more than the whole limit of budget {budget!r}; {helps}"
    return f"budget {budget!r} has no room: {state.describe(need)}; {helps}"
