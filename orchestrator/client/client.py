"""`Orchestrator`, the asyncio client: opens the connection, submits, hands out handles."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast, overload

import anyio

from orchestrator.agents.presence import warn_of_absence
from orchestrator.client.action_records import ActionRecorder, record_lock
from orchestrator.client.batcher import CHUNK_ROWS, Batcher, all_created, require_features, unanswered
from orchestrator.client.completion import as_completed
from orchestrator.client.durable_submits import DurableSubmits
from orchestrator.client.floor_watch import FloorWatch
from orchestrator.client.following import Following
from orchestrator.client.handle import HandleParts, TaskHandle
from orchestrator.client.large_arguments import LargeArguments
from orchestrator.client.loss_watch import LossWatch
from orchestrator.client.replies import Replies
from orchestrator.client.skill_versions import SkillVersions
from orchestrator.core.durability import DEFAULT
from orchestrator.core.errors import (
    KeyConflict,
    LaneBusy,
    NotDurable,
    OrchestratorError,
    ServerUnavailable,
    Stopped,
    StoreError,
    SubmitRefused,
)
from orchestrator.core.ids import TaskIds, check_task_id, encode_foreign
from orchestrator.core.live_settings import LiveSettings
from orchestrator.services import Services, open_services, resolve_settings
from orchestrator.store.keys import ScopeKeys
from orchestrator.store.scoped import bind_scope
from orchestrator.tasks.scripts import UnusualRow
from orchestrator.tasks.submission import Submission, SubmissionValidator, queue_full
from orchestrator.tracing.active import active, background_context

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import date

    from orchestrator.agent_state.states import Agents
    from orchestrator.agents.skills import SkillInfo, SkillSummary
    from orchestrator.agents.stats import AttemptStats, By
    from orchestrator.boards.boards import Board, BoardView
    from orchestrator.chat.accounts import ChatAccounts, ChatUsage
    from orchestrator.chat.chat import Chat
    from orchestrator.client.admin import Admin
    from orchestrator.client.flow_handle import FlowHandle
    from orchestrator.client.session import SessionHandle
    from orchestrator.client.shared_config import SharedConfig
    from orchestrator.client.tasks import Tasks
    from orchestrator.core.durability import Durability, Level
    from orchestrator.core.durations import Duration
    from orchestrator.core.formats import Floor
    from orchestrator.core.settings import Settings
    from orchestrator.erasure.subjects import Subjects
    from orchestrator.extraction.model import Extraction
    from orchestrator.limits.limits import Limits
    from orchestrator.locks.named import Locks
    from orchestrator.locks.renewal import LockRenewer
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.memory.memory import Memory
    from orchestrator.payloads.payloads import Packed
    from orchestrator.simulations.simulation import Simulation
    from orchestrator.tasks.flows import Flow
    from orchestrator.tasks.model import CancelStatus, RequeueStatus
    from orchestrator.tasks.options import TaskOptions
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow
    from orchestrator.tasks.submission import Arguments, Draft, NamedArguments, NamedSkill, Parent, TypedSkill
    from orchestrator.tracing.spans import SubmitSpan, Tracing
    from orchestrator.workspace.workspace import WorkspaceView

T = TypeVar("T")


class Orchestrator:
    """Submits tasks and waits for their results.

    Args:
        url: `redis://`, `rediss://` or `unix://`; by default the settings, else a running embedded server near by.
        pool: dispatch domain.
        prefix: `app:env:tenant`, the first part of every key.
        settings: all settings at once, in place of files and environment.

    Use it as `async with Orchestrator() as orc:`, or call `open` and `aclose`, which need not be in the same task.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: str | None = None,
        prefix: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._live = LiveSettings(resolve_settings(url=url, pool=pool, prefix=prefix, settings=settings))
        self._worker_floor: Floor | None = None
        self._main: asyncio.Task[None] | None = None
        self._services: Services | None = None

    # ------------------------------------------------------------------------------------------------ life cycle

    async def open(self) -> Self:
        """Connect.

        Raises:
            ConfigError, StoreError: no server is named, or it does not answer.
            OrchestratorError: it is open already, or `aclose` was called meanwhile.
        """
        if self._main is not None and not self._main.done():
            raise OrchestratorError(
                "this client is open already; one that is being closed is open until aclose() is done"
            )
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._running = anyio.CancelScope()
        # The one task of our own: its task group may be opened and closed from different tasks of the caller.
        self._main = asyncio.create_task(self._run(opened), name="orchestrator-client", context=background_context())
        try:
            await opened
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end()
            raise
        return self

    async def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            with self._running:
                async with self._open_services() as services:
                    await self._serve(services, opened)
        except BaseException as failure:
            if opened.done():
                raise
            opened.set_exception(failure)
        finally:
            if not opened.done():
                opened.set_exception(OrchestratorError("the client was closed while it was being opened"))
            if self._services is not None:
                self._services = None
                self._batcher.close()
                self._durable.close()
                self._replies.fail_all(OrchestratorError("the client was closed while a result was awaited"))
                self._following.fail_all(OrchestratorError("the client was closed while a task was followed"))

    def _open_services(self) -> AbstractAsyncContextManager[Services]:
        return open_services(self._live, name="client")

    async def _serve(self, services: Services, opened: asyncio.Future[None]) -> None:
        ids = TaskIds(listens=True)
        self._services = services
        self._validator = SubmissionValidator(services.live, ids=ids)
        self._versions = SkillVersions(services, self._warn_of_absence)
        self._validator.accepts = self._versions.accepts
        self._floor = FloorWatch(services.store, watches=self._worker_floor is None)
        self._losses = LossWatch(services)
        services.store.connected = self._losses.connected
        self._large = LargeArguments(services.payloads, self._validator)
        self._batcher, self._durable = Batcher(services, self._losses), DurableSubmits(services, self._losses)
        self._replies = Replies(services, client=ids.node)
        self._following = Following(services)
        self._recorder = ActionRecorder(services)
        self._handle_parts = HandleParts(services, self._replies, self._following, self._recorder)
        for used_later in ("_renewer", "_waiter", "_accounts"):
            self.__dict__.pop(used_later, None)  # of an earlier `open`
        async with anyio.create_task_group() as self._group:
            group = self._group
            group.start_soon(self._floor.run)
            group.start_soon(self._batcher.run)
            group.start_soon(self._durable.run)
            group.start_soon(self._losses.run)
            group.start_soon(self._replies.run)
            group.start_soon(self._following.run)
            group.start_soon(self._recorder.run)
            if not opened.done():  # else its caller was cancelled and closes
                opened.set_result(None)
            await anyio.sleep_forever()

    def _warn_of_absence(self, absence: str) -> None:
        warn_of_absence(absence)

    # A program that only submits does not import the modules of locks, chats and memories.

    @cached_property
    def _renewer(self) -> LockRenewer:
        from orchestrator.locks.renewal import LockRenewer

        renewer = LockRenewer()
        self._group.start_soon(renewer.run, self.services.store)
        return renewer

    @cached_property
    def _waiter(self) -> LockWaiter:
        from orchestrator.locks.waiter import LockWaiter
        from orchestrator.tasks.scripts import wake

        return LockWaiter(self.services.store, wake)

    @cached_property
    def _accounts(self) -> ChatAccounts:
        accounts = self.services.chat_accounts
        self._group.start_soon(accounts.run)
        return accounts

    async def aclose(self) -> None:
        """Close the connections; tasks go on, results stay readable by their ids.

        Calls that still wait raise `OrchestratorError`.
        """
        main = self._main
        await self._end()
        if main is not None and not main.cancelled() and (failure := main.exception()) is not None:
            raise failure

    async def _end(self) -> None:
        main = self._main
        # One that is done has a loop that may be gone: a client whose event loop has ended is closed.
        if main is not None and not main.done():
            self._check_loop()
            self._running.cancel()
            await asyncio.wait([main])
        if self._main is main:
            self._main = None

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise OrchestratorError(
                "this client was opened in another event loop; open one in each, or use orchestrator.sync"
            )

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()

    @property
    def services(self) -> Services:
        """The connections and settings, for the command line and tests."""
        if self._services is None:
            raise OrchestratorError(
                "the client is not open; use `async with Orchestrator() as orc:` or `await orc.open()`"
            )
        return self._services

    def _here(self) -> Services:
        services = self.services
        self._check_loop()
        return services

    # ---------------------------------------------------------------------------------------------------- submit

    @overload
    async def submit(
        self, skill: TypedSkill[T], args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[T]: ...

    @overload
    async def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[Any]: ...

    async def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[Any]:
        """Submit one task. Concurrent calls share a round trip.

        Warns with `NoAgentWarning`, once per skill and process, when no live agent has the skill.

        Args:
            skill: name of the skill, or the `Skill` itself.
            args: JSON object of its arguments, or a pydantic model.
            options: the [options of a task](../task-options.md).

        Raises:
            InvalidInput: an argument is invalid; nothing was sent.
            KeyConflict, QueueFull, LaneBusy, Stopped: the server refused the task; nothing was stored.
            NoAgent: `require_agent` is set, and no live agent has the skill; nothing was sent.
            NotDurable: the task was accepted, but its durability was not reached in time.
            ConfigError: the server cannot reach the durability; nothing was stored.
            PayloadStoreUnavailable: the arguments are large, and the payload store did not take them; nothing was sent.
            FormatMismatch: the pool no longer admits this version of the program.
            ServerUnavailable: Redis did not answer, even after retries. If `outcome_unknown` is true, the task may have
                been stored; `task_ids` has its id.
            ServerRefused: Redis refused a command of the submit. If `outcome_unknown` is true, as above.
        """
        return await self.submit_one(Submission(skill, args, **options))

    def submit_one(self, task: Submission, parent: Parent | None = None) -> Coroutine[Any, Any, TaskHandle[Any]]:
        """Submit what a `Submission` says, as a child of `parent` if given."""
        # Not a coroutine itself, because another one costs each submit a microsecond.
        tracing = active()
        return self._submit_one(task, parent) if tracing is None else self._submit_traced(tracing, task, parent)

    async def _submit_traced(self, tracing: Tracing, task: Submission, parent: Parent | None) -> TaskHandle[Any]:
        skill, options = getattr(task.skill, "name", task.skill), task.options
        with tracing.submit(
            skill,
            pool=self._here().keys.pool,
            agent=options.get("agent"),
            session=options.get("session"),
            parent=parent.task_id if parent else None,
        ) as span:
            return await self._submit_one(task, parent, span)

    async def _submit_one(
        self, task: Submission, parent: Parent | None, span: SubmitSpan | None = None
    ) -> TaskHandle[Any]:
        services = self._here()
        self._floor.check()
        if task.options.get("require_agent"):
            await self._versions.require(task)
        doubts: list[NamedArguments] = []
        trace, packed = span.header if span else "", None
        if self._large.enabled:
            draft, packed = await self._large.check(task, parent, doubts, trace=trace)
        else:
            draft = self._validator.check(task, parent, doubts, trace=trace)
        for doubt in doubts:
            await self._versions.check(doubt)
        if isinstance(draft, UnusualRow):
            await require_features(services.store, [draft])
        row = self._validator.number(draft)
        # Known before it is sent: its reply may be read before the answer to the submit.
        handle: TaskHandle[Any] = TaskHandle(row.id, self._handle_parts, _reader_of(task.skill))
        self._replies.track_own((handle,))
        level, durability = task.options.get("durability") or services.settings.queue.durability, None
        try:
            if packed is not None:
                answer, durability = await self._submit_large(level, row, packed)
            elif level == DEFAULT:
                answer = await self._batcher.add(row)
            else:
                answer, durability = await self._durable.add(level, row)
        except StoreError as failure:
            if failure.outcome_unknown:
                raise unanswered(failure, [row.id]) from failure
            raise
        accepted = self._accepted(services, task, handle, answer)
        if span is not None:
            span.note_task(accepted.id, len(row.envelope))
        return accepted if durability is None else self._confirmed(accepted, durability)

    @staticmethod
    def _confirmed(accepted: TaskHandle[Any], durability: Durability) -> TaskHandle[Any]:
        accepted.note_durability(durability)
        if durability.missed:
            raise NotDurable(durability, accepted, [accepted])
        return accepted

    async def _submit_large(
        self, level: Level, row: SubmitRow, packed: Packed
    ) -> tuple[SubmitAnswer, Durability | None]:
        """Submit a task whose arguments go to the payload store; delete them there if Redis does not take it."""
        await self._large.put(row.id, packed)
        durability = None
        try:
            if level == DEFAULT:
                answer = await self._batcher.add(row)
            else:
                answer, durability = await self._durable.add(level, row)
        except StoreError as failure:
            await self._large.settle(row.id, packed, failure)
            raise
        await self._large.settle(row.id, packed, answer)
        return answer, durability

    async def submit_many(self, tasks: Iterable[Submission], parent: Parent | None = None) -> list[TaskHandle[Any]]:
        """Submit many tasks in chunks, two on their way at a time; all are accepted or `SubmitRefused` tells of each.

        Raises:
            InvalidInput: one is malformed; nothing was sent.
            NoAgent: one has `require_agent`, and no live agent has its skill; nothing was sent.
            FormatMismatch: the pool no longer admits this version of the program.
            SubmitRefused: some were not accepted; `outcomes` has a handle or an exception for each, in order. That of a
                task that may have arrived is a `ServerUnavailable` or a `ServerRefused` whose `outcome_unknown` is
                true. That of a task that was accepted, but not as durable as asked, is a `NotDurable`.
            NotDurable: all were accepted, and some are not as durable as asked; `handles` has all of them.
            ConfigError: the server cannot reach their durability; nothing was stored.
            ServerUnavailable: none was, because Redis did not answer; `task_ids` are those that may have arrived.
        """
        listed, tracing = list(tasks), active()
        if tracing is None:
            return await self._submit_many(listed, parent)
        skills = [getattr(task.skill, "name", task.skill) for task in listed]
        with tracing.submit_many(
            skills, pool=self._here().keys.pool, parent=parent.task_id if parent else None
        ) as span:
            return await self._submit_many(listed, parent, span.header)

    async def _submit_many(
        self, listed: Sequence[Submission], parent: Parent | None, trace: str = ""
    ) -> list[TaskHandle[Any]]:
        services = self._here()
        self._floor.check()
        await self._versions.require_all(listed)
        doubts: list[NamedArguments] = []
        drafts, large = await self._checked(listed, parent, doubts, trace)
        for doubt in doubts:
            await self._versions.check(doubt)
        await require_features(services.store, drafts)
        usual = services.settings.queue.durability
        levels = [task.options.get("durability") or usual if task.options else usual for task in listed]
        if levels.count(DEFAULT) < len(levels):
            return await self._submit_durably(services, listed, drafts, levels, large)
        handles: list[TaskHandle[Any]] = []
        async with self._batcher.sending() as sending:
            for start in range(0, len(drafts), CHUNK_ROWS):
                rows = self._validator.number_all(drafts[start : start + CHUNK_ROWS])
                handles += self._own_handles(rows, listed[start : start + CHUNK_ROWS])
                await self._large.put_all([(row.id, packed) for row, packed in zip(rows, large[start:], strict=False)])
                await sending.send(rows)
        answers = list(sending.outcomes())
        await self._large.settle_all(handles, large, answers)
        if all_created(answers):
            return handles
        return self._all_accepted(self._outcomes(services, listed, handles, answers))

    async def submit_flow(  # noqa: D417 - `parent` is for the workers
        self, flow: Flow, *, key: str | None = None, parent: Parent | None = None
    ) -> FlowHandle:
        """Submit the tasks of a flow with one call: all of them are accepted, or none.

        Args:
            flow: up to 500 tasks, which run after one another.
            key: a second submit with the same key and the same flow returns the same tasks. The first task gets this
                key, and the others a name behind it: `order-7`, `order-7/judge`.

        Raises:
            InvalidInput: the flow has a cycle, or an argument is invalid; nothing was sent.
            SubmitRefused: a task was refused, so that nothing was stored; or tasks of an earlier submit with this key
                are gone. `outcomes` has the reason or the handle of each, in the order in which they were added.
            KeyConflict: a task or another flow was submitted with this key.
            NoAgent: a task has `require_agent`, and no live agent has its skill; nothing was sent.
            NotDurable: all were accepted, and are not as durable as `queue.durability`; `handles` has all of them.
            PayloadStoreUnavailable: large arguments were not stored; nothing was sent.
            UpgradeUnfinished: the pool admits programs that do not know flows.
            ServerUnavailable, ServerRefused: as `submit_many`.
        """
        from orchestrator.tasks.flows import check_flow

        check_flow(flow)
        tracing = active()
        if tracing is None:
            return await self._submit_flow(flow, key, parent)
        skills = [task.submission.skill_name for task in flow.tasks]
        with tracing.submit_many(
            skills, pool=self._here().keys.pool, parent=parent.task_id if parent else None
        ) as span:
            return await self._submit_flow(flow, key, parent, span.header)

    async def _submit_flow(self, flow: Flow, key: str | None, parent: Parent | None, trace: str = "") -> FlowHandle:
        from orchestrator.client.flow_submits import FlowSubmit
        from orchestrator.tasks.flows import naming

        services = self._here()
        self._floor.check()
        sent = FlowSubmit(services, self._validator, flow, key, parent)
        await sent.lay_out(trace)
        tasks, rows, large = [member.submission for member in sent.members], sent.rows, sent.large
        await self._versions.require_all(tasks)
        for name, doubt in sent.doubts:
            with naming(flow.name, name):
                await self._versions.check(doubt)
        await require_features(services.store, rows)
        await self._large.put_all([(row.id, packed) for row, packed in zip(rows, large, strict=True)])
        handles = self._own_handles(rows, tasks)
        level = services.settings.queue.durability
        answers: Sequence[SubmitAnswer | StoreError]
        durability = None
        if level == DEFAULT:
            try:
                answers = await self._batcher.send(rows)
            except StoreError as failure:
                lost = failure.outcome_unknown
                answers = [unanswered(failure, [row.id for row in rows]) if lost else failure] * len(rows)
        else:
            answered = await self._durable.send_all([level] * len(rows), rows)
            answers, durability = [answer for answer, _ in answered], answered[0][1]
        await self._large.settle_all(handles, large, answers)
        found = sent.accepted(tasks, handles, answers, partial(self._accepted, services))
        if durability is not None:
            for handle in found.handles:
                handle.note_durability(durability)
            if durability.missed:
                raise NotDurable(durability, found.handles[0], found.handles, count=len(found.handles))
        return found

    async def _checked(
        self, listed: Sequence[Submission], parent: Parent | None, doubts: list[NamedArguments], trace: str
    ) -> tuple[list[Draft], list[Packed | None]]:
        """Check all before any is sent; the second list has the arguments that are too large for Redis, if any are."""
        if not self._large.enabled:
            return [self._validator.check(task, parent, doubts, trace=trace) for task in listed], []
        checked = [await self._large.check(task, parent, doubts, trace=trace) for task in listed]
        return [draft for draft, _ in checked], [packed for _, packed in checked]

    async def _submit_durably(
        self,
        services: Services,
        listed: Sequence[Submission],
        drafts: Sequence[Draft],
        levels: Sequence[Level],
        large: Sequence[Packed | None],
    ) -> list[TaskHandle[Any]]:
        rows = self._validator.number_all(drafts)
        await self._large.put_all([(row.id, packed) for row, packed in zip(rows, large, strict=False)])
        handles = self._own_handles(rows, listed)
        answered = await self._durable.send_all(levels, rows)
        await self._large.settle_all(handles, large, [answer for answer, _ in answered])
        outcomes = self._outcomes(services, listed, handles, [answer for answer, _ in answered])
        missed: list[NotDurable] = []
        told: list[TaskHandle[Any] | Exception] = []
        for outcome, (_, durability) in zip(outcomes, answered, strict=True):
            told.append(outcome)
            if durability is not None and not isinstance(outcome, Exception):
                outcome.note_durability(durability)
                if durability.missed:
                    missed.append(NotDurable(durability, outcome, [outcome]))
                    told[-1] = missed[-1]
        if missed and not any(isinstance(outcome, Exception) for outcome in outcomes):
            raise NotDurable(missed[0].durability, missed[0].handle, outcomes, count=len(missed))
        return self._all_accepted(told)

    def _outcomes(
        self,
        services: Services,
        tasks: Sequence[Submission],
        handles: Sequence[TaskHandle[Any]],
        answers: Iterable[SubmitAnswer | StoreError],
    ) -> list[TaskHandle[Any] | Exception]:
        """Return the handle of each accepted task, and why the others were not accepted."""
        outcomes: list[TaskHandle[Any] | Exception] = []
        for task, handle, answer in zip(tasks, handles, answers, strict=True):
            if isinstance(answer, Exception):
                outcomes.append(answer)
                continue
            try:
                outcomes.append(self._accepted(services, task, handle, answer))
            except SubmitRefused as refused:
                outcomes.append(refused)
        return outcomes

    @staticmethod
    def _all_accepted(outcomes: list[TaskHandle[Any] | Exception]) -> list[TaskHandle[Any]]:
        """Return the handles, or raise if some tasks were not accepted."""
        refusals = [
            outcome for outcome in outcomes if isinstance(outcome, Exception) and not isinstance(outcome, NotDurable)
        ]
        if refusals:
            if len(refusals) == len(outcomes) and isinstance(refusals[0], ServerUnavailable):
                lost = [id_ for each in refusals if isinstance(each, ServerUnavailable) for id_ in each.task_ids]
                raise unanswered(refusals[0].__cause__, lost) if lost else refusals[0]
            raise SubmitRefused(
                f"{len(refusals)} of {len(outcomes)} tasks were not accepted; the first: {refusals[0]}", outcomes
            )
        return cast("list[TaskHandle[Any]]", outcomes)

    def _accepted(
        self, services: Services, task: Submission, handle: TaskHandle[Any], answer: SubmitAnswer
    ) -> TaskHandle[Any]:
        match answer.status:
            case "created":
                return handle
            case "duplicate":
                # This row, sent twice because a reply was lost, or an earlier task with this key.
                return handle if answer.detail == handle.id else self._handle(answer.detail, task.skill)
            case "conflict":
                raise KeyConflict(task.options.get("key") or "", answer.detail)
            case "full":
                raise queue_full(answer.detail, services.settings.queue)
            case "stopped":
                raise Stopped(answer.detail)
            case "busy":
                raise LaneBusy(task.options.get("lane") or "", answer.detail)
            case "stale":
                raise SubmitRefused(
                    f"task {answer.detail} is no longer run by this attempt, so it may not submit children"
                )
            case "unfunded":
                raise SubmitRefused(
                    f"budget {answer.detail!r} of the task is not set; set it with `orc budgets set {answer.detail} "
                    "--usd N`"
                )
            case "cancelling":
                raise SubmitRefused(f"task {answer.detail} is told to stop, so it may not submit children")
        raise OrchestratorError(f"submit answered {answer.status!r} for task {handle.id}")

    def _own_handles(self, rows: Sequence[SubmitRow], tasks: Sequence[Submission]) -> list[TaskHandle[Any]]:
        """Make the handles of tasks that are about to be submitted."""
        parts = self._handle_parts
        handles: list[TaskHandle[Any]] = [
            TaskHandle(row.id, parts, _reader_of(task.skill)) for row, task in zip(rows, tasks, strict=True)
        ]
        self._replies.track_own(handles)
        return handles

    def _handle(self, id_: str, skill: object = None) -> TaskHandle[Any]:
        _ = self.services  # raises unless the client is open
        handle: TaskHandle[Any] = TaskHandle(id_, self._handle_parts, _reader_of(skill))
        return self._replies.track(handle)

    # ------------------------------------------------------------------------------------------------ read, steer

    @property
    def admin(self) -> Admin:
        """The control commands: stop, start, pause, limits, workers, ..."""
        from orchestrator.client.admin import Admin

        return Admin(self._here)

    def locks(self, scope: str = "pool", *, owner: str | None = None) -> Locks:
        """Named locks of a session, of an agent, or of the pool: `async with orc.locks("session:101").hold("doc"):`.

        Held locks are renewed until this client is closed.

        Args:
            scope: `session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`.
            owner: who holds them, for people; host and process by default.

        Raises:
            InvalidInput: that is no scope.
        """
        from orchestrator.locks.model import parse_scope

        keys = self._here().keys
        return self._locks(parse_scope(scope, prefix=keys.prefix, pool=keys.pool), owner)

    def _locks(self, scope: ScopeKeys, owner: str | None = None) -> Locks:
        from orchestrator.locks.named import Locks

        services = self._here()
        return Locks(
            scope,
            pool=services.keys.pool,
            owner=owner or f"{socket.gethostname()}:{os.getpid()}",
            store=services.store,
            waiter=self._waiter,
            renewer=self._renewer,
            record=partial(record_lock, services),
        )

    def session(self, session: str) -> SessionHandle:
        """Return a session, whose events can be followed: `async for event in orc.session("chat-7").events():`.

        Args:
            session: its id.

        Raises:
            InvalidInput: that is no session.
        """
        from orchestrator.client.session import SessionHandle

        encode_foreign("session", session)
        return SessionHandle(session, self._here())

    @property
    def limits(self) -> Limits:
        """Limits by name: may something happen now? Shared by all programs with the same prefix."""
        from orchestrator.limits.limits import Limits

        services = self._here()
        settings = services.settings
        return Limits(services.store, prefix=settings.prefix, retry_for_s=settings.redis.command_timeout_s)

    @property
    def agents(self) -> Agents:
        """Published states of agents, and the agents that are alive."""
        from orchestrator.agent_state.states import Agents

        services = self._here()
        return Agents(services.store, services.settings, self._waiter, self._recorder.note_change)

    @property
    def subjects(self) -> Subjects:
        """People that texts are about: where the texts are, and their erasure."""
        from orchestrator.erasure.subjects import Subjects

        services = self._here()
        return Subjects(services.store, services.settings, self._waiter, payloads=services.payloads)

    async def skills(self) -> list[SkillSummary]:
        """Return the skills of the live agents by name."""
        from orchestrator.agents.skills import list_skills

        return await list_skills(self._here().store)

    async def skill(self, name: str) -> SkillInfo:
        """Return one skill with its versions: docstring, JSON schemas of arguments and result.

        Raises:
            NotFound: no worker of the last week has it.
        """
        from orchestrator.agents.skills import read_skill

        return await read_skill(self._here().store, name)

    async def stats(self, *, within: Duration = 3600, by: By = "both") -> list[AttemptStats]:
        """Return how many attempts ended in the last minutes, and how long they waited and ran.

        Workers send their numbers with the heartbeat. A day is kept.

        Args:
            within: how far back, seconds or timedelta; rounded up to whole minutes.
            by: per `agent`, per `skill`, or `both`.

        Raises:
            InvalidInput: `within` is 0 or above a day, or `by` is not known.
        """
        from orchestrator.agents.stats import read_stats

        return await read_stats(self._here().store, within=within, by=by)

    @property
    def tasks(self) -> Tasks:
        """Lists of tasks: of a session, of a parent, of the pool; the sessions; the tasks that ended."""
        from orchestrator.client.tasks import Tasks

        return Tasks(self._here())

    @property
    def config(self) -> SharedConfig:
        """Configuration values that are published while programs run; `orc.admin.publish_config` changes them."""
        from orchestrator.client.shared_config import SharedConfig

        return SharedConfig(self._here())

    @overload
    def board(self, name: None = None, *, date: date | None = None) -> BoardView: ...

    @overload
    def board(self, name: str, *, date: date | None = None) -> Board: ...

    def board(self, name: str | None = None, *, date: date | None = None) -> BoardView:
        """Return the board of a day: `await orc.board().top(3)` returns the agents with the most tasks today.

        Args:
            name: of a board of your own, any text of up to 256 bytes; by default the tasks of the pool's agents that
                ended with a result.
            date: a day in UTC; by default today, by the server's clock.

        Raises:
            InvalidInput: that is no name or no date.
        """
        from orchestrator.boards.boards import Board, BoardView

        services = self._here()
        retry_for_s = services.settings.redis.command_timeout_s
        if name is None:
            return BoardView(services.store, services.keys.board, date_=date, retry_for_s=retry_for_s)
        keys = ScopeKeys(services.keys.prefix, "board", name)
        return Board(services.store, keys, date_=date, retry_for_s=retry_for_s)

    def workspace(self, session: str) -> WorkspaceView:
        """Return the shared state of a session. Reads need no lock; `edit()` takes one.

        Args:
            session: any text of up to 256 bytes.

        Raises:
            InvalidInput: that is no session.
        """
        from orchestrator.workspace.workspace import WorkspaceView

        services = self._here()
        scope = bind_scope(services.store, services.live, "session", session, on_change=self._recorder.note_change)
        return WorkspaceView(scope, locks=self._locks(scope.keys))

    def simulation(self, simulation: str) -> Simulation:
        """Return the indices of a simulation: its agents, their states, and buffers of its entities.

        Args:
            simulation: any text of up to 256 bytes.

        Raises:
            InvalidInput: that is no id.
        """
        from orchestrator.simulations.simulation import Simulation

        services = self._here()
        return Simulation(services.store, services.live, simulation)

    def memory(
        self,
        agent: str | None = None,
        *,
        user: str | None = None,
        domain: str | None = None,
        global_: bool = False,
    ) -> Memory:
        """Return the memory of an agent, a user, a domain, or of all programs of the prefix: one of these.

        Changes take no lock; those of `under(lease)` present one.

        Args:
            agent: name of the agent.
            user: id of the user, any text of up to 256 bytes. The records are about that user, so that
                `orc.subjects.erase(user, ...)` removes them.
            domain: name of the domain, any text of up to 256 bytes.
            global_: True for the global memory, which all programs of the prefix share.

        Raises:
            InvalidInput: none or several are given, or that is no name.
        """
        from orchestrator.memory.memory import Memory
        from orchestrator.memory.owner import MemoryOwner

        services = self._here()
        owner = MemoryOwner.of(agent, user=user, domain=domain, global_=global_)
        scope = bind_scope(services.store, services.live, *owner, on_change=self._recorder.note_change)
        return Memory(scope, waiter=self._waiter, vector_cache=services.vector_cache)

    def chat(self, session: str, source: str = "main") -> Chat:
        """Return a chat of a session: `await orc.chat("s-1").append([{"role": "user", "content": "Hello"}])`.

        Changes take no lock and are made once per `op_id`; `under(lease)` returns a chat that presents a lock.

        Args:
            session: any text of up to 256 bytes.
            source: name of the chat; a session has one per source.

        Raises:
            InvalidInput: that is no session or no source.
        """
        from orchestrator.chat.chat import Chat

        services = self._here()
        scope = bind_scope(services.store, services.live, "session", session, on_change=self._recorder.note_change)
        return Chat(
            scope,
            locks=self._locks(scope.keys),
            source=source,
            cache=services.chat_cache,
            accounts=self._accounts,
        )

    async def extract(
        self, session: str, *, agent: str, source: str = "main", skill: str = "extract", subject: str | None = None
    ) -> TaskHandle[Extraction] | None:
        """Submit a task that extracts the messages of a chat that the skill has not extracted, into the agent's memory.

        Call it after a turn. While no message is added, it returns the same task, also one that is a dead letter.

        Args:
            session: session of the chat.
            agent: agent with the skill, as `Agent.extracts` registers it.
            source: source of the chat.
            skill: name of the skill.
            subject: person that messages are about which name none. Give it for a session that is assigned to a
                person, so that `erase` finds the records.

        Returns:
            The handle; None if all messages were extracted.

        Raises:
            InvalidInput, QueueFull, Stopped, ServerUnavailable: as `submit`.
        """
        from orchestrator.extraction.submitting import plan_extraction

        task = await plan_extraction(self.chat(session, source), agent=agent, skill=skill, subject=subject)
        return None if task is None else await self.submit_one(task)

    async def chat_usage(self) -> ChatUsage:
        """Return what all chats of the tenant hold: bytes, messages, number of chats.

        The tenant is the third part of the prefix. Clients and workers count their changes every 5 s; this client
        counts its own first.

        Raises:
            StoreError: no reply.
        """
        self._here()
        return await self._accounts.flush()

    def task(self, id_: str) -> TaskHandle[Any]:
        """Return a handle for a known id, without asking Redis.

        Raises:
            InvalidInput: that is not the form of a task id.
        """
        return self._handle(check_task_id(id_))

    async def cancel(
        self,
        task: str | TaskHandle[Any],
        reason: str = "",
        *,
        only_this: bool = False,
        actor: str | None = None,
    ) -> CancelStatus:
        """Cancel a task, by its id or handle, and the tasks below it; see `TaskHandle.cancel`.

        Args:
            task: id or handle.
            reason: kept with the tasks and the record of the call.
            only_this: its children go on.
            actor: who cancels; the user of this process by default.

        Raises:
            InvalidInput: that is not the form of a task id, or a text is not valid; nothing was changed.
        """
        return await self._of(task).cancel(reason, only_this=only_this, actor=actor)

    async def retry(
        self,
        task: str | TaskHandle[Any],
        reason: str = "",
        *,
        with_children: bool = False,
        actor: str | None = None,
    ) -> RequeueStatus:
        """Retry a task that ended without a result, by its id or handle; see `TaskHandle.retry`.

        Args:
            task: id or handle.
            reason: kept with the tasks and the record of the call.
            with_children: first retry the tasks below it that ended without a result; needs a supervisor.
            actor: who retries; the user of this process by default.

        Raises:
            InvalidInput: that is not the form of a task id, or a text is not valid; nothing was changed.
        """
        return await self._of(task).retry(reason, with_children=with_children, actor=actor)

    def _of(self, task: str | TaskHandle[Any]) -> TaskHandle[Any]:
        return task if isinstance(task, TaskHandle) else self.task(task)

    def as_completed(
        self, handles: Iterable[TaskHandle[T]], *, timeout: Duration | None = None
    ) -> AsyncGenerator[TaskHandle[T]]:
        """Give each handle when its task has ended: `async for handle in orc.as_completed(handles)`.

        Those that are known to have ended come first, in their order. `result()` of a handle that was given returns or
        raises at once. A loop that is left early leaves nothing behind; the tasks go on.

        Args:
            handles: of this client; one that is there twice is given once.
            timeout: seconds or timedelta for all of them, from this call on; None waits as long as it takes, also while
                Redis is away; 0 asks once.

        Raises:
            TimeoutError: not all had ended after `timeout`; the message says how many. While looping.
            OrchestratorError: the client was closed; while looping.
            InvalidInput: that is no handle, or one of another client.
        """
        self._here()
        return as_completed(self._replies, handles, timeout=timeout)


def _reader_of(skill: object) -> Callable[[bytes], Any] | None:
    return None if isinstance(skill, str) else getattr(skill, "read_result", None)
