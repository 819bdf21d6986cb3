"""Looks at who works: a leading supervisor, workers and their signs of life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents import queries as registry
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.tasks import queries as tasks

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding

MISSED_HEARTBEATS = 4


async def check_supervisor(context: CheckContext) -> list[DoctorFinding]:
    """Whether somebody assigns tasks."""
    leader = await registry.leader(context.store)
    if leader is not None:
        return [ok("supervisor", f"{leader} leads")]
    needed = await tasks.any_ready(context.store) or await registry.workers(context.store)
    fix = "`orc supervisor run`, or `orc up`"
    if needed:
        return [problem("supervisor", "no supervisor leads, so nothing is assigned", fix)]
    return [warning("supervisor", "no supervisor leads; nothing waits and no worker lives", fix)]


async def check_workers(context: CheckContext) -> list[DoctorFinding]:
    """Whether workers live, and when each of them was heard of last."""
    workers = await registry.workers(context.store)
    if not workers:
        if await tasks.any_ready(context.store):
            return [problem("workers", "no worker lives, and tasks wait", "`orc worker run MODULE:AGENT`, or `orc up`")]
        return [ok("workers", "no worker lives, and nothing waits")]
    now_ms = await tasks.server_ms(context.store)
    silent_s = {worker.id: max(0.0, now_ms / 1000 - worker.last_seen_at.timestamp()) for worker in workers}
    silence_max_s = context.settings.worker.heartbeat_s * MISSED_HEARTBEATS
    lost = [worker for worker in workers if silent_s[worker.id] > silence_max_s]
    if lost:
        return [
            warning(
                "workers",
                f"{worker.id} has been silent for {silent_s[worker.id]:.0f} s "
                f"(a sign of life is due every {context.settings.worker.heartbeat_s:g} s)",
                f"look at process {worker.pid} on {worker.host}; end it if it is stuck: its tasks run again elsewhere",
            )
            for worker in lost
        ]
    return [ok("workers", f"{len(workers)} live; the quietest was heard {max(silent_s.values()):.1f} s ago")]
