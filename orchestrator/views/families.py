"""Lists sessions, the tasks of a session, the children of a task, and all tasks below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import NotFound
from orchestrator.core.ids import check_task_id, encode_foreign
from orchestrator.tasks import families
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.families import Members, SessionSummary, TaskTree
    from orchestrator.tasks.model import TaskState


async def list_sessions(services: Services, *, limit: int = LIMIT) -> tuple[SessionSummary, ...]:
    """Read the sessions with the latest submit or end of a task, at most `limit`."""
    return tuple(await families.sessions(services.store, limit=limit))


async def list_session_tasks(
    services: Services, session: str, *, states: Collection[TaskState] = (), limit: int = LIMIT
) -> Members:
    """Read the newest tasks of a session, at most `limit`; with `states` only those in one of them.

    Raises:
        InvalidInput: that is no session.
    """
    encode_foreign("session", session)
    return await families.session_tasks(services.store, session, states=states, limit=limit)


async def list_children(
    services: Services, parent: str, *, states: Collection[TaskState] = (), limit: int = LIMIT
) -> Members:
    """Read the children of a task in the order of their submits, as `list_session_tasks`.

    Raises:
        InvalidInput: that is no id of a task.
    """
    return await families.children(services.store, check_task_id(parent), states=states, limit=limit)


async def read_tree(services: Services, task: str, *, limit: int = LIMIT) -> TaskTree:
    """Read a task and the tasks below it, at most `limit`.

    Raises:
        InvalidInput: that is no id of a task.
        NotFound: no such task, or its retention has passed.
    """
    tree = await families.tree(services.store, check_task_id(task), limit=limit)
    if not tree.rows:
        raise NotFound(f"task {task} does not exist, or its retention has passed")
    return tree


async def count_children(services: Services, tasks: Sequence[str]) -> dict[str, int]:
    """Return the number of children that the list of each of these tasks has."""
    return await families.count_children(services.store, tasks)


async def ids_to_retry(services: Services, tasks: Sequence[str]) -> list[str]:
    """Return tasks, and those below them that ended without a result; each before its parent."""
    return await families.to_retry(services.store, tasks)
