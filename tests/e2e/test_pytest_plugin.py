"""The pytest plugin in the project of a stranger: a fresh process, a folder of its own, no other plugin but anyio's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
import anyio
import pytest
from orchestrator import Orchestrator
from orchestrator import Agent

pytestmark = pytest.mark.anyio
agent = Agent("adder")

@agent.skill
async def add(a: int, b: int) -> int:
    return a + b

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


class Project:
    """A folder with tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        """Write a file of tests below the usual beginning."""
        (self.folder / name).write_text(HEAD + dedent(text), encoding="utf-8")

    def run(self, *options: str, plugins: tuple[str, ...] = ("anyio", "redis-orchestrator")) -> tuple[int, str]:
        """Run its tests; answer exit status and output."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("ORC_", "PYTEST"))}
        environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "120"}
        loaded = [word for plugin in plugins for word in ("-p", plugin)]
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-W", "error", *loaded, *options]
        done = subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=50, check=False
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    return Project(tmp_path)


def test_the_example_passes(project: Project) -> None:
    """The examples with tests, beside the agents that they test, and nothing else."""
    files = [f"{name}.py" for name in ("my_agents", "test_my_agents", "support_agent", "test_support_agent")]
    for name in (*files, *(f"research_team/{name}.py" for name in ("model", "team", "test_team"))):
        shutil.copy(ROOT / "examples" / name, project.folder)
    code, output = project.run()
    assert (code, "14 passed" in output) == (0, True), output


def test_what_a_test_may_do(project: Project) -> None:
    """Teams one after the other, code that opens its own client, synchronous tests, a context; nothing stays behind."""
    project.write(
        "test_good.py",
        """
        prefixes = []

        async def test_a_second_team_goes_on(orc_team):
            async with orc_team() as team:
                prefixes.append(team.settings.prefix)
                handle = await team.orc.submit(add, {"a": 1, "b": 2})
            async with orc_team(agent, workers=2) as team:
                await team.drain()
                assert await team.orc.task(handle.id).result(1) == 3

        async def test_a_namespace_for_each_test(orc_team):
            async with orc_team(agent) as team:
                prefixes.append(team.settings.prefix)
                assert team.submitted() == []
            assert len(set(prefixes)) == 2

        async def test_code_with_a_client_of_its_own(orc_team):
            async with orc_team(agent) as team, Orchestrator() as theirs:
                assert await (await theirs.submit(add, {"a": 1, "b": 1})).result(5) == 2
                team.assert_submitted(add, times=1)

        def test_without_async(orc_team):
            async def use():
                async with orc_team(agent) as team:
                    return await team.run(add, {"a": 2, "b": 2})
            assert anyio.run(use) == 4

        async def test_a_context(orc_context):
            ctx = orc_context(session="101")
            await ctx.emit("x")
            assert (ctx.session, ctx.emitted) == ("101", ("x",))

        def test_nothing_is_left(orc_redis):
            import redis
            with redis.Redis.from_url(orc_redis) as client:
                assert client.keys() == []
        """,
    )
    code, output = project.run("-p", "no:cacheprovider")
    assert (code, "6 passed" in output) == (0, True), output


def test_what_a_test_leaves_behind_fails_it(project: Project) -> None:
    """A team that was not closed, an asyncio task, a crash that never came: each has a sentence."""
    project.write(
        "test_bad.py",
        """
        import asyncio

        @agent.skill
        async def forget() -> None:
            asyncio.create_task(asyncio.sleep(60), name="forgotten")

        async def test_open_team(orc_team):
            await orc_team(agent).__aenter__()

        async def test_forgotten_task(orc_team):
            async with orc_team(agent) as team:
                await team.run(forget)

        async def test_forgotten_client(orc_team):
            async with orc_team(agent) as team:
                await Orchestrator(settings=team.settings).open()

        async def test_crash_that_never_came(orc_team):
            async with orc_team(agent) as team:
                team.crash(add, at="emit")
                await team.run(add, {"a": 1, "b": 1})

        async def test_wrong_assertion(orc_team):
            async with orc_team(agent) as team:
                await team.run(add, {"a": 1, "b": 1})
                team.assert_submitted(add, args={"a": 2})
        """,
    )
    code, output = project.run("-W", "default", "-p", "no:cacheprovider")
    assert code == 1, output
    assert "2 failed, 3 passed, 3 errors" in output, output
    for words in (
        "Team(Agent('adder')) is still open; use `async with`",
        "asyncio task 'forgotten'",
        "asyncio task 'orchestrator-client'",
        "this test proves nothing: the crash of 'add' at 'emit' did not happen, the step was reached 0x",
        "a task of skill 'add' with {'a': 2} was not submitted; submitted were:",
        "add(a=1, b=1) [succeeded]  <- a is 1, not 2",
    ):
        assert words in output, words


@pytest.mark.slow
def test_each_process_has_a_server(project: Project) -> None:
    """With xdist, test processes do not see each other; their servers end with them."""
    project.write(
        "test_two.py",
        """
        import os, pathlib, time

        @pytest.mark.parametrize("number", [0, 1])
        async def test_server(orc_redis, orc_team, number):
            async with orc_team(agent) as team:
                assert await team.run(add, {"a": 1, "b": number}) == number + 1
            here = pathlib.Path(__file__).parent
            (here / f"url-{os.getpid()}").write_text(orc_redis)
            deadline = time.monotonic() + 20
            while len(list(here.glob("url-*"))) < 2 and time.monotonic() < deadline:
                await anyio.sleep(0.01)
        """,
    )
    code, output = project.run("-n", "2", plugins=("anyio", "redis-orchestrator", "xdist"))
    assert code == 0, output
    urls = {path.read_text() for path in project.folder.glob("url-*")}
    assert len(urls) == 2
    assert not [url for url in urls if Path(url.removeprefix("unix://")).exists()]


def test_who_does_not_use_it_pays_nothing(project: Project) -> None:
    """Loading the plugin imports neither the project nor a Redis client."""
    (project.folder / "test_plain.py").write_text(
        dedent("""
        import sys

        def test_nothing_is_loaded(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("redis-orchestrator")
            ours = {name for name in sys.modules if name.partition(".")[0] == "orchestrator"}
            root, agents = "orchestrator", "orchestrator.workers"
            assert ours == {root, agents, f"{agents}.testing", f"{agents}.testing.plugin"}
            assert not {"redis", "pydantic", "anyio"} & set(sys.modules)
        """)
    )
    code, output = project.run(plugins=("redis-orchestrator",))
    assert code == 0, output
