"""The pulse: a thread with its own connection that renews leases and beats the registry.

It runs beside the event loop, so that a handler that blocks the loop does not lose the worker's leases; but when the
loop has not turned for `worker.stuck_after_s`, the pulse stops renewing, because then nobody would notice the end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.agents import scripts as registry
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.pauses import Pauses
from orchestrator.services import SyncStore
from orchestrator.tasks import scripts
from orchestrator.tasks.model import LeaseStatus

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from orchestrator.services import Services
    from workers.agent import Agent
    from workers.runtime.holdings import Holdings
    from workers.runtime.tempo import Tempo
    from workers.runtime.turns import Turns

_log = get_logger(__name__)


class Pulse:
    """Keeps a worker alive in the eyes of Redis."""

    def __init__(
        self,
        *,
        services: Services,
        agents: Sequence[Agent],
        holdings: Holdings,
        tempos: dict[str, Tempo],
        worker: str,
        alive_s: int,
        loop: asyncio.AbstractEventLoop,
        forgotten: Callable[[], None],
        lost_entries: Callable[[str], None],
        turns: Turns | None,
    ) -> None:
        self._services, self._agents, self._holdings, self._tempos = services, agents, holdings, tempos
        self._worker, self._alive_s, self._loop = worker, alive_s, loop
        self._forgotten, self._lost_entries, self._turns = forgotten, lost_entries, turns
        shortest_lease_s = min(agent.lease_ms for agent in agents) / 1000
        self._every_s = min(services.settings.worker.heartbeat_s, shortest_lease_s / 3)
        # One lost answer must not cost the lease: give up on it early enough to ask again.
        self._answer_within_s = min(services.settings.redis.command_timeout_s, shortest_lease_s / 4)
        self._stuck_after_s = services.settings.worker.stuck_after_s
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._asked_s: float | None = None
        self._surplus: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def poke(self) -> None:
        """Beat now: what the registry should know has changed."""
        self._poked.set()

    def stop(self) -> None:
        """Stop beating; blocks until a beat under way has ended."""
        self._stopping.set()
        self._poked.set()
        self._thread.join()
        if self._turns is not None:
            self._turns.forget()

    def _run(self) -> None:
        endpoint = replace(
            self._services.endpoint,
            connect_timeout_s=min(self._services.endpoint.connect_timeout_s, self._answer_within_s),
            command_timeout_s=self._answer_within_s,
        )
        store = SyncStore(endpoint, self._services.keys, name="pulse")
        pauses = Pauses(cap_s=self._every_s)
        try:
            while not self._stopping.is_set():
                pause_s = self._every_s
                if not self._stuck():
                    try:
                        self._beat(store)
                        pauses.reset()
                    except StoreError as failure:
                        _log.warning("pulse_missed", worker=self._worker, error=str(failure))
                        pause_s = pauses.next_s()
                    except Exception as broken:  # noqa: BLE001 - see below
                        # Without a pulse the worker would lose its tasks one by one and never know.
                        _log.exception("pulse_broke", worker=self._worker, error=f"{type(broken).__name__}: {broken}")
                self._poked.wait(pause_s)
                self._poked.clear()
        finally:
            store.close()

    def _stuck(self) -> bool:
        stuck_s = time.monotonic() - self._ask_loop_to_turn()
        if stuck_s <= self._stuck_after_s:
            return False
        _log.error("loop_stuck", worker=self._worker, seconds=round(stuck_s), meaning="leases are not renewed")
        return True

    def _ask_loop_to_turn(self) -> float:
        """Ask the loop for a sign, unless it still owes one; answer when it was asked."""

        def turned() -> None:
            self._asked_s = None
            if self._turns is not None and not self._stopping.is_set():
                self._turns.note()

        asked_s = self._asked_s
        if asked_s is None:
            asked_s = self._asked_s = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(turned)
        return asked_s

    def _beat(self, store: SyncStore) -> None:
        for agent in self._agents:
            self._renew(store, agent.name)
        backlogs = [(agent.name, self._tempos[agent.name].backlog) for agent in self._agents]
        call = registry.beat(self._services.keys, worker=self._worker, backlogs=backlogs, alive_s=self._alive_s)
        if not store.call(call):
            self._loop.call_soon_threadsafe(self._forgotten)

    def _renew(self, store: SyncStore, agent: str) -> None:
        held = self._holdings.of(agent)
        if not held and not self._surplus.get(agent):
            # Nothing to renew; entries lost on the way are asked for by the intake's own look.
            return
        rows = [(one.delivery.entry, one.delivery.task_id, one.delivery.generation) for one in held]
        pending, statuses = store.call(scripts.renew(self._services.keys, worker=self._worker, agent=agent, rows=rows))
        for one, status in zip(held, statuses, strict=True):
            if status is LeaseStatus.LOST and self._holdings.get(agent, one.delivery.entry) is one:
                self._loop.call_soon_threadsafe(one.stop, "lost")
            elif status is LeaseStatus.CANCELLED:
                self._loop.call_soon_threadsafe(one.stop, "cancelled")
        # More pending than held, twice running: a read was swallowed (protocol rule 9). Once may be a read under way.
        self._surplus[agent] = self._surplus.get(agent, 0) + 1 if pending > len(held) else 0
        if self._surplus[agent] >= 2:
            self._loop.call_soon_threadsafe(self._lost_entries, agent)
