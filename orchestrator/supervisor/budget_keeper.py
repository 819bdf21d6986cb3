"""Keeps budgets in order: books holds of dead attempts, and frees tasks that wait for room.

A notification and each sweep look at the budgets that hold something, or for which tasks wait. What a
waiting task needs was noted when it began to wait: once agents reserve other amounts, or name other budgets,
and when a supervisor begins to lead, all waiting tasks go to their queues, and the supervisor assigns them anew.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.budgets import scripts
from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

BATCH: Final = 500
"""Budgets that one pipeline looks at."""
HOLDS_S: Final = 60.0
"""Seconds between two looks at all holds: attempts book their own, so that only writes that Redis lost leave any."""
REST_S: Final = 1.0
"""Longest pause after a pass. Each call that ends may ask for a pass, which looks at all waiting tasks."""
IDLE_RESTS: Final = 10
"""How many times as long as a pass that moved no task the pause after it is; after another pass it is as long."""
_log = get_logger(__name__)


class BudgetKeeper:
    """Calls `sweep` for each budget in use.

    Args:
        services: of the pool.
        wakeup: told when a budget may have room.
    """

    def __init__(self, services: Services, wakeup: Wakeup) -> None:
        self._services, self._wakeup = services, wakeup
        self._pauses = Pauses()
        self._funds: dict[bytes, bytes] | None = None
        self._holds_due, self._has_moved = 0.0, False

    async def run(self) -> None:
        """Sweep until cancelled."""
        with self._services.watch_loop("budget_keeper", waits_s=sweep_s) as turn:
            while True:
                turn.record()
                began_s, self._has_moved = monotonic(), False
                try:
                    await self._sweep_all(turn)
                    self._pauses.reset()
                    rests = 1 if self._has_moved else IDLE_RESTS
                    await anyio.sleep(min(REST_S, rests * (monotonic() - began_s)))
                except StoreError as failure:
                    _log.failure("budget_sweep_failed", error=failure)
                    await anyio.sleep(self._pauses.next_s(failure))
                await self._wakeup.wait(sweep_s(self._services.settings))

    async def _sweep_all(self, turn: LoopTurn) -> None:
        waited_for = await self._waited_for()
        funds = await self._read_funds() if waited_for else None
        # Also at the start and when tasks begin to wait: agents may have changed while this loop did not look.
        if funds != self._funds:
            for name in waited_for:
                await self._sweep(name, turn, anew=True)
        self._funds = funds
        holds, in_use = monotonic() >= self._holds_due, set[str]()
        async for name in self._in_use():
            in_use.add(name)
            await self._sweep(name, turn, holds=holds)
        # The last task that waited may have ended, or the budget is not set.
        for name in waited_for:
            if name not in in_use:
                await self._sweep(name, turn)
        if holds:
            self._holds_due = monotonic() + HOLDS_S

    async def _in_use(self) -> AsyncIterator[str]:
        """Yield the budgets of which attempts hold something, or for which tasks wait."""
        store, keys = self._services.store, self._services.keys
        if not (listed := await store.execute("SMEMBERS", keys.budgets)):
            return
        known = sorted(map(read_text, listed))
        for at in range(0, len(known), BATCH):
            names = known[at : at + BATCH]
            asked = [("EXISTS", keys.holds(name), keys.held(keys.budget_scope(name))) for name in names]
            for name, count in zip(names, await store.pipeline(asked), strict=True):
                if isinstance(count, StoreError):
                    raise count
                if count:
                    yield name

    async def _read_funds(self) -> dict[bytes, bytes]:
        """Return what starts of each agent reserve, and the budgets that it names."""
        store, keys = self._services.store, self._services.keys
        agents = await store.execute("ZRANGE", keys.agents, 0, -1)
        found: dict[bytes, bytes] = {}
        for at in range(0, len(agents), BATCH):
            names = agents[at : at + BATCH]
            asked = [("HGET", keys.agent(read_text(name)), "funds") for name in names]
            for name, funds in zip(names, await store.pipeline(asked), strict=True):
                if isinstance(funds, StoreError) and not isinstance(funds, ServerRefused):
                    raise funds
                # A damaged record of one agent must not keep all budgets from being looked at.
                if funds and not isinstance(funds, ServerRefused):
                    found[name] = funds
        return found

    async def _waited_for(self) -> list[str]:
        """Return the budgets for which tasks wait, also those that are not set."""
        store, keys = self._services.store, self._services.keys
        scopes = map(read_text, await store.execute("SMEMBERS", keys.suspended_scopes))
        first = keys.budget_scope("")
        return sorted(scope.removeprefix(first) for scope in scopes if scope.startswith(first))

    async def _sweep(self, name: str, turn: LoopTurn, *, anew: bool = False, holds: bool = False) -> None:
        try:
            await self._sweep_through(name, turn, anew=anew, holds=holds)
        except ServerRefused as refusal:
            # A damaged key of one budget must not keep the others from being looked at.
            _log.error("budget_sweep_refused", budget=name, error=str(refusal))

    async def _sweep_through(self, name: str, turn: LoopTurn, *, anew: bool, holds: bool) -> None:
        keys = self._services.keys
        call, left = scripts.sweep(keys, name=name, anew=anew, cursor="0" if holds else ""), True
        while left:
            turn.record()
            done = await self._services.store.call(call)
            left = done.left
            call = scripts.sweep(
                keys,
                name=name,
                first=done.next_first,
                anew=anew,
                behind=done.next_behind,
                cursor=done.next_cursor,
                taken=done.next_taken,
            )
            if done.booked:
                _log.warning("budget_holds_were_lost", budget=name, count=done.booked)
            if done.moved:
                self._has_moved = True
                _log.debug("budget_freed_tasks", budget=name, count=done.moved)
