"""Looks at this machine: interpreter, system, limits of a process."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Final

from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from orchestrator.doctor.findings import DoctorFinding

OLDEST_PYTHON: Final = (3, 11)
ENOUGH_FILES: Final = 1024


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> list[DoctorFinding]:
    """The interpreter, and which version of this program it runs."""
    found = f"Python {'.'.join(map(str, version))} at {sys.executable}, redis-orchestrator {_ours()}"
    if version[:2] < OLDEST_PYTHON:
        return [problem("python", found, "make the environment anew with Python 3.11 or newer")]
    return [ok("python", found)]


def check_platform(system: str = platform.system()) -> list[DoctorFinding]:
    """The system; only Linux ends processes with their parent."""
    found = f"{system} {platform.release()} on {platform.machine()}"
    match system:
        case "Linux":
            return [ok("platform", found)]
        case "Darwin":
            return [ok("platform", f"{found}; workers outlive a host that is killed, the kernel does not end them")]
    return [problem("platform", found, "run it on Linux or macOS; on Windows inside WSL")]


def check_open_files() -> list[DoctorFinding]:
    """How many files and connections one process may have open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [ok("open-files", "no limit")]
    found = f"a process may open {soft} files"
    if soft < ENOUGH_FILES:
        return [warning("open-files", found, "type `ulimit -n 4096` first, or set LimitNOFILE=4096 in the service")]
    return [ok("open-files", found)]


def _ours() -> str:
    try:
        return version_of("redis-orchestrator")
    except PackageNotFoundError:  # run from a folder that was never installed
        return "(not installed)"
