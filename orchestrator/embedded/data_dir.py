"""Finds and creates the data directory of an embedded server, with its files and three locks.

users.lock     shared by every user of the server. The guardian waits to hold it alone; then no user can join.
guardian.lock  held by the guardian while it runs. A starter takes it first and passes it on without a gap.
server.lock    held by the guardian and, through an inherited descriptor, by its redis-server; free if none writes.

All are flock locks, which the kernel drops with their last holder. Files prove nothing about running processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import ConfigError, ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import FileIO

NAME = ".orc"
ENVIRONMENT_NAME = "ORC_DATA_DIR"
FOREIGN_NAME = "ORC_DATA_DIR_FOREIGN"
"""Set to 1, it accepts a data directory that another user owns, such as a mounted volume."""
MEMORY_NAME = "ORC_DATA_MAXMEMORY"
"""Memory of the server, as Redis writes it (`2gb`); 0 for no bound."""
POLL_S = 0.02

SOCKET_PATH_MAX_BYTES = 107
_LOG_MAX_BYTES = 1024 * 1024
_IGNORED_NAMES = frozenset({"lost+found"})


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Record of a guardian about its running server."""

    socket: Path
    pid: int
    guardian_pid: int
    version: str
    binary: Path
    started_at_ms: int


def find_data_dir(
    explicit: Path | None = None,
    *,
    create: bool,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Path | None:
    """Find the data directory.

    Args:
        explicit: directory from the command line; it wins.
        create: create the directory if it does not exist; without a name, `.orc` in `cwd`.
        environ: has `ORC_DATA_DIR`, the second choice.
        cwd: start of the upward search for `.orc`, the third choice; default: the current directory.

    Returns:
        The directory, even if a named one does not exist; None if none was named or found.

    Raises:
        ConfigError: the directory cannot be created or used.
    """
    named = explicit or environ.get(ENVIRONMENT_NAME)
    start = (cwd or Path.cwd()).resolve()
    if named:
        found: Path | None = start / Path(named).expanduser()
    else:
        found = next(_data_dirs_above(start), None)
    if create:
        found = found or start / NAME
        DataDir(found).prepare()
    return found.resolve() if found else None


def _data_dirs_above(start: Path) -> Iterator[Path]:
    for folder in (start, *start.parents):
        candidate = folder / NAME
        with contextlib.suppress(OSError):
            # Skip directories and links of other users, for example in /tmp, which could lead to a foreign server.
            ours = {candidate.stat().st_uid, candidate.lstat().st_uid} == {os.geteuid()}
            if ours and DataDir(candidate).users_lock.is_file():
                yield candidate


@dataclass(frozen=True, slots=True)
class DataDir:
    """One data directory. `path` should be resolved, because the socket's name depends on it."""

    path: Path

    @property
    def users_lock(self) -> Path:
        """Shared by all users of the server."""
        return self.path / "users.lock"

    @property
    def guardian_lock(self) -> Path:
        """Held by the guardian."""
        return self.path / "guardian.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the guardian and its server."""
        return self.path / "server.lock"

    @property
    def record_file(self) -> Path:
        """Location of the running server; see `ServerRecord`."""
        return self.path / "server.json"

    @property
    def server_log(self) -> Path:
        """Output of redis-server."""
        return self.path / "redis.log"

    @property
    def guardian_log(self) -> Path:
        """Output of the guardian."""
        return self.path / "guardian.log"

    @property
    def failure_file(self) -> Path:
        """Reason why the last guardian gave up; absent after a good start."""
        return self.path / "last-failure.txt"

    # -------------------------------------------------------------------------------------------------------- making it

    def prepare(self) -> None:
        """Create the directory, private to the user and ignored by git; harmless when repeated.

        Raises:
            ConfigError: it cannot be created or written, contains other files, or others could write into it.
        """
        try:
            try:
                self.path.mkdir(mode=0o700, parents=True)
            except FileExistsError:
                self._refuse_other_files()
                self.check_private()
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(13, "it is not writable")
            if not self.users_lock.exists():
                # The first file, because its presence marks a data directory.
                os.close(_open_lock(self.users_lock, create=True))
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                write_private(ignore, "*\n")
        except OSError as error:
            raise ConfigError(
                f"the data directory {self.path} cannot be used: {error.strerror or error}; "
                f"name another one with --data-dir or {ENVIRONMENT_NAME}"
            ) from error

    def check_private(self) -> None:
        """Check that the directory is the user's own, and close it to others.

        Others who could write into it could plant the data of a server, or links in place of its files.

        Raises:
            ConfigError: it belongs to another user, or others could write into it and it is not empty.
            OSError: it cannot be looked at.
        """
        if os.environ.get(FOREIGN_NAME) == "1":
            return
        elsewhere = f"name another directory with --data-dir or {ENVIRONMENT_NAME}"
        owners = {self.path.stat().st_uid, self.path.lstat().st_uid} - {os.geteuid()}
        if owners:
            raise ConfigError(
                f"the data directory {self.path} belongs to user {min(owners)}, who could put data and links there; "
                f"{elsewhere}, or set {FOREIGN_NAME}=1 if you trust that user, as with a mounted volume"
            )
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & 0o077:
            self.path.chmod(0o700)
        if mode & 0o022 and any(entry.name not in _IGNORED_NAMES for entry in self.path.iterdir()):
            self.path.chmod(mode)
            raise ConfigError(
                f"the data directory {self.path} has mode {mode:04o}, so other users could have put data and links "
                f"there; look at its files and `chmod 700` it, or {elsewhere}"
            )

    def _refuse_other_files(self) -> None:
        names = {entry.name for entry in self.path.iterdir()} - _IGNORED_NAMES
        if names and not self.users_lock.exists():
            raise ConfigError(
                f"{self.path} is not empty and is no data directory of an embedded server; "
                f"name a new or an empty directory with --data-dir or {ENVIRONMENT_NAME}"
            )

    # -------------------------------------------------------------------------------------------------------- its locks

    def join_users(self, *, create: bool, timeout_s: float) -> int | None:
        """Lock users.lock, shared, and return its descriptor, or None if there is no such directory.

        Waits while a guardian stops its server and holds the lock alone.

        Raises:
            ConfigError: others could write into the directory.
            ServerUnavailable: the guardian kept the lock too long.
        """
        deadline_s = time.monotonic() + timeout_s
        if self.users_lock.exists():
            self.check_private()
        while True:
            try:
                users_fd = _open_lock(self.users_lock, create=create)
            except (FileNotFoundError, NotADirectoryError):
                if create:
                    raise
                return None
            try:
                self._wait_for_shared_lock(users_fd, deadline_s)
                # An ephemeral directory may have been removed and created again meanwhile.
                if is_same_file(users_fd, self.users_lock):
                    return users_fd
            except BaseException:
                os.close(users_fd)
                raise
            os.close(users_fd)

    def _wait_for_shared_lock(self, users_fd: int, deadline_s: float) -> None:
        while not try_lock(users_fd, fcntl.LOCK_SH):
            if time.monotonic() >= deadline_s:
                raise ServerUnavailable(
                    f"the server in {self.path} takes too long to stop; see {self.server_log}, and try again"
                )
            time.sleep(POLL_S)

    def take_guardian_lock(self) -> int | None:
        """Lock guardian.lock for a new guardian, or return None if a guardian holds it."""
        lock_fd = self._take(self.guardian_lock)
        if lock_fd is not None:
            # Under this lock, the record of a killed guardian would look like that of a running server.
            self.record_file.unlink(missing_ok=True)
        return lock_fd

    def take_server_lock(self) -> int | None:
        """Take server.lock; None while a server of an earlier guardian runs."""
        return self._take(self.server_lock)

    def guardian_is_alive(self) -> bool:
        """Tell whether a guardian holds guardian.lock."""
        try:
            guardian_fd = _open_lock(self.guardian_lock, create=False)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(guardian_fd, fcntl.LOCK_SH)
        finally:
            os.close(guardian_fd)

    def has_other_users(self) -> bool:
        """Tell whether other processes share users.lock while a guardian serves; call it without holding the lock."""
        try:
            users_fd = _open_lock(self.users_lock, create=False)
        except FileNotFoundError:
            return False
        try:
            # Locked but shared, so the holder is a user and not a stopping guardian.
            return (
                not try_lock(users_fd, fcntl.LOCK_EX) and try_lock(users_fd, fcntl.LOCK_SH) and self.guardian_is_alive()
            )
        finally:
            os.close(users_fd)

    @staticmethod
    def _take(lock: Path) -> int | None:
        lock_fd = _open_lock(lock, create=True)
        if try_lock(lock_fd, fcntl.LOCK_EX):
            return lock_fd
        os.close(lock_fd)
        return None

    # ------------------------------------------------------------------------------------------------------- its record

    def read_record(self) -> ServerRecord | None:
        """Return the guardian's record, or None if there is no valid one, as in a copied directory."""
        try:
            fields = json.loads(self.record_file.read_bytes())
            record = ServerRecord(
                socket=Path(fields["socket"]),
                pid=int(fields["pid"]),
                guardian_pid=int(fields["guardian_pid"]),
                version=str(fields["version"]),
                binary=Path(fields["binary"]),
                started_at_ms=int(fields["started_at_ms"]),
            )
            return record if record.socket.name == self._socket_name() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_record(self, record: ServerRecord) -> None:
        """Replace the record atomically."""
        fields = asdict(record) | {"socket": os.fspath(record.socket), "binary": os.fspath(record.binary)}
        draft = self.record_file.with_suffix(".new")
        write_private(draft, json.dumps(fields, indent=2) + "\n")
        draft.replace(self.record_file)

    def remove_record(self, guardian_pid: int) -> None:
        """Remove the record of this guardian; the directory may have been deleted and created again."""
        record = self.read_record()
        if record and record.guardian_pid == guardian_pid:
            self.record_file.unlink(missing_ok=True)

    # --------------------------------------------------------------------------------------------------------- its logs

    @staticmethod
    def open_log(log: Path) -> FileIO:
        """Open a log for appending; rotate it first if it is large."""
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > _LOG_MAX_BYTES:
                log.replace(log.with_name(log.name + ".1"))
        return open(log, "ab", buffering=0, opener=_open_no_link)

    # ------------------------------------------------------------------------------------------------------- its socket

    def socket_path(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Return the path of the server's socket, in a private folder that is created.

        The name is stable for one directory, and differs after the directory was deleted and created again, so that an
        old server cannot unlink the socket of a new one.

        Raises:
            ConfigError: no folder is private and has a short enough path.
        """
        name = self._socket_name()
        refused: list[str] = []
        for folder in _socket_folders(environ):
            path = folder / name
            size_bytes = len(os.fsencode(path))
            if size_bytes > SOCKET_PATH_MAX_BYTES:
                refused.append(f"{folder}: a socket there would have a path of {size_bytes} bytes")
                continue
            try:
                _make_private(folder)
            except OSError as error:
                refused.append(f"{folder}: {error.strerror or error}")
                continue
            return path
        raise ConfigError(
            f"no place for the unix socket of {self.path} (a path of at most {SOCKET_PATH_MAX_BYTES} bytes "
            f"in a private folder): {'; '.join(refused)}; "
            f"set XDG_RUNTIME_DIR or TMPDIR to a short, private folder"
        )

    def _socket_name(self) -> str:
        lock = self.users_lock.stat()
        identity = f"{lock.st_dev}:{lock.st_ino}:".encode() + os.fsencode(self.path)
        return hashlib.sha256(identity).hexdigest()[:12] + ".sock"


def try_lock(lock_fd: int, operation: int) -> bool:
    """Take a flock lock without waiting."""
    try:
        fcntl.flock(lock_fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_same_file(opened_fd: int, path: Path) -> bool:
    """Tell whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(opened_fd), path.stat())
    except FileNotFoundError:
        return False


def write_private(path: Path, text: str) -> None:
    """Write a file of the user's own; a link in its place is refused."""
    with open(path, "w", encoding="utf-8", opener=_open_no_link) as file:
        file.write(text)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _open_lock(path: Path, *, create: bool) -> int:
    return _open_no_link(os.fspath(path), os.O_RDWR | os.O_CREAT if create else os.O_RDONLY)


def _socket_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    if runtime_dir and Path(runtime_dir).is_dir():
        yield Path(runtime_dir) / "orc"
    yield Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"orc-{os.geteuid()}"


def _make_private(folder: Path) -> None:
    """Create a private folder; refuse one of another user."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(13, "it is no private folder of this user (mode 0700)")
