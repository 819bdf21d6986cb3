"""`ctx.spend` without Redis: what an attempt books when it is cancelled or gets no answer, and what it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator.budgets.scripts import BookedCall, Reserved
from orchestrator.core.amounts import Amounts
from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.workers.spending import Spending

if TYPE_CHECKING:
    from orchestrator.budgets.model import BudgetState


class SlowFunds:
    """Budgets that answer no reservation."""

    begins_as = ("t", "w", "1")

    def __init__(self) -> None:
        self.settled: list[tuple[int, Amounts | None]] = []

    async def reserve(self, number: int, amounts: Amounts, *, last: bool) -> Reserved:
        """Wait until cancelled."""
        await anyio.sleep_forever()
        raise AssertionError(number, amounts, last)

    async def settle_call(self, number: int, amounts: Amounts | None) -> BookedCall:
        """Record the call."""
        self.settled.append((number, amounts))
        return BookedCall("settled", ())

    async def load_budgets(self) -> list[BudgetState]:
        """Return no budget."""
        return []

    async def count_questions(self) -> int:
        """Return 0."""
        return 0


class OneAnswer(SlowFunds):
    """Budgets that give one answer to each reservation."""

    def __init__(self, answer: Reserved | StoreError) -> None:
        super().__init__()
        self.answer, self.asked = answer, 0

    async def reserve(self, number: int, amounts: Amounts, *, last: bool) -> Reserved:
        """Answer."""
        self.asked += 1
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer


class Unasked:
    """Questions of an attempt that asked none."""

    def check_not_asked(self) -> None:
        """Do nothing."""


async def test_a_call_that_is_cancelled_before_it_is_granted_is_free() -> None:
    """Redis may grant it, so the attempt books that it used nothing: the handler made no call."""
    funds = SlowFunds()
    spending = Spending(funds, Unasked())  # type: ignore[arg-type]
    with anyio.move_on_after(0.01):
        async with spending.call({"usd": 0.5}, last=False):
            pytest.fail("granted")
    assert funds.settled == [(1, Amounts())]


async def test_a_call_whose_grant_does_not_arrive_is_free() -> None:
    """If it was sent, Redis may have granted it, and the end of the attempt would book it as made."""
    for sent, settled in ((True, [(1, Amounts())]), (False, [])):
        funds = OneAnswer(ServerUnavailable("no reply", outcome_unknown=sent))
        spending = Spending(funds, Unasked())  # type: ignore[arg-type]
        with pytest.raises(ServerUnavailable):
            async with spending.call({"usd": 0.5}, last=False):
                pytest.fail("granted")
        assert funds.settled == settled


async def test_a_task_without_a_budget_asks_once() -> None:
    """The budgets of an attempt do not change, so that later calls of a task that has none ask for nothing."""
    funds = OneAnswer(Reserved("none"))
    spending = Spending(funds, Unasked())  # type: ignore[arg-type]
    for _ in range(3):
        async with spending.call({"usd": 0.5}, last=False):
            pass
    assert (funds.asked, funds.settled) == (1, [])
