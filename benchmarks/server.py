"""Starts the Redis that is measured, without persistence."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

import orchestrator.embedded
from orchestrator.embedded.server_binary import find_server_binary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SETTINGS = Path(orchestrator.embedded.__file__).with_name("redis.conf")
_START_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of this run alone."""

    url: str
    version: str
    pid: int

    def connect(self) -> Redis:
        """Open a blocking client, for readings beside the measured traffic."""
        return Redis.from_url(self.url)


@contextlib.contextmanager
def running_server(
    folder: Path, program: Path | None = None, *, unix_socket: bool, options: Sequence[str] = ()
) -> Iterator[Server]:
    """Run a server with its data in `folder` until the block ends; default program: the newest installed."""
    port = 0 if unix_socket else free_port()
    socket_path = folder / "redis.sock"
    url = f"unix://{socket_path}" if unix_socket else f"redis://127.0.0.1:{port}/0"
    # The settings of the embedded server, without persistence.
    command = [str(find_server_binary(program).path), str(_SETTINGS), "--appendonly", "no", "--dir", str(folder)]
    command += ["--unixsocket", str(socket_path)] if unix_socket else ["--port", str(port), "--bind", "127.0.0.1"]
    command += options
    with (folder / "redis.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Server(url, _wait_until_up(url, process, folder), process.pid)
        finally:
            process.terminate()


def free_port() -> int:
    """Return a port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_up(url: str, process: subprocess.Popen[bytes], folder: Path) -> str:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with Redis.from_url(url) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                return str(client.info("server")["redis_version"])
            except (RedisConnectionError, FileNotFoundError):
                time.sleep(0.02)
    raise SystemExit(f"redis-server did not start within {_START_TIMEOUT_S:.0f} s; its log is {folder / 'redis.log'}")
