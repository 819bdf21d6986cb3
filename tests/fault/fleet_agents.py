"""An agent that calls a fake provider until its budget is used up, and then hands back what it has."""

from __future__ import annotations

import contextlib
import os
import random
import time
from decimal import Decimal
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from orchestrator import Agent, BudgetExhausted, TaskContext
from orchestrator.core.amounts import MICRO
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE

TAKEN: Final = 10_000
"""Millionths of a dollar that a call takes from its budget."""
LAST: Final = 100
"""The same of a last call."""


class Entry(NamedTuple):
    """One line of the provider's ledger: what an attempt has really used, and when.

    Attributes:
        kind: `begun` (the attempt), `used` (a call), `last` (a last call), `kept` (the partial result is stored).
        value: millionths of a dollar; of `kept`, the result.
    """

    us: int
    kind: str
    task: str
    generation: int
    value: int


class Ledger:
    """What the provider charged, in a file: it survives the workers, and no fault of Redis reaches it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def note(self, ctx: TaskContext, kind: str, value: int = 0) -> None:
        """Append a line; it is in the file when this returns."""
        entry = Entry(time.time_ns() // 1000, kind, ctx.task_id, int(ctx._delivery.generation), value)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (" ".join(map(str, entry)) + "\n").encode())
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """All lines, in the order of their times."""
        if not self._path.exists():
            return []
        rows = [line.split() for line in self._path.read_text().splitlines()]
        return sorted(Entry(int(us), kind, task, int(gen), int(value)) for us, kind, task, gen, value in rows)


fleet = Agent(
    "fleet",
    concurrency=int(os.environ.get(SLOTS_VARIABLE, "1")),
    lease=float(os.environ.get(LEASE_VARIABLE, "2")),
)


def charge(dice: random.Random) -> int:
    """What a call uses: mostly less than it has taken, now and then three times as much."""
    return 3 * TAKEN if dice.random() < 0.02 else dice.randrange(TAKEN // 2, TAKEN + 1)


@fleet.skill(max_attempts=1000, max_deaths=1000, backoff=0.05, reserve={"usd": Decimal(TAKEN) / MICRO})
async def explore(ctx: TaskContext) -> int:
    """Call the provider until nothing is left; return the number of answers, which one last call has summed up."""
    ledger, dice = Ledger(os.environ[ATTEMPT_LOG_VARIABLE]), random.Random()
    ledger.note(ctx, "begun")
    answers = 0
    try:
        while True:
            async with ctx.spend(usd=Decimal(TAKEN) / MICRO) as call:
                await anyio.sleep(dice.uniform(0.1, 0.5))
                used = charge(dice)
                ledger.note(ctx, "used", used)
                call.settle(usd=Decimal(used) / MICRO)
            answers += 1
    except BudgetExhausted:
        partial: int = await ctx.once("partial", hand_back, ctx, ledger, answers)
        ledger.note(ctx, "kept", partial)
        return partial


async def hand_back(ctx: TaskContext, ledger: Ledger, answers: int) -> int:
    """Sum the answers up with the one call that a task may make beyond the limit."""
    # An earlier attempt may have made it, and all tasks together may have used up what is there for such calls.
    with contextlib.suppress(BudgetExhausted):
        async with ctx.spend(usd=Decimal(LAST) / MICRO, last=True):
            ledger.note(ctx, "last", LAST)
    return answers
