"""Implements `orchestrator.workers.context.AttemptResources` on the parts of a worker."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from orchestrator.agent_state.states import AgentState
from orchestrator.budgets import scripts as budget_scripts
from orchestrator.budgets.queries import read_budgets
from orchestrator.chat.chat import Chat
from orchestrator.client.shared_config import SharedConfig
from orchestrator.core.errors import (
    Fenced,
    InvalidInput,
    JoinRefused,
    OrchestratorError,
    QuestionChanged,
    StoreError,
    WaitCycle,
)
from orchestrator.core.formats import Feature
from orchestrator.core.reading import read_text
from orchestrator.limits.limits import Limits
from orchestrator.memory.memory import Memory
from orchestrator.services import bind_scope
from orchestrator.tasks import scripts
from orchestrator.tasks.bulk import cancel_children
from orchestrator.tasks.effects import MOST_EFFECTS, describe_step
from orchestrator.tasks.queries import TaskOutcome, outcomes
from orchestrator.tasks.records import TaskRecord, effect_field, numbered_field, once_field, read_record
from orchestrator.tasks.scripts import JoinTerms
from orchestrator.workers.asking import AnswerSource, Asking
from orchestrator.workers.effects import EffectCalls, EffectRecord
from orchestrator.workers.joining import MOST_JOINERS, JoinCalls, JoinRecord, MetJoin, StoredJoin
from orchestrator.workers.once import OnceCalls, OnceResults
from orchestrator.workers.pausing import AttemptPausing
from orchestrator.workers.spending import FundsAccess, Spending
from orchestrator.workspace.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.budgets.model import BudgetState
    from orchestrator.budgets.scripts import BookedCall, Reserved
    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.amounts import Amounts
    from orchestrator.locks.attempt import AttemptLocks
    from orchestrator.locks.execution import LockMode
    from orchestrator.memory.owner import MemoryOwner
    from orchestrator.services import Services
    from orchestrator.tasks.model import Delivery, Question
    from orchestrator.tasks.scripts import JoinPart
    from orchestrator.workers.asking import PendingQuestion
    from orchestrator.workers.context import AttemptTimer
    from orchestrator.workers.joining import Join, PendingJoin
    from orchestrator.workers.pausing import Pausing
    from orchestrator.workers.providers import ProviderGate
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.emitter import AttemptOutput
    from orchestrator.workers.runtime.parts import WorkerParts


JOINED_AT_ONCE: Final = 500
"""Tasks that one call reads or registers."""


class TaskRecordAccess(AnswerSource, OnceResults, EffectRecord, JoinRecord, FundsAccess, Protocol):
    """Answers, kept results, effects, joins and budgets in the record of a task."""


class Resources:
    """The resources of one attempt. Nothing is sent before the handler uses one.

    Attributes:
        cancelled, cancel_seen, timer, locks_in_use: see `AttemptResources`.
    """

    # Class attributes are the defaults, so that an attempt pays for none that it does not use.
    cancelled: bool = False
    cancel_seen: bool = False
    timer: AttemptTimer | None = None
    locks_in_use: AttemptLocks | None = None
    _asking: Asking | None = None
    _joins: JoinCalls | None = None

    def __init__(self, attempt: Attempt, parts: WorkerParts, *, lock_mode: LockMode, lease_ms: int) -> None:
        self._attempt, self._parts = attempt, parts
        self._lock_mode: LockMode = lock_mode
        self._lease_ms = lease_ms

    @property
    def lease_left_s(self) -> float:
        """Seconds until the lease lapses by the clock of this process; 0 if it has lapsed or is lost."""
        attempt = self._attempt
        return max(0.0, attempt.leased_until_s - time.monotonic()) if attempt.owns_task else 0.0

    async def client(self) -> Orchestrator:
        """Open the client that submits child tasks."""
        return await self._parts.client.open()

    @asynccontextmanager
    async def until_ended(self, children: Sequence[str]) -> AsyncIterator[None]:
        """Lend the slot of the attempt while a block waits for one of these tasks."""
        locks = self.locks_in_use
        if locks is not None and locks.execution.exclusive:
            await locks.execution.note_awaited(children)
        async with self._parts.waiting.until_ended(self._attempt, children):
            yield

    @cached_property
    def output(self) -> AttemptOutput:
        """Progress and output."""
        return self._parts.emitter.for_attempt(self._attempt.delivery)

    @cached_property
    def record(self) -> TaskRecordAccess:
        """Answers, kept results, effects and joins in the record of the task."""
        return AttemptRecord(self._parts.services, self._attempt.delivery, worker=self._parts.worker)

    @property
    def asking(self) -> Asking:
        """Questions to people."""
        if self._asking is None:
            self._asking = Asking(self.record)
        return self._asking

    @property
    def question(self) -> PendingQuestion | None:
        """The question that the attempt ends with, once it has asked."""
        return None if self._asking is None else self._asking.pending

    @property
    def joins(self) -> JoinCalls:
        """Joins of tasks."""
        if self._joins is None:
            self._joins = JoinCalls(self.record, self.asking)
        return self._joins

    @property
    def join(self) -> PendingJoin | None:
        """The join that the attempt ends with, once it waits for one."""
        return None if self._joins is None else self._joins.pending

    @cached_property
    def once(self) -> OnceCalls:
        """Calls whose results the task keeps."""
        return OnceCalls(self.record)

    @cached_property
    def effects(self) -> EffectCalls:
        """Calls that are begun at most once."""
        return EffectCalls(self.record, self.asking)

    @cached_property
    def spending(self) -> Spending:
        """Calls that spend the budgets of the task."""
        return Spending(self.record, self.asking)

    @property
    def locks(self) -> AttemptLocks:
        """Execution locks and named locks."""
        if self.locks_in_use is None:
            self.locks_in_use = self._parts.locking.of(self._attempt, mode=self._lock_mode, lease_ms=self._lease_ms)
        return self.locks_in_use

    @cached_property
    def workspace(self) -> Workspace:
        """The workspace of the session, changed in the name of the agent.

        Raises:
            OrchestratorError: the task has no session.
        """
        session, services, locks = self._session("workspace"), self._parts.services, self.locks
        scope = bind_scope(services.store, services.settings, "session", session)
        return Workspace(scope, guard=locks.execution.session, agent=self._attempt.delivery.agent, locks=locks.named)

    @cached_property
    def chat(self) -> Chat:
        """The chat of the session, changed in the name of the agent.

        Raises:
            OrchestratorError: the task has no session.
        """
        session, services, locks = self._session("chat"), self._parts.services, self.locks
        return Chat(
            bind_scope(services.store, services.settings, "session", session),
            locks=locks.named,
            guard=locks.execution.session,
            agent=self._attempt.delivery.agent,
            cache=services.chat_cache,
            accounts=self._parts.accounts,
        )

    def _session(self, what: str) -> str:
        delivery, session = self._attempt.delivery, self._attempt.envelope.session
        if session is None:
            raise OrchestratorError(
                f"task {delivery.task_id} belongs to no session, so it has no {what}; submit it with session="
            )
        return session

    @property
    def limits(self) -> Limits:
        """Limits by name."""
        services = self._parts.services
        settings = services.settings
        return Limits(services.store, prefix=settings.prefix, retry_for_s=settings.redis.command_timeout_s)

    @cached_property
    def pausing(self) -> Pausing:
        """Pauses of agents and limits, in the name of the attempt."""
        delivery = self._attempt.delivery
        return AttemptPausing(self._parts.services, actor=f"agent {delivery.agent}, task {delivery.task_id}")

    @cached_property
    def providers(self) -> ProviderGate:
        """Calls of providers, in the name of the attempt."""
        return self._parts.providers.of(self._attempt)

    @property
    def agent_state(self) -> AgentState:
        """The state of the agent, changed under the attempt's execution lock."""
        services = self._parts.services
        scope = bind_scope(services.store, services.settings, "agent", self._attempt.delivery.agent)
        return AgentState(scope, self.locks.execution.agent, self.locks.named.waiter)

    @cached_property
    def memory(self) -> Memory:
        """The memory of the agent, changed under the attempt's execution lock."""
        services = self._parts.services
        scope = bind_scope(services.store, services.settings, "agent", self._attempt.delivery.agent)
        return Memory(
            scope, self.locks.execution.agent, waiter=self.locks.named.waiter, vector_cache=services.vector_cache
        )

    def memory_of(self, owner: MemoryOwner) -> Memory:
        """Return a memory of another scope, changed under the attempt's lock in that scope."""
        services, locks = self._parts.services, self.locks
        scope = bind_scope(services.store, services.settings, *owner)
        lock, waiter = locks.execution.shared(*owner), locks.named.waiter
        return Memory(scope, lock, waiter=waiter, vector_cache=services.vector_cache)

    @property
    def config(self) -> SharedConfig:
        """Published configuration values, as the worker knows them."""
        commands = self._parts.commands
        return SharedConfig(self._parts.services, known=lambda: commands.desired)


class AttemptRecord:
    """Reads and writes the record of a task while the attempt owns it."""

    __slots__ = ("_delivery", "_services", "_worker")

    def __init__(self, services: Services, delivery: Delivery, *, worker: str) -> None:
        self._services, self._delivery, self._worker = services, delivery, worker

    async def look_up(self, number: int, question: str) -> Question | None:
        """Read a question and its answer; see `AnswerSource`."""
        record = await self._read(*(numbered_field(kind, number) for kind in ("ask", "answer", "answered")))
        found = record.question(number)
        if found is not None and not found.open and not found.effect and found.question != question:
            raise QuestionChanged(number, question, found.question)
        return found

    async def load_result(self, name: str) -> bytes | None:
        """Read a kept result; see `OnceResults`."""
        field = once_field(name)
        return (await self._read(field)).field(field)

    async def store_result(self, name: str, result: bytes) -> bytes:
        """Keep a result; see `OnceResults`."""
        delivery = self._delivery
        call = scripts.once(
            self._services.keys, id_=delivery.task_id, generation=delivery.generation, name=name, value=result
        )
        done = await self._services.store.call(call, retry_for_s=self._services.settings.redis.command_timeout_s)
        match done.status:
            case "stale":
                raise Fenced(delivery.task_id)
            case "already":
                return done.value
        return result

    @property
    def begins_as(self) -> tuple[str, str, str]:
        """Task, worker and generation; see `EffectRecord`."""
        return self._delivery.task_id, self._worker, self._delivery.generation

    async def load_effect(self, name: str) -> bytes | None:
        """Read an effect; see `EffectRecord`."""
        field = effect_field(name)
        return (await self._read(field)).field(field)

    async def store_effect(self, name: str, before: bytes | None, effect: bytes) -> bytes | None:
        """Store a step of an effect; see `EffectRecord`."""
        delivery, store = self._delivery, self._services.store
        await store.require(Feature.EFFECTS)
        call = scripts.effect(
            self._services.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            name=name,
            before=before or b"",
            value=effect,
            most=MOST_EFFECTS,
            told=describe_step(name, before, effect),
        )
        done = await store.call(call, retry_for_s=self._services.settings.redis.command_timeout_s)
        match done.status:
            case "stale":
                raise Fenced(delivery.task_id)
            case "full":
                raise InvalidInput(f"task {delivery.task_id} has {MOST_EFFECTS} effects, the most that a task may have")
            case "changed":
                return None
        return done.value

    async def reserve(self, number: int, amounts: Amounts, *, last: bool) -> Reserved:
        """Take amounts from all budgets, or from none; see `FundsAccess`."""
        delivery, services = self._delivery, self._services
        call = budget_scripts.reserve(
            services.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            number=number,
            amounts=amounts,
            last=last,
        )
        found = await services.store.call(call, retry_for_s=services.settings.redis.command_timeout_s)
        if found.status == "stale":
            raise Fenced(delivery.task_id)
        return found

    async def settle_call(self, number: int, amounts: Amounts | None) -> BookedCall:
        """Book what a call has used; see `FundsAccess`. The end of an attempt that lost its task has booked it."""
        delivery, services = self._delivery, self._services
        call = budget_scripts.settle(
            services.keys, id_=delivery.task_id, generation=delivery.generation, number=number, amounts=amounts
        )
        return await services.store.call(call, retry_for_s=services.settings.redis.command_timeout_s)

    async def load_budgets(self) -> list[BudgetState]:
        """Read the budgets of the attempt; see `FundsAccess`."""
        record, store = await self._read("budget", "funds"), self._services.store
        texts = [read_text(record.field(name) or b"") for name in ("budget", "funds")]
        names = list(dict.fromkeys(" ".join(texts).split()))
        retry_for_s = self._services.settings.redis.command_timeout_s
        found = await store.read_with_retry(lambda: read_budgets(store, names), retry_for_s=retry_for_s)
        return [state for state in found.values() if not isinstance(state, str)]

    async def load_question(self, number: int) -> Question | None:
        """Read a question and its answer; see `EffectRecord`."""
        record = await self._read(*(numbered_field(kind, number) for kind in ("ask", "answer", "answered")))
        return record.question(number)

    async def count_questions(self) -> int:
        """Read the number of the latest question; see `EffectRecord`."""
        return (await self._read("asks")).asks

    async def load_join(self, join: Join) -> StoredJoin:
        """Read a join that an earlier attempt began; see `JoinRecord`."""
        field = numbered_field("join", join.number)
        match read_text((await self._read(field)).field(field) or b"").split():
            case [_, _, "over"]:
                return StoredJoin(over=True)
            case [_, _, "met", digest, failure]:
                return StoredJoin(met=MetJoin(digest, "" if failure == "-" else failure))
        return StoredJoin()

    async def store_met(self, number: int, met: MetJoin) -> None:
        """Store how a join was met; see `JoinRecord`."""
        delivery = self._delivery
        call = scripts.join(
            self._services.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            ids=(),
            part="more",
            terms=JoinTerms(number, 0, stop=False),
            keep_s=0,
            most=MOST_JOINERS,
            met=f"{met.digest} {met.failure or '-'}",
        )
        done = await self._services.store.call(call, retry_for_s=self._services.settings.redis.command_timeout_s)
        if done.status == "stale":
            raise Fenced(delivery.task_id)

    async def read_ends(self, handles: Sequence[TaskHandle[Any]]) -> dict[str, TaskOutcome]:
        """Read the ends of tasks; see `JoinRecord`."""
        found = dict[str, TaskOutcome]()
        ids = [handle.id for handle in handles]
        for first in range(0, len(ids), JOINED_AT_ONCE):
            part = ids[first : first + JOINED_AT_ONCE]
            for id_, end in (await self._read_part(part)).items():
                if isinstance(end, StoreError):
                    raise end
                found[id_] = end
        return found

    async def _read_part(self, ids: Sequence[str]) -> dict[str, TaskOutcome | StoreError]:
        store = self._services.store
        retry_for_s = self._services.settings.redis.command_timeout_s
        return await store.read_with_retry(lambda: outcomes(store, ids), retry_for_s=retry_for_s)

    async def register_join(
        self, ids: Sequence[str], terms: JoinTerms, *, wait_ms: int, earlier: Sequence[str] = ()
    ) -> None:
        """Register the tasks of a join by 500; see `JoinRecord`."""
        await self._services.store.require(Feature.JOINS)
        await self._register(ids, "first", terms, wait_ms)
        await self._register(earlier, "earlier", terms, wait_ms)

    async def _register(self, ids: Sequence[str], part: JoinPart, terms: JoinTerms, wait_ms: int) -> None:
        delivery, store, settings = self._delivery, self._services.store, self._services.settings
        rest = list(ids)
        while rest:
            call = scripts.join(
                self._services.keys,
                id_=delivery.task_id,
                generation=delivery.generation,
                ids=rest[:JOINED_AT_ONCE],
                part=part,
                terms=terms,
                keep_s=round(settings.queue.max_wait_s) + wait_ms // 1000 + 1,
                most=MOST_JOINERS,
            )
            done = await store.call(call, retry_for_s=settings.redis.command_timeout_s)
            match done.status:
                case "stale":
                    raise Fenced(delivery.task_id)
                case "cycle":
                    raise WaitCycle(delivery.task_id, (done.task, delivery.task_id))
                case "crowded":
                    raise JoinRefused(
                        done.task, f"{MOST_JOINERS} tasks join it; try again when one of them has gone on"
                    )
                case "unknown":
                    why = "too many tasks wait for this task to find out whether it does; join children of this task"
                    raise JoinRefused(done.task, why)
            rest, part = rest[done.looked :], "more" if part == "first" else part

    async def cancel_tasks(self, ids: Sequence[str], reason: str) -> None:
        """Cancel tasks and those below them; see `JoinRecord`."""
        store, retry_for_s = self._services.store, self._services.settings.redis.command_timeout_s
        # An attempt that was frozen, and goes on after it lost its task, cancels nothing.
        await self._read()
        below = False
        for first in range(0, len(ids), JOINED_AT_ONCE):
            call = scripts.cancel(self._services.keys, ids=ids[first : first + JOINED_AT_ONCE], reason=reason)
            below |= (await store.call(call, retry_for_s=retry_for_s)).any_children
        if below:
            await cancel_children(store, retry_for_s=retry_for_s)

    async def _read(self, *fields: str) -> TaskRecord:
        delivery, store = self._delivery, self._services.store
        retry_for_s = self._services.settings.redis.command_timeout_s
        record = await store.read_with_retry(
            lambda: read_record(store, delivery.task_id, "state", "gen", *fields), retry_for_s=retry_for_s
        )
        if record.field("state") != b"assigned" or record.field("gen") != delivery.generation.encode():
            raise Fenced(delivery.task_id)
        return record
