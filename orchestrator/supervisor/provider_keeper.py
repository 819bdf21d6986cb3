"""Keeps the copies of the states of providers that pools share as the scopes of their limits have them.

A worker copies what it meets at once. This loop brings to the pool what calls of other pools were told, and what ended
early, and carries a command that clears a provider to the scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_readable, read_text
from orchestrator.limits import scripts
from orchestrator.limits.providers import read_named_limit
from orchestrator.limits.shared import compare, copy_states, scope_of

if TYPE_CHECKING:
    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

LOOK_S: Final = 0.5
"""Time between two looks at the scopes, while the pool has providers that it shares."""
IDLE_S: Final = 30.0
"""Time between two looks at the list of providers while there is none; a script notifies when one is listed."""
BATCH: Final = 100
"""Providers that one pipeline looks at."""
_log = get_logger(__name__)


class ProviderKeeper:
    """Compares the states of shared providers with those of their scopes.

    Args:
        services: of the pool.
        wakeup: told when a shared provider is listed or cleared.
    """

    def __init__(self, services: Services, wakeup: Wakeup) -> None:
        self._services, self._wakeup = services, wakeup
        self._pauses = Pauses()
        self._refused: dict[str, str] = {}
        """Last refusal by provider, which is logged once."""

    async def run(self) -> None:
        """Compare until cancelled."""
        with self._services.watch_loop("provider_keeper", waits_s=IDLE_S) as turn:
            while True:
                turn.record()
                shares = True
                try:
                    shares = await self._compare_all(turn)
                    self._pauses.reset()
                except StoreError as failure:
                    _log.failure("provider_sweep_failed", error=failure)
                    await anyio.sleep(self._pauses.next_s(failure))
                await self._wakeup.wait(LOOK_S if shares else IDLE_S)

    async def _compare_all(self, turn: LoopTurn) -> bool:
        """Bring the copies in line; return whether the pool shares a provider."""
        names = await self._shared()
        for at in range(0, len(names), BATCH):
            turn.record()
            await self._compare(names[at : at + BATCH])
        return bool(names)

    async def _shared(self) -> list[str]:
        """Return the providers that the pool shares with others."""
        reply = await self._services.store.execute("HGETALL", self._services.keys.providers)
        stored = [(read_text(name), value) for name, value in zip(reply[::2], reply[1::2], strict=True)]
        return sorted(name for name, limit in read_readable(read_named_limit, stored) if limit.shared)

    async def _compare(self, names: list[str]) -> None:
        store, keys = self._services.store, self._services.keys
        failure: StoreError | None = None
        for name, found in zip(names, await compare(store, keys, names), strict=True):
            try:
                if isinstance(found, StoreError):
                    raise found
                if found.cleared is not None:
                    await store.call(scripts.clear(scope_of(keys, name), name=name))
                    _log.info("shared_provider_cleared", provider=name)
                if found.cleared is not None or found.differs:
                    await copy_states(store, keys, name, cleared=found.cleared or b"")
                self._refused.pop(name, None)
            except ServerRefused as refusal:
                # A damaged key of one provider must not keep the others from being looked at.
                if self._refused.get(name) != str(refusal):
                    _log.error("provider_sweep_refused", provider=name, error=str(refusal))
                self._refused[name] = str(refusal)
            except StoreError as unanswered:
                # Of a cluster, the server of one scope may be down.
                failure = unanswered
        if failure is not None:
            raise failure
