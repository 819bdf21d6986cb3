"""Runs one process under test: keeps its output, kills, freezes and resumes it, and removes its children."""

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
    """Runs a command in its own session, with standard output and error in one file.

    Leaving the `with` block kills the whole session. The waits block the thread; inside an event loop use
    `wait_for(lambda: "ready" in actor.output, lambda: actor.describe("ready"))`.

    Args:
        command: program and arguments; see `ActorProcess.python` for Python code.
        name: name in messages.
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
        """Kill the rest of the session and delete the output file."""
        if self._process is None or self._file is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._file.close()
        self._process = self._file = None

    @property
    def pid(self) -> int:
        """Process id, also the id of its group."""
        return self._started.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._started.poll()

    @property
    def output(self) -> str:
        """Output of it and its children so far."""
        return self.output_path.read_text(encoding="utf-8", errors="replace")

    @property
    def output_path(self) -> Path:
        """The file with the output; it goes with the process."""
        if self._file is None:
            raise RuntimeError(f"{self.name} was not started, or is closed; read its output inside the with block")
        return Path(self._file.name)

    def describe(self, awaited: str) -> str:
        """Describe the expected state and the last output, for the message of a failed wait."""
        state = "running" if self.returncode is None else f"exited with {self.returncode}"
        return f"{self.name} ({state}): {awaited}; its last output:\n{self.output[-2000:]}"

    def kill(self, *, group: bool = False) -> None:
        """Kill it, with `group` also its children, and wait for its end."""
        self.signal(signal.SIGKILL, group=group)
        self._started.wait()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.signal(signal.SIGTERM)

    def freeze(self, *, group: bool = False) -> None:
        """Stop it with SIGSTOP and wait until it has stopped."""
        self.signal(signal.SIGSTOP, group=group)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self, *, group: bool = False) -> None:
        """Resume it with SIGCONT."""
        self.signal(signal.SIGCONT, group=group)

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to it or to its group; do nothing if it has ended."""
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
