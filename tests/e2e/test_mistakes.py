"""Mistakes of a first try: each is named on the log of the worker or at the caller within 2 s, with what to do."""

from __future__ import annotations

import re
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator import InvalidInput, NoAgent, NoAgentWarning, TaskFailed
from orchestrator.client.client import Orchestrator as AsyncOrchestrator
from orchestrator.sync import Orchestrator
from orchestrator.testing.waiting import wait_until
from tests.faultkit.servers import RedisServer
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.processes import ActorProcess

WITHIN_S: Final = 2.0
"""How long a mistake may stay unnamed on a machine that does nothing else."""
AGENTS: Final = """
import asyncio
import time

from orchestrator import Agent, TaskContext

agent = Agent("writer", concurrency=4)


@agent.skill
async def summarize(text: str) -> str:
    return text[:3]


@agent.skill(max_attempts=1)
async def forgets_await(ctx: TaskContext) -> str:
    ctx.submit("summarize", {"text": "abcdef"})
    return "done"


@agent.skill
async def blocks() -> str:
    time.sleep(4)
    return "done"


@agent.skill
async def prints() -> None:
    print("printed by a handler")


@agent.skill(max_attempts=1)
async def fails() -> None:
    {}["key"]


@agent.skill(max_attempts=1)
async def huge() -> str:
    return "x" * 3_000_000


@agent.skill(max_attempts=1)
async def unserialisable() -> object:
    return object()


@agent.skill(max_attempts=1)
async def wants_session(ctx: TaskContext) -> None:
    await ctx.workspace.set("a", 1)


@agent.skill(max_attempts=1)
async def awaits_itself(ctx: TaskContext) -> None:
    child = await ctx.submit("summarize", {"text": "a"}, lane="one")
    await child.result()


@agent.skill(max_attempts=1)
async def submits_typo(ctx: TaskContext) -> None:
    await ctx.submit("sumarize", {"text": "a"})
"""

LIFESPAN: Final = """
from contextlib import asynccontextmanager

from orchestrator import Agent


@asynccontextmanager
async def lifespan(agent):
    raise RuntimeError("no database")
    yield


agent = Agent("a", lifespan=lifespan)


@agent.skill
async def work() -> None: ...
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake of a handler or of the arguments of its task, and what is told of it.

    Attributes:
        caller: pattern of the error that `result()` raises; empty if the task succeeds.
        log: patterns of what the worker writes.
    """

    skill: str
    args: dict[str, Any] = field(default_factory=dict)
    caller: str = ""
    log: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


IN_HANDLERS: Final = {
    "wrong type of an argument": Mistake(
        "summarize",
        {"text": 5},
        "arguments do not fit 'summarize': text: Input should be a valid string",
        log=("task_failed.*arguments do not fit 'summarize'",),
    ),
    "print": Mistake("prints", log=("printed by a handler",)),
    "forgotten await": Mistake(
        "forgets_await",
        caller=r"ctx\.submit\(\) was called without await, so that it did nothing; write `await ctx\.submit",
        log=(r"task_failed.*writers\.py:\d+",),
    ),
    "blocking call": Mistake("blocks", log=(r"event_loop_blocked.*writers\.py:\d+", r"time\.sleep\(4\)")),
    "exception in a handler": Mistake(
        "fails", caller="KeyError: 'key'", log=(r"task_failed.*writers\.py:\d+", r"writers\.py.*, line \d+, in fails")
    ),
    "huge result": Mistake("huge", caller=r"result of 'huge' would be \d+ bytes of JSON, more than the 1048576"),
    "unserialisable result": Mistake(
        "unserialisable", caller="result of 'unserialisable' does not fit its type or JSON: .*object"
    ),
    "missing session": Mistake("wants_session", caller="no session, so it has no workspace; submit it with session="),
    "parent awaits a child of its own lane": Mistake(
        "awaits_itself", caller="would wait for itself.* give the child another key or lane", options={"lane": "one"}
    ),
    "typo in the skill of a child": Mistake(
        "submits_typo",
        log=(r"no_agent_for_child.*no live agent has the skill 'sumarize' \(did you mean 'summarize'\?\)",),
    ),
}


@dataclass(frozen=True)
class Running:
    """A terminal with `orc up` in it, on a server of the test."""

    terminal: Terminal
    up: ActorProcess
    url: str

    @contextmanager
    def client(self) -> Iterator[Orchestrator]:
        """Open a blocking client."""
        with Orchestrator(self.url) as orc:
            yield orc

    def within_s(self) -> float:
        """Return how long a mistake may stay unnamed now: a machine that is busy runs also a good task late."""
        with self.client() as orc:
            began_s = time.monotonic()
            assert orc.submit("summarize", {"text": "abcdef"}).result(timeout=20) == "abc"
            return WITHIN_S + 20 * (time.monotonic() - began_s)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One team for the rows that do it no harm."""
    with RedisServer() as server:
        terminal = Terminal(tmp_path_factory.mktemp("mistakes"), ORC_REDIS__URL=server.url, PYTHONUNBUFFERED="")
        (terminal.folder / "writers.py").write_text(AGENTS)
        with terminal.start("up", "writers:agent") as up:
            up.wait_output("worker_started", timeout_s=30)
            up.wait_output("leadership_acquired", timeout_s=30)
            yield Running(terminal, up, server.url)


# ------------------------------------------------------------------------------------------------------------- handlers


@pytest.mark.parametrize("mistake", IN_HANDLERS.values(), ids=IN_HANDLERS)
def test_in_a_handler(running: Running, mistake: Mistake) -> None:
    """The caller gets the reason, and the log of the worker names it."""
    within_s, before = running.within_s(), len(running.up.output)
    with running.client() as orc:
        began_s = time.monotonic()
        handle = orc.submit(mistake.skill, mistake.args, **mistake.options)
        if mistake.caller:
            with pytest.raises(TaskFailed, match=f"(?s){mistake.caller}"):
                handle.result(timeout=20)
        if mistake.log:
            wait_until(
                lambda: all(re.search(pattern, running.up.output[before:]) for pattern in mistake.log),
                lambda: running.up.describe(str(mistake.log)),
                20,
            )
        assert time.monotonic() - began_s < within_s


def test_two_supervisors(running: Running) -> None:
    """The second one says that it stands by."""
    with running.terminal.start("supervisor", "run") as second:
        second.wait_output("supervisor_stands_by", timeout_s=20)


def test_redis_is_restarted(tmp_path: Path) -> None:
    """Each process tells once that Redis is away, and once that it is back; the caller gets its result."""
    with RedisServer(port=0, options={"appendonly": "yes"}) as server:
        terminal = Terminal(tmp_path, ORC_REDIS__URL=server.url, PYTHONUNBUFFERED="")
        with terminal.start("up", "my_agents:agent") as up, Orchestrator(server.url) as orc:
            up.wait_output("worker_started", timeout_s=30)
            up.wait_output("leadership_acquired", timeout_s=30)
            handle = orc.submit("nap", {"seconds": 0.5})
            server.kill()
            up.wait_output("redis_lost", timeout_s=20)
            server.start()
            up.wait_output("redis_back", timeout_s=30)
            assert handle.result(timeout=30) == "rested"


def test_a_lifespan_fails(tmp_path: Path) -> None:
    """The log has the exception with the user's line; the doctor and `why` name the lifespan."""
    (tmp_path / "starting.py").write_text(LIFESPAN)
    with RedisServer() as server:
        terminal = Terminal(tmp_path, ORC_REDIS__URL=server.url, PYTHONUNBUFFERED="")
        with terminal.start("worker", "run", "starting:agent") as host:
            told = host.wait_output("worker_exception", timeout_s=30)
            assert "RuntimeError: no database" in told
            host.wait_output("line 9, in lifespan", timeout_s=5)
            doctor = terminal.orc("doctor").out
            assert "the lifespan of agent 'a' failed" in doctor
            assert "correct the lifespan, or what it needs" in doctor


# ----------------------------------------------------------------------------------------------------------- the caller

TYPED: Final = {
    "typo in a skill": (
        ("tasks", "submit", "sumarize", "-a", "text=x"),
        0,
        "warning: no live agent has the skill 'sumarize' (did you mean 'summarize'?); tasks wait until `orc ",
    ),
    "typo in a skill, agent required": (
        ("tasks", "submit", "sumarize", "-a", "text=x", "--require-agent"),
        4,
        "error: no live agent has the skill 'sumarize' (did you mean 'summarize'?)",
    ),
    "typo in an agent": (
        ("tasks", "submit", "summarize", "-a", "text=x", "--agent", "writr"),
        0,
        "warning: agent 'writr' has no live worker (did you mean 'writer'?); tasks wait until ",
    ),
    "typo in an argument": (
        ("tasks", "submit", "summarize", "-a", "txt=x"),
        2,
        "error: arguments fit no version of 'summarize' that workers have (txt: not an argument",
    ),
    "typo in the skill of a schedule": (
        ("schedules", "add", "nightly", "sumarize", "--every", "24h"),
        0,
        "warning: no live agent has the skill 'sumarize' (did you mean 'summarize'?); tasks wait until ",
    ),
}


@pytest.mark.parametrize(("typed", "code", "said"), TYPED.values(), ids=TYPED)
def test_typed(running: Running, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], code: int, said: str) -> None:
    """The command line says it in one line."""
    from orchestrator.client import skill_versions

    monkeypatch.setattr(skill_versions, "_warned", set())  # a command is a process
    done = running.terminal.orc(*typed)
    assert (done.code, said in done.err) == (code, True), done


async def test_a_typo_in_a_program(running: Running) -> None:
    """A submit warns at the line of the caller, once; `require_agent` refuses, and a time-out tells the cause."""
    async with AsyncOrchestrator(running.url) as orc:
        with pytest.warns(NoAgentWarning, match="did you mean 'summarize'") as warned:
            handle = await orc.submit("sumarise", {"text": "x"})
        assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await orc.submit("sumarise", {"text": "y"})
            await orc.submit("summarize", {"text": "y"})
        with pytest.raises(NoAgent, match=r"did you mean 'summarize'.*nothing was submitted"):
            await orc.submit("sumarise", {"text": "x"}, require_agent=True)
        assert await (await orc.submit("summarize", {"text": "abcd"}, require_agent=True)).result(10) == "abc"
        with pytest.raises(TimeoutError, match="It is ready: parked: no live agent has the skill 'sumarise'"):
            await handle.result(timeout=0.1)


def test_a_typo_in_a_blocking_program(running: Running) -> None:
    """The blocking client warns at the line of the caller, too."""
    with running.client() as orc:
        with pytest.warns(NoAgentWarning, match="did you mean 'summarize'") as warned:
            orc.submit("summarice", {"text": "x"})
        assert [Path(one.filename).name for one in warned] == [Path(__file__).name]


def test_invalid_options(running: Running) -> None:
    """What is no flag is refused."""
    with running.client() as orc, pytest.raises(InvalidInput, match="require_agent must be True or False, not 'yes'"):
        orc.submit("summarize", {"text": "x"}, require_agent="yes")  # type: ignore[call-overload]


# -------------------------------------------------------------------------------------------------------- agent modules

HEAD: Final = "from orchestrator import Agent\n"
SKILL: Final = "\n\n@agent.skill\nasync def work() -> None: ...\n"
IMPORTS: Final = {
    "exception in an imported module": (
        "import helpers_of_mine\n" + HEAD + "agent = Agent('a')" + SKILL,
        ("mine cannot be imported: ZeroDivisionError", 'helpers_of_mine.py", line 2', "1 / 0"),
    ),
    "syntax error": (
        HEAD + "agent = Agent('a'\n" + SKILL,
        ("mine cannot be imported: SyntaxError: '(' was never closed", 'mine.py", line 2', "agent = Agent('a'"),
    ),
    "missing package": (
        "import not_installed_here\n",
        ("mine cannot be imported: No module named 'not_installed_here'", 'mine.py", line 1', "import not_installed"),
    ),
    "rate 0": (
        HEAD + "agent = Agent('a', rate='0/min')" + SKILL,
        ("mine cannot be imported: InvalidInput: ", "0/min", 'mine.py", line 2'),
    ),
    "two agents of one name": (
        HEAD + "one = Agent('a')\nagent = one" + SKILL + "two = Agent('a')\ntwo.skill(work)\nagent = [one, two]\n",
        ("agent 'a' is named twice; one worker hosts each agent once",),
    ),
    "agent without skills": (HEAD + "agent = Agent('a')\n", ("agent 'a' has no skills; decorate",)),
    "typo in the agent": (HEAD + "agnet = Agent('a')\n", ("mine.py has no 'agent'; it has agnet",)),
    "forgotten decorator call": (HEAD + "agent = Agent\n", ("is neither an Agent nor a list of agents",)),
    "a module with our name": (
        "from orchestrator import my_helper\n",
        ("orchestrator.py has the name of our package and is not used; rename it", 'mine.py", line 1'),
    ),
}


@pytest.mark.parametrize("name", ["pytest", "hypothesis"], ids=["module", "package"])
def test_a_module_with_an_installed_name(tmp_path: Path, name: str) -> None:
    """The installed one is loaded, and the error names the one here that is not."""
    (tmp_path / f"{name}.py").write_text(HEAD + "agent = Agent('a')\n")
    done = Terminal(tmp_path).process("up", f"{name}:agent")
    assert done.code == 78, done
    assert f"{name}.py is not used, because " in done.err
    assert "has its name; rename it" in done.err


@pytest.mark.parametrize(("source", "told"), IMPORTS.values(), ids=IMPORTS)
def test_imports(tmp_path: Path, source: str, told: tuple[str, ...]) -> None:
    """`orc up` ends with the user's own frames before it starts anything; test_cli_up.py has `orc worker run`."""
    terminal = Terminal(tmp_path)
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "helpers_of_mine.py").write_text("# helps\n1 / 0\n")
    if "my_helper" in source:
        (tmp_path / "orchestrator.py").write_text("my_helper = 1\n")
    done = terminal.process("up", "mine:agent")
    assert done.code == 78, done
    assert [text for text in told if text not in done.err] == [], done.err
    assert "/orchestrator/workers/" not in done.err
    assert "importlib" not in done.err
    assert not (tmp_path / "data").exists()
