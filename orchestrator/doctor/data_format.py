"""Checks the format of the stored data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.doctor.findings import ok, problem
from orchestrator.store.store import format_mismatch

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding


async def check_data_format(context: CheckContext) -> list[DoctorFinding]:
    """Report data that another version of this program wrote."""
    stored: bytes | None = await context.store.execute("GET", context.store.keys.format)
    if stored is None:
        return [ok("format", f"nothing is stored in pool {context.store.keys.pool!r} yet")]
    if mismatch := format_mismatch(stored, context.store.keys):
        found, fix = mismatch
        return [problem("format", found, fix)]
    return [ok("format", f"format {stored.decode()}")]
