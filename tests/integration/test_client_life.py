"""Opening and closing a client: twice, at once, given up, in other tasks and loops, while calls are under way."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import OrchestratorError, ServerUnavailable, TaskCancelled
from orchestrator.services import pool_keys
from orchestrator.tasks.model import RequeueStatus
from orchestrator.tasks.submission import Submission
from tests.faultkit.proxy import FaultProxy
from tests.helpers.end_state import records
from tests.helpers.guards import running_tasks
from tests.helpers.local_team import local_settings
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    import redis

    from orchestrator.core.settings import Settings


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[FaultProxy]:
    """What stands between a client and Redis."""
    assert settings.redis.url is not None
    async with FaultProxy(settings.redis.url.get_secret_value()) as running:
        yield running


@pytest.fixture
def through(proxy: FaultProxy, settings: Settings) -> Settings:
    """The settings of a client behind the proxy, with the usual patience."""
    return local_settings(proxy.url, settings.prefix)


async def note(told: list[str], call: Callable[[], Awaitable[object]]) -> None:
    """Note the error of a call, which must not be a cancellation."""
    try:
        await call()
    except OrchestratorError as failure:
        told.append(str(failure))


async def test_a_client_opens_once(settings: Settings) -> None:
    """A second open is refused, also while the first is under way; after closing it opens again."""
    orc, told = Orchestrator(settings=settings), list[str]()
    async with anyio.create_task_group() as group:
        group.start_soon(note, told, orc.open)
        group.start_soon(note, told, orc.open)
    assert told == ["this client is open already; one that is being closed is open until aclose() is done"]
    assert (await orc.submit("x")).id
    await orc.aclose()
    await orc.aclose()
    async with orc:
        assert (await orc.submit("x")).id


async def test_closing_a_client_that_is_being_opened(through: Settings, proxy: FaultProxy) -> None:
    """Nobody answers; the one who opens is told at once that the client was closed."""
    proxy.blackhole()
    orc, told = Orchestrator(settings=through), list[str]()
    began_s = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(note, told, orc.open)
        await wait_for(lambda: proxy.open_connections, "a connection")
        await orc.aclose()
    assert told == ["the client was closed while it was being opened"]
    assert time.monotonic() - began_s < 2
    proxy.heal()
    async with orc:
        assert (await orc.submit("x")).id


async def test_giving_up_to_open(through: Settings, proxy: FaultProxy) -> None:
    """An open that is cancelled leaves no task and no connection; the client opens later."""
    proxy.blackhole()
    orc, before = Orchestrator(settings=through), running_tasks()
    with anyio.move_on_after(0.1) as scope:
        await orc.open()
    assert scope.cancelled_caught
    assert not any("client" in task.get_name() for task in running_tasks() - before)
    proxy.heal()
    await wait_for(lambda: not proxy.open_connections, "the connection to end")
    async with orc:
        assert (await orc.submit("x")).id


async def test_closing_twice_at_once(settings: Settings, redis_client: redis.Redis) -> None:
    """Both come back when the client is closed, not before."""
    orc = await Orchestrator(settings=settings).open()
    main = orc._main
    assert main is not None
    done: list[bool] = []

    async def close() -> None:
        await orc.aclose()
        done.append(main.done())

    async with anyio.create_task_group() as group:
        group.start_soon(close)
        group.start_soon(close)
    assert done == [True, True]


async def test_giving_up_to_close(settings: Settings) -> None:
    """A close that is cancelled goes on by itself."""
    orc = await Orchestrator(settings=settings).open()
    main = orc._main
    assert main is not None
    with anyio.CancelScope() as scope:
        scope.cancel()
        await orc.aclose()
    await wait_for(main.done, "the client to close")
    await orc.aclose()
    async with orc:
        assert (await orc.submit("x")).id


async def test_a_timeout_of_result_holds_while_redis_stands_still(
    through: Settings, proxy: FaultProxy, settings: Settings
) -> None:
    """A handle that has told a failure asks again whether its task was requeued, for as long as the caller allows."""
    async with Orchestrator(settings=settings) as other, Orchestrator(settings=through) as orc:
        handle = await orc.submit("x")
        await handle.cancel("enough")
        with pytest.raises(TaskCancelled):
            await handle.result(5)
        proxy.blackhole()
        assert await other.task(handle.id).retry() is RequeueStatus.REQUEUED
        began_s = time.monotonic()
        with pytest.raises(TaskCancelled, match="enough"):
            await handle.result(0.1)
        with pytest.raises(TimeoutError):
            await (orc.task(await _submitted(other))).result(0.1)
        assert time.monotonic() - began_s < 2
        proxy.heal()
        with pytest.raises(TimeoutError):
            await handle.result(0.1)
        assert handle.outcome is None


async def test_a_timeout_of_result_covers_what_comes_before_the_wait(settings: Settings) -> None:
    """In a worker a call to Redis precedes the wait; the limit of the caller holds for it too."""
    async with Orchestrator(settings=settings) as orc:

        @asynccontextmanager
        async def late(_: Sequence[str]) -> AsyncIterator[None]:
            await anyio.sleep_forever()
            yield

        handle = (await orc.submit("x")).waiting_in(late)
        with pytest.raises(TimeoutError):
            await handle.result(0.01)


async def _submitted(orc: Orchestrator) -> str:
    return (await orc.submit("x")).id


async def test_every_call_under_way_is_told_of_the_close(
    through: Settings, proxy: FaultProxy, redis_client: redis.Redis
) -> None:
    """Whatever waits gets an error at once, no cancellation; of submits it says what may have arrived."""
    orc = await Orchestrator(settings=through).open()
    handles = await orc.submit_many([Submission("x")] * 2)
    failures: dict[str, BaseException] = {}

    async def loop() -> None:
        async for _ in orc.as_completed(handles):
            pass

    async def follow() -> None:
        async for _ in handles[0].events():
            pass

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "result": handles[0].result,
        "result with a limit": lambda: handles[1].result(60),
        "as_completed": loop,
        "events": follow,
        "status": handles[0].status,
        "info": handles[0].info,
        "cancel": handles[0].cancel,
        "submit": lambda: orc.submit("y"),
        "another submit": lambda: orc.submit("y"),
        "submit_many": lambda: orc.submit_many([Submission("z")] * 3),
    }

    async def call(name: str) -> None:
        try:
            await calls[name]()
        except BaseException as failure:
            failures[name] = failure
            if not isinstance(failure, OrchestratorError):
                raise

    proxy.blackhole(up=False)  # commands arrive, answers do not
    async with anyio.create_task_group() as group:
        for name in calls:
            group.start_soon(call, name)
        await wait_for(lambda: len(records(redis_client, pool_keys(through))) >= 6, "the submits to arrive")
        began_s = time.monotonic()
        await orc.aclose()
    assert time.monotonic() - began_s < 1
    assert failures.keys() == calls.keys()
    for name in ("submit", "submit_many"):
        lost = failures[name]
        assert isinstance(lost, ServerUnavailable)
        assert lost.outcome_unknown
        assert set(lost.task_ids) <= set(records(redis_client, pool_keys(through)))
        assert len(lost.task_ids) == (1 if name == "submit" else 3)
    proxy.heal()


# ---------------------------------------------------------------------------------------------------------- other loops


def test_a_client_outlives_its_event_loop(settings: Settings) -> None:
    """A loop that ends closes what was open in it; in the next loop the same client opens and closes."""
    orc = Orchestrator(settings=settings)

    async def forget() -> Any:
        await orc.open()
        return await orc.submit("x")

    async def again() -> None:
        with pytest.raises(OrchestratorError, match="the client is not open"):
            await orc.submit("x")
        await orc.aclose()
        async with orc:
            assert (await orc.task(handle.id).status()).state == "ready"
            with pytest.raises(OrchestratorError, match="the client that made this handle is closed"):
                await handle.result()

    handle = asyncio.run(forget())
    asyncio.run(again())


async def test_a_client_belongs_to_one_event_loop(settings: Settings) -> None:
    """Used from another thread's loop every call is a clear error, and the client goes on where it belongs."""
    async with Orchestrator(settings=settings) as orc:
        handle = await orc.submit("x")
        told: list[str] = []

        async def elsewhere() -> None:
            await note(told, lambda: orc.submit("y"))
            await note(told, lambda: orc.submit_many([Submission("y")]))
            await note(told, handle.result)
            await note(told, lambda: anext(orc.as_completed([handle])))
            await note(told, orc.aclose)

        await anyio.to_thread.run_sync(asyncio.run, elsewhere())
        assert told == ["this client was opened in another event loop; open one in each, or use orchestrator.sync"] * 5
        assert (await handle.status()).state == "ready"
