"""Records what actors do: the intention before, the outcome after, one line and one `write` each.

A line is in the file when `write` returns, so that kill -9 tears at most the last line of a process. Each process has
its own file.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class SubmitStarted(msgspec.Struct, frozen=True, tag=True):
    """A client submits a task.

    Attributes:
        op: id of the intention, also an argument of the task. Intentions with the same key share it.
        key: idempotency key, if any.
    """

    op: str
    key: str | None = None


class SubmitAccepted(msgspec.Struct, frozen=True, tag=True):
    """A submit returned a task id."""

    op: str
    task: str


class SubmitRejected(msgspec.Struct, frozen=True, tag=True):
    """A submit was refused or not sent: nothing of it may be stored."""

    op: str
    error: str


class SubmitUnanswered(msgspec.Struct, frozen=True, tag=True):
    """A submit with an unknown outcome; `tasks` are those that may be stored."""

    op: str
    tasks: tuple[str, ...]


class CancelStarted(msgspec.Struct, frozen=True, tag=True):
    """A client cancels a task."""

    task: str


class CancelAnswered(msgspec.Struct, frozen=True, tag=True):
    """A cancel was answered."""

    task: str
    status: str


class EndSeen(msgspec.Struct, frozen=True, tag=True):
    """A client learned the end of a task; `result` as JSON."""

    task: str
    state: str
    result: str | None = None


class RunStarted(msgspec.Struct, frozen=True, tag=True):
    """An attempt begins.

    Attributes:
        entry: id of the inbox entry, which begins with the server's time in ms.
        run: id of this execution, in case an attempt is executed twice.
        limits: names of the limits of the start.
        pid: process of the worker; its name has that of its host.
    """

    task: str
    generation: str
    attempt: int
    entry: str
    agent: str
    worker: str
    run: str
    limits: tuple[str, ...] = ()
    pid: int = 0

    @property
    def assigned_ms(self) -> int:
        """Server time of the assignment."""
        return int(self.entry.partition("-")[0])

    @property
    def granted_ms(self) -> int:
        """Server time of the grant: assigned, or adopted, which raises the generation."""
        return max(self.assigned_ms, int(self.generation))


class RunEnded(msgspec.Struct, frozen=True, tag=True):
    """An attempt ended in its process: `returned`, `raised` or `cancelled`."""

    task: str
    generation: str
    run: str
    how: str


class EmitStarted(msgspec.Struct, frozen=True, tag=True):
    """An attempt emits a chunk with this number."""

    task: str
    generation: str
    number: int


class EmitConfirmed(msgspec.Struct, frozen=True, tag=True):
    """A chunk was confirmed."""

    task: str
    generation: str
    number: int


class EndNoted(msgspec.Struct, frozen=True, tag=True):
    """The server recorded the end of a task in its stream of events."""

    task: str
    state: str
    entry: str


class LeaderSeen(msgspec.Struct, frozen=True, tag=True):
    """Holder of the supervisors' lease at a server time, and its remaining time."""

    server_ms: int
    holder: str
    left_ms: int


class AllStopped(msgspec.Struct, frozen=True, tag=True):
    """A stop of everything was active and acknowledged by all live workers, between these wall-clock times."""

    command: str
    since_ms: int
    until_ms: int


class FaultsEnded(msgspec.Struct, frozen=True, tag=True):
    """All faults had ended and all actors ran, at this server time."""

    server_ms: int


class Killed(msgspec.Struct, frozen=True, tag=True):
    """Processes were killed under a steady load of fresh tasks, and nothing else went wrong; all times of the server.

    Attributes:
        how: `worker`, `machine` (a host with its workers) or `poison` (a task that kills its process every time).
        pids: the killed processes; a poison kills others later.
        handler_ms: the longest handler of the load.
        until_ms: the end of the load.
        lag_ms: how far the load fell behind its times, because the machine was busy with other programs.
    """

    server_ms: int
    how: str
    pids: tuple[int, ...]
    handler_ms: int
    until_ms: int
    lag_ms: int = 0


Event: TypeAlias = (
    SubmitStarted
    | SubmitAccepted
    | SubmitRejected
    | SubmitUnanswered
    | CancelStarted
    | CancelAnswered
    | EndSeen
    | RunStarted
    | RunEnded
    | EmitStarted
    | EmitConfirmed
    | EndNoted
    | LeaderSeen
    | AllStopped
    | FaultsEnded
    | Killed
)
E = TypeVar("E", bound=Event)


class Line(msgspec.Struct, frozen=True):
    """One line of a history.

    Attributes:
        at_ms: wall-clock time of the machine.
        actor: name and process id.
    """

    at_ms: int
    actor: str
    event: Event


class Recorder:
    """Writes the history of one actor into a directory; thread-safe, and a forked child continues in a new file.

    Args:
        directory: created with the first line.
        actor: name in the file name and in each line.
    """

    def __init__(self, directory: str | os.PathLike[str], actor: str) -> None:
        self._directory, self._name = Path(directory), actor
        self._encode = msgspec.json.Encoder().encode
        self._lock = threading.Lock()
        self._pid, self._descriptor, self._actor = 0, -1, ""

    def write(self, event: Event) -> None:
        """Append one event; it is in the file on return."""
        with self._lock:
            if self._pid != os.getpid():
                self._open()
            line = self._encode(Line(time.time_ns() // 1_000_000, self._actor, event)) + b"\n"
            written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a line of history were written")

    def _open(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)  # the parent has its own
        self._pid = os.getpid()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._actor = f"{self._name}-{self._pid}"
        # Process ids repeat, and a new file avoids writing after a torn line.
        path = self._directory / f"{self._actor}-{secrets.token_hex(4)}.jsonl"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Close the file of this process."""
        with self._lock:
            if self._pid == os.getpid():
                os.close(self._descriptor)
            self._pid, self._descriptor = 0, -1


class History:
    """Lines of many actors by wall-clock time; lines of one actor in the order of writing."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines: Sequence[Line] = sorted(lines, key=lambda line: line.at_ms)
        self._by_kind: dict[type, list[Line]] = {}
        for line in self.lines:
            self._by_kind.setdefault(type(line.event), []).append(line)

    def of(self, kind: type[E]) -> list[E]:
        """Return all events of one kind."""
        return [line.event for line in self._by_kind.get(kind, ()) if isinstance(line.event, kind)]

    def lines_of(self, kind: type[E]) -> list[tuple[int, E]]:
        """Return all events of one kind with their wall-clock times."""
        return [(line.at_ms, line.event) for line in self._by_kind.get(kind, ()) if isinstance(line.event, kind)]


def read_history(directory: str | os.PathLike[str]) -> History:
    """Read all files of a directory; drop a torn last line.

    Raises:
        ValueError: another line cannot be read.
    """
    decode = msgspec.json.Decoder(Line).decode
    lines: list[Line] = []
    for path in sorted(Path(directory).glob("*.jsonl")):
        whole, _, _torn = path.read_bytes().rpartition(b"\n")
        for number, row in enumerate(whole.split(b"\n") if whole else (), start=1):
            try:
                lines.append(decode(row))
            except msgspec.MsgspecError as unreadable:
                raise ValueError(f"line {number} of {path} is no line of a history: {unreadable}") from None
    return History(lines)
