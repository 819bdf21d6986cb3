"""One kill under a steady load of tasks that take seconds: how soon do lost tasks end, and do fresh ones wait?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from tests.chaos.agents import LASTING_SLOTS
from tests.chaos.deployment import HOSTS, PROCESSES
from tests.faultkit.checkers.history import Killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.deployment import Deployment
    from tests.chaos.load import Load
    from tests.faultkit.checkers.history import Recorder

SHORTEST_S: Final = 1.5
KILLS: Final = ("worker", "workers", "machine")
BUSY: Final = 0.8
"""Share of the slots that the load keeps busy."""


class SingleKill:
    """Throws the dice, keeps the load steady, kills once.

    Args:
        poison: whether a task kills its processes, instead of the run.
        longest_s: the longest handler may take so many seconds.
        server_ms: tells the time of the server.
    """

    def __init__(
        self,
        deployment: Deployment,
        load: Load,
        recorder: Recorder,
        *,
        seed: str,
        poison: bool,
        longest_s: float,
        server_ms: Callable[[], int],
    ) -> None:
        self._deployment, self._load, self._recorder = deployment, load, recorder
        self._dice = random.Random(f"single kill {seed}")
        self._handler_s = self._dice.uniform(SHORTEST_S, max(longest_s, SHORTEST_S))
        self._poison, self._server_ms = poison, server_ms
        self._lag_s = 0.0

    async def run(self) -> None:
        """Submit for a handler, kill, submit for another one and two seconds; note the kill."""
        killed_ms, pids = 0, tuple[int, ...]()
        how = "poison" if self._poison else self._dice.choice(KILLS)
        async with anyio.create_task_group() as submits:
            submits.start_soon(self._submit)
            await anyio.sleep(self._handler_s)
            killed_ms = await to_thread.run_sync(self._server_ms)
            pids = self._kill(how)
            await anyio.sleep(self._handler_s + 2.0)
            submits.cancel_scope.cancel()
        until_ms = await to_thread.run_sync(self._server_ms)
        named = "worker" if how == "workers" else how
        self._recorder.write(
            Killed(killed_ms, named, pids, int(self._handler_s * 1000), until_ms, int(self._lag_s * 1000))
        )

    async def _submit(self) -> None:
        shortest_s = self._handler_s / 2
        every_s = (shortest_s + self._handler_s) / 2 / (BUSY * LASTING_SLOTS * HOSTS * PROCESSES)
        due_s = anyio.current_time()
        while True:
            self._load.submit_steady(self._dice.uniform(shortest_s, self._handler_s))
            # What is late is left out: a burst would keep more slots busy than meant.
            late_s = anyio.current_time() - due_s - every_s
            self._lag_s = max(self._lag_s, late_s)
            due_s += every_s + max(0.0, late_s)
            await anyio.sleep(max(0.0, -late_s))

    def _kill(self, how: str) -> tuple[int, ...]:
        host = self._dice.choice(self._deployment.hosts)
        children = host.children()
        what = f"under handlers of up to {self._handler_s:.1f} s"
        if how == "poison":
            self._deployment.timeline.fault("single poison", what)
            self._load.submit_poison(self._dice.uniform(0.0, self._handler_s))
            return ()
        pids = children if how != "worker" else [self._dice.choice(children)]
        self._deployment.timeline.fault(f"single {how}", f"{', '.join(map(str, pids))} of {host.name} {what}")
        if how == "machine":
            host.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        host.start()
        return tuple(pids)
