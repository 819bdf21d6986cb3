"""What the manual shows is true: its Python runs and prints what it says, its commands exist, its links lead somewhere.

The Python blocks of a page run from top to bottom in one namespace, against a real server. Agents that a block declares
get a worker before the next block runs. A block of `text` right below is what the block above prints; `…` stands for
anything. A comment `<!-- not run: reason -->` above a block leaves it out. A block with a name (`title="team.py"`) is a
file that the reader saves: `FOLLOWED` names the tests that do so.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import pytest
from opentelemetry import trace
from opentelemetry.util._once import Once

from orchestrator import Agent
from orchestrator.cli.app import program
from tests.docs.pages import PAGES, ROOT, Block, anchors, blocks, files, is_generated, links, prose, read
from tests.helpers.local_team import LocalTeam, local_settings, run_local_team

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.servers import RedisServer

WITH_PYTHON: Final = [
    page for page in PAGES if any(b.language == "python" and b.runs and not b.file for b in blocks(page))
]
FOLLOWED: Final = {
    "docs/guides/fastapi.md": "tests/docs/test_fastapi_page.py",
    "docs/tutorial/first-team.md": "tests/docs/test_first_team.py",
}
WITH_COMMANDS: Final = [
    page for page in PAGES if any(b.language == "console" and "$ orc " in b.text for b in blocks(page))
]


class PageAgents:
    """The agents of a page and the one worker that hosts them."""

    def __init__(self, team: LocalTeam) -> None:
        self._team = team
        self._hosted: dict[Agent, int] = {}

    async def host(self, namespace: dict[str, Any]) -> None:
        """Start the worker anew when a block has added agents or skills."""
        found = [value for value in namespace.values() if isinstance(value, Agent)]
        skilled = {agent: len(agent.skills) for agent in found if agent.skills}
        if skilled != self._hosted:
            await self._team.stop_workers()
            await self._team.work(*skilled)
            self._hosted = skilled


async def run_block(block: Block, namespace: dict[str, Any]) -> str:
    """Run one block, which may use await at its top level or be a whole program; answer what it printed."""
    place = f"{block.page} line {block.line}"
    code = compile("\n" * (block.line - 1) + block.text, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = StringIO()
    with redirect_stdout(printed):
        # It blocks, as a script may.
        if "anyio.run(" in block.text or re.search(r"^with (Orchestrator|attach)\(", block.text, re.MULTILINE):
            await anyio.to_thread.run_sync(eval, code, namespace)
            return printed.getvalue()
        pending = eval(code, namespace)
        if inspect.isawaitable(pending):
            await pending
    return printed.getvalue()


def limits_of(page: str) -> dict[str, Any]:
    """The limits that the settings on a page have, for the workers of its agents."""
    settings = [tomllib.loads(block.text) for block in blocks(page) if block.language == "toml"]
    return {name: entry for one in settings for name, entry in one.get("limits", {}).items()}


def fits(printed: str, shown: str) -> bool:
    """Whether `printed` is what the page shows, with `…` for anything on a line."""
    pattern = ".*".join(re.escape(part) for part in shown.split("…"))
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.roles(client="operator", worker="pauser")
@pytest.mark.parametrize("page", WITH_PYTHON)
async def test_python_runs(
    page: str, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every Python block of a page runs, in order, and prints what the page shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORC_REDIS__URL", redis_server.url)
    monkeypatch.setenv("ORC_PREFIX", prefix)
    # A page may set the tracer provider, which a process can do once.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    namespace: dict[str, Any] = {"__name__": "manual"}
    async with run_local_team(local_settings(redis_server.url, prefix, limits=limits_of(page))) as team:
        page_agents, printed = PageAgents(team), ""
        for block in blocks(page):
            if block.language == "python" and block.runs and not block.file:
                printed = await run_block(block, namespace)
                await page_agents.host(namespace)
            elif block.language == "text" and block.follows is not None and block.follows.language == "python":
                assert fits(printed, block.text), f"{page} line {block.line}: the block above printed\n{printed}"


def test_files_are_followed() -> None:
    """A test uses the files of each page that shows files, and names the page."""
    assert {page for page in PAGES if files(page)} == set(FOLLOWED)
    for page, test in FOLLOWED.items():
        assert f'"{page}"' in (ROOT / test).read_text(encoding="utf-8")


def commands(page: str) -> list[list[str]]:
    """The words behind `orc` of every command that the console blocks of a page type."""
    lines = [line for block in blocks(page) if block.language == "console" for line in block.text.splitlines()]
    typed = [found[1] for line in lines for found in re.finditer(r"(?:^\$ |\| |\$\()orc ([^|)]+)", line)]
    return [shlex.split(words, comments=True) for words in typed]


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every `orc` command in a console block exists and has the options that are used."""
    for words in commands(page):
        assert not program().run(["--help"] if words[0].startswith("-") else [words[0], "--help"])
        shown = capsys.readouterr().out
        if len(words) > 1 and re.search(rf"^  {re.escape(words[1])}  ", shown, re.MULTILINE):
            assert not program().run([*words[:2], "--help"])
            shown = capsys.readouterr().out
        used = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        assert [word for word in used if word not in shown] == [], f"{page}: orc {shlex.join(words)}"


def test_links_lead_somewhere() -> None:
    """Every link within the project leads to a file that exists, and to a heading in it."""
    broken = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            if is_generated(os.path.relpath(target, ROOT)):
                continue
            missing = not target.exists()
            if missing or (anchor and anchor not in anchors(target.resolve().relative_to(ROOT).as_posix())):
                broken.append(f"{page}: {link}")
    assert broken == []


def test_named_files_exist() -> None:
    """Every project file that a page names exists, and so does the test that it names in the file."""
    ours = ("orchestrator/", "workers/", "lua/", "tests/", "docs/", "config/", "examples/", "benchmarks/")
    wrong = []
    for page in PAGES:
        named = {
            code for line in prose(page) for code in re.findall(r"`([\w./]+\.(?:py|lua|md|toml|conf)(?:::\w+)?)`", line)
        }
        for name in sorted(name for name in named if name.startswith(ours)):
            path, _, test = name.partition("::")
            if not (ROOT / path).is_file() or (
                test and f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8")
            ):
                wrong.append(f"{page}: {name}")
    assert wrong == []


def test_lines_are_short() -> None:
    """A line of a page has at most 160 characters, so that changes can be read line by line."""
    pages = [page for page in PAGES if not page.startswith(("lua/", "benchmarks/"))]
    long = [f"{page}:{at}" for page in pages for at, line in enumerate(read(page), 1) if len(line) > 160]
    assert long == []


def test_the_manual_lists_its_pages() -> None:
    """The first page of the manual links to each guide, tutorial and written page of the reference."""
    shelves = ("docs/tutorial/", "docs/guides/", "docs/reference/")
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith(shelves) and not is_generated(page)}
    assert sorted(pages - set(links("docs/README.md"))) == []
