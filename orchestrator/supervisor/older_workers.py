"""Stops workers that are older than the pool admits and cannot know it: those from before format 3 read no floor.

They are registered all the same when they were cut off from Redis while an operator raised the floor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.agents.programs import read_workers
from orchestrator.control.commands import StopWorker
from orchestrator.control.sending import send
from orchestrator.core.errors import CommandRefused, StoreError
from orchestrator.core.formats import OLDEST_FORMAT
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from orchestrator.agents.programs import Program
    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurn
    from orchestrator.services import Services

SWEEPS: Final = 6
"""How many sweeps of the supervisor pass between two looks: such a worker is rare, and each look reads all workers."""
_log = get_logger(__name__)


def _every_s(settings: Settings) -> float:
    return sweep_s(settings) * SWEEPS


class OlderWorkers:
    """Gives the command `stop-worker` to each worker that is older than the floor."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stopped: set[str] = set()

    async def run(self) -> None:
        """Look now and then until cancelled."""
        with self._services.watch_loop("older_workers", waits_s=_every_s) as turn:
            while True:
                turn.record()
                try:
                    await self._look(turn)
                except (StoreError, CommandRefused) as failure:
                    _log.failure("older_workers_failed", error=failure)
                await self._services.live.sleep(_every_s)

    async def _look(self, turn: LoopTurn) -> None:
        floor = self._services.store.floor.value
        if floor == OLDEST_FORMAT:
            return
        # A damaged format is read as 0 and says nothing.
        older = {worker.id: worker for worker in await read_workers(self._services.store) if 0 < worker.format < floor}
        for id_, worker in older.items():
            if id_ not in self._stopped:
                turn.record()
                await self._stop(worker, floor)
        self._stopped = set(older)

    async def _stop(self, worker: Program, floor: int) -> None:
        reason = f"its format {worker.format} is older than format {floor}, the lowest one that the pool admits"
        command = StopWorker(worker=worker.id)
        await send(self._services.store, self._services.settings, command, actor="supervisor", reason=reason)
        _log.warning("older_worker_stopped", worker=worker.id, format=worker.format, floor=floor)
