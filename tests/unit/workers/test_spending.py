"""`ctx.spend` without Redis: what an attempt books when it is cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator.budgets.scripts import BookedCall, Reserved
from orchestrator.core.amounts import Amounts
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
