"""A worker's store that a test can close at once, as a crash does, and that reports answered calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from orchestrator.core.live_settings import LiveSettings
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.store.calls import Call

T = TypeVar("T")


class KillableStore(Store):
    """A store of one actor; `stop_sending` simulates its death.

    Attributes:
        answered: called with each answered call, before the caller gets the answer.
    """

    answered: Callable[[str, object], Awaitable[None]] | None = None

    @property
    def name(self) -> str:
        """Name of its connections in the client list of the server, or prefix of the names."""
        return self._name

    async def call(self, call: Call[T], *, retry_for_s: float = 0.0) -> T:
        """Run a script; see `Store.call`."""
        answer = await super().call(call, retry_for_s=retry_for_s)
        if self.answered is not None:
            await self.answered(call.script, call.args.get("rows"))
        return answer


def killable_services(services: Services, settings: Settings, *, name: str) -> tuple[Services, KillableStore]:
    """Return services of one actor with connections of their own."""
    store = KillableStore(services.endpoint, services.keys, name=name)
    return replace(services, live=LiveSettings(settings), store=store), store
