"""Commands: who gave which one when and why, and who has answered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.commands import KINDS, Job
from orchestrator.core.reading import read_whole
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.active_commands import read_desired, view
from orchestrator.views.control import job_state, page_commands, read_command
from orchestrator.views.selections import read_job_items

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN = 50
HURRIES: Final = timedelta(minutes=10)
"""How long after a command its page looks for receipts each second. The feed does not tell of them."""
JOB_KINDS: Final = frozenset(kind for kind, model in KINDS.items() if issubclass(model, Job))


@page("/control", "control.html")
async def control(asked: PageRequest) -> Mapping[str, Any]:
    """Read the newest commands and the active ones."""
    actor, kind, refused = asked.text("actor"), asked.text("kind"), asked.text("refused") is not None
    now = await read_desired(asked.services)
    found = await page_commands(
        asked.services, actor=actor, kind=kind, refused=refused, before=asked.text("after"), limit=SHOWN
    )
    words = [*(("--actor", actor) if actor else ()), *(("--kind", kind) if kind else ())]
    return {
        "found": found,
        "commands": found.records,
        "active": [view(one) for _, one in sorted(now.active.items())[:SHOWN]],
        "active_total": len(now.active),
        "actor": actor or "",
        "kind": kind or "",
        "refused": refused,
        "kinds": sorted(KINDS),
        "without": asked.without,
        "line": command_line("control", "list", *words, *(("--refused",) if refused else ())),
    }


@page("/control/{id}", "command.html")
async def command(asked: PageRequest) -> Mapping[str, Any]:
    """Read one command and its receipts; of a job, its progress and what became of its tasks."""
    found = await read_command(asked.services, asked.path["id"])
    is_job = found.record.kind in JOB_KINDS
    first = read_whole(asked.text("first") or "0")
    job = job_state(found.receipts) if is_job else None
    waits = bool(found.receipts.missing or found.receipts.busy) or (job is not None and not job.ended)
    return {
        "command": found,
        "replayed": asked.text("replayed") is not None,
        "job": job,
        "hurries": waits and datetime.now(UTC) - found.record.at < HURRIES,
        "items": await read_job_items(asked.services, found.record.id, first=max(0, first)) if is_job else None,
        "line": command_line("control", "show", found.record.id),
    }
