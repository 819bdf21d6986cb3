"""What a handler knows of its attempt, and what it may do in its name."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from anyio import lowlevel

from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.log import get_logger
from orchestrator.tasks.model import Progress
from orchestrator.tasks.submission import (
    Arguments,
    Duration,
    NamedSkill,
    OnBusy,
    Parent,
    Submission,
    SubmitOptions,
    TypedSkill,
)
from workers.asking import NO_DEFAULT, AnswerSource, Asking
from workers.once import OnceCalls, OnceResults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from orchestrator.agent_state.states import AgentState
    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from orchestrator.client.shared_config import SharedConfig
    from orchestrator.limits.limits import Limits
    from orchestrator.locks.attempt import AttemptLocks
    from orchestrator.locks.named import Locks
    from orchestrator.tasks.model import Delivery, Envelope
    from orchestrator.workspace.scratch import Scratch
    from orchestrator.workspace.workspace import Workspace
    from workers.asking import Pending

T = TypeVar("T")

_log = get_logger("agent")


class AttemptTimer(Protocol):
    """What watches over the time of an attempt."""

    def extend(self, seconds: float) -> None:
        """Move the deadline."""

    def sign(self) -> None:
        """Note a sign of life."""


class Output(Protocol):
    """Where the progress and the output of an attempt go."""

    async def progress(self, progress: Progress) -> None:
        """Store how far it has come."""

    async def emit(self, data: Any) -> None:
        """Store one chunk of output."""


class Around(Protocol):
    """What an attempt shares beyond its session."""

    @property
    def limits(self) -> Limits:
        """Limits by name."""

    @property
    def agent_state(self) -> AgentState:
        """What the agent says of itself."""

    @property
    def config(self) -> SharedConfig:
        """What operators have published."""


class TaskRecordAccess(AnswerSource, OnceResults, Protocol):
    """What an attempt reads from the record of its task, and keeps there."""


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
        state: what the agent's `lifespan` yielded, or None.
    """

    __slots__ = (
        "_around", "_asking", "_cancelled", "_children", "_client", "_depth", "_entry", "_generation",
        "_limits", "_locks", "_logger", "_once", "_open_around", "_open_locks", "_open_output", "_open_record",
        "_open_workspace", "_output", "_saw_cancelled", "_workspace", "agent", "attempt", "deadline",
        "idempotency_key", "session", "state", "tags", "task_id", "worker",
    )  # fmt: skip

    def __init__(
        self,
        delivery: Delivery,
        envelope: Envelope,
        *,
        worker: str,
        deadline: datetime | None,
        client: Callable[[], Awaitable[Orchestrator]],
        state: Any = None,
        output: Callable[[], Output] | None = None,
        record: Callable[[], TaskRecordAccess] | None = None,
        locks: Callable[[], AttemptLocks] | None = None,
        workspace: Callable[[TaskContext], Workspace] | None = None,
        around: Callable[[TaskContext], Around] | None = None,
    ) -> None:
        self.task_id: str = delivery.task_id
        self.idempotency_key: str = envelope.key or delivery.task_id
        self.attempt: int = delivery.attempt
        self.agent: str = delivery.agent
        self.worker: str = worker
        self.session: str | None = envelope.session
        self.tags: tuple[str, ...] = envelope.tags
        self.deadline: datetime | None = deadline
        self.state: Any = state
        self._cancelled = False
        self._saw_cancelled = False
        self._limits: AttemptTimer | None = None
        self._generation, self._entry, self._depth = delivery.generation, delivery.entry, envelope.depth
        self._client, self._children = client, 0
        # Most handlers emit nothing, so what emits is made when it is first needed.
        self._open_output = output
        self._output: Output | None = None
        # As few lock anything, or ask anybody.
        self._open_locks = locks
        self._locks: AttemptLocks | None = None
        self._open_workspace = workspace
        self._workspace: Workspace | None = None
        self._open_around = around
        self._around: Around | None = None
        self._open_record = record
        self._asking: Asking | None = None
        self._once: OnceCalls | None = None
        self._logger: Any = None

    @property
    def cancelled(self) -> bool:
        """True once somebody asked the task to stop, or it was taken away; also while the handler holds the loop."""
        if self._cancelled:
            self._saw_cancelled = True
        return self._cancelled

    @property
    def saw_cancelled(self) -> bool:
        """Whether the handler has read `cancelled` when it was True: then its end is that of its task."""
        return self._saw_cancelled

    def mark_cancelled(self) -> None:
        """Let `cancelled` be True; from any thread."""
        self._cancelled = True

    @property
    def log(self) -> Any:
        """A structlog logger bound to the attempt."""
        if self._logger is None:
            self._logger = _log.bind(agent=self.agent, worker=self.worker, task=self.task_id, attempt=self.attempt)
        return self._logger

    @property
    def fence(self) -> int | None:
        """The number of this attempt's right to change shared state: higher than that of every attempt before it.

        Show it to what is changed outside of Redis, and let that refuse a lower one than it has seen. None before the
        first use of shared state, unless the skill has `lock=`.
        """
        return None if self._locks is None else self._locks.execution.fence

    @property
    def locks(self) -> Locks:
        """Named locks: of the session, or of the pool for a task without one. `locks.within(scope)` has others."""
        return self.opened_locks().named

    def opened_locks(self) -> AttemptLocks:
        """The locks of the attempt; for what changes shared state in its name, and for worker code."""
        if self._locks is None:
            if self._open_locks is None:
                raise OrchestratorError("this context was made without locks; give it locks=")
            self._locks = self._open_locks()
        return self._locks

    @property
    def locks_in_use(self) -> AttemptLocks | None:
        """The same, if anything has asked for them; for worker code."""
        return self._locks

    @property
    def workspace(self) -> Workspace:
        """What the task's session shares. Each change presents this attempt's right to make it, taken at the first one.

        Raises:
            OrchestratorError: the task has no session; submit it with `session=`.
        """
        if self._workspace is None:
            if self._open_workspace is None:
                raise OrchestratorError("this context was made without a workspace; give it workspace=")
            self._workspace = self._open_workspace(self)
        return self._workspace

    @property
    def scratch(self) -> Scratch:
        """What the agent keeps to itself within the session.

        Raises:
            OrchestratorError: as `workspace`.
        """
        return self.workspace.scratch

    @property
    def limits(self) -> Limits:
        """Limits by name: may something happen now? Shared with all programs of the same prefix."""
        return self._opened_around().limits

    @property
    def agent_state(self) -> AgentState:
        """What the agent says of itself. Each change presents this attempt's right to it, taken at the first one."""
        return self._opened_around().agent_state

    @property
    def config(self) -> SharedConfig:
        """Configuration values that operators publish while programs run, as this worker knows them."""
        return self._opened_around().config

    def _opened_around(self) -> Around:
        if self._around is None:
            if self._open_around is None:
                raise OrchestratorError("this context was made without what is around it; give it around=")
            self._around = self._open_around(self)
        return self._around

    async def extend(self, seconds: Duration) -> None:
        """Give this attempt more time: its deadline moves by so much. Without a time limit only a sign of life.

        Args:
            seconds: seconds or timedelta on top of what is left.

        Raises:
            InvalidInput: that is no duration.
        """
        more_s = to_seconds("extend", seconds)
        if self.deadline is not None:
            self.deadline += timedelta(seconds=more_s)
        if self._limits is not None:
            self._limits.extend(more_s)
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Give a sign of life, so that the skill's `silence` limit begins anew, as `progress` and `emit` do.

        Cheap: nothing is sent. The worker proves to Redis by itself that it lives.
        """
        self._sign()
        await lowlevel.checkpoint()

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell how far the attempt has come; a sign of life. Returns when Redis has it.

        Only the latest is kept: `TaskHandle.info()` and `orc tasks show` have it, `events()` sees it come.

        Args:
            done: in any unit, not negative.
            total: of the same unit; None when nobody knows.
            message: one line for people, cut to 500 characters.

        Raises:
            InvalidInput: a number is none, or is negative.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: no answer, even after repeating.
        """
        self._sign()
        await self._opened_output().progress(Progress(done, total, message))

    async def emit(self, data: Any) -> None:
        """Add a chunk to the output of the task, which `TaskHandle.output()` reads live; a sign of life.

        Returns when Redis has it.

        Args:
            data: any JSON value or pydantic model, at most `output.max_chunk_bytes`.

        Raises:
            InvalidInput: JSON cannot hold it, or it is too large; nothing was sent.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable, ServerFull: no answer, even after repeating; no memory left.
        """
        self._sign()
        await self._opened_output().emit(data)

    def _opened_output(self) -> Output:
        if self._output is None:
            if self._open_output is None:
                raise OrchestratorError("this context was made without a place for output; give it output=")
            self._output = self._open_output()
        return self._output

    async def ask(
        self,
        question: str,
        *,
        options: Sequence[Any] | None = None,
        deadline: Duration | datetime | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Ask a person. Returns the answer if there is one; else the attempt ends here and the task waits.

        Waiting costs no slot and no attempt. When `orc tasks answer` or `TaskHandle.answer` brings the answer, the
        handler starts again from its beginning, and this call returns it. Questions are numbered in the order of the
        calls: a handler must ask the same in the same order each time it runs. What it does before a question it does
        again; `once` keeps it from that.

        Args:
            question: a text for the person, the same in each attempt.
            options: JSON values, the answers that are allowed; by default any.
            deadline: seconds or timedelta from the asking, or an aware time, after which the task goes on without an
                answer; by default it waits for ever.
            default: what is returned then.

        Returns:
            A JSON value.

        Raises:
            Asked: ends the attempt; let it pass.
            AskExpired: nobody has answered by the deadline, and there is no default.
            QuestionChanged: an earlier attempt asked something else at this place.
            InvalidInput: question, options, deadline or default are none, or too large (64 KiB).
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: no answer of Redis, even after repeating.
        """
        self._sign()
        if self._asking is None:
            self._asking = Asking(self._opened_record())
        return await self._asking.ask(question, options=options, deadline=deadline, default=default)

    @property
    def pending(self) -> Pending | None:
        """The question that the attempt ends with, once it has asked; for worker code."""
        return None if self._asking is None else self._asking.pending

    async def once(self, name: str, do: Callable[..., Any], *args: Any) -> Any:
        """Do something that a task must do once, and keep its result with the task: later attempts get that.

        Calls of one name share one result, also those that run at once. When the worker dies after the call and before
        its result is stored, the next attempt does it again: give `idempotency_key` to outside services all the same.

        Args:
            name: says what is done, one name for each call of a task; at most 256 bytes.
            do: an `async def`, or a plain callable, which runs in a thread.
            *args: for `do`.

        Returns:
            What `do` returned, as JSON gives it back, in the first attempt too.

        Raises:
            InvalidInput: the name is none; or JSON cannot hold what `do` returned, or it is larger than 64 KiB: it is
                done, and will be done again.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: no answer of Redis, even after repeating.
            Exception: what `do` raised; it counts as not done.
        """
        self._sign()
        if self._asking is not None:
            self._asking.check_goes_on()
        if self._once is None:
            self._once = OnceCalls(self._opened_record())
        return await self._once.run(name, do, *args)

    def _opened_record(self) -> TaskRecordAccess:
        if self._open_record is None:
            raise OrchestratorError("this context was made without the record of a task; give it record=")
        return self._open_record()

    def watched_by(self, limits: AttemptTimer) -> None:
        """Let `extend` and `heartbeat` reach what watches the attempt's time; for worker code."""
        self._limits = limits

    def _sign(self) -> None:
        if self._limits is not None:
            self._limits.sign()

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
        lane: str | None = None,
        on_busy: OnBusy = "enqueue",
    ) -> TaskHandle[Any]:
        """Submit a child task; awaiting its `result()` is the join.

        Unless `key` is given, the child's idempotency key is derived from this task and the child's number, so a
        retried parent that submits the same children in the same order finds those of the attempt before.
        The arguments are those of `Orchestrator.submit`; `session` is the parent's by default.

        Raises:
            SubmitRefused: this attempt has been taken away, a cap was reached, or the lane is busy.
            KeyConflict: a retried parent asked for something else at this place.
        """
        self._children += 1
        child = Submission(
            skill, args, agent, self.session if session is None else session, priority, delay, at, start_by,
            f"{self.task_id}/{self._children}" if key is None else key, timeout, max_attempts, tags, result_ttl,
            lane, on_busy,
        )  # fmt: skip
        client = await self._client()
        handle = await client.submit_one(child, Parent(self.task_id, self._generation, self._depth))
        if self._locks is not None and self._locks.execution.exclusive:
            handle.before_wait = partial(self._locks.execution.note_awaited, [handle.id])
        return handle
