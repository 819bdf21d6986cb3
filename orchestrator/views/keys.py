"""Reads the keys of a pool: damage, with or without its repair, and a report of their memory."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.repair.key_report import KeyReport
from orchestrator.repair.scan import KeyLifetimes, PoolScan

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.repair.findings import RepairFinding
    from orchestrator.repair.key_report import KindReport
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
    """Scan the pool for damage; `on_step` gets the number of scanned keys and places."""
    scan = PoolScan(services.store, KeyLifetimes.of(services.settings), repair=repair)
    groups: dict[tuple[str, bool], list[RepairFinding]] = {}
    counts: dict[tuple[str, bool], int] = {}
    async with aclosing(scan.steps()) as steps:
        async for findings in steps:
            for finding in findings:
                kind = finding.code, finding.repaired
                counts[kind] = counts.get(kind, 0) + 1
                if counts[kind] <= EXAMPLES:
                    groups.setdefault(kind, []).append(finding)
            on_step(scan.keys_seen, scan.places_seen)
    return [
        DamageGroup(
            code=code,
            count=counts[code, repaired],
            repaired=repaired,
            harmless=some[0].damage.harmless,
            found=some[0].damage.found,
            repair=some[0].damage.repair or None,
            examples=tuple(f"{each.subject} {each.place}".rstrip() for each in some),
        )
        for (code, repaired), some in groups.items()
    ]


async def count_keys(services: Services, *, on_step: Callable[[int], None] = lambda _: None) -> list[KindReport]:
    """Count the keys of each kind and estimate their memory; `on_step` gets the number of counted keys."""
    report = KeyReport(services.store)
    async with aclosing(report.steps()) as steps:
        async for seen in steps:
            on_step(seen)
    return report.kinds
