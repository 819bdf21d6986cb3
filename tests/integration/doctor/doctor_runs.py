"""Examines a server or a pool as `orc doctor` does, and types what its fix lines say."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from orchestrator.doctor.findings import Severity
from orchestrator.doctor.runner import run_server_checks

if TYPE_CHECKING:
    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.doctor.findings import DoctorFinding


async def run_doctor(settings: Settings) -> dict[str, DoctorFinding]:
    """All findings about server and pool by code; of several of one code the worst."""
    found: dict[str, DoctorFinding] = {}
    for finding in (await run_server_checks(settings)).findings:
        if finding.code not in found or found[finding.code].severity is Severity.OK:
            found[finding.code] = finding
    return found


async def find_problems(settings: Settings) -> dict[str, str]:
    """What is not well, as `code: severity`.

    A server of tests has no append-only file, short listpacks and an old patch, and a test may be slower than its
    heartbeat: none of them is meant here.
    """
    patient = settings.worker.model_copy(update={"heartbeat_s": 60.0})
    found = await run_doctor(settings.model_copy(update={"worker": patient}))
    return {
        code: finding.severity.value
        for code, finding in found.items()
        if finding.severity is not Severity.OK and code not in {"redis-aof", "redis-listpack", "server-faults"}
    }


def run_fix(client: redis.Redis, finding: DoctorFinding) -> None:
    """Run every `redis-cli` command of a fix line, as a person would who pastes it."""
    typed = re.findall(r"`redis-cli ([^`]+)`", finding.fix)
    assert typed, f"nothing to type in: {finding.fix}"
    for command in typed:
        client.execute_command(*shlex.split(command))  # type: ignore[no-untyped-call]
