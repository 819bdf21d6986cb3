"""Asks a server on a unix socket whether it lives, in a handful of bytes and without a client library.

For the embedded server's guardian and for finding it, both of which must start fast; tasks never travel this way.
"""

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
    """What a server on a socket is up to."""

    UP = "up"
    LOADING = "loading"
    SILENT = "silent"


def health(socket_path: Path, *, timeout_s: float = TIMEOUT_S) -> Health:
    """Tell whether a server answers on this socket, is still reading its data, or keeps silent."""
    try:
        reply = ask(socket_path, "PING", timeout_s=timeout_s)
    except OSError:
        return Health.SILENT
    # Any other error reply (a busy script, a failing disk) still comes from a server that lives.
    return Health.LOADING if reply.startswith("LOADING") else Health.UP


def info(socket_path: Path, *, timeout_s: float = TIMEOUT_S) -> ServerInfo:
    """Return what the server says about itself.

    Raises:
        OSError: nobody answers on the socket.
    """
    return read_info(ask(socket_path, "INFO", timeout_s=timeout_s))


def ask(socket_path: Path, *words: str, timeout_s: float = TIMEOUT_S) -> str:
    """Send one command and return its reply as text: of a status, an error or a string, the text alone.

    Raises:
        OSError: nobody answers, or the connection ended before the reply.
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
