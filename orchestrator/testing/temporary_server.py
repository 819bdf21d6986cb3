"""Starts a redis-server for a test run: on a unix socket, without persistence, gone at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.parent_process import end_with_parent
from orchestrator.embedded import probe
from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_TIMEOUT_S: Final = 20.0
_OPTIONS: Final = ("--port", "0", "--databases", "1", "--save", "", "--appendonly", "no")


@contextmanager
def temporary_server() -> Iterator[str]:
    """Run a server until the block ends, and yield its URL. The kernel ends it with the thread that started it.

    Raises:
        ConfigError: no redis-server is installed.
        TimeoutError: the server did not start; the message shows its log.
    """
    binary, owner = find_server_binary(), os.getpid()
    # In /tmp, because the path of a socket may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="orc-", dir="/tmp"))
    socket, log = folder / "redis.sock", folder / "redis.log"
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - a program that was found and asked for its version
                [binary.path, *_OPTIONS, "--dir", folder, "--unixsocket", socket],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl and takes no lock
            )
        wait_until(
            lambda: process.poll() is not None or probe.health(socket) is probe.Health.UP,
            lambda: f"redis-server to answer; its log:\n{_tail(log)}",
            _START_TIMEOUT_S,
        )
        if process.returncode is not None:
            raise TimeoutError(f"redis-server ended with code {process.returncode}; its log:\n{_tail(log)}")
        yield f"unix://{socket}"
    finally:
        # A forked child that ends leaves its copy of this block too, but the server is its parent's.
        if os.getpid() == owner:
            if process is not None:
                process.kill()
                process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]
