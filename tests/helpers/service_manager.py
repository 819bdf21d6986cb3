"""The notification socket of a service manager, as systemd has one, for programs that tests start."""

from __future__ import annotations

import socket
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from orchestrator.testing.waiting import wait_until

if TYPE_CHECKING:
    from types import TracebackType

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, its sender's process id, and when it was read."""

    fields: dict[str, str]
    pid: int
    at_s: float


class ServiceManager:
    """A datagram socket that keeps what programs send to it; use it in a `with` block.

    Args:
        abstract: an address in the abstract namespace instead of a path.
    """

    def __init__(self, *, abstract: bool = False) -> None:
        self._abstract = abstract
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # In /tmp, because the path of a socket may have 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix="orc-notify-", dir="/tmp")
        self.path = Path(self._directory.name) / "notify"
        self._messages: list[Message] = []

    def __enter__(self) -> Self:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(self.address.replace("@", "\0", 1))
        self._socket.settimeout(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
        self._directory.cleanup()

    @property
    def address(self) -> str:
        """The value of NOTIFY_SOCKET."""
        return f"@{self.path}" if self._abstract else str(self.path)

    def environment(self, *, watchdog_s: float | None = None) -> dict[str, str]:
        """The variables that a service manager sets."""
        limit = {} if watchdog_s is None else {"WATCHDOG_USEC": str(round(watchdog_s * 1e6))}
        return {"NOTIFY_SOCKET": self.address, **limit}

    @property
    def messages(self) -> list[Message]:
        """All messages so far."""
        while True:
            try:
                text, ancillary, _, _ = self._socket.recvmsg(65536, 256)
            except BlockingIOError:
                return self._messages
            pid = next(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0] for _, _, data in ancillary)
            fields = dict(line.split("=", 1) for line in text.decode().split("\n"))
            self._messages.append(Message(fields, pid, time.monotonic()))

    def has(self, name: str) -> bool:
        """Whether a field was sent."""
        return any(name in message.fields for message in self.messages)

    def count(self, name: str) -> int:
        """How often a field was sent."""
        return sum(name in message.fields for message in self.messages)

    @property
    def statuses(self) -> list[str]:
        """Every STATUS so far."""
        return [message.fields["STATUS"] for message in self.messages if "STATUS" in message.fields]

    def wait_status(self, text: str, timeout_s: float = 15.0) -> str:
        """Wait until the last status contains a text, and return it. Blocks."""
        return wait_until(
            lambda: next(iter([one for one in self.statuses[-1:] if text in one]), ""),
            lambda: f"a status with {text!r}; it was {self.statuses}",
            timeout_s,
        )
