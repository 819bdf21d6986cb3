"""Says what a walk through the pool finds: tasks that are in no place or in two, keys that would stay for ever.

The walk is that of `orc keys check`, without repair; here it is bounded, and says how far it got.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.repair.walk import Terms, Walk

if TYPE_CHECKING:
    from orchestrator.doctor.findings import Finding
    from orchestrator.doctor.subject import Subject
    from orchestrator.repair.findings import Finding as Damage

WALK_S: Final = 2.0
_SHOWN: Final = 5
_FIX: Final = "`orc keys check --repair`; a supervisor does the same within ten minutes"
_BY_HAND: Final = "`orc keys check` lists them; look at them, then delete or rename them"


async def check_leftovers(subject: Subject, *, budget_s: float = WALK_S) -> list[Finding]:
    """Places of tasks, and lifetimes of keys."""
    walk = Walk(subject.store, Terms.of(subject.settings), repair=False)
    deadline_s = time.monotonic() + budget_s
    found: list[Damage] = []
    whole = True
    async with aclosing(walk.steps()) as steps:
        async for findings in steps:
            found += findings
            if time.monotonic() > deadline_s:
                whole = False
                break
    far = f"all {walk.keys_seen} keys" if whole else f"the {walk.keys_seen} keys that {budget_s:g} s allowed"
    return [*_places(found, far), *_lifetimes(found, far)]


def _places(found: list[Damage], far: str) -> list[Finding]:
    lost = [each for each in found if each.damage.repair and each.code != "no-lifetime"]
    strange = [each for each in found if not each.damage.repair]
    findings = []
    if harmful := [each for each in lost if not each.damage.harmless]:
        findings.append(problem("lost-tasks", f"{_named(harmful)} in {far}", _FIX))
    if harmless := [each for each in lost if each.damage.harmless]:
        findings.append(warning("lost-tasks", f"{_named(harmless)} in {far}", _FIX))
    if strange:
        findings.append(warning("lost-tasks", f"{_named(strange)} in {far}", _BY_HAND))
    return findings or [ok("lost-tasks", f"looked at {far} of the pool; each task is in its place")]


def _lifetimes(found: list[Damage], far: str) -> list[Finding]:
    immortal = [each for each in found if each.code == "no-lifetime"]
    if immortal:
        return [problem("lifetimes", f"{_named(immortal)} in {far}", f"{_FIX}; then report it as a bug")]
    return [ok("lifetimes", f"looked at {far} of the pool; what should go away will")]


def _named(found: list[Damage]) -> str:
    codes = ", ".join(dict.fromkeys(each.code for each in found))
    shown = ", ".join(f"{each.subject} {each.place}".rstrip() for each in found[:_SHOWN])
    return f"{len(found)} {codes} ({shown}{', …' * (len(found) > _SHOWN)})"
