"""Compares the format of the stored data with the one that this program knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.doctor.findings import ok, problem
from orchestrator.store.store import DATA_FORMAT

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding


async def check_data_format(context: CheckContext) -> list[DoctorFinding]:
    """Whether we can read what is there."""
    stored: bytes | None = await context.store.execute("GET", context.store.keys.format)
    if stored is None:
        return [ok("format", f"nothing is stored in pool {context.store.keys.pool!r} yet")]
    if not stored.isdigit() or int(stored) > DATA_FORMAT:
        found = f"the data has format {stored.decode(errors='replace')}, this program knows {DATA_FORMAT}"
        return [problem("format", found, "install the newer version here: `pip install -U redis-orchestrator`")]
    return [ok("format", f"format {stored.decode()}")]
