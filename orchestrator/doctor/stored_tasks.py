"""Checks tasks and lifetimes with the scan of `orc keys check`, within a time limit and without repair."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.repair.scan import KeyLifetimes, PoolScan

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.repair.findings import RepairFinding

SCAN_S: Final = 2.0
_SHOWN: Final = 5
_FIX: Final = "`orc keys check --repair`; a supervisor does the same within ten minutes"
_BY_HAND: Final = "`orc keys check` lists them; look at them, then delete or rename them"


async def check_stored_tasks(context: CheckContext, *, budget_s: float = SCAN_S) -> list[DoctorFinding]:
    """Report misplaced tasks and keys without a lifetime."""
    scan = PoolScan(context.store, KeyLifetimes.of(context.settings), repair=False)
    deadline_s = time.monotonic() + budget_s
    found: list[RepairFinding] = []
    whole = True
    async with aclosing(scan.steps()) as steps:
        async for findings in steps:
            found += findings
            if time.monotonic() > deadline_s:
                whole = False
                break
    far = f"all {scan.keys_seen} keys" if whole else f"the {scan.keys_seen} keys that {budget_s:g} s allowed"
    return [*_places(found, far), *_lifetimes(found, far)]


def _places(found: list[RepairFinding], far: str) -> list[DoctorFinding]:
    lost = [each for each in found if each.damage.repair and each.code != "no-lifetime"]
    strange = [each for each in found if not each.damage.repair]
    findings = []
    if harmful := [each for each in lost if not each.damage.harmless]:
        findings.append(problem("lost-tasks", f"{_named(harmful)} in {far}", _FIX))
    if harmless := [each for each in lost if each.damage.harmless]:
        findings.append(warning("lost-tasks", f"{_named(harmless)} in {far}", _FIX))
    if strange:
        findings.append(warning("lost-tasks", f"{_named(strange)} in {far}", _BY_HAND))
    return findings or [ok("lost-tasks", f"looked at {far} of the pool; every task is in its index")]


def _lifetimes(found: list[RepairFinding], far: str) -> list[DoctorFinding]:
    without_ttl = [each for each in found if each.code == "no-lifetime"]
    if without_ttl:
        return [problem("lifetimes", f"{_named(without_ttl)} in {far}", f"{_FIX}; then report it as a bug")]
    return [ok("lifetimes", f"looked at {far} of the pool; every temporary key has a lifetime")]


def _named(found: list[RepairFinding]) -> str:
    codes = ", ".join(dict.fromkeys(each.code for each in found))
    shown = ", ".join(f"{each.subject} {each.place}".rstrip() for each in found[:_SHOWN])
    return f"{len(found)} {codes} ({shown}{', …' * (len(found) > _SHOWN)})"
