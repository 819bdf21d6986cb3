"""Starts, restarts and ends the child processes of `orc up`, `orc demo` and `orc bench`.

Each child leads a process group, so that Ctrl-C reaches only this process; on Linux the kernel ends it with this
process. Signals are blocked and waited for in one thread, so that none interrupts a step.
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
from orchestrator.core.hangup import Terminal
from orchestrator.core.parent_process import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

HEALTHY_AFTER_S: Final = 10.0
"""A child that runs this long has started well and is restarted after a later death."""
MAX_QUICK_DEATHS: Final = 5
HURRY_S: Final = 20.0
"""How long a child may take after the second signal before it is killed. A worker host kills its workers sooner."""

_HOPELESS: Final = frozenset({USAGE, CONFIGURATION})
_HOPELESS_AT_START: Final = frozenset({USAGE, CONFIGURATION, NOBODY_ANSWERED})


@dataclass(frozen=True, slots=True)
class Part:
    """Name and command of a child process."""

    name: str
    command: Sequence[str]
    timeout_s: float
    """How long it may take to end after the first signal."""
    needed: bool = True
    """False if the others go on without it when a restart would fail again."""


class ChildProcessFailed(Exception):
    """A child ended in a way that a restart would repeat. It has printed the reason."""

    def __init__(self, name: str, exit_code: int) -> None:
        super().__init__(f"{name} ended with exit code {exit_code}")
        self.exit_code = exit_code


class Child:
    """A running child. It writes to `output`, by default to the standard output and error of this process."""

    def __init__(self, part: Part, environ: Mapping[str, str], *, output: IO[bytes] | None = None) -> None:
        self.part = part
        self._environ, self._output = environ, output
        self._quick_deaths = 0
        self._had_started_well = False
        self._due_s = 0.0
        self._asked = False
        self._left_out = False
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def runs(self) -> bool:
        """True while the process runs; reaps it when it has ended."""
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
            preexec_fn=child_of_this_process(),  # noqa: PLW1509 - the program has no other thread that holds a lock
        )

    def poll(self) -> float | None:
        """Restart the child if it has died, and return the time of a delayed restart.

        Raises:
            ChildProcessFailed: a restart would fail again, and the others need the child.
        """
        if self.runs:
            self._had_started_well = self._had_started_well or time.monotonic() - self._born_s > HEALTHY_AFTER_S
            return None
        if self._process is not None:
            code, self._process = self._process.returncode, None
            self._note_death(code)
        if self._left_out:
            return None
        if time.monotonic() < self._due_s:
            return self._due_s
        self.start()
        return None

    def _note_death(self, code: int) -> None:
        if code in (_HOPELESS if self._had_started_well else _HOPELESS_AT_START):
            self._give_up(code)
            return
        quick = time.monotonic() - self._born_s < HEALTHY_AFTER_S
        self._quick_deaths = self._quick_deaths + 1 if quick else 1
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._quick_deaths > MAX_QUICK_DEATHS:
            say(f"error: the {self.part.name} died {MAX_QUICK_DEATHS} times in a row, last with {how}; giving up")
            self._give_up(code if code > 0 else 1)
            return
        say(f"the {self.part.name} died with {how}; restarting it")
        # The first restart is immediate, because most deaths are single ones.
        self._due_s = time.monotonic() + (0.0 if self._quick_deaths == 1 else 0.25 * 2**self._quick_deaths)

    def _give_up(self, code: int) -> None:
        if self.part.needed:
            raise ChildProcessFailed(self.part.name, code)
        say(f"the {self.part.name} does not run; everything else does")
        self._left_out = True

    def ask_to_end(self) -> None:
        """Signal the child to end; the second signal stops it faster."""
        if self.runs and self._process is not None:
            # Two pending signals of one number may arrive as one, so the second has another number.
            self._process.send_signal(signal.SIGINT if self._asked else signal.SIGTERM)
            self._asked = True

    def ask_to_reload(self) -> None:
        """Signal the child to reload its settings. It starts with SIGHUP blocked, so that the signal waits for it."""
        if self.runs and self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """Kill the child and its descendants."""
        if self.runs and self._process is not None:
            for pid in (self._process.pid, *_descendants_of(self._process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            self._process.wait()


def _descendants_of(pid: int) -> list[int]:
    """Return the ids of all descendants of a process; empty where /proc does not list them."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(below for child in children for below in _descendants_of(child))]


def end_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end the program; SIGHUP only if it is not ignored, as under `nohup`."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


class Signals:
    """Waits for the signals that `blocked_signals` blocks.

    Attributes:
        on_reload: called for a SIGHUP that does not come from the end of the terminal.
    """

    def __init__(self) -> None:
        self._watched = {*end_signals(), signal.SIGCHLD}
        self._terminal = Terminal()
        self.on_reload: Callable[[], None] = lambda: None

    def wait(self, timeout_s: float) -> signal.Signals | None:
        """Return the signal that ends the program, or None if the time is over or a child changed its state."""
        received = signal.sigtimedwait(self._watched, max(0.0, timeout_s))
        if received is None or received.si_signo == signal.SIGCHLD:
            return None
        if self._terminal.asks_reload(received.si_signo):
            self.on_reload()
            return None
        return signal.Signals(received.si_signo)


@contextlib.contextmanager
def blocked_signals() -> Iterator[Signals]:
    """Block signals so that `Signals.wait` receives them, also those that arrive between two waits."""
    signals = Signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals._watched)  # noqa: SLF001 - one pair
    try:
        yield signals
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_in_order(children: Sequence[Child], signals: Signals) -> bool:
    """End children one after another. The next signal stops all of them faster, the one after it kills them.

    Returns:
        True when no further signal arrived.
    """
    asked = 0
    for child in children:
        child.ask_to_end()
        deadline_s = time.monotonic() + (child.part.timeout_s if not asked else HURRY_S)
        while child.runs:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or asked > 1:
                if asked <= 1:
                    say(f"the {child.part.name} did not end in time; killed it")
                child.kill()
                break
            if signals.wait(min(left_s, 0.5)) is not None:
                asked += 1
                deadline_s = min(deadline_s, time.monotonic() + HURRY_S)
                for other in children:
                    other.ask_to_end()
    return not asked


def child_of_this_process() -> Callable[[], None]:
    """Return the function that a child runs before exec: unblock signals, and on Linux end with this process."""
    ask_to_end = end_with_parent(signal.SIGTERM)  # SIGTERM, so that workers return their tasks

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGHUP})
        ask_to_end()

    return prepare


T = TypeVar("T")
POLL_EVERY_S: Final = 0.2


async def work_beside(children: Sequence[Child], work: Callable[[], Awaitable[T]]) -> T | signal.Signals:
    """Run `work` and restart the children that die meanwhile; `children` may change.

    Returns:
        The result of `work`, or the signal that ended it.

    Raises:
        ChildProcessFailed: a child ended in a way that a restart would repeat.
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
        # The work itself fails only because the child does not answer.
        for failure in failures.exceptions:
            if isinstance(failure, ChildProcessFailed):
                raise failure from None
        raise
    return done[0] if done else received[0]
