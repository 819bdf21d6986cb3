"""Reports the state of this process to the service manager: ready, reloading, stopping, a line of text, watchdog pings.

This is the protocol of sd_notify(3): datagrams of `NAME=value` lines to the socket in `NOTIFY_SOCKET`. Without that
variable every call does nothing. No thread sends pings: the loop that the watchdog must guard sends them itself.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Final

from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import MutableMapping

PINGS_PER_LIMIT: Final = 3
WAITS_FOR_REDIS: Final = "waits for Redis, which does not answer"
"""Status of a program that asks Redis again and again."""
SEND_TIMEOUT_S: Final = 1.0
"""Longest time that a message may block its loop, when the service manager does not read."""
_MAX_STATUS_CHARS: Final = 500
_log = get_logger(__name__)


class Notifier:
    """Sends messages to the service manager.

    Args:
        address: of its socket: a path, or a name that begins with @ in the abstract namespace; None for no manager.
        watchdog_s: time after which it ends a process that sends no ping; None for no watchdog.
    """

    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        self._address = address
        self._every_s = watchdog_s / PINGS_PER_LIMIT if watchdog_s is not None else None
        self._ping_at_s = time.monotonic()
        self._status = ""
        self._is_ready = self._failed = False

    @classmethod
    def take(cls, environ: MutableMapping[str, str] | None = None) -> Notifier:
        """Return the notifier of this process, and remove its variables, so that no child process uses them."""
        environ = os.environ if environ is None else environ
        address, limit, pid = (environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        guarded = limit.isdecimal() and int(limit) > 0 and pid in {"", str(os.getpid())}
        return cls(address or None, watchdog_s=int(limit) / 1e6 if address and guarded else None)

    @property
    def active(self) -> bool:
        """True if a service manager listens."""
        return self._address is not None

    @property
    def watchdog_every_s(self) -> float | None:
        """Seconds between two pings; None without a watchdog."""
        return self._every_s

    def ready(self, status: str | None = None) -> None:
        """Report that the start or a reload has ended.

        Args:
            status: what the process does now; by default what it last said.
        """
        self._status = _line(status) if status is not None else self._status
        self._is_ready = True
        self._send("READY=1", f"STATUS={self._status}")

    def status(self, text: str) -> None:
        """Report what the process does now, in words; nothing is sent if that is unchanged."""
        if (text := _line(text)) != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """Report that the process reloads its settings; `reloaded` ends that. Nothing is sent before `ready`."""
        if not self._is_ready:
            return
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        """Report that the process has reloaded its settings and does what it did before."""
        if self._is_ready:
            self.ready()

    def stopping(self, status: str) -> None:
        """Report that the process has begun to stop."""
        self._is_ready = False
        self._status = _line(status)
        self._send("STOPPING=1", f"STATUS={self._status}")

    def extend_timeout(self, by_s: float) -> None:
        """Ask for more time, from now on, for a start or a stop that makes progress."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(by_s * 1e6)}")

    def until_ping_s(self) -> float | None:
        """Return the seconds until the next ping is due; None without a watchdog."""
        return None if self._every_s is None else max(0.0, self._ping_at_s - time.monotonic())

    def ping(self) -> None:
        """Feed the watchdog if that is due. Only the loop that it guards may call this."""
        if self._every_s is not None and time.monotonic() >= self._ping_at_s:
            self._ping_at_s = time.monotonic() + self._every_s
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(SEND_TIMEOUT_S)
                sender.sendto("\n".join(lines).encode(), address)
        except (OSError, ValueError) as failure:
            # The service manager restarts a process that sends nothing, so that one line in the log is enough.
            if not self._failed:
                _log.warning("notify_failed", error=str(failure))
            self._failed = True
        else:
            self._failed = False


def _line(text: str) -> str:
    """Return text as one line: another line would be another field."""
    return " ".join(text.split())[:_MAX_STATUS_CHARS]
