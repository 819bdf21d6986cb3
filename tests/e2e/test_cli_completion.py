"""`orc completion`: real shells read the scripts and complete commands, options and values."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Self

import pytest

from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 20.0


def needs(shell: str) -> pytest.MarkDecorator:
    """Skip where the shell is not installed."""
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed (apt install {shell})")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal in a folder where nothing runs."""
    return Terminal(tmp_path)


def script_of(terminal: Terminal, shell: str, name: str = "script") -> str:
    """The path of the script for a shell."""
    done = terminal.orc("completion", shell)
    assert (done.code, done.err) == (0, "")
    path = terminal.folder / name
    path.write_text(done.out)
    return str(path)


def said(command: list[str], folder: Path) -> list[str]:
    """The lines that a shell prints."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


@needs("bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["orchestrator", "do"], ["doctor"]),
        (["orc", "status", "-o", "js"], ["json", "jsonl"]),
        *[
            pytest.param(line, expected, marks=pytest.mark.slow)
            for line, expected in (
                (["orc", "ta"], ["tasks"]),
                (["orc", "tasks", "s"], ["show", "submit"]),
                (["orc", "tasks", "submit", "--prio"], ["--priority"]),
                (["orc", "doctor", "--stri"], ["--strict"]),
                (["orc", "completion", ""], ["bash", "fish", "zsh"]),
                (["orc", "nonsense"], []),
            )
        ],
    ],
    ids=" ".join,
)
def test_bash(terminal: Terminal, line: list[str], expected: list[str]) -> None:
    """Bash finds the function under both names, and it answers what can stand at the end of the line."""
    words = " ".join(f"'{word}'" for word in line)
    code = (
        f"source {script_of(terminal, 'bash')}; COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; "
        f'function=$(complete -p {line[0]}); function=${{function#*-F }}; "${{function%% *}}"; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = said(["bash", "--norc", "-c", code], terminal.folder)
    assert sorted(word for word in found if word) == expected


@pytest.mark.slow
@needs("fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [("orc ta", "tasks"), ("orc tasks submit --prio", "--priority"), ("orchestrator do", "doctor")],
)
def test_fish(terminal: Terminal, line: str, expected: str) -> None:
    """Fish completes under both names, with an explanation."""
    script = script_of(terminal, "fish")
    said(["fish", "--no-execute", script], terminal.folder)
    found = said(["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"], terminal.folder)
    assert expected in [row.partition("\t")[0] for row in found]
    assert all(row.partition("\t")[2] for row in found if row.startswith(expected))


@pytest.mark.slow
@needs("zsh")
@pytest.mark.parametrize(
    ("way", "line", "expected"),
    [("sourced", "orc doc", "orc doctor"), ("search path", "orchestrator tasks sub", "tasks submit")],
    ids=["sourced", "search path"],
)
def test_zsh(terminal: Terminal, way: str, line: str, expected: str) -> None:
    """Zsh completes under both names in a terminal, whether the script was sourced or lies in the search path."""
    script = script_of(terminal, "zsh", "_orc")
    said(["zsh", "-n", script], terminal.folder)
    begin = "autoload -Uz compinit; compinit -u -d dump; "
    begin = f"{begin}source {script}" if way == "sourced" else f"fpath=({terminal.folder} $fpath); {begin}"
    with Pty(["zsh", "-f", "-i"], terminal.folder) as shell:
        shell.type(f"{begin}; echo rea''dy\n")
        shell.wait_for("ready")
        shell.type(f"{line}\t")
        shell.wait_for(expected)


def test_unknown_shell(terminal: Terminal) -> None:
    """Another shell is a usage error that names those there are."""
    done = terminal.orc("completion", "tcsh")
    assert (done.code, done.out) == (2, "")
    assert "bash, zsh, fish" in done.err


class Pty:
    """A program in a terminal of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command, self._folder = command, folder
        self._seen = ""

    def __enter__(self) -> Self:
        self._fd, inner_fd = pty.openpty()
        self._process = subprocess.Popen(
            self._command,
            stdin=inner_fd,
            stdout=inner_fd,
            stderr=inner_fd,
            cwd=self._folder,
            env={**os.environ, "TERM": "dumb", "PS1": "> "},
            start_new_session=True,
        )
        os.close(inner_fd)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until this is on the screen."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while text not in self._seen:
            if not select.select([self._fd], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise AssertionError(f"no {text!r} in {self._seen!r}")
            self._seen += os.read(self._fd, 65536).decode(errors="replace")
