"""Runs the checks of the doctor on this machine, its settings and its pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from orchestrator.doctor.findings import Severity
from orchestrator.doctor.runner import run_machine_checks, run_server_checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings_sources import LoadedSettings
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings of all checks.

    Attributes:
        answered: Redis answered, or the settings name none.
    """

    findings: tuple[DoctorFinding, ...]
    answered: bool

    @property
    def problems(self) -> int:
        """Number of problems."""
        return [finding.severity for finding in self.findings].count(Severity.PROBLEM)

    @property
    def warnings(self) -> int:
        """Number of warnings."""
        return [finding.severity for finding in self.findings].count(Severity.WARNING)


async def diagnose_server(services: Services) -> Diagnosis:
    """Run the checks of the server and the pool, over connections of their own, without those of this machine."""
    seen = await run_server_checks(services.settings)
    return Diagnosis(seen.findings, seen.answered)


async def diagnose(load: Callable[[], LoadedSettings]) -> Diagnosis:
    """Run the checks; `load` reads the settings, whose errors are findings too."""
    findings, settings = await run_sync(lambda: run_machine_checks(load))
    if settings is None:
        return Diagnosis(tuple(findings), answered=True)
    seen = await run_server_checks(settings)
    return Diagnosis((*findings, *seen.findings), seen.answered)
