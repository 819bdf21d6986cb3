"""Lets a client that the pool no longer admits refuse to submit."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import StoreError

if TYPE_CHECKING:
    from orchestrator.store.store import Store

READ_EVERY_S: Final = 5.0


class FloorWatch:
    """Reads the floor of the pool while the client submits. An idle client sends nothing.

    A client sends no heartbeats, and reading the floor with each submit would cost every task.

    Args:
        store: of the client.
        watches: False for the client of a worker, which acts on the floor itself and finishes the tasks that it has.
    """

    def __init__(self, store: Store, *, watches: bool) -> None:
        self._store, self._watches = store, watches
        self._submitted = anyio.Event()

    def check(self) -> None:
        """Call this before each submit.

        Raises:
            FormatMismatch: the pool no longer admits this version.
        """
        if not self._submitted.is_set():
            self._submitted.set()
        if self._watches and self._store.floor.shuts_out:
            raise self._store.floor.refusal()

    async def run(self) -> None:
        """Read the floor every `READ_EVERY_S` at most, until cancelled."""
        while self._watches:
            await anyio.sleep(READ_EVERY_S)
            await self._submitted.wait()
            self._submitted = anyio.Event()
            with suppress(StoreError):  # a submit reports it
                await self._store.check_format()
