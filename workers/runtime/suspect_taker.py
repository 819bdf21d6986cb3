"""Takes suspects of one agent: tasks that wait until a worker process has room for them (protocol rule 8).

Scripts tell the worker when suspects wait. While some are left, it asks again when one of its own has ended, and at
growing intervals for those that wait for another reason.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.fetcher import Fetcher
    from orchestrator.workers.runtime.parts import WorkerParts
    from orchestrator.workers.runtime.slots import Slots

_log = get_logger(__name__)


class SuspectTaker:
    """Takes suspects for the slots of one agent."""

    def __init__(self, agent: Agent, parts: WorkerParts, slots: Slots, fetcher: Fetcher) -> None:
        self._agent, self._parts, self._slots, self._fetcher = agent, parts, slots, fetcher
        self._pauses = Pauses(cap_s=fetcher.poll_every_s)
        self._told = anyio.Event()
        fetcher.on_suspects = self.tell

    def tell(self) -> None:
        """Note that suspects wait in the pool."""
        self._told.set()

    async def run(self) -> None:
        """Take suspects until cancelled."""
        while True:
            await self._told.wait()
            self._pauses.reset()
            while True:
                # Before the call, which finds all that was told until now; a later note ends the pause.
                self._told = anyio.Event()
                if not await self._take():
                    break
                await self._pause()

    async def _take(self) -> bool:
        """Take what has room; return whether suspects are left."""
        await self._slots.wait_free()
        suspects = self._parts.suspects
        if suspects.closed_s > 0 or self._parts.commands.stop_of(self._agent.name) is not None:
            return True
        call = scripts.take_suspects(
            self._parts.services.keys,
            worker=self._parts.worker,
            agent=self._agent.name,
            limit=self._slots.free,
            running=suspects.running,
            idle=suspects.idle,
        )
        asked_s = time.monotonic()
        answered = False
        try:
            taken = await self._parts.services.store.call(call)
            await self._fetcher.start(taken.deliveries, asked_s=asked_s)
            answered = True
        except StoreError as failure:
            _log.failure("fetch_failed", agent=self._agent.name, error=failure)
            return True
        finally:
            if not answered:
                self._fetcher.check_for_lost()
        if taken.deliveries:
            self._pauses.reset()
        return taken.left

    async def _pause(self) -> None:
        """Wait until a suspect of this process ends, until new ones wait, or for the next pause."""
        with anyio.move_on_after(self._pauses.next_s()):
            async with anyio.create_task_group() as either:

                async def wait_told() -> None:
                    await self._told.wait()
                    either.cancel_scope.cancel()

                either.start_soon(wait_told)
                await self._parts.suspects.wait_left()
                either.cancel_scope.cancel()
