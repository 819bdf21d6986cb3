"""The guardian: a small process that runs the redis-server of one data directory, from start to orderly stop.

Run as `python -m orchestrator.embedded.guardian DIR`, normally by `orchestrator.embedded.attachment`. It imports no
Redis client, so that it starts fast and stays small.

Protocol (`orchestrator.embedded.data_dir` describes the locks):

1. The starter takes guardian.lock and passes it on. The guardian takes server.lock, which an orphaned server may hold.
2. It starts redis-server, which inherits server.lock and gets SIGTERM when the guardian dies; waits for an answer;
   writes server.json; reports to the starter.
3. One thread blocks in flock of users.lock. The kernel wakes it after the last user. From then on no user can join:
   the guardian stops the server, removes server.json and the socket, and releases the locks last. A process that
   waited for users.lock meanwhile finds no server and may start one.
4. The guardian restarts a server that dies while in use, with growing delays. After several quick exits in a row it
   writes the reason down and gives up.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import ConfigError, OrchestratorError, ServerUnavailable
from orchestrator.core.parent_process import end_with_parent
from orchestrator.embedded import probe
from orchestrator.embedded.data_dir import DataDir, ServerRecord, is_same_file, write_private
from orchestrator.embedded.memory_share import choose_maxmemory
from orchestrator.embedded.server_binary import INSTALL_HINT, ServerBinary, find_server_binary

if TYPE_CHECKING:
    from collections.abc import Sequence

REDIS_CONF = Path(__file__).with_name("redis.conf")

ORPHAN_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
STOP_REMINDER_S = 5.0

QUICK_EXIT_S = 10.0
QUICK_EXITS_MAX = 5
RESTART_DELAY_S = 0.05

_READY_POLL_S = 0.005
_READY_POLL_MAX_S = 0.1
_LOG_TAIL_LINES = 12


class StopRequested(Exception):
    """Ends any wait: the server has no users, or the guardian got SIGTERM."""


class StartReport:
    """Reports the start to the starter through a pipe, one JSON object per line; the starter may have left."""

    def __init__(self, pipe_fd: int | None) -> None:
        self._pipe_fd = pipe_fd

    def loading(self) -> None:
        """Report that the server reads its data."""
        self._send({"state": "loading"})

    def ready(self) -> None:
        """Report that the server answers, and close the pipe."""
        self._send({"state": "ready"})
        self._close()

    def failed(self, error: OrchestratorError) -> None:
        """Report the reason why there is no server, and close the pipe."""
        self._send({"state": "failed", "error": type(error).__name__, "message": str(error)})
        self._close()

    def _send(self, fact: dict[str, str]) -> None:
        if self._pipe_fd is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe_fd, json.dumps(fact).encode() + b"\n")

    def _close(self) -> None:
        if self._pipe_fd is not None:
            os.close(self._pipe_fd)
            self._pipe_fd = None


class RedisGuardian:
    """Starts, watches, restarts and stops one server.

    Args:
        place: the data directory.
        binary: the server program.
        socket_path: socket of the server.
        users_fd: an open users.lock.
        report: receives the progress of the start.
    """

    def __init__(
        self,
        place: DataDir,
        *,
        binary: ServerBinary,
        socket_path: Path,
        users_fd: int,
        report: StartReport,
    ) -> None:
        self._place = place
        self._binary = binary
        self._socket_path = socket_path
        self._users_fd = users_fd
        self._maxmemory = choose_maxmemory()
        self._server_lock_fd: int | None = None
        self._report = report
        self._server: subprocess.Popen[bytes] | None = None
        self._launched_at_s = 0.0
        self._quick_exits = 0
        self._stop_reason: str | None = None
        # Signals and the users thread write here, so that one select waits for both.
        self._wake_read_fd, self._wake_write_fd = os.pipe()
        os.set_blocking(self._wake_read_fd, False)
        os.set_blocking(self._wake_write_fd, False)

    def run(self) -> None:
        """Run the server while it has users.

        Raises:
            OrchestratorError: the server did not start, or died again and again.
        """
        self._install_signal_handlers()
        try:
            self._take_server_lock()
            threading.Thread(target=self._await_last_user, name="users", daemon=True).start()
            self._launch()
            self._report.ready()
            self._watch()
        except StopRequested:
            log_line(f"stopping: {self._stop_reason}")
        finally:
            self._stop_server()

    # ---------------------------------------------------------------------------------------------------------- waiting

    def _install_signal_handlers(self) -> None:
        signal.set_wakeup_fd(self._wake_write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._ask_to_stop("SIGTERM"))
        # Ctrl-C and a closed terminal end users; the server ends after them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _await_last_user(self) -> None:
        # Held until this process ends, so that no user joins while the server stops.
        fcntl.flock(self._users_fd, fcntl.LOCK_EX)
        self._ask_to_stop("the last user left")
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write_fd, b"u")

    def _ask_to_stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    def _pause(self, timeout_s: float | None) -> None:
        """Sleep until a signal, the end of the last user, or the time-out."""
        select.select([self._wake_read_fd], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read_fd, 512):
                pass

    def _pause_unless_stopped(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while (rest_s := deadline_s - time.monotonic()) > 0:
            self._check_stop()
            self._pause(rest_s)
        self._check_stop()

    def _check_stop(self) -> None:
        if self._stop_reason:
            raise StopRequested

    # --------------------------------------------------------------------------------------------------------- starting

    def _take_server_lock(self) -> None:
        """Wait for the server of an earlier guardian to end; ask it to, in case the kernel did not signal it."""
        deadline_s = time.monotonic() + ORPHAN_TIMEOUT_S
        while (lock_fd := self._place.take_server_lock()) is None:
            if time.monotonic() >= deadline_s:
                lock = shlex.quote(str(self._place.server_lock))
                raise ServerUnavailable(
                    f"another redis-server has held {self._place.path} for {ORPHAN_TIMEOUT_S:g} s; "
                    f"find its process with `fuser {lock}`, stop it and try again"
                )
            with contextlib.suppress(OSError):
                probe.ask(self._socket_path, "SHUTDOWN")
            self._pause_unless_stopped(0.05)
        self._server_lock_fd = lock_fd

    def _launch(self) -> None:
        """Start the server, wait until it answers, and write its record."""
        try:
            self._await_answer(*self._spawn())
            self._write_record()
        except OSError as error:
            self._stop_server()
            raise ServerUnavailable(f"no server could be started in {self._place.path}: {error}") from error

    def _spawn(self) -> tuple[subprocess.Popen[bytes], int]:
        """Start the server; return it and the position of its first log line."""
        assert self._server_lock_fd is not None
        if not is_same_file(self._server_lock_fd, self._place.server_lock):
            # Another guardian may serve a new directory of this name.
            raise FileNotFoundError("the directory was deleted or replaced while its server ran")
        self._launched_at_s = time.monotonic()
        self._socket_path.unlink(missing_ok=True)
        with self._place.open_log(self._place.server_log) as log:
            log_start = os.fstat(log.fileno()).st_size
            self._server = subprocess.Popen(  # noqa: S603 - a program that was found and asked for its version
                [self._binary.path, REDIS_CONF, "--unixsocket", self._socket_path, "--maxmemory", self._maxmemory],
                # The working directory is the data directory, so that no user path needs quoting for Redis.
                cwd=self._place.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._server_lock_fd,),
                preexec_fn=end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - it calls prctl and nothing that could need a lock
            )
        return self._server, log_start

    def _write_record(self) -> None:
        assert self._server is not None
        self._place.write_record(
            ServerRecord(
                socket=self._socket_path,
                pid=self._server.pid,
                guardian_pid=os.getpid(),
                version=self._binary.version,
                binary=self._binary.path,
                started_at_ms=time.time_ns() // 1_000_000,
            )
        )
        self._place.failure_file.unlink(missing_ok=True)
        log_line(f"redis-server {self._binary.version} runs as process {self._server.pid} on {self._socket_path}")

    def _await_answer(self, server: subprocess.Popen[bytes], log_start: int) -> None:
        poll_s = _READY_POLL_S
        while True:
            if server.poll() is not None:
                raise self._start_failure(server.returncode, log_start)
            health = probe.health(self._socket_path)
            if health is probe.Health.UP:
                return
            if health is probe.Health.LOADING:
                self._report.loading()
            self._pause_unless_stopped(poll_s)
            poll_s = min(poll_s * 1.5, _READY_POLL_MAX_S)

    def _start_failure(self, exit_code: int, log_start: int) -> OrchestratorError:
        with self._place.server_log.open("rb") as log:
            log.seek(log_start)
            lines = log.read().decode("utf-8", "replace").splitlines()
        said = "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:]) or "  (nothing)"
        message = (
            f"redis-server {self._binary.version} ({self._binary.path}) did not start in {self._place.path}: "
            f"it {_describe_exit(exit_code)}, and its log {self._place.server_log} ends with:\n{said}"
        )
        if exit_code < 0:
            return ServerUnavailable(message)
        return ConfigError("\n".join([message, *self._repair_hints("\n".join(lines))]))

    def _repair_hints(self, log: str) -> list[str]:
        if "RDB format version" in log:
            return [f"The data was written by a newer Redis. Use that one again: {INSTALL_HINT}."]
        if "append only file" in log.lower():
            # redis-server checks its files under that name; another version may not know the format.
            command = shlex.quote(str(self._binary.path))
            manifest = shlex.quote(str(self._place.path / "appendonlydir" / "appendonly.aof.manifest"))
            repair = f"exec -a redis-check-aof {command} --fix {manifest}"
            return [f"Copy the directory, then cut off what is damaged: bash -c {shlex.quote(repair)}"]
        return []

    # --------------------------------------------------------------------------------------------------------- watching

    def _watch(self) -> None:
        while True:
            self._check_stop()
            if self._server and self._server.poll() is not None:
                self._restart(self._server.returncode)
            else:
                self._pause(None)

    def _restart(self, exit_code: int) -> None:
        uptime_s = time.monotonic() - self._launched_at_s
        self._place.remove_record(os.getpid())
        self._quick_exits = self._quick_exits + 1 if uptime_s < QUICK_EXIT_S else 1
        reason: OrchestratorError = ServerUnavailable(
            f"redis-server {_describe_exit(exit_code)} after {uptime_s:.1f} s"
        )
        while self._quick_exits <= QUICK_EXITS_MAX:
            delay_s = RESTART_DELAY_S * 2 ** (self._quick_exits - 1)
            log_line(f"{reason}; starting it again in {delay_s:g} s")
            self._pause_unless_stopped(delay_s)
            try:
                self._launch()
            except (ConfigError, ServerUnavailable) as error:
                reason = error
                self._quick_exits += 1
            else:
                return
        raise ServerUnavailable(f"gave up after {QUICK_EXITS_MAX} restarts in a row: {reason}")

    # --------------------------------------------------------------------------------------------------------- stopping

    def _stop_server(self) -> None:
        """Stop the server so that it saves its data; kill it after a time-out."""
        self._place.remove_record(os.getpid())
        server = self._server
        if server is None:
            return
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while server.poll() is None:
            if time.monotonic() >= deadline_s:
                log_line(f"redis-server {server.pid} did not stop within {STOP_TIMEOUT_S:g} s: killing it")
                server.kill()
            else:
                # Repeat, because a busy server may decline.
                server.terminate()
            reminder_s = time.monotonic() + STOP_REMINDER_S
            while server.poll() is None and time.monotonic() < reminder_s:
                self._pause(STOP_REMINDER_S)
        self._socket_path.unlink(missing_ok=True)


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was killed by {signal.Signals(-exit_code).name}"


def log_line(text: str) -> None:
    """Write a line to the guardian's log, which is its standard error."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} guardian {os.getpid()}: {text}\n")
    sys.stderr.flush()


def run_guardian(
    place: DataDir, *, server: Path | None, guardian_lock_fd: int, report: StartReport, ephemeral: bool
) -> int:
    """Run a guardian to its end and return the exit code.

    Args:
        place: the data directory.
        server: the server program; None finds one.
        guardian_lock_fd: descriptor of guardian.lock.
        report: receives the progress of the start.
        ephemeral: remove the data directory after the last user.
    """
    users_fd = os.open(place.users_lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        RedisGuardian(
            place,
            binary=find_server_binary(server),
            socket_path=place.socket_path(),
            users_fd=users_fd,
            report=report,
        ).run()
        exit_code = 0
    except OrchestratorError as error:
        exit_code = _fail(place, error, report, users_fd)
    except Exception as error:  # noqa: BLE001 - the starter waits for a report
        traceback.print_exc()
        failure = ServerUnavailable(f"the guardian of {place.path} failed: {error!r}; see {place.guardian_log}")
        exit_code = _fail(place, failure, report, users_fd)
    if exit_code:
        os.close(guardian_lock_fd)  # users may still be there and retry at once
    if ephemeral:
        fcntl.flock(users_fd, fcntl.LOCK_EX)
        shutil.rmtree(place.path, ignore_errors=True)
    # The lock users.lock ends with this process, as the last one; only then can a user join.
    return exit_code


def _fail(place: DataDir, failure: OrchestratorError, report: StartReport, users_fd: int) -> int:
    """Report why there is no server: to the log, to later users and to the starter."""
    log_line(str(failure))
    if is_same_file(users_fd, place.users_lock):
        with contextlib.suppress(OSError):
            write_private(place.failure_file, f"{failure}\n")
    report.failed(failure)
    return failure.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, detach from the starter and run the guardian."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.embedded.guardian", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--server", type=Path, help="the redis-server to run")
    parser.add_argument("--ephemeral", action="store_true", help="remove the directory at the end")
    parser.add_argument("--detach", action="store_true", help="go on in a child and return at once")
    parser.add_argument("--guardian-lock-fd", type=int, help="inherited descriptor that holds guardian.lock")
    parser.add_argument("--report-fd", type=int, help="inherited pipe to the starter")
    options = parser.parse_args(arguments)
    if options.detach and os.fork():
        # The starter waits for this process only, and the guardian is no child of it.
        os._exit(0)
    os.umask(0o077)
    # redis-server would inherit blocked signals and never receive SIGTERM.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    place = DataDir(options.data_dir.resolve())
    guardian_lock_fd = options.guardian_lock_fd if options.guardian_lock_fd is not None else place.take_guardian_lock()
    if guardian_lock_fd is None:
        parser.error(f"{place.path} has a guardian already")
    return run_guardian(
        place,
        server=options.server,
        guardian_lock_fd=guardian_lock_fd,
        report=StartReport(options.report_fd),
        ephemeral=options.ephemeral,
    )


if __name__ == "__main__":
    sys.exit(main())
