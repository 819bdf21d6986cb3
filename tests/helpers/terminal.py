"""A terminal in which `orc` is typed: its folder, its variables, what came out, and which processes it left behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.app import main
from tests.faultkit.processes import ActorProcess
from tests.helpers import roles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ORC = str(Path(sys.executable).with_name("orc"))

AGENTS = '''
"""Agents of the tests of the command line."""

import anyio

from orchestrator import Agent, Reject, TaskContext

agent = Agent("greeter", concurrency=4)


@agent.skill
async def greet(name: str = "you") -> str:
    return f"Hello, {name}"


@agent.skill
async def echo(value: object) -> object:
    return value


@agent.skill
async def nap(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "rested"


@agent.skill
async def talk(ctx: TaskContext, to: int, seconds: float = 0.0, fail: bool = False) -> int:
    for number in range(1, to + 1):
        await ctx.progress(number, to, "counting")
        await ctx.emit({"number": number, "long": 2**70})
        await anyio.sleep(seconds)
    if fail:
        raise Reject("no \x1b[31m more")
    return to


@agent.skill
async def refuse(reason: str) -> None:
    raise Reject(reason)
'''


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, read as JSON."""
        return json.loads(self.out)


class Terminal:
    """Runs commands in a folder with a data directory of its own.

    Args:
        folder: where commands are typed; agents lie there as `my_agents.py`.
        variables: added to the environment, from which all of ours are removed.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("ORC_")}
        self.environ |= {"ORC_DATA_DIR": str(folder / "data"), **variables}
        (folder / "my_agents.py").write_text(AGENTS)

    def orc(self, *arguments: str, stdin: str = "", **variables: str) -> Done:
        """Run a command inside this process, which takes a tenth of the time of `process`."""
        out, err = _stream(b""), _stream(b"")
        before, folder = dict(os.environ), Path.cwd()
        os.environ.clear()
        os.environ.update(self.environ | variables)
        os.chdir(self.folder)
        try:
            with redirect_stdout(out), redirect_stderr(err), _stdin(stdin), roles.typing(arguments):
                code = main(arguments)
        finally:
            os.environ.clear()
            os.environ.update(before)
            os.chdir(folder)
        return Done(code, _text(out), _text(err))

    def answer(self, *arguments: str, answer: str, question: str = "[y/N] ") -> tuple[str, int]:
        """Type a command on a terminal of its own, and an answer when it asks; the screen and the exit code."""
        ours, theirs = pty.openpty()
        screen = b""
        command = subprocess.Popen(
            [ORC, *arguments],
            cwd=self.folder,
            env=self.environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - Ctrl-C comes from a terminal that controls the process
        )
        os.close(theirs)
        deadline_s = time.monotonic() + 20
        with contextlib.suppress(OSError):  # the other side was closed
            while question.encode() not in screen and time.monotonic() < deadline_s:
                screen += os.read(ours, 1024)
            os.write(ours, answer.encode())
            while data := os.read(ours, 1024):
                screen += data
        os.close(ours)
        return screen.decode(), command.wait(10)

    def process(self, *arguments: str, stdin: str = "", timeout_s: float = 30.0, **variables: str) -> Done:
        """Type a command, as a process of its own, and wait for its end."""
        done = subprocess.run(
            [ORC, *arguments],
            cwd=self.folder,
            env={**self.environ, **variables},
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str) -> ActorProcess:
        """Describe a command that goes on; use it in a `with` statement."""
        return ActorProcess([ORC, *arguments], name=f"orc-{arguments[0]}", env=self.environ, cwd=self.folder)

    def processes(self) -> dict[int, str]:
        """The living processes that know this terminal's data directory, by id: all that was started here."""
        return processes_with({"ORC_DATA_DIR": self.environ["ORC_DATA_DIR"]})


def processes_with(variables: Mapping[str, str]) -> dict[int, str]:
    """The living processes whose environment holds these variables, with their command lines. Linux only."""
    wanted = [f"{name}={value}".encode() for name, value in variables.items()]
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended while we looked, or is somebody else's
            environ = (entry / "environ").read_bytes().split(b"\0")
            if all(pair in environ for pair in wanted):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def _stream(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def _stdin(text: str) -> Iterator[None]:
    before, sys.stdin = sys.stdin, _stream(text.encode())
    try:
        yield
    finally:
        sys.stdin = before


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
