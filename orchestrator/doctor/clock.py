"""Compares the clock of this machine with that of the server, whose clock decides about leases and delays."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Final

from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding

LOOKS: Final = 9
NOTABLE_S: Final = 1.0
HARMFUL_S: Final = 10.0


async def check_clock(context: CheckContext, *, now_s: Callable[[], float] = time.time) -> list[DoctorFinding]:
    """How far the two clocks are apart: the median over several round trips, each taken at its middle."""
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
