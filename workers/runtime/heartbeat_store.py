"""Sends the calls of the heartbeat thread."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orchestrator.core.errors import ServerUnavailable
from orchestrator.services import SyncStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from orchestrator.services import Endpoint, Services

DIRECT_FOR_S: Final = 60.0
"""Time for which the thread uses its own connection after the event loop or the shared connection was too slow."""

LOOK_EVERY_S: Final = 0.02
"""Pause between two looks at the locks while the thread waits for the event loop."""

T = TypeVar("T")


class HeartbeatStore(SyncStore):
    """Sends calls over the shared connection of the event loop, so that a worker at rest needs none for heartbeats.

    When the loop or that connection does not answer soon, it sends the call again over a connection of its own, which
    all scripts allow. So a handler that blocks the loop costs neither a lease nor a lock.

    Args:
        endpoint: of the own connection.
        services: of the event loop.
        loop: the event loop.
        patience_s: returns the time that the calls after a `begin` may wait for the loop, all together.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        services: Services,
        *,
        loop: asyncio.AbstractEventLoop,
        patience_s: Callable[[], float],
    ) -> None:
        super().__init__(endpoint, services.keys, name="heartbeat")
        self._store, self._loop, self._patience_s = services.store, loop, patience_s
        self._left_s = 0.0
        self._direct_until_s: float | None = None

    def begin(self) -> None:
        """Begin a heartbeat or another part of the work of the thread, whose calls share the time for the loop."""
        self._left_s = self._patience_s()

    def call(self, call: Any, *, retry_for_s: float = 0.0) -> Any:
        """Run a script; see `Store.call`."""
        own = super().call
        return self._send(lambda: self._store.call_untraced(call), lambda: own(call, retry_for_s=retry_for_s))

    def call_all(self, calls: Sequence[Any]) -> list[Any]:
        """Run script calls in one round trip."""
        own = super().call_all
        return self._send(lambda: self._store.call_all(calls), lambda: own(calls)) if calls else []

    def execute(self, *command: Any) -> Any:
        """Send one command."""
        own = super().execute
        return self._send(lambda: self._store.execute(*command), lambda: own(*command))

    def _send(self, shared: Callable[[], Coroutine[Any, Any, T]], own: Callable[[], T]) -> T:
        if self._direct_until_s is not None and time.monotonic() >= self._direct_until_s:
            self._direct_until_s = None
            self._router.close()
        if self._direct_until_s is None:
            try:
                return self._ask_loop(shared)
            except (TimeoutError, CancelledError, ServerUnavailable):
                self._direct_until_s = time.monotonic() + DIRECT_FOR_S
        try:
            return own()
        except ServerUnavailable:
            # The server may have no connection left for this thread, while the shared one works again.
            self._direct_until_s = None
            raise

    def _ask_loop(self, shared: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Let the event loop send a call.

        Raises:
            TimeoutError, CancelledError: it did not do so in time, or has closed.
            StoreError: the call failed.
        """
        asked_s, waits = time.monotonic(), True

        async def send() -> T:
            if not waits:
                # The loop was blocked. The thread has sent the call itself, and perhaps others, which this one would
                # follow: it could count attempts twice, or return entries that have begun since.
                raise asyncio.CancelledError
            return await shared()

        if self._left_s <= 0:
            raise TimeoutError
        coroutine = send()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as closed:
            coroutine.close()
            raise TimeoutError from closed
        try:
            while True:
                try:
                    return future.result(min(LOOK_EVERY_S, self._left_s))
                except TimeoutError:
                    # The handler that blocks the loop may have taken a short lock just before.
                    waited_s = time.monotonic() - asked_s
                    if future.done() or waited_s >= min(self._left_s, self._patience_s()):
                        raise
        finally:
            waits = False
            future.cancel()  # without an effect on one that is done
            self._left_s -= time.monotonic() - asked_s
