"""Writes log lines without blocking the process: to a stream, or to the system's journal.

A reader that stops reading fills the pipe of standard error. A process that waited for it would miss its heartbeats, so
a write waits `ROOM_WITHIN_S` at most. Lines and journal entries that find no room wait in memory, and are dropped when
that is full too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import socket
import stat
import struct
import time
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import FileIO

ROOM_WITHIN_S: Final = 0.02
"""How long a write waits for a reader. After a vain wait, the next writes do not wait until one succeeds."""
MAX_PENDING_BYTES: Final = 256 * 1024
LAST_LINES_WITHIN_S: Final = 0.5
"""How long the end of the process waits for a reader of the last lines."""
JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"
IDENTIFIER: Final = "orchestrator"
PREFIX: Final = "ORC_"

_PIPE_BUF: Final = 4096
"""A pipe that has room takes at least this much."""
_FIELD: Final = re.compile(r"[^A-Z0-9_]")
_FIELD_CHARS: Final = 64
_STANDARD_FIELDS: Final = {"logger": "LOGGER"}


class LogOutput(Protocol):
    """A destination of log events; `dropped` counts those that were lost since it was last read."""

    dropped: int

    def write(self, level: int, event: Mapping[str, Any]) -> None:
        """Write one scrubbed event."""

    def forget(self) -> None:
        """Drop what waits: after a fork, the parent writes it."""

    def close(self) -> None:
        """Write what waits."""


class LineOutput:
    """Renders events as lines for a stream."""

    def __init__(self, stream: TextIO | None, render: Callable[[int, Mapping[str, Any]], str]) -> None:
        self._lines = LineWriter(stream)
        self._render = render

    @property
    def dropped(self) -> int:
        """Lines that were lost."""
        return self._lines.dropped

    @dropped.setter
    def dropped(self, count: int) -> None:
        self._lines.dropped = count

    def write(self, level: int, event: Mapping[str, Any]) -> None:
        """Write one event."""
        self._lines.write(self._render(level, event) + "\n")

    def forget(self) -> None:
        """Drop what waits."""
        self._lines.forget()

    def close(self) -> None:
        """Write what waits."""
        self._lines.close()


class LineWriter:
    """Writes lines to a stream; never raises, and never waits longer than `ROOM_WITHIN_S`.

    Attributes:
        dropped: lines that were lost; the caller resets it.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.dropped = 0
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._stalled = False
        self._own: socket.socket | FileIO | None = None
        number = _number_of(stream)
        self._number = -1 if number is None else number
        self._write_some = None if number is None else self._choose(number)

    def write(self, line: str) -> None:
        """Write a line, or keep it until there is room."""
        if self._write_some is None:
            try:
                if self._stream is None:
                    return
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):  # closed
                self.dropped += 1
            return
        data = line.encode(self._encoding, "backslashreplace")
        if (self._pending and not self._write_pending()) or (left := self._push(data)) == len(data):
            if self._pending_bytes + len(data) > MAX_PENDING_BYTES:
                self.dropped += 1
            else:
                self._keep(data)
        elif left:
            self._keep(data[-left:])

    def forget(self) -> None:
        """Drop the lines that wait."""
        self._pending.clear()
        self._pending_bytes = 0

    def close(self) -> None:
        """Write the lines that wait, as far as a reader takes them soon."""
        until_s = time.monotonic() + LAST_LINES_WITHIN_S
        while self._pending and not self._write_pending() and time.monotonic() < until_s:
            self._wait(ROOM_WITHIN_S)
        if self._own is not None:
            # Lines of threads that outlive this writer are written without it.
            self._own.close()
            self._own, self._write_some = None, self._if_ready(self._number)

    def _choose(self, number: int) -> Callable[[bytes], int]:
        """Return the function that writes some bytes, or raises BlockingIOError."""
        mode = os.fstat(number).st_mode
        if stat.S_ISSOCK(mode):
            self._own = connection = socket.socket(fileno=os.dup(number))
            return lambda data: connection.send(data, socket.MSG_DONTWAIT)
        if stat.S_ISFIFO(mode) or os.isatty(number):
            # Opened again, because O_NONBLOCK of an inherited file holds for all programs that have it.
            with suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                own = os.open(f"/proc/self/fd/{number}", flags)
                self._own = os.fdopen(own, "wb", buffering=0)
                return lambda data: os.write(own, data)
            return self._if_ready(number)
        return lambda data: os.write(number, data)

    def _if_ready(self, number: int) -> Callable[[bytes], int]:
        return lambda data: os.write(number, data[:_PIPE_BUF]) if self._wait(0) else _no_room()

    def _push(self, data: bytes) -> int:
        """Write data and return how many bytes found no room."""
        assert self._write_some is not None
        view = data
        while view:
            try:
                view = view[self._write_some(view) :]
                self._stalled = False
            except BlockingIOError:
                if self._stalled or not self._wait(ROOM_WITHIN_S):
                    self._stalled = True
                    break
            except OSError:  # no reader, a full disk
                self.dropped += 1
                return 0
        return len(view)

    def _write_pending(self) -> bool:
        """Write the lines that wait; return whether none is left."""
        while self._pending:
            first = self._pending[0]
            left = self._push(first)
            self._pending_bytes -= len(first) - left
            if left:
                self._pending[0] = first[-left:]
                return False
            self._pending.popleft()
        return True

    def _keep(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)

    def _wait(self, timeout_s: float) -> bool:
        """Wait until there is room; return whether there is."""
        poll = select.poll()
        poll.register(self._number, select.POLLOUT)
        return bool(poll.poll(timeout_s * 1000))


class _PendingEntry(NamedTuple):
    """An event for the journal, and its fields in the native protocol."""

    level: int
    event: Mapping[str, Any]
    data: bytes


class JournalOutput:
    """Sends events to the journal by its native protocol; as lines with a priority if the journal does not listen.

    Args:
        stream: takes the lines when there is no socket.
        path: of the journal's socket; by default systemd's.
    """

    def __init__(self, stream: TextIO | None, path: str | None = None) -> None:
        self._path = path or JOURNAL_SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, round(ROOM_WITHIN_S * 1e6)))
        self._stalled = False
        self._lost = 0
        self._pending: deque[_PendingEntry] = deque()
        self._pending_bytes = 0
        self._lines = LineOutput(stream, render_prefixed)

    @property
    def dropped(self) -> int:
        """Events that were lost."""
        return self._lost + self._lines.dropped

    @dropped.setter
    def dropped(self, count: int) -> None:
        self._lost, self._lines.dropped = count, 0

    def write(self, level: int, event: Mapping[str, Any]) -> None:
        """Send one event, or keep it until the journal reads."""
        entry = _PendingEntry(level, event, b"".join(journal_fields(level, event)))
        if self._send_pending(wait=False) and self._send(entry, wait=not self._stalled):
            return
        if self._pending_bytes + len(entry.data) > MAX_PENDING_BYTES:
            self._lost += 1
        else:
            self._pending.append(entry)
            self._pending_bytes += len(entry.data)

    def _send_pending(self, *, wait: bool) -> bool:
        """Send the events that wait; return whether none is left."""
        while self._pending:
            if not self._send(self._pending[0], wait=wait):
                return False
            self._pending_bytes -= len(self._pending.popleft().data)
        return True

    def _send(self, entry: _PendingEntry, *, wait: bool) -> bool:
        """Send an event; return whether the journal, or else the stream, took it."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            try:
                self._socket.sendto(entry.data, flags, self._path)
            except OSError as refused:
                if refused.errno not in _TOO_LARGE:
                    raise
                self._send_in_file(entry.data, flags)
            self._stalled = False
        except BlockingIOError:
            self._stalled = True
            return False
        except OSError:
            # The journal restarts, or this is a container without one.
            self._lines.write(entry.level, entry.event)
        return True

    def _send_in_file(self, data: bytes, flags: int) -> None:
        """Send an event that no datagram holds in a sealed file."""
        file = os.memfd_create("event", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(file, data)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file))]
            self._socket.sendmsg([b""], rights, flags, self._path)
        finally:
            os.close(file)

    def forget(self) -> None:
        """Drop the events that wait."""
        self._pending.clear()
        self._pending_bytes = 0
        self._lines.forget()

    def close(self) -> None:
        """Send the events that wait, as far as the journal takes them soon; later events go to the stream."""
        until_s = time.monotonic() + LAST_LINES_WITHIN_S
        while self._pending and time.monotonic() < until_s:
            self._send_pending(wait=True)
        self._lines.close()
        self._socket.close()


def is_journal(stream: TextIO | None) -> bool:
    """Return whether a stream is connected to the journal, as systemd says in JOURNAL_STREAM."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    number = _number_of(stream)
    if number is None or not (device.isdigit() and inode.isdigit()):
        return False
    found = os.fstat(number)
    return (found.st_dev, found.st_ino) == (int(device), int(inode))


def priority_of(level: int) -> int:
    """Return the syslog priority of a level of `logging`."""
    for lowest, priority in ((50, 2), (40, 3), (30, 4), (20, 6)):
        if level >= lowest:
            return priority
    return 7


def journal_fields(level: int, event: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the fields of an event in the format of the native protocol."""
    yield _field("MESSAGE", _message(event))
    yield f"PRIORITY={priority_of(level)}\nSYSLOG_IDENTIFIER={IDENTIFIER}\n".encode()
    for name, value in event.items():
        if name not in _IN_MESSAGE:
            yield _field(_field_name(name), value if isinstance(value, str) else _json(value))


def render_prefixed(level: int, event: Mapping[str, Any]) -> str:
    """Render an event as lines that begin with the priority, which the journal reads and removes."""
    prefix = f"<{priority_of(level)}>"
    # The journal makes an entry of each line, so a line break in the text of another library must not begin one.
    event = {**event, "event": str(event.get("event", "")).replace("\n", "\\n").replace("\r", "\\r")}
    return "\n".join(prefix + line for line in _message(event).split("\n"))


_TOO_LARGE: Final = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
_IN_MESSAGE: Final = frozenset({"timestamp", "level", "exception", "stack"})
"""Keys of an event that get no field of their own: the journal has the time and the priority."""
_BARE: Final = re.compile(r"[^\s\"'=]+")


def _message(event: Mapping[str, Any]) -> str:
    """Return the event as text: its name, then the keys as `key=value`, then a traceback."""
    words = [str(event.get("event", ""))]
    for name, value in event.items():
        if name not in _IN_MESSAGE and name not in {"event", "logger"}:
            bare = isinstance(value, str) and _BARE.fullmatch(value) is not None
            words.append(f"{name}={value if bare else _json(value)}")
    # Indented, because a line of an exception's text must not look like one of the log.
    more = [str(event[name]).rstrip("\n").replace("\n", "\n  ") for name in ("exception", "stack") if event.get(name)]
    return "\n".join([" ".join(words), *more])


def _field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"


@lru_cache(2048)
def _field_name(key: str) -> str:
    """Return the journal's name for a key: capitals, digits and underscores."""
    return _STANDARD_FIELDS.get(key) or (PREFIX + _FIELD.sub("_", key.upper()))[:_FIELD_CHARS]


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _no_room() -> int:
    raise BlockingIOError


def _number_of(stream: TextIO | None) -> int | None:
    """Return the file number of a stream; None for one in memory, and for one that is closed."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
