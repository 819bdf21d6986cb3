"""Implements `ctx.spend` and `ctx.budget`: takes amounts from budgets before a call, and books what it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio

from orchestrator.budgets.model import asks_about, explain_refusal
from orchestrator.core.amounts import Amounts, parse_amounts
from orchestrator.core.errors import BudgetExhausted, InvalidInput, StoreError
from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from orchestrator.budgets.model import BudgetState
    from orchestrator.budgets.scripts import BookedCall, Reserved
    from orchestrator.core.amounts import Amount
    from orchestrator.workers.asking import Asking

SETTLE_FOR_S: Final = 5.0
"""Longest time for which the end of a call is booked after its attempt was cancelled."""
_log = get_logger("agent")


class FundsAccess(Protocol):
    """The budgets of one attempt. Its methods raise `Fenced` once the task was taken away from this attempt."""

    @property
    def begins_as(self) -> tuple[str, str, str]:
        """Id of the task, worker and generation of the attempt."""

    async def reserve(self, number: int, amounts: Amounts, *, last: bool) -> Reserved:
        """Take amounts from all budgets, or from none."""

    async def settle_call(self, number: int, amounts: Amounts | None) -> BookedCall:
        """Book what a call has used; None if it is unknown."""

    async def load_budgets(self) -> list[BudgetState]:
        """Read the budgets of the attempt."""

    async def count_questions(self) -> int:
        """Return the number of the latest question."""


class AttemptBudget:
    """Amounts that the budgets of an attempt have left, as of its last `ctx.spend` or `refresh`."""

    __slots__ = ("_funds", "_states")

    def __init__(self, funds: FundsAccess) -> None:
        self._funds = funds
        self._states: dict[str, BudgetState] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The budgets."""
        return tuple(self._states)

    @property
    def left(self) -> Mapping[str, float]:
        """Amounts that may still be taken, by unit: the least of all budgets. It lacks units without a limit."""
        least: dict[str, float] = {}
        for state in self._states.values():
            for unit, left in state.left.items():
                least[unit] = min(left, least.get(unit, left))
        return least

    @property
    def wrap_up(self) -> bool:
        """True once spent and held of a unit have reached the soft line of a budget: finish what you do."""
        return any(state.past_soft for state in self._states.values())

    async def refresh(self) -> Self:
        """Read the budgets anew.

        Raises:
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: Redis did not answer, even after retries.
        """
        self.note(await self._funds.load_budgets())
        return self

    def note(self, states: list[BudgetState] | tuple[BudgetState, ...]) -> None:
        """Record what a script returned."""
        self._states.update({state.name: state for state in states})


class Spending:
    """The calls of one attempt that spend.

    Attributes:
        budget: what is left.
    """

    __slots__ = ("_asking", "_funds", "_has_none", "_number", "budget")

    def __init__(self, funds: FundsAccess, asking: Asking) -> None:
        self.budget = AttemptBudget(funds)
        self._funds, self._asking, self._number = funds, asking, 0
        self._has_none = False

    def call(self, values: Mapping[str, Amount | None], *, last: bool) -> Spend:
        """Return a call that takes amounts when it is entered."""
        return Spend(self, parse_amounts(values), last=last)

    @property
    def _task(self) -> str:
        return self._funds.begins_as[0]

    async def reserve(self, amounts: Amounts, *, last: bool) -> int | None:
        """Take amounts and return the number of the call; None for a task without a budget.

        Raises:
            BudgetExhausted: there is no room.
            Asked: the attempt ends with the question for more.
        """
        self._asking.check_not_asked()
        if self._has_none:
            return None  # the budgets of an attempt do not change
        self._number += 1
        number = self._number
        try:
            found = await self._funds.reserve(number, amounts, last=last)
        except (StoreError, anyio.get_cancelled_exc_class()) as failure:
            # The call will not be made. Redis may have granted it.
            if not isinstance(failure, StoreError) or failure.outcome_unknown:
                await self.settle(number, Amounts())
            raise
        self.budget.note(found.states)
        match found.status:
            case "granted":
                return number
            case "none":
                self._has_none = True
                return None
            case "full":
                raise InvalidInput(f"task {self._task} has too many open calls of ctx.spend; settle some first")
            case "settled":
                raise InvalidInput(f"call {number} of task {self._task} was settled before")
        return await self._refused(found, amounts, last=last)

    async def _refused(self, found: Reserved, amounts: Amounts, *, last: bool) -> int | None:
        state = next((one for one in found.states if one.name == found.budget), None)
        asks = state is not None and state.at_hard == "ask" and found.reason in {"room", "overspent", "above"}
        said = explain_refusal(found.budget, found.reason, state, amounts)
        if state is None or not asks or last or found.unfunded:
            raise BudgetExhausted(found.budget, found.reason, said)
        unit = (state.lacking(amounts) or ["usd"])[0]
        question = (
            f"Task {self._task} needs more: {said}. Answer with the {unit} to add to budget {found.budget!r}, "
            f'as 1.5, or with amounts by unit, as {{"{unit}": 1.5}}; 0 refuses.'
        )
        number = await self._funds.count_questions() + 1
        self._asking.ask_about(asks_about(found.budget, unit), number, question)

    async def settle(self, number: int, amounts: Amounts | None) -> None:
        """Book a call. An attempt that is cancelled books it, too; what cannot be booked is lost with the attempt."""
        try:
            with anyio.move_on_after(SETTLE_FOR_S, shield=True) as limit:
                self.budget.note((await self._funds.settle_call(number, amounts)).states)
        except StoreError as failure:
            _log.warning("spend_not_settled", task=self._task, error=str(failure))
            return
        if limit.cancelled_caught:
            _log.warning("spend_not_settled", task=self._task, error="Redis did not answer in time")


class Spend:
    """One call that spends: `async with ctx.spend(usd=0.05) as s: ...`."""

    __slots__ = ("_amounts", "_last", "_number", "_spending", "_used")

    def __init__(self, spending: Spending, amounts: Amounts, *, last: bool) -> None:
        self._spending, self._amounts, self._last = spending, amounts, last
        self._number: int | None = None
        self._used: dict[str, int] | None = None

    def settle(
        self,
        *,
        usd: Amount | None = None,
        tokens: Amount | None = None,
        calls: Amount | None = None,
        seconds: Amount | None = None,
    ) -> None:
        """Tell what the call has used. The end of the block books it; the last call of `settle` counts.

        A unit that is not named counts as it was taken, or as nothing when the block raises.

        Raises:
            InvalidInput: an amount is negative, not finite, or too large.
        """
        values = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds}
        parsed = parse_amounts(values)._asdict()
        self._used = {unit: parsed[unit] for unit, value in values.items() if value is not None}

    async def __aenter__(self) -> Self:
        self._number = await self._spending.reserve(self._amounts, last=self._last)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._number is not None:
            await self._spending.settle(self._number, self._booked(raised))

    def _booked(self, raised: BaseException | None) -> Amounts | None:
        """Return what the call has used; None if it was cancelled and told nothing."""
        if raised is None:
            return self._amounts._replace(**(self._used or {}))
        if self._used is not None or isinstance(raised, Exception):
            return Amounts()._replace(**(self._used or {}))
        return None
