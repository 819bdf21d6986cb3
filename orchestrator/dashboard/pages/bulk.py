"""The question before a bulk action: what it acts on, how many, and what must be typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.durations import instant_ms
from orchestrator.dashboard.bulk import FILTERS, JOBS, read_question
from orchestrator.dashboard.page import page
from orchestrator.tasks.model import TaskState
from orchestrator.views.dead_groups import read_dead_group
from orchestrator.views.queue_pages import read_queue
from orchestrator.views.selections import FrozenTasks, freeze_tasks, server_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/bulk/{action}", "bulk.html")
async def bulk(asked: PageRequest) -> Mapping[str, Any]:
    """Freeze the tasks that the query asks for, and ask."""
    services = asked.services
    question = read_question(asked.path["action"], asked.query)
    until: int | None = None
    ids: tuple[str, ...] = ()
    if question.action == "purge":
        until = instant_ms("until", await server_time(services)) + 1
        count, more = (await read_queue(services, question.wanted.queue or "")).row.tasks, False
    else:
        if question.line is None:
            frozen = await freeze_tasks(services, question.action, question.wanted)
        else:
            found = await read_dead_group(services, question.wanted.skill or "", question.line)
            frozen = FrozenTasks(tuple(found), more=False, looked=len(found))
        count, more, ids = len(frozen.ids), frozen.more, frozen.ids
    given = {name: asked.query[name] for name in (*FILTERS, "state", "line") if asked.query.get(name)}
    return {
        "action": question.action,
        "danger": JOBS[question.action].danger,
        "words": question.words,
        "given": given,
        "count": count,
        "more": more,
        "ids": ids,
        "until": until,
        "name": question.name(services.settings.pool) if question.asks_name(count) else None,
        "dead": TaskState.DEAD.value,
    }
