"""Findings of the doctor at the server and in the pool, when a person asks for them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.doctor.findings import Severity
from orchestrator.views.doctor import diagnose_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.services import Services
    from orchestrator.views.doctor import Diagnosis

KEPT_S: Final = 60.0
"""How long pages show the findings of one run, because the checks send some hundred commands."""
WORST_FIRST: Final = (Severity.PROBLEM, Severity.WARNING, Severity.OK)


@dataclass(slots=True)
class _LastRun:
    """The last run of this process; pages that ask meanwhile wait for its end."""

    lock: anyio.Lock
    root: str = ""
    read_s: float = 0.0
    at: datetime | None = None
    found: Diagnosis | None = None


_last = _LastRun(anyio.Lock())


@page("/doctor", "doctor.html")
async def doctor(asked: PageRequest) -> Mapping[str, Any]:
    """Run the checks if the query asks for it."""
    found, at = await run_checks(asked.services) if asked.text("run") is not None else (None, None)
    findings = () if found is None else found.findings
    return {
        "found": found,
        "at": at,
        "findings": sorted(findings, key=lambda one: (WORST_FIRST.index(one.severity), one.code)),
        "line": command_line("doctor"),
    }


async def run_checks(services: Services) -> tuple[Diagnosis, datetime]:
    """Return the findings of a run of at most `KEPT_S` ago, and its time."""
    async with _last.lock:
        fresh = _last.root == services.keys.root and time.monotonic() - _last.read_s < KEPT_S
        if not fresh or _last.found is None or _last.at is None:
            _last.found, _last.at = await diagnose_server(services), datetime.now(UTC)
            _last.root, _last.read_s = services.keys.root, time.monotonic()
        return _last.found, _last.at
