"""Hostile data comes back equal or is refused with a sentence, through every interface; it never becomes code."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import sys
import warnings
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

import anyio.to_thread
import pytest

from orchestrator import Agent, Message, NoAgentWarning, Record, Reject, Submission, TaskContext
from orchestrator.core.errors import DamagedData, OrchestratorError, TaskFailed
from orchestrator.core.payload import decode_json
from orchestrator.sync import Orchestrator as BlockingOrchestrator
from orchestrator.tasks.model import TaskState
from orchestrator.testing.waiting import wait_for
from orchestrator.views.control import list_commands
from tests.helpers.audit import audited, write_canary
from tests.helpers.corpus import CANARY, PICKLE, TEXTS, VALUES
from tests.helpers.json_values import alike

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    import redis

    from orchestrator.client.client import Orchestrator
    from tests.helpers.local_team import LocalTeam

    Door = Callable[[Any], Awaitable[Any]]

pytestmark = [pytest.mark.blocks_loop, pytest.mark.timeout(240), pytest.mark.every_server(alone=True)]

SENTENCE: Final = 20_000
"""Longest text of a refusal."""
WAIT_S: Final = 60.0


def complaint(refused: BaseException) -> str:
    """Return what is wrong with a refusal, or "" for a sentence that a terminal and a log can show."""
    text = str(refused)
    if not isinstance(refused, OrchestratorError):
        return f"a bare {type(refused).__name__}: {text[:80]!r}"
    if not 10 < len(text) < SENTENCE or " " not in text:
        return f"no sentence, {len(text)} characters: {text[:80]!r}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"no valid Unicode: {text[:80]!r}"
    return ""


async def pass_through(interfaces: Mapping[str, Door], data: Mapping[str, Any]) -> list[str]:
    """Pass each value through each interface, and return what went wrong."""
    wrong = []
    for interface, door in interfaces.items():
        stored = 0
        for name, value in data.items():
            try:
                back = await door(value)
            except Exception as refused:  # noqa: BLE001 - this is what the test looks at
                if reason := complaint(refused):
                    wrong.append(f"{interface}, {name}: {reason}")
            else:
                stored += 1
                if back is not value and not alike(back, value):
                    wrong.append(f"{interface}, {name}: came back as {repr(back)[:80]}")
        if not stored:
            wrong.append(f"{interface}: refuses everything")
    return wrong


def of_value(orc: Orchestrator) -> dict[str, Door]:  # noqa: C901 - a list of small functions
    """Interfaces of a client that take any JSON value."""
    memory, chat = orc.memory("ada"), orc.chat("s")

    async def submit(value: Any) -> Any:
        return await (await orc.submit("echo", {"value": value})).result(WAIT_S)

    async def submit_many(value: Any) -> Any:
        (handle,) = await orc.submit_many([Submission("echo", {"value": value})])
        return await handle.result(WAIT_S)

    async def schedule(value: Any) -> Any:
        await orc.admin.schedules.add("nightly", "echo", {"value": value}, every=3600, replace=True)
        return cast("Any", (await orc.admin.schedules.get("nightly")).args)["value"]

    async def workspace(value: Any) -> Any:
        async with orc.workspace("s").edit() as changed:
            await changed.set("path", value)
        return (await orc.workspace("s").get("path"))["path"].value

    async def log(value: Any) -> Any:
        async with orc.workspace("s").edit() as changed:
            await changed.append("log", value)
        return (await orc.workspace("s").log("log", last=1))[0].value

    async def store(value: Any) -> Any:
        await memory.store(Record(step=1, kind="seen", content=value, id="r"))
        (found,) = await memory.get("r")
        assert found is not None
        return found.content

    async def meta(value: Any) -> Any:
        await memory.store(Record(step=1, kind="seen", content=1, id="m", meta={"x": value}))
        (found,) = await memory.get("m")
        assert found is not None
        return found.meta["x"]

    async def append(value: Any) -> Any:
        await chat.append([Message({"role": "user", "content": value})])
        return cast("Any", (await chat.hydrate(last=1)).messages[-1].data)["content"]

    async def chat_meta(value: Any) -> Any:
        await chat.set_meta({"x": value})
        return (await chat.meta())["x"]

    async def state(value: Any) -> Any:
        await orc.agents.set_state("ada", {"field": value})
        return (await orc.agents.state("ada"))["field"]

    async def publish(value: Any) -> Any:
        await orc.admin.publish_config("key", value)
        return await orc.config.get("key")

    async def push(value: Any) -> Any:
        await orc.simulation("sim").push("entity", value)
        return (await orc.simulation("sim").buffer("entity", last=1))[0]

    doors = (submit, submit_many, schedule, workspace, log, store, meta, append, chat_meta, state, publish, push)
    return {door.__name__: door for door in doors}


def of_text(orc: Orchestrator) -> dict[str, Door]:  # noqa: C901, PLR0915 - a list of small functions
    """Interfaces of a client that take a text: a name, an option, a reason."""
    memory, chat = orc.memory("ada"), orc.chat("s")

    def option(name: str) -> Door:
        async def submit(text: Any) -> Any:
            given: dict[str, Any] = {name: [text] if name == "tags" else text}
            info = await (await orc.submit("echo", {"value": 1}, delay=60, **given)).info()
            back = getattr(info, name)
            return back[0] if name == "tags" else back

        return submit

    async def agent(text: Any) -> Any:
        await orc.submit("echo", {"value": 1}, delay=60, agent=text)
        return text

    async def skill(text: Any) -> Any:
        return (await (await orc.submit(text, delay=60)).info()).skill

    async def argument(text: Any) -> Any:
        handle = await orc.submit("anything", {text: 1}, delay=60)
        return next(iter(decode_json((await handle.info()).args)))

    async def cancel(text: Any) -> Any:
        handle = await orc.submit("echo", {"value": 1}, delay=60)
        await handle.cancel(text)
        assert (await handle.status()).state == "cancelled"
        return text

    async def task(text: Any) -> Any:
        await orc.task(text).info()

    async def schedule(text: Any) -> Any:
        await orc.admin.schedules.add(text, "echo", {"value": 1}, every=3600, replace=True)
        return (await orc.admin.schedules.get(text)).name

    async def cron(text: Any) -> Any:
        await orc.admin.schedules.add("cron", "echo", cron=text)

    async def reason(text: Any) -> Any:
        await orc.admin.pause_agent("ghost", reason=text)
        return (await newest()).reason

    async def actor(text: Any) -> Any:
        await orc.admin.pause_agent("ghost", actor=text)
        return (await newest()).actor if text else text  # without one it is the user of the process

    async def newest() -> Any:
        # The record of cancelled tasks is written behind them, maybe after a later command.
        return next(one for one in await list_commands(orc.services) if one.kind == "pause-agent")

    async def paused(text: Any) -> Any:
        await orc.admin.pause_agent(text)
        return text

    async def stopped(text: Any) -> Any:
        await orc.admin.stop(session=text)
        await orc.admin.start(session=text)
        return text

    async def queue(text: Any) -> Any:
        await orc.admin.pause_queue(text)

    async def limit(text: Any) -> Any:
        await orc.admin.set_limit(text, "1/s")
        return text

    async def rate(text: Any) -> Any:
        await orc.admin.set_limit("x", text)

    async def config(text: Any) -> Any:
        await orc.admin.publish_config(text, 1)
        return text if (await orc.config.all()).get(text) == 1 else None

    async def lock(text: Any) -> Any:
        async with orc.locks().hold(text, wait=0) as lease:
            return lease.lock

    async def scope(text: Any) -> Any:
        async with orc.locks(f"session:{text}").hold("x", wait=0) as lease:
            return lease.scope.removeprefix("session:")

    async def session(text: Any) -> Any:
        async with orc.workspace(text).edit() as changed:
            await changed.set("path", 1)
        assert (await orc.workspace(text).get("path"))["path"].value == 1
        return text

    async def path(text: Any) -> Any:
        async with orc.workspace("s").edit() as changed:
            await changed.set(text, 1)
        return next(iter(await orc.workspace("s").get(text)))

    async def member(text: Any) -> Any:
        async with orc.workspace("s").edit() as changed:
            await changed.add("set", text)
        return text if text in await orc.workspace("s").members("set") else None

    async def of_kind(text: Any) -> Any:
        await memory.store(Record(step=1, kind=text, content=1, id="k"))
        (found,) = await memory.get("k")
        return found and found.kind

    async def record(text: Any) -> Any:
        await memory.store(Record(step=1, kind="seen", content=1, id=text))
        (found,) = await memory.get(text)
        return found and found.id

    async def subject(text: Any) -> Any:
        await memory.store(Record(step=1, kind="seen", content=1, id="s", subject=text))
        (found,) = await memory.get("s")
        return found and found.subject

    async def source(text: Any) -> Any:
        await orc.chat("s", text).append([{"role": "user", "content": "x"}])
        return text if text in await chat.sources() else None

    async def message(text: Any) -> Any:
        await chat.append([Message({"role": "user"}, id=text)])
        return text if (await chat.hydrate(last=1)).messages[-1].id == text else None

    async def turn(text: Any) -> Any:
        await chat.append([{"role": "user"}], turn=text)
        return (await chat.hydrate(last=1)).messages[-1].turn

    async def field(text: Any) -> Any:
        await orc.agents.set_state("bob", {text: 1})
        return text if (await orc.agents.state("bob")).get(text) == 1 else None

    async def board(text: Any) -> Any:
        await orc.board("points").add(text)
        found = await orc.board("points").rank(text)
        return found and found.member

    doors = (
        agent, skill, argument, cancel, task, schedule, cron, reason, actor, paused, stopped, queue, limit, rate,
        config, lock, scope, session, path, member, of_kind, record, subject, source, message, turn, field, board,
    )  # fmt: skip
    options = {name: option(name) for name in ("session", "lane", "priority", "tags", "key")}
    return options | {door.__name__: door for door in doors}


REFUSE_ALL: Final = frozenset({"task", "cron", "queue", "rate", "priority"})
"""Interfaces for texts with a grammar, none of which is hostile."""


def make_agent(wrong: list[str]) -> Agent:  # noqa: C901 - a list of small functions
    """An agent that gives back arguments, and passes values and texts through its context."""
    agent, numbers = Agent("ada", concurrency=8), count()

    @agent.skill
    async def echo(value: Any) -> Any:
        return value

    @agent.skill(timeout=100)
    async def pass_values(ctx: TaskContext) -> None:
        async def emit(value: Any) -> Any:
            await ctx.emit(value)
            return value

        async def once(value: Any) -> Any:
            return await ctx.once(f"call {next(numbers)}", lambda: value)

        async def set_(value: Any) -> Any:
            await ctx.workspace.set("own", value)
            return (await ctx.workspace.get("own"))["own"].value

        async def state(value: Any) -> Any:
            await ctx.agent_state.set({"own": value})
            return (await ctx.agent_state.get("own"))["own"]

        async def remember(value: Any) -> Any:
            await ctx.memory.store(Record(step=1, kind="own", content=value, id="own"))
            (found,) = await ctx.memory.get("own")
            return found and found.content

        async def child(value: Any) -> Any:
            return await (await ctx.submit("echo", {"value": value})).result(WAIT_S)

        async def line(value: Any) -> Any:
            ctx.log.info("hostile", value=value)
            return value

        doors = (emit, once, set_, state, remember, child, line)
        wrong.extend(await pass_through({door.__name__: door for door in doors}, VALUES))

    @agent.skill(timeout=100)
    async def pass_texts(ctx: TaskContext) -> None:
        async def progress(text: Any) -> Any:
            await ctx.progress(1, 2, text)
            return text

        async def name_of_call(text: Any) -> Any:
            await ctx.once(text, lambda: 1)
            return text

        async def event(text: Any) -> Any:
            ctx.log.info(text)
            return text

        doors = (progress, name_of_call, event)
        wrong.extend(await pass_through({door.__name__: door for door in doors}, TEXTS))

    @agent.skill(max_attempts=1)
    async def fail(how: str, name: str) -> None:
        raise {"reject": Reject, "raise": ValueError, "bare": KeyError}[how](TEXTS[name])

    @agent.skill
    async def ask(ctx: TaskContext, name: str) -> Any:
        return await ctx.ask(TEXTS[name], options=[TEXTS["html"], "yes"])

    return agent


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the canary makes when it is imported; it can be, from a folder on the path."""
    made = write_canary(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoAgentWarning)
        # The log of the tests escapes nothing, and a report with a surrogate cannot be sent between test processes.
        logging.disable()
        yield made
        logging.disable(logging.NOTSET)
    sys.modules.pop(CANARY, None)


@asynccontextmanager
async def watched(mark: Path) -> AsyncIterator[None]:
    """Fail if data becomes an import, a process, an unpickled object or compiled code during the block."""
    with audited() as found:
        yield
    assert found == []
    assert CANARY not in sys.modules
    assert not os.path.exists(mark)  # noqa: ASYNC240, PTH110 - of a local folder


async def test_values_of_clients(team: LocalTeam, mark: Path) -> None:
    """Client, supervisor and worker run in this process: the hook sees all three."""
    await team.work(make_agent([]))
    async with watched(mark):
        assert not (wrong := await pass_through(of_value(team.orc), VALUES)), "\n".join(wrong)


async def test_texts_of_clients(team: LocalTeam, mark: Path) -> None:
    """Names, options, reasons."""
    async with watched(mark):
        found = await pass_through(of_text(team.orc), TEXTS)
    wrong = [one for one in found if one.removesuffix(": refuses everything") not in REFUSE_ALL]
    assert not wrong, "\n".join(wrong)


async def test_handlers(team: LocalTeam, mark: Path) -> None:
    """What handlers store, log, return, raise and ask."""
    wrong: list[str] = []
    await team.work(make_agent(wrong))
    async with watched(mark):
        for skill in ("pass_values", "pass_texts"):
            await (await team.orc.submit(skill, session="own")).result(60)
        for how in ("reject", "raise", "bare"):
            tasks = [Submission("fail", {"how": how, "name": name}) for name in TEXTS]
            for handle in await team.orc.submit_many(tasks):
                with pytest.raises(TaskFailed) as raised:
                    await handle.result(WAIT_S)
                wrong += [f"{how}: {reason}" for reason in [complaint(raised.value)] if reason]
                assert sum(len(error) for error in (await handle.info()).errors) < SENTENCE
    assert not wrong, "\n".join(wrong)


async def test_questions(team: LocalTeam, mark: Path) -> None:
    """A question is asked as it is, or ends its task with a sentence."""
    await team.work(make_agent([]))
    async with watched(mark):
        for name in TEXTS:
            handle = await team.orc.submit("ask", {"name": name})

            async def waits_or_ended(task: str = handle.id) -> bool:
                state = (await team.orc.task(task).status()).state
                return state.final or state is TaskState.AWAITING_INPUT

            await wait_for(waits_or_ended, "a question or an end", WAIT_S)
            if asked := (await handle.info()).questions:
                assert asked[0].question == TEXTS[name]
                await handle.answer("yes")
                assert await handle.result(WAIT_S) == "yes"
            else:
                with pytest.raises(TaskFailed, match=r"InvalidInput|the question"):
                    await handle.result(WAIT_S)


async def test_the_blocking_client(team: LocalTeam, mark: Path) -> None:
    """It gives what the other client gives."""
    await team.work(make_agent([]))

    def run() -> list[str]:
        wrong = []
        with BlockingOrchestrator(settings=team.settings) as orc:
            for name, value in VALUES.items():
                try:
                    back = orc.submit("echo", {"value": value}, key=f"sync {name}").result(WAIT_S)
                except Exception as refused:  # noqa: BLE001 - this is what the test looks at
                    wrong += [f"{name}: {reason}" for reason in [complaint(refused)] if reason]
                else:
                    wrong += [] if alike(back, value) else [f"{name}: came back as {repr(back)[:80]}"]
        return wrong

    async with watched(mark):
        assert await anyio.to_thread.run_sync(run) == []


@pytest.mark.parametrize(
    "written",
    [b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000, b"\xff\x00", b"nan,"],
    ids=["deep", "deep and closed", "no text", "no JSON"],
)
async def test_values_that_others_wrote(team: LocalTeam, redis_client: redis.Redis, written: bytes) -> None:
    """A result, a path, a record and a state that are too deep or no JSON raise an error of ours, by name."""
    orc, other, keys = team.orc, await team.client(), team.services.keys
    await team.work(make_agent([]))
    handle = await orc.submit("echo", {"value": 1})
    await handle.result(WAIT_S)
    async with orc.workspace("s").edit() as changed:
        await changed.set("path", 1)
    await orc.memory("ada").store(Record(step=1, kind="seen", content=1, id="r"))
    await orc.agents.set_state("ada", {"f": 1})
    redis_client.hset(keys.task(handle.id), "result", written)
    redis_client.hset(keys.scope("session", "s").key("ws:doc"), "path", b"1  " + written)
    redis_client.hset(keys.scope("agent", "ada").key("stm:rec"), "r", written)
    redis_client.hset(keys.scope("agent", "ada").key("state"), "f", written)
    reads: dict[str, Callable[[], Awaitable[Any]]] = {
        "result": lambda: other.task(handle.id).result(WAIT_S),
        "path": lambda: orc.workspace("s").get("path"),
        "record": lambda: orc.memory("ada").get("r"),
        "state": lambda: orc.agents.state("ada"),
    }
    found = {}
    for what, read in reads.items():
        try:
            found[what] = f"read {await read()!r:.80}"
        except DamagedData as refused:
            found[what] = complaint(refused)
    assert found == dict.fromkeys(reads, "")


def test_the_hook_sees(mark: Path) -> None:
    """The twin: an import, a pickle, an evaluation and a process are seen."""
    with audited() as found:
        importlib.import_module(CANARY)
        assert mark.exists()
        sys.modules.pop(CANARY)
        __import__(CANARY)
        pickle.loads(PICKLE)
        eval(f"{CANARY!r} and {TEXTS['expression']}")
        import subprocess

        subprocess.run(["true"], check=True)
    kinds = {one.split(" ")[0] for one in found}
    assert {"import", "pickle.find_class", "compile", "exec", "subprocess.Popen"} <= kinds
