"""Which files agents are made of, asked in a process of its own that must not be misled by what they do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

AGENT = "from orchestrator import Agent\nagent = Agent('a')\n@agent.skill\nasync def act() -> None: ...\n"


def ask(folder: Path, *targets: str) -> tuple[int, set[str], str]:
    """Ask for the sources; answers the exit code, the files below the folder, and what was said."""
    command = [sys.executable, "-P", "-m", "orchestrator.workers.runtime.sources", *targets]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=30)
    paths = [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]
    assert all(path.startswith(str(folder)) for path in paths), paths
    return done.returncode, {path.removeprefix(f"{folder}/") for path in paths}, done.stderr.decode()


def test_what_the_agents_import(tmp_path: Path) -> None:
    """Their modules and packages, at any depth; nothing of the interpreter, of libraries, or of ours."""
    (tmp_path / "kit" / "deep").mkdir(parents=True)
    (tmp_path / "kit" / "__init__.py").touch()
    (tmp_path / "kit" / "deep" / "words.py").write_text("import json, pydantic\n")
    (tmp_path / "unused.py").touch()
    (tmp_path / "mine.py").write_text(f"import kit.deep.words\nprint('hello')\n{AGENT}")
    code, files, said = ask(tmp_path, "mine:agent")
    assert (code, files) == (0, {"mine.py", "kit/__init__.py", "kit/deep/words.py"})
    assert said == "hello\n", "what is printed at import is no file name"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import kit.broken\n", "name 'nonsense' is not defined"),
        ("import kit.half\n", "half.py"),
        (AGENT, "has no 'robot'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
    ids=["error", "syntax", "no agent", "exit"],
)
def test_what_cannot_be_imported(tmp_path: Path, source: str, said: str) -> None:
    """The exit code is 78, the trace begins in the user's code, and the files at fault are among the answers."""
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "broken.py").write_text("nonsense\n")
    (tmp_path / "kit" / "half.py").write_text("def half(:\n")
    (tmp_path / "mine.py").write_text(source)
    code, files, told = ask(tmp_path, "mine:robot")
    assert code == 78
    assert said in told
    assert "importlib" not in told
    assert "mine.py" in files
    culprit = source.removeprefix("import kit.").strip()
    assert not source.startswith("import") or f"kit/{culprit}.py" in files


def test_threads_of_the_agents_do_not_hold_it_up(tmp_path: Path) -> None:
    """A module that starts a thread for ever, or registers an exit handler, changes nothing."""
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()\n"
    handler = "import atexit, time\natexit.register(time.sleep, 100)\n"
    (tmp_path / "mine.py").write_text(threads + handler + AGENT)
    assert ask(tmp_path, "mine:agent")[:2] == (0, {"mine.py"})
