"""Planned crashes, and the worker that they befall: at the named step it vanishes, as a killed process does.

From that step on nothing of it reaches Redis. Its handlers are cancelled, for in this process they cannot be killed:
their `finally` blocks run, and what these ask of Redis is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import anyio

from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import InvalidInput
from orchestrator.workers.runtime.calling import HandlerCaller
from orchestrator.workers.runtime.emitter import Emitter
from orchestrator.workers.runtime.parts import ChildClient, make_parts
from orchestrator.workers.runtime.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.tasks.model import EmitStatus
    from orchestrator.tasks.scripts import EmitRow
    from orchestrator.tasks.submission import Parent, Submission
    from orchestrator.testing.killable_store import KillableStore
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.attempt import Attempt

Step: TypeAlias = Literal["start", "submit", "progress", "emit", "result", "stored"]
"""Where a worker can vanish.

start: the arguments have been checked, the handler has not begun. submit, progress, emit: Redis has it, the handler
does not know. result: the handler has returned, nothing is stored. stored: the verdict is stored, the worker does not
know.
"""

STEPS: Final[tuple[Step, ...]] = get_args(Step)

Reached: TypeAlias = "Callable[[Step, str], Awaitable[None]]"
"""Told of a step and the task that takes it; does not return when the worker crashes there."""


@dataclass(slots=True, eq=False)
class Crash:
    """One planned crash.

    Attributes:
        skill: skill of the tasks that crash their worker.
        at: step at which the worker crashes.
        nth: which time that the step is reached.
        seen: how often the step was reached so far.
        happened: whether the worker has crashed there.
    """

    skill: str
    at: Step
    nth: int = 1
    seen: int = 0
    happened: bool = False

    def __str__(self) -> str:
        """As messages name it."""
        return f"crash of {self.skill!r} at {self.at!r}" + (f", time {self.nth}" if self.nth > 1 else "")


class CrashPlan:
    """The crashes of one team."""

    def __init__(self) -> None:
        self._planned: list[Crash] = []

    def add(self, skill: str, at: Step, nth: int) -> Crash:
        """Plan one more.

        Raises:
            InvalidInput: there is no such step, or `nth` is not 1 or more.
        """
        if at not in STEPS:
            raise InvalidInput(f"there is no step {at!r} to crash at; use one of {', '.join(STEPS)}")
        if nth < 1:
            raise InvalidInput(f"nth counts from 1, not {nth}")
        crash = Crash(skill, at, nth)
        self._planned.append(crash)
        return crash

    def due(self, step: Step, skill: str) -> Crash | None:
        """Count a step that was reached; the crash that is due there, if any. Of two, one waits for the next time."""
        waiting = [crash for crash in self._planned if not crash.happened and (crash.at, crash.skill) == (step, skill)]
        for crash in waiting:
            crash.seen += 1
        return next((crash for crash in waiting if crash.seen >= crash.nth), None)

    def not_happened(self) -> list[Crash]:
        """Those that have not happened."""
        return [crash for crash in self._planned if not crash.happened]


class KillableWorker(Worker):
    """A worker that can crash.

    Attributes:
        crash: what it died of.
    """

    def __init__(
        self,
        services: Services,
        agents: Sequence[Agent],
        *,
        worker: str,
        store: KillableStore,
        plan: CrashPlan,
        registered: Callable[[], None],
    ) -> None:
        parts = replace(
            make_parts(services, worker=worker),
            emitter=_ProbedEmitter(services, reached=self._reached),
            client=_ProbedChildClient(services, reached=self._reached),
        )
        super().__init__(services, agents, worker=worker, parts=parts)
        self.crash: Crash | None = None
        self._store, self._plan, self._registered = store, plan, registered
        self._scope = anyio.CancelScope()
        self._skills: dict[str, str] = {}
        store.answered = self._answered
        for agent in agents:
            executor = self._executors[agent.name]
            executor.caller = _ProbedCaller(agent, settings=services.settings, began=self._began, reached=self._reached)

    async def run(self, *, listen: bool = False) -> None:
        """Work until told to stop, or until it crashes."""
        with self._scope:
            await super().run(listen=listen)

    @property
    def awaited(self) -> Collection[str]:
        """The children that its handlers wait for at the moment."""
        client = self._parts.client.opened
        return client.awaited if isinstance(client, _ProbedClient) else ()

    async def _register(self) -> None:
        await super()._register()
        self._registered()

    # ---------------------------------------------------------------------------------------------------- steps

    def _began(self, task_id: str, skill: str) -> None:
        self._skills[task_id] = skill

    async def _reached(self, step: Step, task_id: str) -> None:
        crash = self._plan.due(step, self._skills.get(task_id, ""))
        if crash is not None:
            self._crash_now(crash)
            await anyio.sleep_forever()

    async def _answered(self, script: str, rows: object) -> None:
        if script != "tasks/finish":
            return
        assert isinstance(rows, bytes)
        for task_id in [task_id for task_id in self._skills if task_id.encode() in rows]:
            await self._reached("stored", task_id)
            del self._skills[task_id]

    def _crash_now(self, crash: Crash) -> None:
        crash.happened, self.crash = True, crash
        self._store.stop_sending()
        if (client := self._parts.client.opened) is not None:
            client.services.store.stop_sending()
        self._scope.cancel()
        for attempt in self._in_flight.all():
            # A thread would be waited for.
            if attempt.leave_thread is not None:
                attempt.leave_thread()


class _ProbedCaller(HandlerCaller):
    """Tells when a handler begins and when it has returned."""

    def __init__(
        self, agent: Agent, *, settings: Settings, began: Callable[[str, str], None], reached: Reached
    ) -> None:
        super().__init__(agent, settings=settings)
        self._began, self._reached = began, reached

    async def call(self, attempt: Attempt) -> Any:
        """Call one handler; see `HandlerCaller.call`."""
        task_id = attempt.delivery.task_id
        self._began(task_id, attempt.skill.name)
        await self._reached("start", task_id)
        value = await super().call(attempt)
        await self._reached("result", task_id)
        return value


class _ProbedEmitter(Emitter):
    """Tells when progress and output are stored."""

    def __init__(self, services: Services, *, reached: Reached) -> None:
        super().__init__(services)
        self._reached = reached

    async def send(self, row: EmitRow) -> EmitStatus:
        """Send one row; see `Emitter.send`."""
        status = await super().send(row)
        await self._reached("progress" if row.kind == "progress" else "emit", row.id)
        return status


class _ProbedChildClient(ChildClient):
    """Makes the client that tells when a child is stored."""

    def __init__(self, services: Services, *, reached: Reached) -> None:
        super().__init__(services)
        self._reached = reached

    def make(self) -> Orchestrator:
        return _ProbedClient(self._services.settings, reached=self._reached)


class _ProbedClient(Orchestrator):
    """Tells when a child is stored."""

    def __init__(self, settings: Settings, *, reached: Reached) -> None:
        super().__init__(settings=settings)
        self._reached = reached

    @property
    def awaited(self) -> Collection[str]:
        """The tasks whose ends somebody waits for here."""
        return self._replies.awaited

    async def submit_one(self, task: Submission, parent: Parent | None = None) -> TaskHandle[Any]:
        """Submit one child; see `Orchestrator.submit_one`."""
        handle = await super().submit_one(task, parent)
        if parent is not None:
            await self._reached("submit", parent.task_id)
        return handle
