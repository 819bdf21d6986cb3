"""Starts the Redis that is measured, with the settings of the embedded server or with its own defaults."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

import orchestrator.embedded
from orchestrator.embedded.server_binary import find_server_binary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EMBEDDED: Final = "embedded"
"""The settings of the embedded server, but without the append-only file."""
STOCK: Final = "stock"
"""The defaults of the program: snapshots after many changes, short listpacks. Only address and folder are set."""
SETTINGS: Final = (EMBEDDED, STOCK)
_TOLD: Final = ("appendonly", "save", "hash-max-listpack-entries", "hash-max-listpack-value")
_SETTINGS = Path(orchestrator.embedded.__file__).with_name("redis.conf")
_START_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of this run alone.

    Attributes:
        settings: the values of the settings in which the kinds of servers differ.
    """

    url: str
    version: str
    pid: int
    settings: str = ""

    def connect(self) -> Redis:
        """Open a blocking client, for readings beside the measured traffic."""
        return Redis.from_url(self.url)


@contextlib.contextmanager
def running_server(
    folder: Path,
    program: Path | None = None,
    *,
    unix_socket: bool,
    options: Sequence[str] = (),
    settings: str = EMBEDDED,
) -> Iterator[Server]:
    """Run a server with its data in `folder` until the block ends; default program: the newest installed."""
    port = 0 if unix_socket else free_port()
    socket_path = folder / "redis.sock"
    url = f"unix://{socket_path}" if unix_socket else f"redis://127.0.0.1:{port}/0"
    command = [str(find_server_binary(program).path)]
    command += [str(_SETTINGS), "--appendonly", "no"] if settings == EMBEDDED else []
    command += ["--dir", str(folder)]
    command += ["--port", str(port), "--bind", "127.0.0.1"]
    command += ["--unixsocket", str(socket_path)] if unix_socket else []
    command += options
    with (folder / "redis.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            version = _wait_until_up(url, process, folder)
            yield Server(url, version, process.pid, _told(url))
        finally:
            # By force, because a server with snapshots would write one.
            process.kill()


def free_port() -> int:
    """Return a port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _told(url: str) -> str:
    with Redis.from_url(url, decode_responses=True) as client:
        values = client.config_get(*_TOLD)
    return ", ".join(f"{name} {values[name] or 'off'}" for name in _TOLD)


def _wait_until_up(url: str, process: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with Redis.from_url(url) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                return str(client.info("server")["redis_version"])
            except (RedisConnectionError, FileNotFoundError):
                time.sleep(0.02)
    raise SystemExit(f"redis-server did not start within {_START_TIMEOUT_S:.0f} s; its log is {folder / 'redis.log'}")
