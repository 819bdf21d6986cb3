"""Checks this machine: interpreter, operating system, process limits and clock."""

from __future__ import annotations

import platform
import sys
import time
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from statistics import median
from typing import TYPE_CHECKING, Final

from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding

OLDEST_PYTHON: Final = (3, 11)
ENOUGH_FILES: Final = 1024
LOOKS: Final = 9
NOTABLE_S: Final = 1.0
HARMFUL_S: Final = 10.0


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> list[DoctorFinding]:
    """Check the version of the interpreter."""
    found = f"Python {'.'.join(map(str, version))} at {sys.executable}, redis-orchestrator {_ours()}"
    if version[:2] < OLDEST_PYTHON:
        return [problem("python", found, "create the environment again with Python 3.11 or newer")]
    return [ok("python", found)]


def check_platform(system: str = platform.system()) -> list[DoctorFinding]:
    """Check the operating system; only Linux ends processes with their parent."""
    found = f"{system} {platform.release()} on {platform.machine()}"
    match system:
        case "Linux":
            return [ok("platform", found)]
        case "Darwin":
            return [ok("platform", f"{found}; workers survive a killed host")]
    return [problem("platform", found, "run it on Linux or macOS; on Windows inside WSL")]


def check_open_files() -> list[DoctorFinding]:
    """Check the limit of open files of a process."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [ok("open-files", "no limit")]
    found = f"a process may open {soft} files"
    if soft < ENOUGH_FILES:
        return [warning("open-files", found, "run `ulimit -n 4096` first, or set LimitNOFILE=4096 in the service")]
    return [ok("open-files", found)]


def _ours() -> str:
    try:
        return version_of("redis-orchestrator")
    except PackageNotFoundError:  # run from a folder without installation
        return "(not installed)"


async def check_clock(context: CheckContext, *, now_s: Callable[[], float] = time.time) -> list[DoctorFinding]:
    """Compare the clocks of machine and server by the median of several round trips."""
    ahead_s = []
    for _ in range(LOOKS):
        before_s = now_s()
        seconds, microseconds = await context.store.execute("TIME")
        ahead_s.append((before_s + now_s()) / 2 - (int(seconds) + int(microseconds) / 1e6))
    skew_s = median(ahead_s)
    way = "ahead of" if skew_s > 0 else "behind"
    found = f"this machine is {_size(abs(skew_s))} {way} the server"
    fix = "run chrony or systemd-timesyncd on both machines (`timedatectl set-ntp true`)"
    if abs(skew_s) > HARMFUL_S:
        return [problem("clock", f"{found}: `at`, `start_by` and deadlines are off by as much", fix)]
    if abs(skew_s) > NOTABLE_S:
        return [warning("clock", found, fix)]
    return [ok("clock", found)]


def _size(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
