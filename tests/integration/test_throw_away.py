"""Shared state in `run_skill` and `make_context`: real, in a namespace of its own, and nothing before its first use."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, ConfigError, OrchestratorError, TaskContext
from orchestrator.testing import temporary_server, throw_away
from orchestrator.workers.testing import make_context, run_skill

if TYPE_CHECKING:
    from orchestrator.workers.testing.teams import Teams

agent = Agent("ed")


@agent.skill
async def plain(ctx: TaskContext, text: str) -> str:
    """Touch nothing that is shared, though it may: middleware, children, progress, output, once, questions."""
    await ctx.progress(1, 2)
    await ctx.emit(text)
    await ctx.once("n", lambda: 1)
    child = await ctx.submit("child")
    await child.result()
    return text


@agent.skill
async def share(ctx: TaskContext) -> list[Any]:
    """Touch everything that is shared."""
    await ctx.workspace.set("plan.step", 1)
    await ctx.workspace.append("log", {"a": 1})
    await ctx.scratch.set("mine", 2)
    await ctx.agent_state.set({"mood": "good"})
    async with ctx.locks.hold("n"):
        count = await ctx.workspace.incr("count", 3)
    allowed = [(await ctx.limits.check("model", 1, 60)).allowed for _ in range(2)]
    return [
        (await ctx.workspace.get("plan.step"))["plan.step"].value,
        (await ctx.scratch.get("mine"))["mine"].value,
        await ctx.agent_state.get("mood"),
        count.value,
        allowed,
        ctx.fence,
    ]


SHARED = [1, 2, {"mood": "good"}, 3, [True, False]]


@agent.skill(lock="session")
async def take(ctx: TaskContext) -> int | None:
    """Hold the session from before the start."""
    await ctx.workspace.set("by", "take")
    return ctx.fence


@agent.skill
async def report(ctx: TaskContext) -> int:
    """Add one to what is there, and remember it."""
    seen = await ctx.workspace.get("count")
    count = seen["count"].value if seen else 0
    await ctx.workspace.set("count", count + 1)
    return count + 1


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a thread without a server, on a machine that has none."""
    monkeypatch.setattr(throw_away, "_of_thread", throw_away._OfThread())

    def refuse() -> None:
        raise ConfigError("no redis-server 7.0 or newer was found")

    monkeypatch.setattr(temporary_server, "find_server_binary", refuse)


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_handler_that_shares_nothing_starts_nothing(attempt: int) -> None:
    """It runs on a machine without any redis-server, a second attempt in a session too."""
    outcome = await run_skill(plain, {"text": "x"}, session="s", attempt=attempt, children={"child": 1})
    assert outcome.value == "x"


@pytest.mark.usefixtures("no_server")
async def test_a_machine_without_a_server_says_what_to_do() -> None:
    """`run_skill` itself raises, because the verdict of a handler that could not run would mean nothing."""
    with pytest.raises(ConfigError, match="locks and shared state need Redis here; give orc=, or: no redis-server"):
        await run_skill(share, session="s")
    with pytest.raises(ConfigError, match="give orc="):
        await make_context(session="s").workspace.set("a", 1)


async def test_everything_that_is_shared_works() -> None:
    """Workspace, scratch, agent state, limits and locks answer as in production, and every call has a new namespace."""
    for _ in range(2):
        outcome = await run_skill(share, session="s")
        assert outcome.value[:-1] == SHARED
        assert outcome.value[-1] >= 1
    assert (await run_skill(take, session="s")).value
    assert [(await run_skill(report, session="s")).value for _ in range(2)] == [1, 1]


async def test_a_context_alone_shares_too() -> None:
    """The context of a plain call keeps its namespace for its life, and reads events."""
    ctx, other = make_context(session="s"), make_context(session="s")
    assert await share(ctx) == [*SHARED, ctx.fence]
    assert await other.workspace.get() == {}
    events = ctx.workspace.events("0-0")
    assert (await anext(events)).kind == "patch"
    await events.aclose()
    async with ctx.locks.hold("n"):
        assert "n" in [lock.name for lock in await ctx.locks.list()]


async def test_a_second_server_is_not_started() -> None:
    """All calls of a thread use one server."""
    await run_skill(take, session="s")
    began_s = time.perf_counter()
    for _ in range(5):
        await run_skill(take, session="s")
    assert throw_away._server_address() is throw_away._server_address()
    assert time.perf_counter() - began_s < 2.0


async def test_the_namespace_of_a_team(orc_team: Teams) -> None:
    """With `orc=` a test prepares what the handler finds, and reads what it left."""
    async with orc_team() as team:
        ws = team.orc.workspace("s")
        async with ws.edit(agent="test") as edit:
            await edit.set("count", 5)
        assert (await run_skill(report, session="s", orc=team.orc)).value == 6
        await make_context(session="s", orc=team.orc).workspace.set("more", 1)
        assert {path: entry.value for path, entry in (await ws.get()).items()} == {"count": 6, "more": 1}
    with pytest.raises(OrchestratorError, match="does not run"):
        await run_skill(report, session="s", orc=team.orc)


def _address(answers: multiprocessing.Queue[str]) -> None:
    answers.put(throw_away._server_address().url)


def test_a_forked_process_has_its_own() -> None:
    """Its server is another one, and its end leaves the parent's alone."""
    mine, forking = throw_away._server_address(), multiprocessing.get_context("fork")
    answers = forking.Queue()
    child = forking.Process(target=_address, args=(answers,))
    child.start()
    other = answers.get(timeout=20)
    child.join(20)
    assert other != mine.url
    assert asyncio.run(make_context(session="s").workspace.get()) == {}


def test_a_thread_has_its_own() -> None:
    """The kernel ends the server with its thread, and the next thread starts another one."""
    found: list[str] = []

    def run() -> None:
        assert asyncio.run(run_skill(report, session="s")).value == 1
        found.append(throw_away._server_address().url)

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
    assert len(set(found)) == 2
    assert not any(Path(url.removeprefix("unix://")).exists() for url in found)


def test_nothing_is_left_open() -> None:
    """A program that only makes a context ends without a warning, without its server and without its folder."""
    program = (
        "import asyncio, gc\n"
        "from orchestrator.workers.testing import make_context\n"
        "from orchestrator.testing import throw_away\n"
        "async def main():\n"
        "    ctx = make_context(session='s')\n"
        "    await ctx.workspace.set('a', 1)\n"
        "    await anext(ctx.workspace.events('0-0'))\n"
        "    print(throw_away._server_address())\n"
        "asyncio.run(main())\n"
        "gc.collect()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    socket = done.stdout.strip()
    assert socket.startswith("/tmp/orc-")
    assert not Path(socket).parent.exists()


async def test_old_contexts_give_their_connections_back() -> None:
    """In a loop that serves many tests the contexts stay few connections, and an old one connects again when used."""
    contexts = [make_context(session="s") for _ in range(3 * throw_away.MOST_CONNECTED)]
    for number, ctx in enumerate(contexts):
        await ctx.workspace.set("a", number)
    router = [ctx._recording.services.store._router for ctx in contexts]
    assert sum(one.is_open for one in router) == throw_away.MOST_CONNECTED
    for number, ctx in enumerate(contexts):
        assert (await ctx.workspace.get("a"))["a"].value == number
