"""Runs the processes of `orc up` and `orc demo`: starts, watches and restarts them, and ends them in order.

Children are leaders of process groups of their own, so that Ctrl-C reaches this process alone, and the kernel tells
them to end when it dies. One thread, and signals are waited for rather than handled: nothing can come in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeVar

from orchestrator.cli.terminal.failures import CONFIGURATION, NOBODY_ANSWERED, USAGE
from orchestrator.cli.terminal.output import say
from orchestrator.core.parent_process import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

HEALTHY_AFTER_S: Final = 10.0
"""A child that lived so long had started well; what kills it later is worth another try."""
MAX_QUICK_DEATHS: Final = 5
HURRY_S: Final = 20.0
"""How long a child that was told twice may take before it is killed: a worker host kills its workers before that."""

_HOPELESS: Final = frozenset({USAGE, CONFIGURATION})
_HOPELESS_AT_START: Final = frozenset({USAGE, CONFIGURATION, NOBODY_ANSWERED})


@dataclass(frozen=True, slots=True)
class Part:
    """One child process: how people call it, and the command."""

    name: str
    command: Sequence[str]
    timeout_s: float
    """How long it may take to end after it was asked to."""


class ChildFailed(Exception):
    """A child ended in a way that a restart would only repeat; it has said why itself."""

    def __init__(self, name: str, exit_code: int) -> None:
        super().__init__(f"{name} ended with exit code {exit_code}")
        self.exit_code = exit_code


class Child:
    """One running part; what it writes goes to `output` if given, else to our own standard output and error."""

    def __init__(self, part: Part, environ: Mapping[str, str], *, output: IO[bytes] | None = None) -> None:
        self.part = part
        self._environ, self._output = environ, output
        self._quick_deaths = 0
        self._had_started_well = False
        self._due_s = 0.0
        self._asked = False
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def runs(self) -> bool:
        """Whether the process is there; a look that also reaps it."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process."""
        self._born_s = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
            self.part.command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=self._environ,
            process_group=0,
            preexec_fn=child_of_this_process(),  # noqa: PLW1509 - no other thread of this program holds a lock of Python's
        )

    def poll(self) -> float | None:
        """Restart it when it has died; answers when to look again although nothing happens.

        Raises:
            ChildFailed: it makes no sense to start it again.
        """
        if self.runs:
            self._had_started_well = self._had_started_well or time.monotonic() - self._born_s > HEALTHY_AFTER_S
            return None
        if self._process is not None:
            self._note_death(self._process.returncode)
            self._process = None
        if time.monotonic() < self._due_s:
            return self._due_s
        self.start()
        return None

    def _note_death(self, code: int) -> None:
        if code in (_HOPELESS if self._had_started_well else _HOPELESS_AT_START):
            raise ChildFailed(self.part.name, code)
        quick = time.monotonic() - self._born_s < HEALTHY_AFTER_S
        self._quick_deaths = self._quick_deaths + 1 if quick else 1
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._quick_deaths > MAX_QUICK_DEATHS:
            say(f"error: the {self.part.name} died {MAX_QUICK_DEATHS} times in a row, last with {how}; giving up")
            raise ChildFailed(self.part.name, code if code > 0 else 1)
        say(f"the {self.part.name} died with {how}; it is started again")
        # The first replacement comes at once: most deaths are single ones.
        self._due_s = time.monotonic() + (0.0 if self._quick_deaths == 1 else 0.25 * 2**self._quick_deaths)

    def ask_to_end(self) -> None:
        """Ask it to end in good order; asked a second time it hurries."""
        if self.runs and self._process is not None:
            # Another number the second time: two of the same kind may arrive as one.
            self._process.send_signal(signal.SIGINT if self._asked else signal.SIGTERM)
            self._asked = True

    def kill(self) -> None:
        """End it now, and what it started, which leads groups of its own."""
        if self.runs and self._process is not None:
            for pid in (self._process.pid, *_descendants_of(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            self._process.wait()


def _descendants_of(pid: int) -> list[int]:
    """The ids of a process's children and of theirs, where the system tells."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(below for child in children for below in _descendants_of(child))]


def end_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask us to end; a lost terminal does not when we were started with `nohup`."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


class Signals:
    """Waits for signals that are blocked while this is in use, so that none is lost and none interrupts."""

    def __init__(self) -> None:
        self._watched = {*end_signals(), signal.SIGCHLD}

    def wait(self, timeout_s: float) -> signal.Signals | None:
        """Wait for a signal that asks us to end; None when the time is over or a child has changed."""
        received = signal.sigtimedwait(self._watched, max(0.0, timeout_s))
        if received is None or received.si_signo == signal.SIGCHLD:
            return None
        return signal.Signals(received.si_signo)


@contextlib.contextmanager
def blocked_signals() -> Iterator[Signals]:
    """Hold signals back for `Signals.wait`; also those that came in while something else was done."""
    signals = Signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals._watched)  # noqa: SLF001 - one pair
    try:
        yield signals
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_in_order(children: Sequence[Child], signals: Signals) -> bool:
    """End children one after another, the first one first; a signal meanwhile hurries them all, the next kills them.

    Returns:
        True when nobody hurried us.
    """
    asked = 0
    for child in children:
        child.ask_to_end()
        deadline_s = time.monotonic() + (child.part.timeout_s if not asked else HURRY_S)
        while child.runs:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or asked > 1:
                if asked <= 1:
                    say(f"the {child.part.name} does not end; killed")
                child.kill()
                break
            if signals.wait(min(left_s, 0.5)) is not None:
                asked += 1
                deadline_s = min(deadline_s, time.monotonic() + HURRY_S)
                for other in children:
                    other.ask_to_end()
    return not asked


def child_of_this_process() -> Callable[[], None]:
    """Return what a child does before exec: take signals again, and on Linux end with this process."""
    ask_to_end = end_with_parent(signal.SIGTERM)  # so that workers give back what they hold

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        ask_to_end()

    return prepare


T = TypeVar("T")
POLL_EVERY_S: Final = 0.2


async def work_beside(children: Sequence[Child], work: Callable[[], Awaitable[T]]) -> T | signal.Signals:
    """Do the work while the children run; `children` may change meanwhile.

    Returns:
        What the work returned, or the signal that ended it.

    Raises:
        ChildFailed: a child ended in a way that a restart would only repeat.
    """
    import anyio

    received: list[signal.Signals] = []
    done: list[T] = []

    async def stop_on_signal() -> None:
        with anyio.open_signal_receiver(*end_signals()) as signals:
            async for number in signals:
                received.append(signal.Signals(number))
                group.cancel_scope.cancel()

    async def poll_children() -> None:
        while True:
            for child in tuple(children):
                child.poll()
            await anyio.sleep(POLL_EVERY_S)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_on_signal)
            group.start_soon(poll_children)
            done.append(await work())
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        # What the work says of it is only that nobody answers.
        for failure in failures.exceptions:
            if isinstance(failure, ChildFailed):
                raise failure from None
        raise
    return done[0] if done else received[0]
