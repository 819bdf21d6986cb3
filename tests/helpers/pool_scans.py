"""Scans a whole pool in one call, as tests need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.repair.scan import KeyLifetimes, PoolScan

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.repair.findings import RepairFinding
    from orchestrator.store.store import Store


async def scan_pool(store: Store, settings: Settings, *, repair: bool = True) -> list[RepairFinding]:
    """Scan every key of the pool and return all findings."""
    scan = PoolScan(store, KeyLifetimes.of(settings), repair=repair)
    return [finding async for found in scan.steps() for finding in found]
