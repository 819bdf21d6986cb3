"""What every call of a client comes to when Redis goes away and comes back: a table, fault by call.

A call is completed, or raises an error that says what happened; it never hangs, and no submit makes a task twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import anyio.to_thread
import pytest

from orchestrator.client.batcher import CHUNK_ROWS
from orchestrator.client.client import Orchestrator
from orchestrator.client.handle import TaskHandle
from orchestrator.core.errors import OrchestratorError, ServerUnavailable, SubmitRefused, TaskCancelled
from orchestrator.tasks.submission import NamedArguments, Submission
from orchestrator.testing.waiting import wait_for
from tests.faultkit.commands import any_work, named
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.end_state import counters, records
from tests.helpers.local_team import local_settings

if TYPE_CHECKING:
    import redis

    from orchestrator.core.settings import Settings
    from tests.faultkit.commands import Command
    from tests.faultkit.faults import Fault, Loss

TIMEOUT_S: Final = 0.4
"""How long a command may take, and how long calls repeat; what lasts longer is an outage for them."""
SHORT_S: Final = 0.1
LIMIT_S: Final = 20.0
DURABLE: Final = {"appendonly": "yes", "appendfsync": "always"}


@dataclass(slots=True)
class Actor:
    """One client behind a proxy of its own, the task that it waits for or asks about, and what it came to.

    Attributes:
        wait_s: how long it waits for ends.
        accepted: tasks that it was told are there.
        maybe: tasks of which it was told that nobody knows.
    """

    call: str
    proxy: FaultProxy
    orc: Orchestrator
    handle: TaskHandle[Any]
    wait_s: float = LIMIT_S
    outcome: str = ""
    accepted: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Make the call, and note what comes of it."""
        try:
            self.outcome = await CALLS[self.call](self)
        except ServerUnavailable as failure:
            self.maybe.update(failure.task_ids)
            self.outcome = "unknown" if failure.outcome_unknown else "not done"
        except (OrchestratorError, TimeoutError) as failure:
            self.outcome = type(failure).__name__


# ------------------------------------------------------------------------------------------------------------ the calls


async def open_another(actor: Actor) -> str:
    """A second client behind the same proxy."""
    async with Orchestrator(settings=actor.orc.services.settings):
        return "done"


async def submit(actor: Actor) -> str:
    """One task."""
    actor.accepted.add((await actor.orc.submit("new")).id)
    return "done"


async def submit_many(actor: Actor) -> str:
    """Three tasks."""
    actor.accepted |= {handle.id for handle in await actor.orc.submit_many([Submission("new")] * 3)}
    assert len(actor.accepted) == 3
    return "done"


async def status(actor: Actor) -> str:
    """The state of a task that waits."""
    assert (await actor.handle.status()).state == "ready"
    return "done"


async def info(actor: Actor) -> str:
    """All of a task that waits."""
    assert (await actor.handle.info()).skill == "old"
    return "done"


async def cancel(actor: Actor) -> str:
    """Cancel a task that waits; the answer is `already` when the one to a first call was lost."""
    return "unknown task" if await actor.handle.cancel() == "unknown" else "done"


async def result(actor: Actor) -> str:
    """Wait for a task that is cancelled when all is well again."""
    try:
        await actor.handle.result(actor.wait_s)
    except TaskCancelled:
        return "done"
    raise AssertionError("somebody ran it")


async def as_completed(actor: Actor) -> str:
    """The same in a loop."""
    ended = [handle async for handle in actor.orc.as_completed([actor.handle], timeout=actor.wait_s)]
    assert ended == [actor.handle]
    return await result(actor)


CALLS: Final[dict[str, Callable[[Actor], Awaitable[str]]]] = {
    "open": open_another,
    "submit": submit,
    "submit_many": submit_many,
    "status": status,
    "info": info,
    "cancel": cancel,
    "result": result,
    "as_completed": as_completed,
}
WAITS: Final = {"result", "as_completed"}
SUBMITS: Final = {"submit", "submit_many"}


class OutageScenario:
    """A server of its own, and an actor for each call; what is awaited is awaited when `strike` happens."""

    def __init__(self, server: RedisServer, prefix: str, direct: redis.Redis) -> None:
        self.server, self.prefix, self.direct = server, prefix, direct
        self.actors: dict[str, Actor] = {}
        self.faults: list[Fault] = []

    def settings(self, url: str) -> Settings:
        """Of a client; those in the scene have little patience."""
        return local_settings(url, self.prefix, redis__command_timeout_s=TIMEOUT_S, redis__connect_timeout_s=TIMEOUT_S)

    async def add(self, stack: AsyncExitStack, call: str) -> None:
        """Open the client of one call."""
        proxy = await stack.enter_async_context(FaultProxy(self.server.url))
        orc = await stack.enter_async_context(Orchestrator(settings=self.settings(proxy.url)))
        await know_versions(orc)
        handle = await orc.submit("old")
        self.actors[call] = Actor(call, proxy, orc, handle, accepted=set())

    @property
    def askers(self) -> list[Actor]:
        """Those that do not wait for an end."""
        return [actor for actor in self.actors.values() if actor.call not in WAITS]

    async def play(self, fault: Strike) -> dict[str, str]:
        """Let some wait, let the fault strike, make the other calls; end what is waited for when it is over."""
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as waiting:
                for actor in self.actors.values():
                    if actor.call in WAITS:
                        waiting.start_soon(actor.run)
                for call in WAITS:
                    await wait_for(partial(self.actors[call].proxy.commands, "XREAD"), "the waits to listen")
                async with fault(self), anyio.create_task_group() as asking:
                    for actor in self.askers:
                        asking.start_soon(actor.run)
                await self.end_all()
        return {call: actor.outcome for call, actor in self.actors.items()}

    async def end_all(self) -> None:
        """Cancel what is waited for, from outside."""
        async with Orchestrator(self.server.url, prefix=self.prefix) as outside:
            for call in WAITS:
                await outside.task(self.actors[call].handle.id).cancel()

    async def check(self, *, lost: bool = False) -> None:
        """Hold what each was told against what is stored; then every client works again."""
        accepted = {actor.handle.id for actor in self.actors.values()} if not lost else set()
        for actor in self.actors.values():
            assert bool(actor.maybe) == (actor.outcome == "unknown" and actor.call in SUBMITS)
        accepted |= {id_ for actor in self.actors.values() for id_ in actor.accepted}
        maybe = {id_ for actor in self.actors.values() for id_ in actor.maybe}
        for actor in self.actors.values():
            actor.proxy.heal()
            handle = await actor.orc.submit("after")
            assert (await handle.status()).state == "ready"
            accepted.add(handle.id)
        keys = self.actors["open"].orc.services.keys
        stored = set(records(self.direct, keys))
        assert accepted <= stored <= accepted | maybe
        assert counters(self.direct, keys)["submitted"] == len(stored), "a task was counted twice"
        for actor in self.actors.values():
            for id_ in actor.maybe:
                if id_ in stored:
                    assert (await actor.orc.task(id_).status()).state == "ready"


Strike: TypeAlias = Callable[[OutageScenario], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def scenario(prefix: str, *, durable: bool = True) -> AsyncIterator[OutageScenario]:
    """Set it."""
    with RedisServer(options=DURABLE if durable else {}) as server, server.client() as direct:
        async with AsyncExitStack() as stack:
            played = OutageScenario(server, prefix, direct)
            for call in CALLS:
                await played.add(stack, call)
            yield played


# ----------------------------------------------------------------------------------------------------------- the faults


def lose(what: str, how: Loss) -> Strike:
    """Each loses its next command, or the answer to it; who waits loses its read."""

    @asynccontextmanager
    async def strike(play: OutageScenario) -> AsyncIterator[None]:
        for actor in play.actors.values():
            match = named("XREAD") if actor.call in WAITS else any_work
            fail = actor.proxy.fail_command if what == "command" else actor.proxy.fail_reply
            play.faults.append(fail(match, how=how))
        yield
        await wait_for(lambda: all(fault.fired for fault in play.faults), "every fault to be felt")

    return strike


@asynccontextmanager
async def die_and_return(play: OutageScenario) -> AsyncIterator[None]:
    """The server is dead when the calls are made, and soon back with its data."""
    async with anyio.create_task_group() as background:
        await kill(play)
        background.start_soon(start_again, play.server)
        yield


async def start_again(server: RedisServer) -> None:
    """Start a server after a short while."""
    await anyio.sleep(SHORT_S)
    await anyio.to_thread.run_sync(server.start)


@asynccontextmanager
async def die_unheard(play: OutageScenario, *, returns: bool = True) -> AsyncIterator[None]:
    """The server runs what each call sends first and dies before anybody has its answer."""
    async with anyio.create_task_group() as background:
        ran: list[Command] = []
        dead = anyio.Event()

        async def hold(command: Command) -> None:
            ran.append(command)
            if len(ran) == len(play.askers):
                await anyio.to_thread.run_sync(play.server.kill)
                dead.set()
                if returns:
                    background.start_soon(start_again, play.server)
            await dead.wait()

        for actor in play.askers:
            actor.proxy.watch(any_work, hold, nth=1, where="reply")
            actor.proxy.fail_reply(any_work)
        yield
        assert len(ran) == len(play.askers)


@asynccontextmanager
async def stay_dead(play: OutageScenario) -> AsyncIterator[None]:
    """The server is dead for longer than anybody is patient."""
    await kill(play)
    yield
    await waits_end(play)
    await anyio.to_thread.run_sync(play.server.start)


async def kill(play: OutageScenario) -> None:
    """Kill the server, and see that the clients' connections have ended."""
    await anyio.to_thread.run_sync(play.server.kill)
    await wait_for(lambda: not any(actor.proxy.open_connections for actor in play.askers), "connections to end")


@asynccontextmanager
async def die_unheard_for_long(play: OutageScenario) -> AsyncIterator[None]:
    """The same after it ran what was sent."""
    async with die_unheard(play, returns=False):
        yield
    await waits_end(play)
    await anyio.to_thread.run_sync(play.server.start)


@asynccontextmanager
async def pause(play: OutageScenario) -> AsyncIterator[None]:
    """The server stands still for a moment."""
    play.server.process.freeze()
    async with anyio.create_task_group() as background:

        async def thaw() -> None:
            await anyio.sleep(SHORT_S)
            play.server.process.thaw()

        background.start_soon(thaw)
        yield


@asynccontextmanager
async def pause_for_long(play: OutageScenario) -> AsyncIterator[None]:
    """It stands still for longer than anybody is patient, and then runs what it was sent."""
    play.server.process.freeze()
    try:
        yield
        await waits_end(play)
    finally:
        play.server.process.thaw()


@asynccontextmanager
async def half_open(play: OutageScenario) -> AsyncIterator[None]:
    """Nothing passes any more although every connection stands; then it does again."""
    for actor in play.actors.values():
        actor.proxy.blackhole()
    yield
    await waits_end(play)
    for actor in play.actors.values():
        actor.proxy.heal()


@asynccontextmanager
async def lose_all_data(play: OutageScenario) -> AsyncIterator[None]:
    """The server comes back with nothing."""
    await anyio.to_thread.run_sync(play.server.restart)
    yield


async def waits_end(play: OutageScenario) -> None:
    """Those that wait have waited as long as they were told."""
    await wait_for(lambda: all(play.actors[call].outcome for call in WAITS), "the waits to end", LIMIT_S)


# ------------------------------------------------------------------------------------------------------------ the table

DONE: Final = dict.fromkeys(CALLS, "done")
NOT_DONE: Final = dict.fromkeys(CALLS, "not done") | dict.fromkeys(WAITS, "TimeoutError")
UNKNOWN: Final = dict.fromkeys(CALLS, "unknown") | dict.fromkeys(WAITS, "TimeoutError")
LOST: Final = {"status": "NotFound", "info": "NotFound", "cancel": "unknown task"} | dict.fromkeys(WAITS, "TaskExpired")

TABLE: Final[dict[str, tuple[Strike, dict[str, str]]]] = {
    "command cut": (lose("command", "cut"), DONE),
    "command swallowed": (lose("command", "swallow"), DONE),
    "reply cut": (lose("reply", "cut"), DONE),
    "reply swallowed": (lose("reply", "swallow"), DONE),
    # To open a client for a server that is not there is an error at once.
    "killed, soon back": (die_and_return, DONE | {"open": "not done"}),
    "killed after it ran the command, soon back": (die_unheard, DONE),
    "paused": (pause, DONE),
    "killed": (stay_dead, NOT_DONE),
    "killed after it ran the command": (die_unheard_for_long, UNKNOWN | {"open": "not done"}),
    "paused for long": (pause_for_long, UNKNOWN | {"open": "not done"}),
    "half-open": (half_open, UNKNOWN | {"open": "not done"}),
    "restarted empty": (lose_all_data, DONE | LOST),
}
RARE: Final = (
    "command swallowed",
    "killed after it ran the command, soon back",
    "killed after it ran the command",
    "half-open",
)
"""Much like another row: not in every run."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in RARE)) for name in TABLE])
async def test_every_call_under_every_fault(name: str, prefix: str) -> None:
    """Each call comes to what the table says, in time; what it was told of its tasks is true; then it works again."""
    strike, wanted = TABLE[name]
    async with scenario(prefix, durable=strike is not lose_all_data) as play:
        if wanted["result"] == "TimeoutError":
            for call in WAITS:
                play.actors[call].wait_s = 2 * TIMEOUT_S
        assert await play.play(strike) == wanted
        await play.check(lost=strike is lose_all_data)


# --------------------------------------------------------------------------------------- what is told of lost submits


@asynccontextmanager
async def one_client(server: RedisServer, prefix: str) -> AsyncIterator[tuple[Orchestrator, FaultProxy]]:
    """A client with little patience behind a proxy."""
    async with FaultProxy(server.url) as proxy:
        settings = local_settings(proxy.url, prefix, redis__command_timeout_s=TIMEOUT_S)
        async with Orchestrator(settings=settings) as orc:
            await know_versions(orc)
            yield orc, proxy


async def know_versions(orc: Orchestrator) -> None:
    """Let a client read that no worker has registered the skill, so that a fault meets the submit itself."""
    await orc._versions.check(NamedArguments("new", (), None, None))


async def test_of_many_each_task_is_told(redis_server: RedisServer, prefix: str, redis_client: redis.Redis) -> None:
    """The second chunk is lost: handles for the first, unknown for those on their way, the rest was not sent."""
    many = 5 * CHUNK_ROWS
    async with one_client(redis_server, prefix) as (orc, proxy):
        lost = proxy.fail_reply(any_work, nth=2)
        proxy.watch(any_work, lambda _: proxy.close_port(), nth=2)
        with pytest.raises(SubmitRefused, match=rf"{many - CHUNK_ROWS} of {many} tasks .*may have arrived") as told:
            await orc.submit_many([Submission("new") for _ in range(many)])
        assert lost.fired == 1
        proxy.heal()
        outcomes = told.value.outcomes
        handles = [outcome for outcome in outcomes[:CHUNK_ROWS] if isinstance(outcome, TaskHandle)]
        failures = [outcome for outcome in outcomes[CHUNK_ROWS:] if isinstance(outcome, ServerUnavailable)]
        assert (len(handles), len(failures)) == (CHUNK_ROWS, many - CHUNK_ROWS)
        unknown = [failure for failure in failures if failure.outcome_unknown]
        unsent = [failure for failure in failures if not failure.outcome_unknown]
        assert failures == unknown + unsent
        assert unknown
        assert unsent
        assert all(len(failure.task_ids) == 1 for failure in unknown)
        assert not any(failure.task_ids for failure in unsent)
        stored, maybe = set(records(redis_client, orc.services.keys)), {failure.task_ids[0] for failure in unknown}
        accepted = {handle.id for handle in handles}
        assert accepted < stored <= accepted | maybe
        assert (await orc.task(unknown[0].task_ids[0]).status()).state == "ready"


async def test_when_no_chunk_is_answered_all_that_may_be_there_are_named(
    redis_server: RedisServer, prefix: str, redis_client: redis.Redis
) -> None:
    """The first chunk is lost: one error, with the ids of all that may be there; with a key they are found again."""
    async with one_client(redis_server, prefix) as (orc, proxy):
        proxy.fail_reply(any_work)
        proxy.watch(any_work, lambda _: proxy.close_port(), nth=1)
        tasks = [Submission("new", key=f"row {number}") for number in range(5 * CHUNK_ROWS)]
        with pytest.raises(ServerUnavailable, match=r"\d+ tasks may have arrived") as told:
            await orc.submit_many(tasks)
        proxy.heal()
        maybe = told.value.task_ids
        assert told.value.outcome_unknown
        assert CHUNK_ROWS <= len(maybe) < len(tasks)
        assert set(maybe[:CHUNK_ROWS]) <= set(records(redis_client, orc.services.keys)) <= set(maybe)
        handles = await orc.submit_many(tasks)
        assert [handle.id for handle in handles[:CHUNK_ROWS]] == list(maybe[:CHUNK_ROWS])
        assert set(records(redis_client, orc.services.keys)) == {handle.id for handle in handles}


async def test_a_submit_that_is_lost_and_then_refused_is_unknown(prefix: str) -> None:
    """The answer is lost, the repeat meets a full server: that nothing was stored would not be true."""
    with RedisServer() as server, server.client() as direct:
        async with one_client(server, prefix) as (orc, proxy):
            await orc.submit("old")  # loads the script, which is a call of its own
            proxy.fail_reply(any_work)
            proxy.watch(any_work, lambda _: direct.config_set("maxmemory", "1"), nth=1, where="reply")
            with pytest.raises(ServerUnavailable, match=r"out of memory.*; task .* may have arrived") as told:
                await orc.submit("new")
            assert told.value.outcome_unknown
            direct.config_set("maxmemory", "0")
            (id_,) = told.value.task_ids
            assert (await orc.task(id_).status()).state == "ready"


async def test_a_wait_says_when_nobody_could_tell(redis_server: RedisServer, prefix: str) -> None:
    """In an outage no time limit claims that the task goes on; asking once says that Redis does not answer."""
    async with one_client(redis_server, prefix) as (orc, proxy):
        handle = await orc.submit("new")
        proxy.close_port()
        proxy.cut()
        with pytest.raises(TimeoutError, match=r"the end of task .* is not known after 0\.3 s: .*no answer from Redis"):
            await handle.result(0.3)
        with pytest.raises(TimeoutError, match=r"the ends of 1 of 1 tasks are not known after 0\.3 s: .*no answer"):
            await anext(orc.as_completed([handle], timeout=0.3))
        with pytest.raises(ServerUnavailable):
            await handle.result(0)
        proxy.heal()
        with pytest.raises(TimeoutError, match="has not ended after 0 s; it goes on"):
            await handle.result(0)
        with pytest.raises(TimeoutError, match=r"has not ended after 0\.2 s; it goes on"):
            await handle.result(0.2)
