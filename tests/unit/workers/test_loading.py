"""How agents are found by name, and what is said when they are not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.workers.runtime.loading import load_agents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOOD = """
from orchestrator import Agent
agent = Agent("editor")
empty = Agent("lazy")
number = 5
nobody = None
@agent.skill
async def work() -> None: ...
other = Agent("other")
@other.skill
async def work() -> None: ...
team = [agent, other]
mixed = [agent, 5]
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module into the current directory; what was imported is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def save(name: str, text: str) -> None:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield save
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_agents_are_loaded_from_the_current_directory(write: Callable[[str, str], None]) -> None:
    """One agent, a list of agents, several targets, and modules inside folders."""
    write("good", GOOD)
    write("folder.inner", GOOD.replace("editor", "inner"))
    assert [agent.name for agent in load_agents(["good:agent"])] == ["editor"]
    assert [agent.name for agent in load_agents(["good:team", "folder.inner:agent"])] == ["editor", "other", "inner"]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("good", "write MODULE:AGENT"),
        (":agent", "write MODULE:AGENT"),
        ("good:", "write MODULE:AGENT"),
        ("missing_module:agent", "no module 'missing_module' on the path or in"),
        ("good.inner:agent", "cannot be imported|no module 'good.inner'"),
        ("good:nothing", "has no 'nothing'; it has agent, empty, other"),
        ("good:nobody", "has no 'nobody'"),
        ("good:number", "nor a list of agents, but a int"),
        ("good:mixed", "nor a list of agents"),
        ("good:empty", "agent 'lazy' has no skills"),
        ("wants_more:agent", "wants_more cannot be imported: No module named 'not_installed_here'"),
        ("broken:agent", "broken cannot be imported: ZeroDivisionError"),
        ("unreadable:agent", "unreadable cannot be imported: SyntaxError"),
        ("leaves:agent", "leaves cannot be imported: SystemExit"),
        ("bare:agent", "bare.py has no 'agent'; it has no agent"),
        (".good:agent", "cannot be imported"),
    ],
)
def test_what_cannot_be_loaded_is_named(write: Callable[[str, str], None], target: str, told: str) -> None:
    """Each mistake is a configuration error that names what was asked for and what is there."""
    write("good", GOOD)
    write("wants_more", "import not_installed_here")
    write("broken", "1/0")
    write("unreadable", "def")
    write("leaves", "raise SystemExit(0)")
    write("bare", "x = 1")
    with pytest.raises(ConfigError, match=told):
        load_agents([target])


def test_an_agent_twice_is_refused(write: Callable[[str, str], None]) -> None:
    """One worker hosts each agent once."""
    write("good", GOOD)
    with pytest.raises(ConfigError, match="'editor' is named twice"):
        load_agents(["good:agent", "good:team"])


def test_files_in_the_current_directory_shadow_nothing(
    write: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The current directory is searched last; a file with our name, or the library's, is named and not used."""
    write("orchestrator", "raise AssertionError('shadowed')")
    write("json", "raise AssertionError('shadowed')")
    write("good", GOOD)
    assert sys.path[0] != str(Path.cwd())
    sys.path.insert(0, str(Path.cwd()))
    load_agents(["good:agent"])
    assert sys.path[-1] == str(Path.cwd())
    assert str(Path.cwd() / "orchestrator.py") in capsys.readouterr().err
