"""One process under test: started with its output kept, killed, frozen, thawed; gone at the end with its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from orchestrator.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType


class ActorProcess:
    """Runs a command in a session of its own; standard output and error go to one file.

    Leaving the `with` block kills the whole session, whatever state it is in. The waits here block the thread; inside
    an event loop use `wait_for(lambda: "ready" in actor.output, lambda: actor.describe("ready"))`.

    Args:
        command: program and arguments; see `ActorProcess.python` for Python code.
        name: how messages call it.
        env: added to the environment of this process.
        cwd: working directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._cwd = cwd
        self._file: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def python(cls, *arguments: str, name: str, env: Mapping[str, str] | None = None) -> Self:
        """Describe a process of this interpreter, such as `python("-m", "orchestrator", ...)`."""
        return cls([sys.executable, *arguments], name=name, env=env)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Start the process."""
        self._file = tempfile.NamedTemporaryFile(prefix=f"{self.name}-", suffix=".log")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env=self._env,
            cwd=self._cwd,
            start_new_session=True,
        )
        return self

    def close(self) -> None:
        """Kill what is left of the session and drop the output file."""
        if self._process is None or self._file is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._file.close()
        self._process = self._file = None

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._started.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._started.poll()

    @property
    def output(self) -> str:
        """Everything it and its children have written so far."""
        if self._file is None:
            raise RuntimeError(f"{self.name} was not started, or is closed; read its output inside the with block")
        return Path(self._file.name).read_text(encoding="utf-8", errors="replace")

    def describe(self, awaited: str) -> str:
        """Say what is awaited of this process and what it wrote last, for the message of a failed wait."""
        state = "running" if self.returncode is None else f"exited with {self.returncode}"
        return f"{self.name} ({state}): {awaited}; its last output:\n{self.output[-2000:]}"

    def kill(self, *, group: bool = False) -> None:
        """Kill it, or with `group` its children too, as kill -9 does, and wait until it is gone."""
        self.signal(signal.SIGKILL, group=group)
        self._started.wait()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.signal(signal.SIGTERM)

    def freeze(self, *, group: bool = False) -> None:
        """Stop it in its tracks and wait until it stands still."""
        self.signal(signal.SIGSTOP, group=group)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self, *, group: bool = False) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT, group=group)

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to it, or to its group; a process that is gone already is left alone."""
        if group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        else:
            self._started.send_signal(number)

    def wait_exit(self, timeout_s: float = 10.0) -> int:
        """Wait until it has ended and return its exit code."""
        wait_until(lambda: self.returncode is not None, lambda: self.describe("its end"), timeout_s)
        return self._started.wait()

    def wait_output(self, text: str, timeout_s: float = 10.0) -> str:
        """Wait until its output contains `text` and return all output so far."""
        return wait_until(
            lambda: self.output if text in self.output else "", lambda: self.describe(f"output {text!r}"), timeout_s
        )

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started, or is closed; use it inside the with block")
        return self._process
