"""The synchronous client: every call, many threads, inside an event loop; interrupted, forked, closed, forgotten."""

from __future__ import annotations

import gc
import signal
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, assert_type

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from pydantic import BaseModel, field_validator

from orchestrator import (
    Agent,
    Cause,
    InvalidInput,
    KeyConflict,
    OrchestratorError,
    QueueFull,
    Reject,
    ServerUnavailable,
    Submission,
    SubmitRefused,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskState,
)
from orchestrator.core.ids import new_task_id
from orchestrator.sync import Orchestrator, TaskHandle
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer
from tests.helpers.connections import connection_names
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from orchestrator.client.client import Orchestrator as AsyncOrchestrator
    from orchestrator.core.settings import Settings

agent = Agent("clerk", concurrency=20)


class Sum(BaseModel):
    """A typed result."""

    value: int


@agent.skill
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(value=a + b)


@agent.skill
async def refuse() -> None:
    """Refuse to work."""
    raise Reject("no")


@agent.skill
async def count(ctx: TaskContext, upto: int) -> int:
    """Emit each number."""
    for number in range(upto):
        await ctx.emit(number)
    return upto


@pytest.fixture
def working(settings: Settings) -> Iterator[None]:
    """A supervisor and a worker in a thread of their own."""
    with (
        anyio.from_thread.start_blocking_portal(name="team") as portal,
        portal.wrap_async_context_manager(run_local_team(settings)) as team,
    ):
        portal.call(team.work, agent)
        yield


@pytest.fixture
def orc(settings: Settings) -> Iterator[Orchestrator]:
    """An open client."""
    with Orchestrator(settings=settings) as client:
        yield client


def client_threads() -> list[threading.Thread]:
    """The threads of synchronous clients."""
    return [thread for thread in threading.enumerate() if thread.name == "orchestrator-client"]


def asynchronous(client: Any) -> AsyncOrchestrator:
    """Return the client in the loop."""
    inner: AsyncOrchestrator = client._inner
    return inner


def waits(client: Orchestrator) -> int:
    """How many tasks somebody of this client waits for."""
    return len(asynchronous(client)._replies._waiting)


# ------------------------------------------------------------------------------------------------------------ the calls


@pytest.mark.usefixtures("working")
def test_every_call(orc: Orchestrator) -> None:
    """They do what those of the asyncio client do, and types are kept."""
    handle = orc.submit(add, {"a": 1, "b": 2}, priority="high", tags=["x"])
    assert_type(handle, TaskHandle[Sum])
    assert_type(handle.result(TIMEOUT_S), Sum)
    assert handle.result() == Sum(value=3)
    assert handle.outcome is not None
    assert handle.outcome.state is TaskState.SUCCEEDED
    plain = orc.submit("add", {"a": 1, "b": 2})
    assert orc.task(plain.id).result(timeout=TIMEOUT_S) == plain.result() == {"value": 3}
    assert plain.result(as_=Sum) == Sum(value=3)
    assert handle.status().state is TaskState.SUCCEEDED
    info = handle.info()
    assert (info.priority, info.tags, info.agent) == (1, ("x",), "clerk")
    later = orc.submit(add, {"a": 1, "b": 2}, delay=60)
    assert later.cancel("enough") == "ended"
    assert [chunk.data for chunk in orc.submit(count, {"upto": 3}).output()] == [0, 1, 2]
    events = list(orc.submit(count, {"upto": 1}).events())
    assert (events[-1].kind, events[-1].final) == ("succeeded", True)
    handles = orc.submit_many([Submission(add, {"a": n, "b": n}) for n in range(10)])
    ended = [
        one.result(0).value
        for one in orc.as_completed([*handles, handles[0], later], timeout=TIMEOUT_S)
        if one != later
    ]
    assert sorted(ended) == [2 * n for n in range(10)]


@pytest.mark.usefixtures("working")
def test_every_error(orc: Orchestrator) -> None:
    """Each is raised where it was caused, as the asyncio client raises it."""
    with pytest.raises(TaskFailed, match="no"):
        orc.submit(refuse).result(TIMEOUT_S)
    unwanted = orc.submit("nobody_can")
    unwanted.cancel()
    with pytest.raises(TaskCancelled):
        unwanted.result()
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.05 s"):
        orc.submit("nobody_can").result(0.05)
    with pytest.raises(TimeoutError, match=r"1 of 1 tasks have not ended after 0\.05 s"):
        next(orc.as_completed([orc.submit("nobody_can")], timeout=0.05))
    with pytest.raises(InvalidInput, match="NaN"):
        orc.submit("add", {"a": float("nan")})
    with pytest.raises(InvalidInput, match="takes the handles of tasks, not str"):
        orc.as_completed(["x"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prio"):
        orc.submit("add", {}, prio="high")  # type: ignore[call-overload]
    with pytest.raises(KeyConflict):
        orc.submit("add", {"a": 1, "b": 1}, key="k").id, orc.submit("add", {"a": 2, "b": 1}, key="k")
    with pytest.raises(OrchestratorError):
        orc.task(new_task_id()).info()


@pytest.mark.parametrize("settings", [{"queue__max_tasks": 2}], indirect=True)
def test_of_many_that_were_refused_the_others_have_handles(orc: Orchestrator) -> None:
    """The outcomes are handles of this client."""
    with pytest.raises(SubmitRefused) as refused:
        orc.submit_many([Submission("a")] * 3)
    first, _, third = refused.value.outcomes
    assert isinstance(first, TaskHandle)
    assert first.status().state is TaskState.READY
    assert isinstance(third, QueueFull)


def test_a_type_of_the_caller_is_read_in_its_thread(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """A validator may use the client itself."""

    class Asking(BaseModel):
        value: int

        @field_validator("value")
        @classmethod
        def ask(cls, value: int) -> int:
            assert orc.task(handle.id).status().state is TaskState.SUCCEEDED
            return value + 1

    handle = orc.submit("add", {"a": 1, "b": 2})
    redis_client.hset(
        asynchronous(orc).services.keys.task(handle.id), mapping={"state": "succeeded", "result": '{"value":3}'}
    )
    assert handle.result(0, as_=Asking).value == 4


# ------------------------------------------------------------------------------------------------------- threads, loops


@pytest.mark.usefixtures("working")
def test_many_threads_share_one_client(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """Fifty threads submit and wait at once: everyone gets what is theirs, over two connections."""

    def work(number: int) -> list[int]:
        handles = [orc.submit(add, {"a": number, "b": n}) for n in range(10)]
        return [handle.result(TIMEOUT_S).value for handle in handles]

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(work, range(50)))
    assert found == [[number + n for n in range(10)] for number in range(50)]
    assert len(client_threads()) == 1
    names = [name for name in connection_names(redis_client) if name.startswith("client")]
    assert names == ["client", "client", "client:replies"], "two of ours, one of the team"


def test_submits_of_many_threads_travel_together(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """They are coalesced as those of many tasks are."""
    counter = CommandCounter(redis_client)
    redis_client.client_pause(1000, all=True)  # longer than the threads take to start on a busy machine
    with ThreadPoolExecutor(40) as pool:
        ids = set(pool.map(lambda _: orc.submit("add").id, range(40)))
    assert len(ids) == 40
    assert counter.scripts() <= 4


@pytest.mark.blocks_loop
async def test_inside_a_running_event_loop(settings: Settings) -> None:
    """As in a notebook: the loop stands still during a call, and goes on after it."""
    with Orchestrator(settings=settings) as orc:
        handle = orc.submit("add", {"a": 1})
        await anyio.sleep(0.01)
        assert handle.status().state is TaskState.READY
        with pytest.raises(TimeoutError):
            handle.result(0.01)


def test_a_loop_that_is_left_early_leaves_nothing(orc: Orchestrator) -> None:
    """A break ends the waiting, and so does an iterator that is dropped; the client goes on."""
    handles = orc.submit_many([Submission("add", {"a": n}) for n in range(3)])
    handles[1].cancel()
    for handle in orc.as_completed(handles):
        assert handle is handles[1]
        break
    wait_until(lambda: waits(orc) == 0, "nobody to wait")
    ends = orc.as_completed(handles)
    assert next(ends) is handles[1]
    assert waits(orc) == 2
    del ends
    wait_until(lambda: waits(orc) == 0, "nobody to wait")
    follow = handles[0].events()
    assert next(follow).kind == "ready"
    del follow
    wait_until(lambda: not asynchronous(orc)._following._tasks, "nobody to follow")


# --------------------------------------------------------------------------------------------------------- open, closed


def test_open_and_close(settings: Settings, redis_client: redis.Redis) -> None:
    """Closing ends the thread and the connections; a client opens again; what is not open says so."""
    orc = Orchestrator(settings=settings)
    with pytest.raises(OrchestratorError, match="not open; use `with Orchestrator"):
        orc.submit("add")
    orc.close()
    assert orc.open() is orc
    handle = orc.submit("add")
    with pytest.raises(OrchestratorError, match="open already"):
        orc.open()
    assert len(client_threads()) == 1
    orc.close()
    orc.close()
    assert client_threads() == []
    wait_until(
        lambda: not [name for name in connection_names(redis_client) if name.startswith("client")],
        "the connections to end",
    )
    with pytest.raises(OrchestratorError, match=r"has been closed; open one, and ask it for a known task"):
        handle.status()
    with pytest.raises(OrchestratorError, match="not open"):
        orc.task(handle.id)
    with orc:
        assert orc.task(handle.id).status().state is TaskState.READY


def test_opening_without_a_server(settings: Settings) -> None:
    """An error, and no thread stays."""
    nowhere = Orchestrator("unix:///nonexistent/redis.sock", prefix=settings.prefix)
    for _ in range(2):
        with pytest.raises(ServerUnavailable, match="no answer from Redis"):
            nowhere.open()
    assert client_threads() == []


def test_closing_ends_the_calls_of_other_threads(settings: Settings) -> None:
    """Whoever waits in another thread gets an error at once."""
    orc = Orchestrator(settings=settings).open()
    handles = orc.submit_many([Submission("add", {"a": n}) for n in range(2)])
    with ThreadPoolExecutor(4) as pool:
        under_way = [
            pool.submit(handles[0].result),
            pool.submit(handles[1].result, 60),
            pool.submit(lambda: list(orc.as_completed(handles))),
            pool.submit(lambda: list(handles[0].events())),
        ]
        wait_until(lambda: waits(orc) == 2 and asynchronous(orc)._following._tasks, "all to wait")
        orc.close()
        for call in under_way:
            assert isinstance(call.exception(5), OrchestratorError), call
    assert client_threads() == []


def test_calls_and_a_close_at_the_same_time(settings: Settings) -> None:
    """Whatever the order, every call returns or raises; none hangs."""
    for _ in range(10):
        orc = Orchestrator(settings=settings).open()
        told: list[str] = []

        def work(orc: Orchestrator = orc, told: list[str] = told) -> None:
            while not told:
                try:
                    orc.submit("add")
                except OrchestratorError as closed:
                    told.append(str(closed))

        with ThreadPoolExecutor(4) as pool:
            under_way = [pool.submit(work) for _ in range(4)]
            orc.close()
            for call in under_way:
                call.result(5)
    assert client_threads() == []


def test_a_client_that_is_forgotten_is_closed(settings: Settings) -> None:
    """Its thread ends with the last who holds it, and a handle or an iterator holds it."""
    handle = Orchestrator(settings=settings).open().submit("add")
    gc.collect()
    assert handle.status().state is TaskState.READY
    events = handle.events()
    next(events)
    del handle
    gc.collect()
    assert len(client_threads()) == 1
    del events
    gc.collect()
    wait_until(lambda: client_threads() == [], "the thread to end")


def test_redis_goes_away_and_comes_back(prefix: str) -> None:
    """A call during a short outage is completed, one during a long one is a clear error; a wait outlives both."""
    with RedisServer(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        settings = local_settings(server.url, prefix, redis__command_timeout_s=0.5)
        with Orchestrator(settings=settings) as orc, ThreadPoolExecutor(2) as pool:
            handle = orc.submit("add")
            waiting = pool.submit(handle.result)
            server.kill()
            submitting = pool.submit(orc.submit, "add")
            time.sleep(0.1)
            server.start()
            assert submitting.result(10).status().state is TaskState.READY
            server.kill()
            with pytest.raises(ServerUnavailable, match="no answer from Redis"):
                orc.submit("add")
            server.start()
            handle.cancel()
            with pytest.raises(TaskCancelled):
                waiting.result(10)


# ------------------------------------------------------------------------------------------------------ whole processes


IMPORTS: Final = """
import os, signal, sys, threading, time
from orchestrator.sync import Orchestrator

def join_threads():
    # The idle worker threads of an event loop end soon after it.
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(5)

"""


def run_script(settings: Settings, body: str, *arguments: str) -> ActorProcess:
    """Describe a script that has imported the client."""
    assert settings.redis.url is not None
    environ = {"ORC_REDIS__URL": settings.redis.url.get_secret_value(), "ORC_PREFIX": settings.prefix}
    environ["PYTHONWARNINGS"] = "ignore"  # of submits for skills that no agent has
    return ActorProcess.python("-c", IMPORTS + textwrap.dedent(body), *arguments, name="script", env=environ)


def test_ctrl_c_in_result(settings: Settings) -> None:
    """KeyboardInterrupt comes at once, also in a loop; nobody waits any more, and the client goes on."""
    script = """
        with Orchestrator() as orc:
            handle = orc.submit("nobody_can")
            for wait in (handle.result, lambda: list(orc.as_completed([handle])), lambda: list(handle.events())):
                print("waiting", flush=True)
                try:
                    wait()
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
            deadline = time.monotonic() + 5
            while orc._inner._replies._waiting or orc._inner._following._tasks:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            print(handle.cancel(), orc.task(handle.id).status().state)
        join_threads()
        print(threading.active_count(), "threads")
    """
    with run_script(settings, script) as process:
        for number in (1, 2, 3):
            wait_until(partial(_times, process, "waiting", number), "the wait to begin", 15)
            time.sleep(0.1)
            began_s = time.monotonic()
            process.signal(signal.SIGINT)
            wait_until(partial(_times, process, "interrupted", number), "the interrupt")
            assert time.monotonic() - began_s < 1
        assert process.wait_exit() == 0, process.output
        assert process.output.endswith("ended cancelled\n1 threads\n")


def _times(process: ActorProcess, word: str, number: int) -> bool:
    return process.output.count(word) == number


def test_a_forked_process_is_refused(settings: Settings) -> None:
    """Its child gets an error in place of a call that hangs, leaves the block, opens its own; the parent goes on."""
    script = """
        from orchestrator import OrchestratorError

        def use(orc, handle):
            for call in (lambda: orc.submit("x"), handle.status, handle.result, lambda: orc.task(handle.id)):
                try:
                    call()
                except OrchestratorError as refused:
                    print(refused, flush=True)
            with Orchestrator() as own:
                print("own:", own.task(handle.id).status().state, flush=True)

        with Orchestrator() as orc:
            handle = orc.submit("nobody_can")
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                use(orc, handle)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            for _ in range(3):
                print("parent:", orc.submit("x").status().state, handle.cancel(), flush=True)
        join_threads()
        print("closed:", threading.active_count(), parent)
    """
    with run_script(settings, script) as process:
        assert process.wait_exit(15) == 0, process.output
        lines = process.output.splitlines()
    parent = lines[-1].split()[-1]
    refused = f"this client was opened by process {parent}; a process that was forked from it must open its own"
    assert lines == [
        *[refused] * 4, "own: ready", "parent: ready ended", *["parent: ready already"] * 2, f"closed: 1 {parent}"
    ]  # fmt: skip


async def test_control_commands(settings: Settings) -> None:
    """Each is given and answered as by the asynchronous client; what it is given with is checked in the same way."""

    def steer() -> None:
        with Orchestrator(settings=settings) as orc:
            handle = orc.submit("nobody_can")
            sent = orc.admin.stop(reason="for a test")
            found = sent.receipts(timeout=TIMEOUT_S)
            assert (sent.command.kind, sent.at <= found.answered[0].at, sent.more) == ("stop", True, False)
            assert repr(sent) == f"Sent({sent.id!r})"
            assert ([one.word for one in found.answered], found.missing) == (["done"], ())
            assert handle.status().detail.cause == Cause.STOPPED
            assert orc.admin.start().id != sent.id
            assert orc.admin.cancel([handle.id]).receipts(timeout=TIMEOUT_S).done
            with pytest.raises(InvalidInput, match="agent:NAME"):
                orc.admin.pause_queue("sum")
            assert orc.admin.schedules.list() == []

    async with run_local_team(settings):
        await anyio.to_thread.run_sync(steer)


@pytest.mark.parametrize("server_is", ["frozen", pytest.param("answering", marks=pytest.mark.slow)])
def test_a_script_that_forgets_to_close_ends(prefix: str, server_is: str) -> None:
    """The interpreter ends in order and at once, also when another thread still waits and Redis does not answer."""
    with RedisServer() as server:
        script = """
            orc = Orchestrator().open()
            handle = orc.submit("nobody_can")

            def wait():
                try:
                    handle.result()
                except Exception as closed:
                    print(type(closed).__name__, flush=True)

            threading.Thread(target=wait, daemon=True).start()
            time.sleep(0.1)
            print("forgotten", flush=True)
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
        """
        go = server.directory / "go"
        with run_script(local_settings(server.url, prefix), script, str(go)) as process:
            process.wait_output("forgotten")
            if server_is == "frozen":
                server.process.freeze()
            go.touch()
            began_s = time.monotonic()
            assert process.wait_exit(10) == 0, process.output
            assert time.monotonic() - began_s < 3
            assert process.output.split() in (["forgotten"], ["forgotten", "OrchestratorError"])
            server.process.thaw()


def test_sniffio_may_be_installed(settings: Settings) -> None:
    """Where `sniffio` is installed, anyio asks it for the event loop; calls from a thread start all the same."""
    sniffio = pytest.importorskip("sniffio")
    with pytest.raises(sniffio.AsyncLibraryNotFoundError):
        sniffio.current_async_library()
    with Orchestrator(settings=settings) as orc:
        assert orc.submit("sum", {"numbers": [1]}).id
