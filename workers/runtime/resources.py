"""Implements `orchestrator.workers.context.AttemptResources` on the parts of a worker."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from orchestrator.agent_state.states import AgentState
from orchestrator.chat.chat import Chat
from orchestrator.client.shared_config import SharedConfig
from orchestrator.core.errors import Fenced, InvalidInput, OrchestratorError, QuestionChanged
from orchestrator.core.formats import Feature
from orchestrator.limits.limits import Limits
from orchestrator.memory.memory import Memory
from orchestrator.services import bind_scope
from orchestrator.tasks import scripts
from orchestrator.tasks.effects import MOST_EFFECTS, describe_step
from orchestrator.tasks.records import TaskRecord, effect_field, numbered_field, once_field, read_record
from orchestrator.workers.asking import AnswerSource, Asking
from orchestrator.workers.effects import EffectCalls, EffectRecord
from orchestrator.workers.once import OnceCalls, OnceResults
from orchestrator.workers.pausing import AttemptPausing
from orchestrator.workspace.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.client.client import Orchestrator
    from orchestrator.locks.attempt import AttemptLocks
    from orchestrator.locks.execution import LockMode
    from orchestrator.memory.owner import MemoryOwner
    from orchestrator.services import Services
    from orchestrator.tasks.model import Delivery, Question
    from orchestrator.workers.asking import PendingQuestion
    from orchestrator.workers.context import AttemptTimer
    from orchestrator.workers.pausing import Pausing
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.emitter import AttemptOutput
    from orchestrator.workers.runtime.parts import WorkerParts


class TaskRecordAccess(AnswerSource, OnceResults, EffectRecord, Protocol):
    """Answers, kept results and effects in the record of a task."""


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
        """Answers, kept results and effects in the record of the task."""
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

    @cached_property
    def once(self) -> OnceCalls:
        """Calls whose results the task keeps."""
        return OnceCalls(self.record)

    @cached_property
    def effects(self) -> EffectCalls:
        """Calls that are begun at most once."""
        return EffectCalls(self.record, self.asking)

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

    async def load_question(self, number: int) -> Question | None:
        """Read a question and its answer; see `EffectRecord`."""
        record = await self._read(*(numbered_field(kind, number) for kind in ("ask", "answer", "answered")))
        return record.question(number)

    async def count_questions(self) -> int:
        """Read the number of the latest question; see `EffectRecord`."""
        return (await self._read("asks")).asks

    async def _read(self, *fields: str) -> TaskRecord:
        delivery, store = self._delivery, self._services.store
        retry_for_s = self._services.settings.redis.command_timeout_s
        record = await store.read_with_retry(
            lambda: read_record(store, delivery.task_id, "state", "gen", *fields), retry_for_s=retry_for_s
        )
        if record.field("state") != b"assigned" or record.field("gen") != delivery.generation.encode():
            raise Fenced(delivery.task_id)
        return record
