"""Reads the work that waits per slot, by which a pool is scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.monitoring.backlog import RunningTimes, compute_backlogs
from orchestrator.monitoring.pool_reader import PoolReader

if TYPE_CHECKING:
    from orchestrator.monitoring.backlog import Backlogs
    from orchestrator.services import Services


async def read_backlog(services: Services) -> Backlogs:
    """Read the backlog of the pool and of each skill."""
    reading = await PoolReader(services.store).read()
    return compute_backlogs(reading, RunningTimes.read(reading.attempts))
