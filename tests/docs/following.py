"""Types the commands of a page as it shows them, and compares what they print.

A console block has commands behind `$ `, each with its output below. In an output `…` stands for anything on a line,
and alone on a line for any lines.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.testing.waiting import wait_until
from tests.docs.pages import blocks, files
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import free_port
from tests.helpers.terminal import ORC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from tests.docs.pages import Block

NEEDS_NETWORK: Final = "python -m pip install"
GOES_ON: Final = ("orc up ", "uvicorn ", "curl -sN ")
"""Commands that a reader leaves running in a terminal of their own."""
READY: Final = {"orc": "worker_started"}
"""What the log of such a command has when the reader types the next one."""
FAILS: Final = "error: "
"""Begins the output of a command that fails."""
HINT: Final = re.compile(r"^submitted as .*\n", re.MULTILINE)
"""A line that only a terminal shows."""
WAIT_S: Final = 60.0
"""Time that a program of a page has on a machine with many other tests."""


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a page, in order, with the output that the page shows."""
    for block in blocks(page):
        if block.language == "console" and block.runs:
            yield from steps_of(block)


def steps_of(block: Block) -> Iterator[tuple[str, str]]:
    """Yield the commands of one block."""
    for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        yield command, shown


def type_command(command: str, *, folder: Path, environment: Mapping[str, str], fails: bool = False) -> str:
    """Type a command in a shell, and return what it printed.

    Args:
        command: the command.
        folder: where it is typed.
        environment: of the shell.
        fails: whether its exit code must tell of a failure, or of success.

    Raises:
        AssertionError: it failed, or should have failed.
    """
    path = f"{Path(ORC).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**environment, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=WAIT_S,
        check=False,
    )
    printed = done.stdout.decode()
    assert (done.returncode != 0) == fails, f"{command}: exit code {done.returncode}\n{printed}"
    return printed if printed.endswith("\n") or not printed else f"{printed}\n"  # as curl prints an answer


def check_output(command: str, shown: str, printed: str) -> None:
    """Compare what a command printed with what the page shows.

    Raises:
        AssertionError: they differ.
    """
    assert re.fullmatch(_pattern(shown), printed), f"{command} printed\n{printed}and the page shows\n{shown}"


def _pattern(shown: str) -> str:
    lines = [
        r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


class Reader(AbstractContextManager["Reader"]):
    """Follows a page that builds a web application: saves its files, types its commands, compares what they print.

    Leaving the block ends the commands that go on. The port 8000 of the page is a free one here.
    """

    def __init__(self, page: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.running: dict[str, ActorProcess] = {}
        self._page, self._folder = page, folder
        self._port = str(free_port())
        self._environment = {**environment, "UVICORN_PORT": self._port}
        self._environment["PATH"] = f"{Path(ORC).parent}:{environment['PATH']}"
        self._terminals = ExitStack()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._terminals.close()

    def save_files(self) -> None:
        """Save all files of the page."""
        for name, text in files(self._page).items():
            (self._folder / name).write_text(text, encoding="utf-8")

    def type_commands(self) -> int:
        """Type all commands of the page whose output it shows, in order, and return their number."""
        typed = 0
        for command, with_hints in steps(self._page):
            shown = HINT.sub("", with_hints)
            if not shown or command.startswith(NEEDS_NETWORK):
                continue
            here = command.replace("localhost:8000", f"localhost:{self._port}")
            if command.startswith(GOES_ON):
                self._start(here, shown)
            else:
                self._type(here, shown)
            typed += 1
        return typed

    def _start(self, command: str, shown: str) -> None:
        name = command.split(maxsplit=1)[0]
        process = ActorProcess(["bash", "-c", f"exec {command}"], name=name, env=self._environment, cwd=self._folder)
        self.running[name] = self._terminals.enter_context(process)
        pattern = _pattern(shown)
        ready = READY.get(name, "")
        wait_until(
            lambda: re.search(pattern, process.output) and ready in process.output,
            lambda: process.describe(f"what {self._page} shows"),
            WAIT_S,
        )

    def _type(self, command: str, shown: str) -> None:
        """Type a command; one that only reads, as often as a reader would until the team has come so far."""

        def printed() -> str:
            fails = shown.startswith(FAILS)
            return type_command(command, folder=self._folder, environment=self._environment, fails=fails)

        if " -X " in command or " submit " in command:
            check_output(command, shown, printed())
            return
        last = ""

        def is_shown() -> bool:
            nonlocal last
            last = printed()
            return re.fullmatch(_pattern(shown), last) is not None

        wait_until(is_shown, lambda: f"{command} printed\n{last}and the page shows\n{shown}", WAIT_S)
