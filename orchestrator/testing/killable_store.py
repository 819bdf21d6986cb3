"""A worker's connection to Redis that a test can shut in one step, as death does, and that tells of answered calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from orchestrator.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.store.calls import Call

T = TypeVar("T")


class KillableStore(Store):
    """A store of one actor; `shut` is its death.

    Attributes:
        answered: told of each call that Redis has answered, before the caller is.
    """

    answered: Callable[[str, object], Awaitable[None]] | None = None

    @property
    def name(self) -> str:
        """What its connections are called in the server's client list, or what their names begin with."""
        return self._name

    async def call(self, call: Call[T], *, retry_for_s: float = 0.0) -> T:
        """Run a script; see `Store.call`."""
        answer = await super().call(call, retry_for_s=retry_for_s)
        if self.answered is not None:
            await self.answered(call.script, call.args.get("rows"))
        return answer


def killable_services(services: Services, settings: Settings, *, name: str) -> tuple[Services, KillableStore]:
    """The services of one actor beside others, with connections of its own under a name of its own."""
    store = KillableStore(services.endpoint, services.keys, name=name)
    return replace(services, settings=settings, store=store), store
