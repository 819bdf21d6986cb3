"""Actors as processes of their own that start in milliseconds: one process imports everything and forks the others.

`ForkedActors` is the side of the test. The other side is this module run as a program, which has no threads and no
event loop of its own; its children end with it, and it ends with the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, Self

from tests.helpers.attempt_log import AttemptLog
from tests.helpers.roles import LOGINS
from tests.helpers.subprocesses import ROOT
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class ForkedActors:
    """Starts workers of the small story and supervisors; use it in a `with` block.

    Args:
        logs: directory for what the actors write.
    """

    def __init__(self, logs: Path) -> None:
        self._logs, self._ordering = logs, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.forked_actors"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()  # it kills its children, and ends
        self._process.stdout.close()

    def start(
        self, kind: str, name: str, *, url: str, prefix: str, attempt_log: Path, timings: dict[str, float]
    ) -> int:
        """Fork an actor and answer its process id. Blocks for a moment.

        Args:
            kind: `worker`, `host` with one worker process, or `supervisor`.
            name: of its log.
            url: where it finds Redis, its proxy.
            prefix: namespace.
            attempt_log: where its handlers note what they do.
            timings: for `make_settings`.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        url = LOGINS.url(url, "supervisor" if kind == "supervisor" else "worker")
        order = {"kind": kind, "url": url, "prefix": prefix, "attempt_log": str(attempt_log), "timings": timings}
        order["log"] = str(self._logs / f"{name}.log")
        with self._ordering:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def log(self, name: str) -> str:
        """What an actor has written."""
        path = self._logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""


def main() -> None:
    """Fork an actor for each line, until the input ends."""
    from orchestrator.core.parent_process import end_with_parent
    from orchestrator.store.script_files import all_scripts

    all_scripts()  # read once, for all
    for module in (
        "orchestrator.supervisor.daemon",
        "tests.helpers.small_workload",
        "orchestrator.workers.runtime.host",
    ):
        import_module(module)
    children: list[int] = []
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: their ends are seen in /proc
    for line in sys.stdin:
        order = json.loads(line)
        end = end_with_parent(signal.SIGKILL)
        pid = os.fork()
        if pid == 0:
            end()
            _act(order)
        children.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os._exit(0)  # not by way of the interpreter, which takes long to end with all those modules


def _act(order: dict[str, Any]) -> NoReturn:
    from orchestrator.core.event_loop import run_loop
    from orchestrator.supervisor.daemon import run_supervisor
    from orchestrator.workers.runtime.host import Host
    from orchestrator.workers.runtime.worker import run_worker
    from tests.helpers.small_workload import make_agents

    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        settings = make_settings(order["url"], order["prefix"], **order["timings"])
        if order["kind"] == "host":
            Host(settings, make_agents(AttemptLog(order["attempt_log"])), processes=1).run()
        elif order["kind"] == "worker":
            run_loop(run_worker, settings, make_agents(AttemptLog(order["attempt_log"])))
        else:
            run_loop(run_supervisor, settings)
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not run on in its parent's frames
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
