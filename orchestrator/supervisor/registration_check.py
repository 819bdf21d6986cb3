"""Refuses workers whose registrations have no valid signature, so that no task is assigned for their slots.

Scripts cannot check a signature, so the leader looks after the registration: when the agents of the pool change, and in
every sweep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents import scripts
from orchestrator.agents.registrations import read_forged
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import StoreError
from orchestrator.core.formats import Feature
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

_log = get_logger(__name__)


class RegistrationCheck:
    """Refuses workers without a valid signature where there is a secret.

    Args:
        services: of the pool.
        wakeup: notified when the agents of the pool change.
    """

    def __init__(self, services: Services, wakeup: Wakeup) -> None:
        self._services, self._wakeup = services, wakeup

    async def run(self) -> None:
        """Check until cancelled."""
        with self._services.watch_loop("registration_check", waits_s=sweep_s) as turn:
            while True:
                turn.record()
                try:
                    await self._check(turn)
                except StoreError as failure:
                    _log.failure("registration_check_failed", error=failure)
                await self._wakeup.wait(sweep_s(self._services.settings))

    async def _check(self, turn: LoopTurn) -> None:
        store = self._services.store
        signer = signer_of(self._services.settings, place=store.keys.root)
        # Workers from before this feature sign nothing.
        if not signer.wanted or not store.floor.admits(Feature.SIGNED_REGISTRATIONS):
            return
        for worker in await read_forged(store, signer.accepts_registration):
            turn.record()
            if await store.call(scripts.refuse(store.keys, worker=worker)):
                _log.error("registration_forged", worker=worker)
