"""A namespace for one attempt of a unit test, on a Redis that starts at the first command."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.formats import FORMAT
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.settings import Settings
from orchestrator.services import Endpoint, Services, pool_keys
from orchestrator.store.locator import Address
from orchestrator.store.store import Store
from orchestrator.testing.temporary_pool import new_prefix
from orchestrator.testing.temporary_server import temporary_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from orchestrator.store.locator import Leaver


MOST_CONNECTED: Final = 8
"""Contexts of one thread that stay connected; an older one connects again when it is used."""


class _ThreadServer:
    """The server of one thread. It ends with this object, which the thread or the process keeps until its end."""

    def __init__(self) -> None:
        stack = ExitStack()
        self.address: Final = Address(stack.enter_context(temporary_server()))
        self.process: Final = os.getpid()
        weakref.finalize(self, stack.close)


class _OfThread(threading.local):
    """The server and the connected stores of one thread; the kernel ends a server with the thread that started it."""

    def __init__(self) -> None:
        self.server: _ThreadServer | None = None
        self.connected: list[_ThrowAwayStore] = []


_of_thread = _OfThread()


def _server_address() -> Address:
    server = _of_thread.server
    if server is None or server.process != os.getpid():
        server = _of_thread.server = _ThreadServer()
    return server.address


class _StartingLocator:
    """Starts the server of this thread when it is first asked for an address, and calls `started`."""

    def __init__(self, started: Callable[[], None]) -> None:
        self._address: Address | None = None
        self._started = started
        self.failure: ConfigError | None = None

    @property
    def single(self) -> Address:
        """The address of all slots."""
        if self._address is None:
            try:
                self._address = _server_address()
            except ConfigError as failure:
                self.failure = ConfigError(f"locks and shared state need Redis here; give orc=, or: {failure}")
                raise self.failure from None
            self._started()
        return self._address

    @property
    def servers(self) -> Sequence[Address]:
        """The one server."""
        return [self.single]

    def address(self, slot: int) -> Address:  # noqa: ARG002 - one server has all slots
        """Return the address of a slot."""
        return self.single

    def moved(self, slot: int, address: Address) -> None:
        """Ignore a redirect, because one server has all slots."""

    def doubt(self, address: Address) -> None:
        """Ignore a doubt, because there is no other server."""

    def late(self, address: Address) -> None:
        """Wait for the reply."""

    def prepare(self) -> None:
        """Do nothing: the server starts with the first command."""

    def watch(self, leaver: Leaver) -> None:
        """Do nothing, because the server never changes."""


class _ThrowAwayStore(Store):
    """Connects to the server of this thread at its first command, and closes with the event loop if not before."""

    def __init__(self, settings: Settings) -> None:
        self._locator = _StartingLocator(self._close_with_loop)
        self.endpoint: Final = Endpoint(self._locator)
        super().__init__(self.endpoint, pool_keys(settings), name="throw-away")
        self.floor.note(FORMAT)  # no older program shares the namespace
        self.connected = self._limit_connected
        self._end: AsyncGenerator[None] | None = None

    @property
    def failure(self) -> ConfigError | None:
        """Reason for which no server could be started."""
        return self._locator.failure

    def _close_with_loop(self) -> None:
        # An event loop closes at its end the asynchronous generators that have begun.
        self._end = self._until_the_end()
        with suppress(StopIteration):
            self._end.__anext__().send(None)

    async def _until_the_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.stop_sending()
            if self in _of_thread.connected:
                _of_thread.connected.remove(self)
            for router in list(self._routers):
                await router.close()

    def _limit_connected(self) -> None:
        # A loop may serve a whole test run, which would use up the files of the process.
        connected = _of_thread.connected
        connected.append(self)
        if len(connected) > MOST_CONNECTED:
            connected.pop(0).discard_idle()

    def discard_idle(self) -> None:
        """Close the connections without an outstanding reply; a later command opens them again."""
        for router in list(self._routers):
            router.discard_idle()

    async def close(self) -> None:
        """Close all connections, also those of blocking reads."""
        self.stop_sending()
        if self._end is not None:
            await self._end.aclose()


class ThrowAway:
    """A namespace that no other test uses.

    Attributes:
        services: start nothing before their first command.
    """

    def __init__(self) -> None:
        settings = Settings(prefix=new_prefix())
        self._store = _ThrowAwayStore(settings)
        self.services = Services(LiveSettings(settings), self._store.endpoint, self._store.keys, self._store)

    @property
    def failure(self) -> ConfigError | None:
        """Reason for which no server could be started."""
        return self._store.failure

    async def close(self) -> None:
        """Close the connections. The keys go with the server."""
        await self._store.close()
