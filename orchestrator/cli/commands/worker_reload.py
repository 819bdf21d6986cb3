"""A worker host that is replaced when its source changes. A program of its own that takes the host's arguments.

New source is imported by a throw-away process first. If that fails, the old workers go on and the error is shown. If
not, the host drains for a moment, gives back what still runs, and a new one starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.cli.processes import Child, ChildFailed, Part, blocked_signals, child_of_this_process, end_in_order
from orchestrator.cli.source_watch import SourceWatch
from orchestrator.cli.terminal.failures import CONFIGURATION, DONE, INTERRUPTED, NOBODY_ANSWERED, exit_code_of
from orchestrator.cli.terminal.output import say

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable, Sequence

    from orchestrator.cli.processes import Signals

DRAIN_S: Final = 2.0
"""How long running tasks get before a reload gives them back; without costing an attempt, so they run again."""
HURRY_S: Final = 20.0
"""How long a host may take that was told twice; it kills its workers before that."""
TIMEOUT_S: Final = float("inf")
"""At our own end the host keeps its drain time; whoever started us watches over it."""


class _ToldToEnd(Exception):
    """A signal asks us to end."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(received.name)


class Reloader:
    """Keeps one worker host running with the newest source that can be imported.

    Args:
        arguments: of the worker host: options, `--`, agents.
        watch: tells of changes.
        signals: blocked, so that they can be waited for.
    """

    def __init__(self, arguments: Sequence[str], watch: SourceWatch, signals: Signals) -> None:
        # -B: a file that is edited twice within a second would pass for its compiled form.
        self._host_command = [sys.executable, "-B", "-P", "-m", "orchestrator.workers", *arguments]
        targets = arguments[arguments.index("--") + 1 :]
        self._import_command = [sys.executable, "-B", "-P", "-m", "orchestrator.workers.runtime.sources", *targets]
        self._watch, self._signals = watch, signals
        self._folders = {Path.cwd()}
        self._host: Child | None = None
        self._changed: set[Path] = set()

    def run(self) -> int:
        """Reload until told to end; answers the exit code."""
        orderly = True
        try:
            while True:
                if self._import_apart():
                    self._replace_host()
                else:
                    say(self._what_goes_on())
                while not self._changed:
                    self._turn()
                say(f"{_names(self._changed)} changed")
        except _ToldToEnd:
            pass
        except ChildFailed as failed:
            return failed.exit_code
        finally:
            if self._host is not None:
                orderly = end_in_order([self._host], self._signals)
        return DONE if orderly else INTERRUPTED

    def _turn(self) -> None:
        """Let a moment pass: note what changed, look after the host, listen to signals."""
        self._changed |= self._watch.look()
        received = self._signals.wait(0)
        if received is not None:
            raise _ToldToEnd(received)
        if self._host is None:
            return
        try:
            self._host.poll()
        except ChildFailed as failed:
            self._host = None
            if failed.exit_code == NOBODY_ANSWERED:
                raise
            say("no workers run; the next change of the source starts them again")

    def _import_apart(self) -> bool:
        """Import the source in a process of its own, again while it changes; answers whether that went well."""
        while True:
            self._changed.clear()
            with subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._import_command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                process_group=0,
                preexec_fn=child_of_this_process(),  # noqa: PLW1509 - the watch's thread holds nothing of Python's
            ) as importing:
                try:
                    while importing.poll() is None and not self._changed:
                        self._turn()
                finally:
                    importing.kill()
                assert importing.stdout is not None
                files = [Path(os.fsdecode(path)) for path in importing.stdout.read().split(b"\0") if path]
            fine = importing.returncode == 0
            if importing.returncode not in {0, CONFIGURATION} and not self._changed:
                say(f"error: the import of the agents ended with exit code {importing.returncode}")
            found = {Path.cwd(), *(file.parent for file in files)}
            # What cannot be imported may lie where we looked before.
            self._folders = found if fine else self._folders | found
            self._changed |= self._watch.watch(self._folders)
            if not self._changed:
                return fine

    def _replace_host(self) -> None:
        former, self._host = self._host, None
        if former is not None:
            self._drain(former)
        self._host = Child(Part("worker host", self._host_command, TIMEOUT_S), os.environ)

    def _drain(self, host: Child) -> None:
        """Let what runs go on for a moment; then it is given back."""
        try:
            host.ask_to_end()
            deadlines_s = [time.monotonic() + DRAIN_S, time.monotonic() + DRAIN_S + HURRY_S]
            while host.runs:
                self._turn()
                if time.monotonic() > deadlines_s[0]:
                    host.ask_to_end() if len(deadlines_s) == 2 else host.kill()
                    deadlines_s = deadlines_s[1:] or deadlines_s
        except BaseException:
            self._host = host
            raise

    def _what_goes_on(self) -> str:
        if self._host is None:
            return "no workers run; the next change of the source is tried again"
        return "the workers go on with what they had; the next change of the source is tried again"


def _names(paths: Iterable[Path]) -> str:
    names = sorted({path.name for path in paths})
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def main() -> int:
    """Run the reloader with the arguments of the worker host."""

    def run() -> int:
        with blocked_signals() as signals, SourceWatch({Path.cwd()}) as watch:
            return Reloader(sys.argv[1:], watch, signals).run()

    return exit_code_of(run, debug=False)


if __name__ == "__main__":
    sys.exit(main())
