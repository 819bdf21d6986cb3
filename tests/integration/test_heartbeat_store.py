"""Calls of the heartbeat thread: over the connection of the event loop, and over its own when the loop is slow."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from threading import Thread
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from orchestrator.core.errors import ServerUnavailable
from orchestrator.services import SyncStore, open_services
from orchestrator.workers.runtime.heartbeat_store import HeartbeatStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings

BLOCK_S = 0.5
PATIENCE_S = 0.1


@asynccontextmanager
async def heartbeat_store(settings: Settings, patience_s: float) -> AsyncIterator[tuple[HeartbeatStore, str]]:
    """A store for a thread beside this loop, and a key."""
    async with open_services(settings, name="test") as services:
        loop = asyncio.get_running_loop()
        store = HeartbeatStore(services.endpoint, services, loop=loop, patience_s=lambda: patience_s)
        key = f"{services.keys.root}:counter"
        try:
            yield store, key
        finally:
            store.close()
            await services.store.execute("DEL", key)


def count(store: HeartbeatStore, key: str, calls: int = 1) -> float:
    """In a thread: send calls, and return the seconds that they take."""
    began_s = time.monotonic()
    store.begin()
    for _ in range(calls):
        store.execute("INCR", key)
    return time.monotonic() - began_s


async def test_calls_go_over_the_connection_of_the_loop(settings: Settings) -> None:
    """A loop that turns sends them: the thread opens no connection."""
    async with heartbeat_store(settings, 30.0) as (store, key):
        await to_thread.run_sync(count, store, key, 10)
        assert not store._router._links
        assert await store._store.execute("GET", key) == b"10"


@pytest.mark.blocks_loop
async def test_a_blocked_loop_sends_no_old_call(settings: Settings) -> None:
    """The thread has sent the call itself; the loop, once it turns again, does not send it a second time."""
    async with heartbeat_store(settings, PATIENCE_S) as (store, key):
        thread = Thread(target=count, args=(store, key))
        thread.start()
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - that is the fault
        await to_thread.run_sync(thread.join)
        for _ in range(20):
            await anyio.sleep(0.01)
        assert store._direct_until_s is not None
        assert await store._store.execute("GET", key) == b"1"


@pytest.mark.blocks_loop
async def test_a_short_lock_that_is_taken_meanwhile(settings: Settings) -> None:
    """The call had a long time when it began. It has a short one once a handler has taken a short lock."""
    async with heartbeat_store(settings, 60.0) as (store, key):
        took_s: list[float] = []
        thread = Thread(target=lambda: took_s.append(count(store, key)))
        thread.start()
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - that is the fault
        store._patience_s = lambda: PATIENCE_S
        thread.join(10)
        assert took_s, "it still waits for the loop"
        await anyio.sleep(0.1)
        assert await store._store.execute("GET", key) == b"1"


@pytest.mark.blocks_loop
async def test_many_calls_to_a_slow_loop(settings: Settings) -> None:
    """A loop whose turns take long delays the calls of a heartbeat once, not each of them."""
    async with heartbeat_store(settings, 5 * PATIENCE_S) as (store, key), anyio.create_task_group() as group:

        async def turn_slowly() -> None:
            while True:
                time.sleep(0.03)  # noqa: ASYNC251 - that is the fault
                await anyio.lowlevel.checkpoint()

        group.start_soon(turn_slowly)
        calls = 200
        assert await to_thread.run_sync(count, store, key, calls) < calls * 0.03 / 2
        group.cancel_scope.cancel()


@pytest.mark.blocks_loop
async def test_a_server_without_a_further_connection(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread got no connection while the loop was blocked. The next call goes over the shared one again."""
    async with heartbeat_store(settings, PATIENCE_S) as (store, key):

        def refuse(*_: object) -> None:
            raise ServerUnavailable("max number of clients reached")

        monkeypatch.setattr(SyncStore, "execute", refuse)
        refusals: list[str] = []

        def try_to_count() -> None:
            try:
                count(store, key)
            except ServerUnavailable as refusal:
                refusals.append(str(refusal))

        thread = Thread(target=try_to_count)
        thread.start()
        time.sleep(BLOCK_S)  # noqa: ASYNC251 - that is the fault
        await to_thread.run_sync(thread.join)
        assert len(refusals) == 1
        store._patience_s = lambda: 30.0
        await to_thread.run_sync(count, store, key)
        assert await store._store.execute("GET", key) == b"1"
