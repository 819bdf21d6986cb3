"""Plans crashes, and runs the worker that crashes at the planned step, as a killed process does.

After that step the worker sends nothing to Redis. Its handlers are cancelled, because the test's process cannot kill
them: their `finally` blocks run, and their calls of Redis are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import anyio

from orchestrator.client.worker_client import WorkerClient
from orchestrator.core.errors import InvalidInput
from orchestrator.workers.runtime.calling import HandlerCaller
from orchestrator.workers.runtime.emitter import Emitter
from orchestrator.workers.runtime.parts import ChildClient, WorkerParts, make_parts
from orchestrator.workers.runtime.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from orchestrator.client.handle import TaskHandle
    from orchestrator.services import Services
    from orchestrator.tasks.model import EmitStatus
    from orchestrator.tasks.scripts import EmitRow
    from orchestrator.tasks.submission import Parent, Submission
    from orchestrator.testing.killable_store import KillableStore
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.attempt import Attempt

Step: TypeAlias = Literal["start", "submit", "progress", "emit", "result", "stored"]
"""Step at which a worker can crash.

start: the arguments have been checked, the handler has not begun. submit, progress, emit: Redis has stored it, the
handler does not know it. result: the handler has returned, nothing is stored. stored: the verdict is stored, the worker
does not know it.
"""

STEPS: Final[tuple[Step, ...]] = get_args(Step)

Reached: TypeAlias = "Callable[[Step, str], Awaitable[None]]"
"""Called with a step and the id of its task. It does not return if the worker crashes there."""


@dataclass(slots=True, eq=False)
class Crash:
    """One planned crash of a worker.

    Attributes:
        skill: skill of the tasks that crash their worker.
        at: step at which the worker crashes.
        nth: which time that the step is reached.
        seen: number of times that the step was reached.
        happened: True if the worker has crashed there.
    """

    skill: str
    at: Step
    nth: int = 1
    seen: int = 0
    happened: bool = False

    def __str__(self) -> str:
        """Return the name that messages use."""
        return f"crash of {self.skill!r} at {self.at!r}" + (f", time {self.nth}" if self.nth > 1 else "")


class CrashPlan:
    """Holds the planned crashes of one team."""

    def __init__(self) -> None:
        self._planned: list[Crash] = []

    def add(self, skill: str, at: Step, nth: int) -> Crash:
        """Plan a crash.

        Raises:
            InvalidInput: there is no such step, or `nth` is below 1.
        """
        if at not in STEPS:
            raise InvalidInput(f"there is no step {at!r} to crash at; use one of {', '.join(STEPS)}")
        if nth < 1:
            raise InvalidInput(f"nth counts from 1, not {nth}")
        crash = Crash(skill, at, nth)
        self._planned.append(crash)
        return crash

    def due(self, step: Step, skill: str) -> Crash | None:
        """Count a reached step, and return the crash that is due there. A second one waits for the next time."""
        waiting = [crash for crash in self._planned if not crash.happened and (crash.at, crash.skill) == (step, skill)]
        for crash in waiting:
            crash.seen += 1
        return next((crash for crash in waiting if crash.seen >= crash.nth), None)

    def not_happened(self) -> list[Crash]:
        """Return the crashes that have not happened."""
        return [crash for crash in self._planned if not crash.happened]


class KillableWorker(Worker):
    """Worker that can crash.

    Attributes:
        crash: the crash that ended it.
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
            executor.caller = _ProbedCaller(agent, parts, began=self._began, reached=self._reached)

    async def run(self, *, listen: bool = False) -> None:
        """Run until `stop` or a planned crash."""
        with self._scope:
            await super().run(listen=listen)

    @property
    def awaited(self) -> Collection[str]:
        """Ids of the children that its handlers wait for."""
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
            # Cancellation would wait for a thread.
            if attempt.leave_thread is not None:
                attempt.leave_thread()


class _ProbedCaller(HandlerCaller):
    """Reports the steps `start` and `result`."""

    def __init__(
        self, agent: Agent, parts: WorkerParts, *, began: Callable[[str, str], None], reached: Reached
    ) -> None:
        super().__init__(agent, settings=parts.services.live, starter=parts.starter)
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
    """Reports the steps `progress` and `emit`."""

    def __init__(self, services: Services, *, reached: Reached) -> None:
        super().__init__(services)
        self._reached = reached

    async def send(self, row: EmitRow) -> EmitStatus:
        """Send one row; see `Emitter.send`."""
        status = await super().send(row)
        await self._reached("progress" if row.kind == "progress" else "emit", row.id)
        return status


class _ProbedChildClient(ChildClient):
    """Makes a client that reports the step `submit`."""

    def __init__(self, services: Services, *, reached: Reached) -> None:
        super().__init__(services)
        self._reached = reached

    def make(self) -> WorkerClient:
        return _ProbedClient(self._services, reached=self._reached)


class _ProbedClient(WorkerClient):
    """Reports the step `submit`."""

    def __init__(self, services: Services, *, reached: Reached) -> None:
        super().__init__(services)
        self._reached = reached

    @property
    def awaited(self) -> Collection[str]:
        """Ids of the tasks that callers of this client wait for."""
        return self._replies.awaited

    async def submit_one(self, task: Submission, parent: Parent | None = None) -> TaskHandle[Any]:
        """Submit one child; see `Orchestrator.submit_one`."""
        handle = await super().submit_one(task, parent)
        if parent is not None:
            await self._reached("submit", parent.task_id)
        return handle
