"""Holds the settings of a running program, and replaces them as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from orchestrator.core.log import mask_secrets, set_level
from orchestrator.core.scrubbing import learn_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings


def sweep_s(settings: Settings) -> float:
    """Return the time between two full passes of a loop of the supervisor."""
    return settings.supervisor.sweep_s


class LiveSettings:
    """The settings of one process. Its parts read `current` at each use; a reload replaces it.

    Attributes:
        current: immutable; any thread may read it.
        generation: 1 at the start; each reload that changes a live setting adds 1.
    """

    def __init__(self, settings: Settings, *, generation: int = 1) -> None:
        self.current, self.generation = settings, generation
        learn_secrets(settings.secrets)
        self._listeners: list[Callable[[], None]] = []
        self._changed = anyio.Event()

    @classmethod
    def of(cls, settings: Settings | LiveSettings) -> LiveSettings:
        """Wrap settings that do not change."""
        return settings if isinstance(settings, LiveSettings) else cls(settings)

    def of_pool(self, pool: str) -> LiveSettings:
        """Return the same settings for another pool of this process; a change here changes them too."""
        if pool == self.current.pool:
            return self

        def derive() -> Settings:
            return self.current.model_copy(update={"pool": pool})

        made = LiveSettings(derive(), generation=self.generation)
        self.on_change(lambda: made.replace(derive(), generation=self.generation))
        return made

    def replace(self, settings: Settings, *, generation: int) -> None:
        """Use other settings from now on; call it in the event loop, if there is one."""
        self.current, self.generation = settings, generation
        mask_secrets(settings.secrets)
        set_level(settings.logging.level)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        for listener in tuple(self._listeners):
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function after each change."""
        self._listeners.append(listener)

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    async def sleep(self, length_s: Callable[[Settings], float]) -> None:
        """Sleep for a time that the settings have. A change of the time applies to a sleep under way."""
        started_s = anyio.current_time()
        while True:
            changed = self._changed
            with anyio.move_on_at(started_s + length_s(self.current)) as limit:
                await changed.wait()
            if limit.cancelled_caught:
                return
