"""`orc.tasks`: lists of tasks and of sessions, and the tasks that ended."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_task_id, encode_foreign
from orchestrator.store.following import END
from orchestrator.tasks import ends, families, queries
from orchestrator.tasks.effects import read_effects
from orchestrator.tasks.ends import EndFilter
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.selecting import TaskFilter, iterate, read_page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from orchestrator.core.durations import Duration
    from orchestrator.services import Services
    from orchestrator.tasks.effects import TaskEffect
    from orchestrator.tasks.ends import EndedTask
    from orchestrator.tasks.families import SessionSummary
    from orchestrator.tasks.queries import TaskRow
    from orchestrator.tasks.selecting import TaskPage

MAX_ROWS: Final = 10_000
ALL_TASKS: Final = TaskFilter()


class Tasks:
    """Reads lists of tasks and sessions.

    Methods raise `InvalidInput` for invalid values, and `StoreError` when Redis does not answer.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def find(
        self,
        *,
        session: str | None = None,
        parent: str | None = None,
        states: Collection[TaskState | str] = (),
        limit: int = 100,
    ) -> tuple[TaskRow, ...]:
        """List tasks: those that run, those that wait, then those that ended, newest end first.

        Args:
            session: only tasks of this session, newest first. A pool keeps the newest 1000 of a session.
            parent: only children of this task, in the order of their submits. A pool keeps the newest 100,000.
            states: only tasks in these states.
            limit: maximum number, at most 10,000.
        """
        wanted = _checked(states, limit)
        if session is not None and parent is not None:
            raise InvalidInput("give a session or a parent, not both")
        store = self._services.store
        if session is not None:
            encode_foreign("session", session)
            found = families.session_tasks(store, session, states=wanted, limit=limit)
        elif parent is not None:
            found = families.children(store, check_task_id(parent), states=wanted, limit=limit)
        else:
            return tuple(await queries.listing(store, states=wanted, limit=limit))
        return (await found).rows

    async def list(self, wanted: TaskFilter = ALL_TASKS, *, after: str | None = None) -> AsyncGenerator[TaskRow]:
        """Yield the tasks that match a filter, page by page: `async for task in orc.tasks.list(TaskFilter(tag="eu")):`.

        A session, a parent or a tag is looked up. Other conditions are compared with all tasks in the wanted states.
        The newest comes first for a session, a tag, dead letters and other tasks that ended; children come in the order
        of their submits. A task that changes its state meanwhile may be missing.

        Args:
            wanted: the filter; without states it matches tasks in any state.
            after: `cursor` of a page, to go on behind it.
        """
        async with aclosing(iterate(self._services.store, wanted, after=after)) as found:
            async for task in found:
                yield task

    async def page(self, wanted: TaskFilter = ALL_TASKS, *, after: str | None = None, limit: int = 100) -> TaskPage:
        """Read one page of `list`, which says how many tasks it has read. It may be empty although more follow.

        Args:
            wanted: the filter.
            after: `cursor` of the page before.
            limit: maximum number, at most 10,000.
        """
        _checked((), limit)
        return await read_page(self._services.store, wanted, after=after, limit=limit)

    async def tree(self, task: str, *, limit: int = 1000) -> tuple[TaskRow, ...]:
        """List a task and the tasks below it: each behind its parent, children in the order of their submits.

        Args:
            task: id of the task.
            limit: maximum number, at most 10,000; levels near the task come first.
        """
        _checked((), limit)
        return (await families.tree(self._services.store, check_task_id(task), limit=limit)).rows

    async def effects(self, task: str) -> tuple[TaskEffect, ...]:
        """List the effects of a task, which `ctx.effect` has begun, in the order of their last begin.

        Args:
            task: id of the task.

        Raises:
            NotFound: no such task, or its retention has passed.
        """
        return await read_effects(self._services.store, check_task_id(task))

    async def sessions(self, *, limit: int = 100) -> tuple[SessionSummary, ...]:
        """List the sessions with the latest submit or end of a task.

        A session stays listed for as long as its last task may wait and its result is kept, or until about 10,000 other
        sessions were active.

        Args:
            limit: maximum number, at most 10,000.
        """
        _checked((), limit)
        return tuple(await families.sessions(self._services.store, limit=limit))

    async def ends(
        self,
        *,
        outcomes: Collection[TaskState | str] = (),
        agent: str | None = None,
        skill: str | None = None,
        session: str | None = None,
        limit: int = 100,
    ) -> tuple[EndedTask, ...]:
        """List the tasks that ended last, newest first. A pool keeps `results.max_events`.

        Args:
            outcomes: only these final states.
            agent: only tasks that this agent had last.
            skill: only tasks of this skill.
            session: only tasks of this session.
            limit: maximum number, at most 10,000.
        """
        only = EndFilter(outcomes=_checked(outcomes, limit), agent=agent, skill=skill, session=session)
        return tuple(await ends.ended_tasks(self._services.store, only, limit=limit))

    async def watch_ends(
        self,
        after: str = END,
        *,
        outcomes: Collection[TaskState | str] = (),
        agent: str | None = None,
        skill: str | None = None,
        session: str | None = None,
        block: Duration | None = None,
    ) -> AsyncGenerator[EndedTask]:
        """Yield tasks as they end, over a connection of its own: `async for end in orc.tasks.watch_ends():`.

        Args:
            after: `place` of the last end that was seen; `$` is now, `0-0` all that the pool keeps.
            outcomes: only these final states, like the filters of `ends`.
            agent: only tasks that this agent had last.
            skill: only tasks of this skill.
            session: only tasks of this session.
            block: end when no task has ended for so many seconds, or that timedelta; None never ends.
        """
        only = EndFilter(outcomes=_checked(outcomes, 1), agent=agent, skill=skill, session=session)
        ends.parse_place(after)
        idle_s = None if block is None else to_seconds("block", block)
        async with aclosing(ends.watch_ended(self._services.store, only, after=after, idle_s=idle_s)) as found:
            async for end in found:
                yield end


def _checked(states: Collection[TaskState | str], limit: int) -> frozenset[TaskState]:
    if not 1 <= limit <= MAX_ROWS:
        raise InvalidInput(f"limit {limit} is not between 1 and {MAX_ROWS}")
    try:
        return frozenset(TaskState(state) for state in states)
    except ValueError as unknown:
        raise InvalidInput(f"{unknown}; there are {', '.join(TaskState)}") from None
