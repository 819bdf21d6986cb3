"""The context passed to a handler: attempt data and calls on behalf of the attempt."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, Unpack, cast, overload

from anyio import CancelScope, lowlevel

from orchestrator.chat.model import MAIN
from orchestrator.client.handle import TaskHandle, WaitingHandle
from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import LeaseLapsed, NotDurable, SubmitRefused
from orchestrator.core.log import get_logger
from orchestrator.extraction.model import EXTRACT
from orchestrator.extraction.submitting import plan_extraction
from orchestrator.memory.owner import MemoryOwner
from orchestrator.tasks.model import Progress, root_of
from orchestrator.tasks.submission import Parent, Submission
from orchestrator.tracing.active import active
from orchestrator.workers.asking import NO_DEFAULT
from orchestrator.workers.pausing import PausableLimit, pause_agent
from orchestrator.workers.providers import WAIT_S, ProviderCall
from orchestrator.workers.signals import Asked
from orchestrator.workers.unawaited import any_waits, noticed, take_unawaited

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from orchestrator.agent_state.states import AgentState
    from orchestrator.chat.chat import Chat
    from orchestrator.client.client import Orchestrator
    from orchestrator.client.flow_handle import FlowHandle
    from orchestrator.client.shared_config import SharedConfig
    from orchestrator.core.amounts import Amount
    from orchestrator.core.durations import Duration
    from orchestrator.extraction.model import Extraction
    from orchestrator.limits.limits import Limits
    from orchestrator.locks.attempt import AttemptLocks
    from orchestrator.locks.named import Locks
    from orchestrator.memory.memory import Memory
    from orchestrator.tasks.flows import Flow
    from orchestrator.tasks.model import Delivery, Envelope
    from orchestrator.tasks.options import TaskOptions
    from orchestrator.tasks.submission import Arguments, NamedSkill, TypedSkill
    from orchestrator.workers.asking import Asking, PendingQuestion
    from orchestrator.workers.effects import EffectCalls, EffectDone, Unknown
    from orchestrator.workers.joining import JoinCalls, Joined, OnFailure, PendingJoin, Until
    from orchestrator.workers.once import OnceCalls
    from orchestrator.workers.pausing import Pausing
    from orchestrator.workers.providers import ProviderGate
    from orchestrator.workers.spending import AttemptBudget, Spend, Spending
    from orchestrator.workers.unawaited import Call, NotAwaited
    from orchestrator.workspace.scratch import Scratch
    from orchestrator.workspace.workspace import Workspace

T = TypeVar("T")
D = TypeVar("D")

_LONGEST_TIMER_S: Final = 3600.0
_log = get_logger("agent")


class AttemptTimer(Protocol):
    """The time limits of an attempt."""

    def extend(self, seconds: float) -> None:
        """Move the timeout."""

    def record_sign(self) -> None:
        """Restart the silence limit."""


class Output(Protocol):
    """Stores the progress and the output of an attempt."""

    async def progress(self, progress: Progress) -> None:
        """Store the progress."""

    async def emit(self, data: Any) -> None:
        """Store one chunk of output."""


class AttemptResources(Protocol):
    """The parts of the worker that a context uses in the name of its attempt, each made at its first use.

    Attributes:
        cancelled: whether the attempt must end; set from any thread.
        cancel_seen: whether the handler has read `cancelled` as True.
        timer: None without time limits.
        locks_in_use: the attempt's locks, once anything has asked for `locks`.
    """

    cancelled: bool
    cancel_seen: bool
    timer: AttemptTimer | None
    locks_in_use: AttemptLocks | None

    @property
    def lease_left_s(self) -> float:
        """Seconds until the lease lapses by the clock of this process; 0 if it has lapsed or is lost."""

    @property
    def output(self) -> Output:
        """Progress and output."""

    @property
    def locks(self) -> AttemptLocks:
        """Execution locks and named locks."""

    @property
    def workspace(self) -> Workspace:
        """The workspace of the session; OrchestratorError without a session."""

    @property
    def chat(self) -> Chat:
        """The chat of the session; OrchestratorError without a session."""

    @property
    def limits(self) -> Limits:
        """Limits by name."""

    @property
    def pausing(self) -> Pausing:
        """Pauses of agents and limits."""

    @property
    def providers(self) -> ProviderGate:
        """Calls of providers."""

    @property
    def agent_state(self) -> AgentState:
        """The state of the agent."""

    @property
    def memory(self) -> Memory:
        """The memory of the agent."""

    def memory_of(self, owner: MemoryOwner) -> Memory:
        """Return the memory of a user, of a domain, or of all programs."""

    @property
    def config(self) -> SharedConfig:
        """Published configuration values."""

    @property
    def asking(self) -> Asking:
        """Questions to people."""

    @property
    def question(self) -> PendingQuestion | None:
        """The unanswered question that ends this attempt; None if the handler asked none."""

    @property
    def joins(self) -> JoinCalls:
        """Joins of tasks."""

    @property
    def join(self) -> PendingJoin | None:
        """The join that ends this attempt; None if the handler joins no task that has not ended."""

    @property
    def once(self) -> OnceCalls:
        """Calls whose results the task keeps."""

    @property
    def effects(self) -> EffectCalls:
        """Calls that are begun at most once."""

    @property
    def spending(self) -> Spending:
        """Calls that spend the budgets of the task."""

    async def client(self) -> Orchestrator:
        """Open the client that submits child tasks."""

    def until_ended(self, children: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """Lend the slot of the attempt while a block waits for one of these tasks."""


class TaskContext:
    """One attempt, as its handler sees it.

    Attributes:
        task_id: id of the task.
        idempotency_key: the same over all attempts; pass it to outside services.
        attempt: 1 for the first.
        agent: name of the agent.
        worker: id of the worker process.
        session: the session of the task, or None.
        tags: labels from the submission.
        deadline: when the worker cancels the attempt, or None.
        state: the value that the agent's `lifespan` yielded, or None.
    """

    __slots__ = (
        "_calls",
        "_children",
        "_delivery",
        "_depth",
        "_fair",
        "_logger",
        "_resources",
        "_root",
        "_trace",
        "agent",
        "attempt",
        "deadline",
        "idempotency_key",
        "session",
        "state",
        "tags",
        "task_id",
        "worker",
    )  # fmt: skip

    def __init__(
        self,
        delivery: Delivery,
        envelope: Envelope,
        resources: AttemptResources,
        *,
        worker: str,
        deadline: datetime | None = None,
        state: Any = None,
    ) -> None:
        self.task_id: str = delivery.task_id
        self.idempotency_key: str = envelope.key or delivery.task_id
        self.attempt: int = delivery.attempt
        self.agent: str = delivery.agent
        self.worker: str = worker
        self.session: str | None = envelope.session
        self._fair = envelope.fair
        self.tags: tuple[str, ...] = envelope.tags
        self.deadline: datetime | None = deadline
        self.state: Any = state
        self._delivery, self._depth, self._resources = delivery, envelope.depth, resources
        self._trace, self._root = envelope.trace, root_of(delivery.task_id, envelope)
        self._children = 0
        self._calls: list[Call] | None = None
        self._logger: Any = None

    @property
    def cancelled(self) -> bool:
        """True once the attempt must end: cancelled, stopped, over its limits, or taken away. Works in threads too."""
        if self._resources.cancelled:
            self._resources.cancel_seen = True
            return True
        return False

    @property
    def lease_lost(self) -> bool:
        """True while another worker may run the task: the lease has lapsed by the worker's own clock, or is lost.

        A worker that is cut off from Redis reads it without asking Redis. In an outage of Redis that ends before
        another worker takes the task, it becomes False again. Works in threads too.
        """
        return self._resources.lease_left_s == 0

    @asynccontextmanager
    async def while_leased(self) -> AsyncIterator[None]:
        """Run a block only while the lease lasts: `async with ctx.while_leased():`.

        The block is cancelled when the lease lapses by the worker's own clock, before another worker can adopt the
        task. Use it around effects outside of Redis that must not overlap with those of the next attempt.

        Raises:
            LeaseLapsed: the lease has lapsed. If the handler lets it pass, the task returns to its queue, no attempt
                counted, unless another worker has it.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        with CancelScope() as body:

            def check() -> None:
                nonlocal timer
                if left_s := self._resources.lease_left_s:
                    timer = loop.call_later(min(left_s, _LONGEST_TIMER_S), check)
                else:
                    body.cancel()

            check()
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()
        if body.cancelled_caught:
            raise LeaseLapsed(self.task_id)

    @property
    def log(self) -> Any:
        """A structlog logger bound to the attempt."""
        if self._logger is None:
            self._logger = _log.bind(agent=self.agent, worker=self.worker, task=self.task_id, attempt=self.attempt)
        return self._logger

    @property
    def fence(self) -> int | None:
        """The fencing token of this attempt, higher than that of every earlier attempt.

        Pass it to systems outside Redis, and let them refuse a token below the highest they have seen. None before the
        first use of shared state, unless the skill has `lock=`.
        """
        locks = self._resources.locks_in_use
        return None if locks is None else locks.execution.fence

    @property
    def locks(self) -> Locks:
        """Named locks of the session, or of the pool for a task without one; `locks.within(scope)` for other scopes."""
        return self._resources.locks.named

    @property
    def workspace(self) -> Workspace:
        """The shared state of the session. The first change takes the attempt's execution lock, and each presents it.

        Raises:
            OrchestratorError: the task has no session; submit it with `session=`.
        """
        return self._resources.workspace

    @property
    def scratch(self) -> Scratch:
        """The agent's private state within the session.

        Raises:
            OrchestratorError: as `workspace`.
        """
        return self._resources.workspace.scratch

    @property
    def chat(self) -> Chat:
        """The messages of the session. The first change takes the attempt's execution lock, and each presents it.

        Raises:
            OrchestratorError: as `workspace`.
        """
        return self._resources.chat

    @property
    def limits(self) -> Limits:
        """Rate limits by name, shared by all programs with the same prefix."""
        return self._resources.limits

    def limit(self, name: str) -> PausableLimit:
        """Return a limit of agents by name (`@AGENT`: the rate of an agent), to pause it.

        `await ctx.limit("model:gpt").pause(retry_after, "429")` holds back every agent with that limit.
        """
        return PausableLimit(name, self._resources.pausing)

    def provider(self, name: str, *, tokens: int = 0, wait: Duration = WAIT_S) -> ProviderCall:
        """Call an outside service within the limits that all workers share: `async with ctx.provider("model:gpt"):`.

        The block begins when the windows of requests and tokens and the calls at once have room. If an exception leaves
        it that tells when to come back, all workers of the pool wait until then: `Throttled`, `QuotaExhausted`, or one
        with `retry_after` or with a `response` that has the header Retry-After. It goes on to the handler; if it leaves
        that too, the task runs again then, and no attempt is counted.

        Args:
            name: a limit in the settings, `[limits."NAME"]`.
            tokens: tokens to reserve; `settle` of the block's value says how many were used.
            wait: seconds or timedelta to wait for room.

        Raises:
            ProviderUnavailable: on entry: the provider is blocked, or had no room for that long. If it leaves the
                handler, the task runs again when the provider may be called, and no attempt is counted.
            InvalidInput: there is no such limit, or `tokens` is more than a window has.
            UpgradeUnfinished: the pool admits programs that do not know providers.
            StoreError: Redis did not answer.
        """
        return ProviderCall(self._resources.providers, name, tokens=tokens, wait=wait, sign=self._sign)

    @noticed
    async def pause_agent(self, for_s: Duration, reason: str = "") -> None:
        """Give this agent no task for a time, on all workers. Attempts that run go on, and new tasks wait.

        A longer pause replaces a shorter one; a shorter one changes nothing. `orc start --agent NAME` ends it early.

        Args:
            for_s: seconds or timedelta, rounded up to the next full second. 0 pauses nothing.
            reason: shown with the pause; 500 characters of it.

        Raises:
            InvalidInput: `for_s` is no duration or too long.
            CommandRefused: too many commands were given in this minute.
            UpgradeUnfinished: the pool admits programs that do not know pauses with an end.
            StoreError: Redis did not answer.
        """
        await pause_agent(self._resources.pausing, self.agent, for_s, reason)

    @property
    def agent_state(self) -> AgentState:
        """The agent's published state. The first change takes the attempt's execution lock, and each presents it."""
        return self._resources.agent_state

    @property
    def memory(self) -> Memory:
        """The agent's memory. The first change takes the attempt's execution lock, and each presents it."""
        return self._resources.memory

    def memory_of(self, *, user: str | None = None, domain: str | None = None, global_: bool = False) -> Memory:
        """Return the memory of a user, of a domain, or of all programs of the prefix: one of these.

        The first change of each takes a lock of the attempt in its scope, which is renewed until the attempt ends. Each
        change presents it, so that an attempt that lost its task changes nothing. Other tasks may change the same
        memory.

        Args:
            user: id of the user.
            domain: name of the domain.
            global_: True for the global memory, which all programs of the prefix share.

        Raises:
            InvalidInput: none or several are given, or that is no id.
        """
        return self._resources.memory_of(MemoryOwner.of(user=user, domain=domain, global_=global_))

    @property
    def config(self) -> SharedConfig:
        """Configuration values that operators publish at run time, as this worker knows them."""
        return self._resources.config

    @property
    def may_lack_await(self) -> bool:
        """Return whether a call below has not begun."""
        return self._calls is not None and any_waits(self._calls)

    async def unawaited(self) -> NotAwaited | None:
        """Return the failure of a handler that has returned and did not await one of the calls below."""
        # A task that the handler started for a call begins it in the next turn of the loop. The handler may have
        # ignored its cancellation, which must not end this wait.
        with CancelScope(shield=True):
            await asyncio.sleep(0)
        return None if self._calls is None else take_unawaited(self._calls)

    @noticed
    async def extend(self, seconds: Duration) -> None:
        """Extend the deadline of this attempt; without a time limit only a sign of life.

        Args:
            seconds: seconds or timedelta to add.

        Raises:
            InvalidInput: `seconds` is not a duration.
        """
        more_s = to_seconds("extend", seconds)
        if self.deadline is not None:
            self.deadline += timedelta(seconds=more_s)
        if self._resources.timer is not None:
            self._resources.timer.extend(more_s)
        await self.heartbeat()

    @noticed
    async def heartbeat(self) -> None:
        """Give a sign of life, which restarts the skill's `silence` limit, as `progress` and `emit` do.

        It sends nothing. The worker itself renews the lease of the task.
        """
        self._sign()
        await lowlevel.checkpoint()

    @noticed
    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Store the progress of the attempt; a sign of life. Returns when Redis has stored it.

        Redis keeps only the latest. `TaskHandle.info()` and `orc tasks show` return it, `events()` streams it.

        Args:
            done: in any unit, not negative.
            total: total amount in the same unit, or None if it is unknown.
            message: one line, cut to 500 characters.

        Raises:
            InvalidInput: `done` or `total` is not a number, or is negative.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: Redis did not answer, even after retries.
        """
        self._sign()
        await self._resources.output.progress(Progress(done, total, message))

    @noticed
    async def emit(self, data: Any) -> None:
        """Append a chunk to the output of the task, which `TaskHandle.output()` reads live; a sign of life.

        Returns when Redis has stored it.

        Args:
            data: any JSON value or pydantic model, at most `output.max_chunk_bytes`.

        Raises:
            InvalidInput: JSON cannot represent `data`, or it is too large; nothing was sent.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable, ServerFull: Redis did not answer, even after retries, or has no memory left.
        """
        self._sign()
        await self._resources.output.emit(data)

    @noticed
    async def ask(
        self,
        question: str,
        *,
        options: Sequence[Any] | None = None,
        deadline: Duration | datetime | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Ask a person. Returns the answer if there is one; otherwise the attempt ends here and the task waits.

        A waiting task uses no slot and no attempt. After `orc tasks answer` or `TaskHandle.answer`, the handler starts
        again from its beginning, and this call returns the answer. Questions are numbered in the order of the calls, so
        a handler must ask the same questions in the same order in each attempt. It also repeats everything before the
        question, except calls through `once`.

        Args:
            question: the text for the person, the same in each attempt.
            options: JSON values that are allowed as answers; by default any value.
            deadline: seconds, timedelta or aware datetime after which the task continues without an answer; by default
                it waits forever.
            default: the value to return after the deadline.

        Returns:
            A JSON value.

        Raises:
            Asked: ends the attempt; do not catch it.
            AskExpired: the deadline passed without an answer, and there is no default.
            QuestionChanged: an earlier attempt asked another question with this number.
            InvalidInput: an argument is invalid, or larger than 64 KiB.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: Redis did not answer, even after retries.
        """
        self._sign()
        asking = self._resources.asking.ask(question, options=options, deadline=deadline, default=default)
        tracing = active()
        return await (asking if tracing is None else tracing.ask(asking, ends=Asked))

    @noticed
    async def once(self, name: str, do: Callable[..., Any], *args: Any) -> Any:
        """Call `do` once per task and keep its result with the task, which later attempts return.

        Calls with the same name share one result, also concurrent ones. If the worker dies after the call and before
        the result is stored, the next attempt calls `do` again, so pass `idempotency_key` to outside services.

        Args:
            name: unique for each call of a task; at most 256 bytes.
            do: an `async def`, or a plain callable, which runs in a thread.
            *args: arguments of `do`.

        Returns:
            The result of `do` after a JSON round trip, in the first attempt too.

        Raises:
            InvalidInput: the name is invalid. Or `do` was called, but JSON cannot represent its result, or it is larger
                than 64 KiB; the next attempt calls `do` again.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: Redis did not answer, even after retries.
            Exception: `do` raised it; the result is not kept.
        """
        self._sign()
        self._resources.asking.check_not_asked()
        return await self._resources.once.run(name, do, *args)

    @noticed
    async def effect(
        self,
        name: str,
        do: Callable[..., Any],
        *args: Any,
        unknown: Unknown = "ask",
        check: Callable[..., EffectDone | Awaitable[EffectDone | None] | None] | None = None,
    ) -> Any:
        """Call `do` at most once per task, unless a decision about its outcome is recorded; keep its result.

        Redis stores that the effect begins before `do` is called, and the result afterwards. If the worker dies between
        the two, or `do` raises, the outcome is unknown. The next attempt then calls `check`. If that cannot tell, it
        follows `unknown`.

        Args:
            name: unique for each effect of a task; at most 256 bytes.
            do: an `async def`, or a plain callable, which runs in a thread. It raises `EffectNotDone` if it knows that
                nothing has happened.
            *args: arguments of `do` and of `check`: JSON values or pydantic models, the same in each attempt.
            unknown: `ask` asks a person as `ask` does, `retry` calls `do` again, `fail` makes the task a dead letter.
            check: looks up an unknown outcome. It returns `EffectDone(result)`, or None if it cannot tell, or raises
                `EffectNotDone`.

        Returns:
            The result of `do` after a JSON round trip, in the first attempt too; or the one that `check` or a person
            gave.

        Raises:
            Asked: ends the attempt with a question; do not catch it.
            EffectUnknown: the outcome is unknown, and `unknown="fail"`, or a person decided to end the task.
            EffectChanged: an earlier attempt passed other arguments under this name.
            InvalidInput: an argument is invalid, or the task has 500 effects. Or `do` was called, but JSON cannot
                represent its result, or it is larger than 64 KiB; its outcome is then unknown.
            UpgradeUnfinished: the pool admits programs that do not know effects; `do` was not called.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: Redis did not answer, even after retries.
            Exception: `do` raised it; the outcome is unknown, except after `EffectNotDone`.
        """
        self._sign()
        self._resources.asking.check_not_asked()
        return await self._resources.effects.run(name, do, args, unknown=unknown, check=check)

    @property
    def budget(self) -> AttemptBudget:
        """Amounts that the budgets of the task have left: `left`, `wrap_up`; see `spend`."""
        return self._resources.spending.budget

    def spend(
        self,
        *,
        usd: Amount | None = None,
        tokens: Amount | None = None,
        calls: Amount | None = 1,
        seconds: Amount | None = None,
        last: bool = False,
    ) -> Spend:
        """Take amounts from all budgets of the task while a call runs: `async with ctx.spend(usd=0.05) as s:`.

        `s.settle(usd=0.031)` tells what the call has used, and the end of the block books it. Without `settle` the
        block books all that it took, and nothing when it raises. A task without a budget spends nothing.

        Args:
            usd: US dollars that the call may use.
            tokens: tokens that it may use.
            calls: calls; one by default.
            seconds: seconds that it may use.
            last: take up to 5 % of each limit beyond it, once per task, so that a result is kept.

        Raises:
            BudgetExhausted: a budget has no room. If the handler lets it pass, the task becomes a dead letter.
            Asked: the budget asks a person for more, and the attempt ends; do not catch it.
            InvalidInput: an amount is negative, not finite, or too large.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable: Redis did not answer, even after retries.
        """
        self._sign()
        values = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds}
        return self._resources.spending.call(values, last=last)

    def _sign(self) -> None:
        if self._resources.timer is not None:
            self._resources.timer.record_sign()

    @overload
    async def submit(
        self, skill: TypedSkill[T], args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[T]: ...

    @overload
    async def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[Any]: ...

    @noticed
    async def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[Any]:
        """Submit a child task; await its `result()` to join it.

        Without `key`, the child's idempotency key is derived from this task and the number of the child, so that a
        retried parent that submits the same children in the same order finds those of the earlier attempt.
        The options are those of `Orchestrator.submit`; `session` and `fair` are the parent's by default, and the child
        spends the budgets of the parent beside its own.

        Raises:
            SubmitRefused: this attempt was taken away, a cap was reached, or the lane is busy.
            KeyConflict: the earlier attempt submitted another child or a flow with this number.
        """
        child = self._child(Submission(skill, args, **options))
        client = await self._resources.client()
        handle = await client.submit_one(child, self._parent)
        return handle.waiting_in(self._resources.until_ended)

    @noticed
    async def submit_many(self, tasks: Iterable[Submission]) -> list[TaskHandle[Any]]:
        """Submit many child tasks in few calls: `ctx.submit_many(Submission("read", {"url": url}) for url in urls)`.

        Each is a child as those of `submit`, numbered in the order given.

        Args:
            tasks: the children.

        Raises:
            InvalidInput: one is malformed; nothing was sent.
            SubmitRefused: some were not accepted; `outcomes` has a handle or an exception for each, in order.
            NotDurable: all were accepted, and some are not as durable as asked; `handles` has all of them.
            ServerUnavailable: none was, because Redis did not answer; `task_ids` are those that may have arrived.
        """
        children = [self._child(task) for task in tasks]
        client = await self._resources.client()
        try:
            handles = await client.submit_many(children, self._parent)
        except SubmitRefused as refused:
            refused.outcomes = tuple(self._waiting(outcome) for outcome in refused.outcomes)
            raise
        except NotDurable as missed:
            missed.handle, missed.handles = self._waiting(missed.handle), tuple(map(self._waiting, missed.handles))
            raise
        return [self._waiting(handle) for handle in handles]

    @noticed
    async def submit_flow(self, flow: Flow, *, key: str | None = None) -> FlowHandle:
        """Submit the tasks of a flow as children with one call; see `Orchestrator.submit_flow`.

        Without `key` it is derived from this task and the number of the child, as in `submit`: a flow
        counts as one child, and a retried parent finds the flow of the earlier attempt.

        Args:
            flow: up to 500 tasks; `session` and `fair` are those of this task by default.
            key: a second submit with the same key and the same flow returns the same tasks.

        Raises:
            SubmitRefused: a task was refused, so that nothing was stored; or this attempt was taken away; or tasks of
                the flow of an earlier attempt are gone.
            KeyConflict: the earlier attempt submitted another flow or a task with this number.
            InvalidInput: the flow has a cycle, or an argument is invalid; nothing was sent.
        """
        from orchestrator.tasks.flows import check_flow

        check_flow(flow)
        self._children += 1
        if key is None:
            key = f"{self.task_id}/{self._children}"
        client = await self._resources.client()
        inherited = flow.inheriting(session=self.session, fair=self._fair)
        try:
            found = await client.submit_flow(inherited, key=key, parent=self._parent)
        except SubmitRefused as refused:
            refused.outcomes = tuple(self._waiting(outcome) for outcome in refused.outcomes)
            raise
        except NotDurable as missed:
            missed.handle, missed.handles = self._waiting(missed.handle), tuple(map(self._waiting, missed.handles))
            raise
        return found.waiting_in(self._resources.until_ended, self.as_completed)

    def _child(self, task: Submission) -> Submission:
        """Return the submission of the next child, with the session and the key that it has by default."""
        self._children += 1
        options = dict(task.options)
        if options.get("session") is None:
            options["session"] = self.session
        if options.get("fair") is None and self._fair is not None:
            options["fair"] = self._fair
        if options.get("key") is None:
            options["key"] = f"{self.task_id}/{self._children}"
        return Submission(task.skill, task.args, **cast("TaskOptions", options))

    @property
    def _parent(self) -> Parent:
        return Parent(self.task_id, self._delivery.generation, self._depth, self._trace, self._root)

    def _waiting(self, outcome: Any) -> Any:
        """Return a handle whose waits lend the slot, or an exception as it is."""
        return outcome.waiting_in(self._resources.until_ended) if isinstance(outcome, TaskHandle) else outcome

    @overload
    async def join(
        self,
        tasks: Sequence[TaskHandle[T]],
        *,
        until: Until = "all",
        failed: OnFailure = "raise",
        deadline: Duration | datetime | None = None,
    ) -> list[Joined[T]]: ...

    @overload
    async def join(
        self,
        tasks: Sequence[TaskHandle[T]],
        *,
        until: Until = "all",
        failed: OnFailure = "raise",
        deadline: Duration | datetime,
        default: D,
    ) -> list[Joined[T]] | D: ...

    @noticed
    async def join(
        self,
        tasks: Sequence[TaskHandle[Any]],
        *,
        until: Until = "all",
        failed: OnFailure = "raise",
        deadline: Duration | datetime | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Wait for tasks without a slot. Returns what has ended if that is enough; otherwise the attempt ends here.

        The task then waits in the state `joining`, which uses no slot and no attempt; it keeps its lane. When enough
        tasks have ended, the handler starts again from its beginning, submits the same children, which finds those of
        the first attempt, and this call returns. Joins are numbered in the order of the calls, so a handler must join
        the same tasks in the same order in each attempt. It also repeats everything before the join, except calls
        through `once` and `effect`.

        Args:
            tasks: handles of up to 10,000 tasks, in most cases children that `submit` returned.
            until: `all`, `any`, or how many of them must have ended.
            failed: `raise` raises the error of a task that has failed, the first in the order of the handles, unless
                enough tasks have succeeded, and the others go on; each later attempt does the same. `cancel-rest` also
                cancels those that have not ended; `collect` counts a failure as an end. A task that was cancelled, has
                expired, or was deleted has failed.
            deadline: seconds, timedelta or aware datetime after which the task continues; by default it waits as long
                as it takes. It counts from the first attempt that waits here.
            default: the value to return after the deadline.

        Returns:
            One `Joined` for each handle, in their order, with `ended`, `value` and `error`. A later attempt may find
            that more tasks have ended.

        Raises:
            Joining: ends the attempt; do not catch it.
            ChildFailed, TaskCancelled, TaskExpired: a task failed, unless `failed="collect"`.
            JoinTimeout: the deadline passed, and there is no default.
            JoinChanged: this join was over for an earlier attempt, which joined other tasks.
            WaitCycle: one of the tasks waits for this task.
            JoinRefused: 20 tasks join one of them, or too many wait for this task to find out whether one of them does.
            InvalidInput: an argument is invalid.
            UpgradeUnfinished: the pool admits programs that do not know joins.
            Fenced: the task was taken away from this attempt.
            ServerUnavailable, ServerFull: Redis did not answer, even after retries, or has no memory left.
        """
        self._sign()
        return await self._resources.joins.join(tasks, until=until, failed=failed, deadline=deadline, default=default)

    @noticed
    async def extract(
        self, *, source: str = MAIN, agent: str | None = None, skill: str = EXTRACT, subject: str | None = None
    ) -> TaskHandle[Extraction] | None:
        """Submit a child task that extracts what the skill has not extracted of the session's chat.

        Call it at the end of a turn; nothing waits for it, unless the handler awaits its result.

        Args:
            source: source of the chat.
            agent: agent with the skill; by default this one.
            skill: name of the skill, as `Agent.extracts` registers it.
            subject: person that messages are about which name none.

        Returns:
            The handle; None if all messages were extracted.

        Raises:
            OrchestratorError: as `workspace`.
            InvalidInput, SubmitRefused: as `submit`.
        """
        chat = self.chat.source(source)
        task = await plan_extraction(chat, agent=agent or self.agent, skill=skill, subject=subject)
        return None if task is None else await self.submit(task.skill, task.args, **task.options)

    async def as_completed(
        self, children: Iterable[TaskHandle[T]], *, timeout: Duration | None = None
    ) -> AsyncGenerator[TaskHandle[T]]:
        """Give each child when it has ended: `async for child in ctx.as_completed(children)`.

        Between two of them the handler holds its slot; see `Orchestrator.as_completed`.

        Args:
            children: handles that `submit` returned; one that is there twice is given once.
            timeout: seconds or timedelta for all of them; None waits as long as it takes; 0 asks once.

        Raises:
            TimeoutError: not all had ended after `timeout`; the message says how many.
            WaitCycle: one of them waits for this task.
            InvalidInput: that is no handle, or one of another client.
        """
        by_id = {child.id: child for child in children}
        client = await self._resources.client()
        tracked = [child.shared if isinstance(child, WaitingHandle) else child for child in by_id.values()]
        async with aclosing(client.as_completed(tracked, timeout=timeout)) as ends:
            while by_id:
                if any(child.outcome is not None for child in by_id.values()):
                    ended = await anext(ends)
                else:
                    async with self._resources.until_ended(list(by_id)):
                        ended = await anext(ends)
                yield by_id.pop(ended.id)
