"""Runs the child processes of a benchmark and measures their processor time and memory."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOP_TIMEOUT_S = 10.0
ROOT = Path(__file__).resolve().parent.parent


class ChildFailedError(RuntimeError):
    """A child process ended, or did not respond in time."""


@dataclass(frozen=True, slots=True)
class Child:
    """A started process with its descendants."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def pids(self) -> list[int]:
        """Return the process and its living descendants, parents first."""
        children = _children_by_parent()
        found = [self.process.pid]
        for pid in found:
            found.extend(children.get(pid, ()))
        return found

    def cpu_s(self) -> float:
        """Return the processor time of all living processes of the tree."""
        return sum(cpu_s(pid) for pid in self.pids())

    def say(self, line: str) -> None:
        """Write one line to the child's input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, expected: str) -> None:
        """Wait for one line of the child's output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().strip()
        if line != expected:
            raise ChildFailedError(f"{self.name} said {line!r} instead of {expected!r}; its log is {self.log}")

    def ask(self, line: str, *, timeout_s: float) -> str:
        """Write one line to the child's input and wait for its reply."""
        self.say(line)
        assert self.process.stdout is not None
        # The stream's buffer is empty: every reply is one line, and it was read.
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise ChildFailedError(f"{self.name} did not answer {line} within {timeout_s:.0f} s; its log is {self.log}")
        answer = self.process.stdout.readline().decode()
        if not answer:
            raise ChildFailedError(f"{self.name} ended before it answered {line}; its log is {self.log}")
        return answer

    def check(self) -> None:
        """Raise if the process has ended by itself."""
        if (code := self.process.poll()) is not None:
            raise ChildFailedError(f"{self.name} ended with code {code}; its log is {self.log}")


@contextlib.contextmanager
def running(
    name: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str] | None = None,
    talks: bool = False,
    python: str = sys.executable,
    at_once: bool = False,
) -> Iterator[Child]:
    """Run `python -m arguments…` until the block ends, then stop it, by force after a time-out.

    Args:
        name: name of the process and of its log file.
        arguments: module and its arguments.
        folder: folder of the log.
        env: added to the environment.
        talks: connect input and output, for `say` and `hear`; the output is not logged then.
        python: interpreter; default: ours.
        at_once: kill it at the end.
    """
    log = folder / f"{name}.log"
    pipe = subprocess.PIPE if talks else None
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            [python, "-m", *arguments],
            env={**os.environ, **(env or {})},
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe or log_file,
            stderr=log_file,
            start_new_session=True,
        )
    child = Child(name, process, log)
    try:
        yield child
    finally:
        _stop(child, at_once=at_once)


def wait_until(
    condition: Callable[[], bool], *, what: str, children: Sequence[Child] = (), timeout_s: float = 20.0
) -> None:
    """Wait for a condition; fail early if a child has ended."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for child in children:
            child.check()
        if time.monotonic() > deadline:
            logs = ", ".join(str(child.log) for child in children)
            raise ChildFailedError(f"Waited {timeout_s:.0f} s in vain for {what}; logs: {logs}")
        time.sleep(0.01)


def cpu_s(pid: int) -> float:
    """Return the processor time of one process and its living threads; 0 after its end."""
    # In nanoseconds if the kernel keeps them; /proc/PID/stat counts ticks of 10 ms and misses short slices.
    try:
        threads = [
            Path(entry.path, "schedstat").read_text(encoding="ascii") for entry in os.scandir(f"/proc/{pid}/task")
        ]
        return sum(int(line.split()[0]) for line in threads) / 1e9
    except OSError:
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def rss_bytes(pid: int) -> int:
    """Return the resident memory of one process, with shared pages."""
    return _memory(pid, "status", "VmRSS:")


def pss_bytes(pid: int) -> int:
    """Return the resident memory of one process, with shared pages divided among their users."""
    return _memory(pid, "smaps_rollup", "Pss:")


def _memory(pid: int, file: str, field: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text(encoding="ascii").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def _stat(pid: int) -> list[str]:
    # The command name, the second field, may contain blanks, so fields count from its closing bracket.
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    return children


def _stop(child: Child, *, at_once: bool) -> None:
    process = child.process
    pids = child.pids()
    if not at_once:
        if process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
