"""Probes a server on a unix socket without a client library, for processes that must start fast."""

from __future__ import annotations

import enum
import socket
from typing import TYPE_CHECKING

from orchestrator.store.server_info import read_info

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.store.server_info import ServerInfo

TIMEOUT_S = 1.0


class Health(enum.Enum):
    """State of a server on a socket."""

    UP = "up"
    LOADING = "loading"
    SILENT = "silent"


def health(socket_path: Path, *, timeout_s: float = TIMEOUT_S) -> Health:
    """Tell whether the server answers, loads its data, or is silent."""
    try:
        reply = ask(socket_path, "PING", timeout_s=timeout_s)
    except OSError:
        return Health.SILENT
    # Any other error, such as a busy script or a full disk, comes from a live server.
    return Health.LOADING if reply.startswith("LOADING") else Health.UP


def info(socket_path: Path, *, timeout_s: float = TIMEOUT_S) -> ServerInfo:
    """Return INFO of the server.

    Raises:
        OSError: the server does not answer.
    """
    return read_info(ask(socket_path, "INFO", timeout_s=timeout_s))


def ask(socket_path: Path, *words: str, timeout_s: float = TIMEOUT_S) -> str:
    """Send one command and return its status, error or string as text.

    Raises:
        OSError: the server does not answer, or the connection ended before the reply.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(socket_path))
        connection.sendall(_request(words))
        with connection.makefile("rb") as replies:
            head = replies.readline()
            if not head.endswith(b"\r\n"):
                raise ConnectionResetError(f"the server on {socket_path} hung up")
            body = replies.read(int(head[1:])) if head.startswith(b"$") else head[1:-2]
    return body.decode("utf-8", "replace")


def _request(words: tuple[str, ...]) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
