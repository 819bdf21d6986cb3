"""What a handler knows of its attempt, and what it may do in its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from orchestrator.client.submission import (
    Arguments,
    Duration,
    NamedSkill,
    Parent,
    Submission,
    SubmitOptions,
    TypedSkill,
)
from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from orchestrator.tasks.model import Delivery, Envelope

T = TypeVar("T")

_log = get_logger("agent")


class TaskContext:
    """One attempt, as its handler sees it.

    Attributes:
        task_id: id of the task.
        idempotency_key: the same over all attempts; pass it to outside services.
        attempt: 1 for the first.
        agent: name of the agent.
        worker: id of the worker process.
        session: the conversation that the task belongs to.
        tags: labels given at submit.
        deadline: when the attempt is cancelled, or None.
        cancelled: True once somebody asked the task to stop, or it was taken away.
    """

    __slots__ = (
        "_children", "_client", "_depth", "_generation", "_logger", "agent", "attempt", "cancelled", "deadline",
        "idempotency_key", "session", "tags", "task_id", "worker",
    )  # fmt: skip

    def __init__(
        self,
        delivery: Delivery,
        envelope: Envelope,
        *,
        worker: str,
        deadline: datetime | None,
        client: Callable[[], Awaitable[Orchestrator]],
    ) -> None:
        self.task_id = delivery.task_id
        self.idempotency_key = envelope.key or delivery.task_id
        self.attempt = delivery.attempt
        self.agent = delivery.agent
        self.worker = worker
        self.session = envelope.session
        self.tags = envelope.tags
        self.deadline = deadline
        self.cancelled = False
        self._generation, self._depth = delivery.generation, envelope.depth
        self._client, self._children = client, 0
        self._logger: Any = None

    @property
    def log(self) -> Any:
        """A structlog logger bound to the attempt."""
        if self._logger is None:
            self._logger = _log.bind(agent=self.agent, worker=self.worker, task=self.task_id, attempt=self.attempt)
        return self._logger

    @overload
    async def submit(
        self, skill: TypedSkill[T], args: Arguments = None, **options: Unpack[SubmitOptions]
    ) -> TaskHandle[T]: ...

    @overload
    async def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[SubmitOptions]
    ) -> TaskHandle[Any]: ...

    async def submit(
        self,
        skill: str | NamedSkill,
        args: Arguments = None,
        *,
        agent: str | None = None,
        session: str | None = None,
        priority: str | int = "normal",
        delay: Duration | None = None,
        at: datetime | None = None,
        start_by: datetime | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
        max_attempts: int | None = None,
        tags: Sequence[str] = (),
        result_ttl: Duration | None = None,
    ) -> TaskHandle[Any]:
        """Submit a child task; awaiting its `result()` is the join.

        Unless `key` is given, the child's idempotency key is derived from this task and the child's number, so a
        retried parent that submits the same children in the same order finds those of the attempt before.
        The arguments are those of `Orchestrator.submit`; `session` is the parent's by default.

        Raises:
            SubmitRefused: this attempt has been taken away, or a cap was reached.
            KeyConflict: a retried parent asked for something else at this place.
        """
        self._children += 1
        child = Submission(
            skill, args, agent, self.session if session is None else session, priority, delay, at, start_by,
            f"{self.task_id}/{self._children}" if key is None else key, timeout, max_attempts, tags, result_ttl,
        )  # fmt: skip
        client = await self._client()
        return await client.submit_one(child, Parent(self.task_id, self._generation, self._depth))
