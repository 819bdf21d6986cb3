"""Reads the keys of a pool: damage, with or without its repair, and a report of their memory."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.ids import encode_foreign
from orchestrator.repair.key_report import KeyReport
from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.repair.scope_scan import ScopeScan
from orchestrator.store.keys import GLOBAL, GLOBAL_ID, ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.repair.findings import RepairFinding
    from orchestrator.repair.key_report import KindReport, ScopeReport
    from orchestrator.services import Services

EXAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class DamageGroup:
    """Damage of one kind.

    Attributes:
        repaired: whether it was repaired.
        harmless: leftovers that need no repair.
        found: what is wrong.
        repair: what a repair does, or None if there is none.
        examples: a few keys or tasks, each with the place that lists it.
    """

    code: str
    count: int
    repaired: bool
    harmless: bool
    found: str
    repair: str | None
    examples: tuple[str, ...]


async def check_keys(
    services: Services, *, repair: bool = False, on_step: Callable[[int, int], None] = lambda *_: None
) -> list[DamageGroup]:
    """Scan the pool and the scopes of its prefix for damage; `on_step` gets the number of scanned keys and places."""
    groups = _Groups()
    scan = PoolScan(services.store, KeyLifetimes.of(services.settings), repair=repair)
    async with aclosing(scan.steps()) as steps:
        async for findings in steps:
            groups.add(findings)
            on_step(scan.keys_seen, scan.places_seen)
    of_scopes = ScopeScan(services, repair=repair)
    async with aclosing(of_scopes.steps()) as steps:
        async for findings in steps:
            groups.add(findings)
            on_step(scan.keys_seen + of_scopes.keys_seen, scan.places_seen)
    return groups.result()


async def check_scopes(
    services: Services, *, scope: str = "", repair: bool = False, on_step: Callable[[int], None] = lambda _: None
) -> list[DamageGroup]:
    """Scan one scope, as `session:S`, `agent:A` or `global`, or all; `on_step` gets the number of scanned keys.

    Raises:
        InvalidInput: no kind of scope.
    """
    kind, _, id_ = (f"{GLOBAL}:{GLOBAL_ID}" if scope == GLOBAL else scope).partition(":")
    only = f"{kind}:{encode_foreign(kind, ScopeKeys(services.keys.prefix, kind, id_).id)}" if scope else ""
    groups, scan = _Groups(), ScopeScan(services, repair=repair, only=only)
    async with aclosing(scan.steps()) as steps:
        async for findings in steps:
            groups.add(findings)
            on_step(scan.keys_seen)
    return groups.result()


class _Groups:
    """Findings by code."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._some: dict[tuple[str, bool], list[RepairFinding]] = {}

    def add(self, findings: Sequence[RepairFinding]) -> None:
        for finding in findings:
            kind = finding.code, finding.repaired
            self._counts[kind] += 1
            if self._counts[kind] <= EXAMPLES:
                self._some.setdefault(kind, []).append(finding)

    def result(self) -> list[DamageGroup]:
        return [
            DamageGroup(
                code=code,
                count=self._counts[code, repaired],
                repaired=repaired,
                harmless=some[0].damage.harmless,
                found=some[0].damage.found,
                repair=some[0].damage.repair or None,
                examples=tuple(f"{each.subject} {each.place}".rstrip() for each in some),
            )
            for (code, repaired), some in self._some.items()
        ]


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The keys of a pool and of the scopes of its prefix.

    Attributes:
        kinds: kinds that have keys.
        scopes: the biggest sessions and memories, and each scope that needs a look.
        alarms: sentences about what needs a look.
    """

    kinds: list[KindReport]
    scopes: list[ScopeReport]
    alarms: list[str]


async def count_keys(services: Services, *, on_step: Callable[[int], None] = lambda _: None) -> KeyCounts:
    """Count keys and measure their memory; `on_step` gets the number of counted keys.

    Rests after each step as long as the step took, so that the server has half of its time for its programs.
    """
    report = KeyReport(services)
    async with aclosing(report.steps()) as steps:
        started_s = time.monotonic()
        async for seen in steps:
            on_step(seen)
            await anyio.sleep(time.monotonic() - started_s)
            started_s = time.monotonic()
    scopes = report.scopes()
    alarms = [f"{scope.scope}: {scope.alarm}" for scope in scopes if scope.alarm]
    return KeyCounts(report.kinds, scopes, [*report.alarms(), *alarms])
