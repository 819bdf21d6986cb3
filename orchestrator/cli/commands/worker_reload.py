"""Program that runs a worker host and replaces it when its source changes. It takes the arguments of the host.

A temporary process imports the new source first. If that fails, the old workers continue. Otherwise the host drains
for a moment, returns the tasks that still run, and a new host starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.cli.processes import (
    Child,
    ChildProcessFailed,
    Part,
    blocked_signals,
    child_of_this_process,
    end_in_order,
)
from orchestrator.cli.source_watch import SourceWatch
from orchestrator.cli.terminal.failures import CONFIGURATION, DONE, INTERRUPTED, NOBODY_ANSWERED, exit_code_of
from orchestrator.cli.terminal.output import say
from orchestrator.core.secret_environment import settings_environ, take_secrets

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable, Sequence

    from orchestrator.cli.processes import Signals

DRAIN_S: Final = 2.0
"""How long running tasks may continue before a reload returns them to their queues; no attempt is counted."""
HURRY_S: Final = 20.0
"""How long a host may take after the second signal; it kills its workers before that."""
TIMEOUT_S: Final = float("inf")
"""At the end of this program the host keeps its drain time; the parent process limits it."""


class _Ended(Exception):
    """A signal ends the program."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received.name)


class Reloader:
    """Runs a worker host with the newest source that can be imported.

    Args:
        arguments: of the worker host: options, `--`, agents.
        watch: reports changes.
        signals: the blocked signals.
    """

    def __init__(self, arguments: Sequence[str], watch: SourceWatch, signals: Signals) -> None:
        # -B: a compiled file would hide a second edit within one second.
        self._host_command = [sys.executable, "-B", "-P", "-m", "orchestrator.workers", *arguments]
        targets = arguments[arguments.index("--") + 1 :]
        self._import_command = [sys.executable, "-B", "-P", "-m", "orchestrator.workers.runtime.sources", *targets]
        self._watch, self._signals = watch, signals
        signals.on_reload = self._reload_settings
        self._folders = {Path.cwd()}
        self._host: Child | None = None
        self._changed: set[Path] = set()

    def run(self) -> int:
        """Reload until a signal and return the exit code."""
        orderly = True
        try:
            while True:
                if self._import_apart():
                    self._replace_host()
                else:
                    say(self._failure_note())
                while not self._changed:
                    self._poll()
                say(f"{_names(self._changed)} changed")
        except _Ended:
            pass
        except ChildProcessFailed as failed:
            return failed.exit_code
        finally:
            if self._host is not None:
                orderly = end_in_order([self._host], self._signals)
        return DONE if orderly else INTERRUPTED

    def _reload_settings(self) -> None:
        if self._host is not None:
            self._host.ask_to_reload()

    def _poll(self) -> None:
        """Poll changes, the host and signals once."""
        self._changed |= self._watch.poll()
        received = self._signals.wait(0)
        if received is not None:
            raise _Ended(received)
        if self._host is None:
            return
        try:
            self._host.poll()
        except ChildProcessFailed as failed:
            self._host = None
            if failed.exit_code == NOBODY_ANSWERED:
                raise
            say("the workers have ended; the next change of the source restarts them")

    def _import_apart(self) -> bool:
        """Import the source in a temporary process until it stops changing, and return True if the import succeeded."""
        while True:
            self._changed.clear()
            # The process writes to a file: a pipe that nothing reads would block it at 64 KiB.
            with (
                tempfile.TemporaryFile() as report,
                subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    self._import_command,
                    stdin=subprocess.DEVNULL,
                    stdout=report,
                    env=settings_environ(),
                    process_group=0,
                    preexec_fn=child_of_this_process(),  # noqa: PLW1509 - the watch's thread holds nothing of Python's
                ) as importing,
            ):
                try:
                    while importing.poll() is None and not self._changed:
                        self._poll()
                finally:
                    importing.kill()
                importing.wait()
                report.seek(0)
                # Each path ends with a NUL, so what follows the last one is a path that was not written to its end.
                files = [Path(os.fsdecode(path)) for path in report.read().split(b"\0")[:-1]]
            fine = importing.returncode == 0
            if importing.returncode not in {0, CONFIGURATION} and not self._changed:
                say(f"error: the import of the agents ended with exit code {importing.returncode}")
            found = {Path.cwd(), *(file.parent for file in files)}
            # After a failed import, the broken file may be in one of the former folders.
            self._folders = found if fine else self._folders | found
            self._changed |= self._watch.watch(self._folders)
            if not self._changed:
                return fine

    def _replace_host(self) -> None:
        former, self._host = self._host, None
        if former is not None:
            self._drain(former)
        self._host = Child(Part("worker host", self._host_command, TIMEOUT_S), settings_environ())

    def _drain(self, host: Child) -> None:
        """End the host: its tasks may continue for `DRAIN_S`, then it returns them."""
        try:
            host.ask_to_end()
            deadlines_s = [time.monotonic() + DRAIN_S, time.monotonic() + DRAIN_S + HURRY_S]
            while host.runs:
                self._poll()
                if time.monotonic() > deadlines_s[0]:
                    host.ask_to_end() if len(deadlines_s) == 2 else host.kill()
                    deadlines_s = deadlines_s[1:] or deadlines_s
        except BaseException:
            self._host = host
            raise

    def _failure_note(self) -> str:
        if self._host is None:
            return "no workers run; waiting for the next change of the source"
        return "the workers continue with the old source; waiting for the next change"


def _names(paths: Iterable[Path]) -> str:
    names = sorted({path.name for path in paths})
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def main() -> int:
    """Run the reloader with the arguments of the worker host."""
    take_secrets()

    def run() -> int:
        with blocked_signals() as signals, SourceWatch({Path.cwd()}) as watch:
            return Reloader(sys.argv[1:], watch, signals).run()

    return exit_code_of(run, debug=False)


if __name__ == "__main__":
    sys.exit(main())
