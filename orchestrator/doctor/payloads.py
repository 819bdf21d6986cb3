"""Checks the payload store: whether it can be written and read, and what it holds for no task."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError, PayloadChanged, PayloadError
from orchestrator.core.ids import new_task_id
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.payloads.opening import open_store
from orchestrator.payloads.reference import ARGS, name_of
from orchestrator.repair.payload_orphans import find_orphans

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.payloads.store import PayloadStore

LOOK_S: Final = 2.0
MANY: Final = 1000
"""Orphans that the next sweeps of the supervisor take away soon."""
_PROBE: Final = b'"orc doctor"'


async def check_payload_store(context: CheckContext) -> list[DoctorFinding]:
    """Write, read and delete one small object, and count objects that no task needs for at most `LOOK_S`."""
    try:
        payloads = open_store(context.settings)
    except ConfigError as wrong:
        what, _, fix = str(wrong).partition("; ")
        return [problem("payload-store", what, fix)]
    if payloads is None:
        return [ok("payload-store", "no payload store; larger values than Redis may hold are refused")]
    try:
        await _probe(payloads)
        return [ok("payload-store", f"{payloads.address} can be written and read"), await _orphans(context, payloads)]
    except PayloadError as failure:
        what, _, fix = str(failure).rpartition("; ")
        return [problem("payload-store", what, fix.replace(", and run `orc doctor`", ""))]


async def _probe(payloads: PayloadStore) -> None:
    name = name_of(new_task_id(), ARGS)
    await payloads.put(name, _PROBE)
    try:
        if await payloads.get(name, max_bytes=len(_PROBE)) != _PROBE:
            raise PayloadChanged(name, payloads.address, "it was just written")
    finally:
        await payloads.delete([name])


async def _orphans(context: CheckContext, payloads: PayloadStore) -> DoctorFinding:
    seen, orphans, orphan_bytes, until_s = 0, 0, 0, time.monotonic() + LOOK_S
    scope = "all objects"
    async for count, found in find_orphans(payloads, context.store):
        seen += count
        orphans += len(found)
        orphan_bytes += sum(one.size for one in found)
        if time.monotonic() > until_s:
            scope = f"the first {seen} objects, in {LOOK_S:g} s"
            break
    told = f"{orphans} orphans of {orphan_bytes / 1e6:.1f} MB among {scope}" if orphans else f"no orphans among {scope}"
    if orphans <= MANY:
        return ok("payload-orphans", f"{told}; the supervisor deletes them" if orphans else told)
    fix = "start a supervisor with the same `payload.store`; its log has `payloads_swept` or `payload_sweep_failed`"
    return warning("payload-orphans", told, fix)
