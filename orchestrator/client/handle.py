"""`TaskHandle`, which reads and steers one task."""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar, overload

import anyio
from anyio import to_thread

from orchestrator.core.command_record import SAID_CHARS, check_said
from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import ChildFailed, OrchestratorError, TaskCancelled, TaskExpired, TaskFailed
from orchestrator.core.ids import new_token
from orchestrator.core.reading import read_json
from orchestrator.payloads.reference import is_reference
from orchestrator.tasks import bulk, queries, scripts
from orchestrator.tasks.losses import read_losses
from orchestrator.tasks.model import CancelStatus, RequeueStatus, TaskState
from orchestrator.tasks.output import as_chunk, as_event, check_place
from orchestrator.tasks.queries import TaskOutcome
from orchestrator.tasks.records import read_record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from orchestrator.client.action_records import ActionRecorder
    from orchestrator.client.following import Following
    from orchestrator.client.replies import Replies
    from orchestrator.core.durability import Durability
    from orchestrator.core.durations import Duration
    from orchestrator.services import Services
    from orchestrator.tasks.model import AnswerStatus, OutputChunk, TaskEvent
    from orchestrator.tasks.output import Place, StreamEntry
    from orchestrator.why.model import TaskInfo, TaskStatus

T_co = TypeVar("T_co", covariant=True)
UntilEnded: TypeAlias = "Callable[[Sequence[str]], AbstractAsyncContextManager[None]]"
"""Runs a block that waits until one of these tasks ends."""
M = TypeVar("M")
WHY_S: Final = 0.5
"""How long `result` asks, after its timeout, what the task waits for."""


async def ask_whether_requeued(services: Services, handles: Iterable[TaskHandle[Any]]) -> None:
    """Ask which tasks were requeued since their handles told that they failed; these handles expect another end."""
    told = {handle.id: handle for handle in handles if handle._told}  # noqa: SLF001 - of the class below
    if not told:
        return
    # Without an answer the ends stand that were seen.
    with suppress(OrchestratorError):
        outcomes = await queries.outcomes(services.store, list(told))
        for id_, handle in told.items():
            found = outcomes.get(id_)
            if found is None:
                handle._expect_another_end()  # noqa: SLF001
            elif isinstance(found, TaskOutcome) and found.state is not None:
                handle.outcome = found


async def whereabouts(services: Services, id_: str, subject: str) -> str:
    """Return what a task waits for, as a sentence about `subject`; empty if it has ended, or Redis does not answer."""
    from orchestrator.why import lookup

    with anyio.move_on_after(WHY_S), suppress(OrchestratorError):
        now = await lookup.status(services.store, id_)
        if not now.state.final:
            return f". {subject} is {now.state}: {now.why}"
    return ""


class HandleParts(NamedTuple):
    """Parts of a client that its handles use."""

    services: Services
    replies: Replies
    following: Following
    recorder: ActionRecorder


class TaskHandle(Generic[T_co]):
    """A task, by its id. Cheap; valid as long as the client that made it is open.

    Attributes:
        id: the task's id.
        outcome: how it ended, once that is known here.
        requeued: the task has run again since an end that was known here.
    """

    __slots__ = ("__weakref__", "_durability", "_parts", "_read", "_told", "id", "outcome", "requeued")
    _dead: ClassVar[type[TaskFailed]] = TaskFailed

    def __init__(self, id_: str, parts: HandleParts, read: Callable[[bytes], T_co] | None = None) -> None:
        self.id: str = id_
        self.outcome: TaskOutcome | None = None
        self.requeued = False
        self._parts, self._read = parts, read
        self._told = False

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    @property
    def durability(self) -> Durability | None:
        """Report of the durability of the submit that returned this handle; None if it asked for nothing."""
        # Most handles have none, and a slot that is set costs every submit.
        return getattr(self, "_durability", None)

    @property
    def parts(self) -> HandleParts:
        """Parts of its client; for handles of flows."""
        return self._parts

    def note_durability(self, durability: Durability) -> None:
        """Keep what was confirmed; for the client."""
        self._durability = durability

    def waiting_in(self, until_ended: UntilEnded) -> TaskHandle[T_co]:
        """Return a handle of the same task whose waits run inside `until_ended`; for the workers."""
        return WaitingHandle(self, until_ended, self._parts, self._read)

    @overload
    async def result(self, timeout: Duration | None = None) -> T_co: ...

    @overload
    async def result(self, timeout: Duration | None = None, *, as_: type[M]) -> M: ...

    async def result(self, timeout: Duration | None = None, *, as_: type[Any] | None = None) -> Any:
        """Wait for the end of the task and return its result.

        A call after a failure waits again if the task was requeued meanwhile (`retry`).

        Args:
            timeout: seconds or timedelta; None waits as long as it takes, also while Redis is away; 0 asks once. The
                task goes on when the waiting ends. Loading a result from the payload store is not counted.
            as_: a type that the result is validated as.

        Raises:
            PayloadError: the payload store does not have the result, has another value, or does not answer.
            TaskFailed: it became a dead letter.
            TaskCancelled: it was cancelled.
            TaskExpired: it did not start in time, or its record is gone.
            TimeoutError: it had not ended after `timeout`, or Redis did not answer. The text tells what the task waits
                for, except after a `timeout` of 0.
            StoreError: Redis refuses to tell; with a timeout of 0 also that it does not answer.
            InvalidInput: `timeout` is no duration.
        """
        return await self._value(await self.stored_result(timeout), as_)

    async def result_of(self, outcome: TaskOutcome) -> T_co:
        """Return the result of an end that the caller has read, or raise its error, as `result`; for the workers."""
        self.outcome = outcome
        if outcome.state is None:
            await self._explain_absence()
        value: T_co = await self._value(self._result_data(), None)
        return value

    async def _value(self, data: bytes, as_: type[Any] | None) -> Any:
        if is_reference(data):
            # Large: loading it may take long, and decoding it too.
            data = await self._parts.services.payloads.load(self.id, data)
            return await to_thread.run_sync(self._decode, data, as_)
        return self._decode(data, as_)

    async def stored_result(self, timeout: Duration | None = None) -> bytes:
        """Wait for the end of the task and return its result as Redis has it: JSON, or a reference to a large value.

        Arguments and errors as of `result`.
        """
        await self._end(timeout)
        return self._result_data()

    async def _end(self, timeout: Duration | None) -> None:
        timeout_s = None if timeout is None else to_seconds("timeout", timeout)
        if timeout_s == 0:
            if self._told:
                await self._ask_whether_requeued()
            if self.outcome is None:
                await self._parts.replies.poll([self.id])
        else:
            with anyio.move_on_after(timeout_s):
                await self._await_end()
        if self.outcome is not None and self.outcome.state is None:
            await self._explain_absence()
        if self.outcome is None:
            failure = self._parts.replies.last_failure
            raise TimeoutError(
                f"task {self.id} has not ended after {timeout_s:g} s; it goes on, ask again"
                f"{await whereabouts(self._parts.services, self.id, 'It') if timeout_s else ''}"
                if failure is None
                else f"the end of task {self.id} is not known after {timeout_s:g} s: {failure}"
            )

    async def _explain_absence(self) -> None:
        with suppress(OrchestratorError):
            lost = await read_losses(self._parts.services.store)
            if lost is not None and lost.may_have(self.id):
                noticed = lost.noticed_at.isoformat(timespec="seconds")
                reason = (
                    f"does not exist: Redis has lost writes that it had confirmed (noticed {noticed}), probably this "
                    "task too; submit it again"
                )
                self.outcome = TaskOutcome(None, reason=reason)

    async def _await_end(self) -> None:
        if self._told:
            await self._ask_whether_requeued()
        if self.outcome is None:
            await self._wait()

    async def _wait(self) -> None:
        await self._parts.replies.wait(self)

    async def _ask_whether_requeued(self) -> None:
        await ask_whether_requeued(self._parts.services, [self])

    def _expect_another_end(self) -> None:
        self.outcome, self._told, self.requeued = None, False, True

    def _decode(self, data: bytes, as_: type[Any] | None) -> Any:
        if as_ is not None:
            from pydantic import TypeAdapter

            return TypeAdapter(as_).validate_json(data, by_alias=True, by_name=True)
        return self._read(data) if self._read else read_json(data)

    def _result_data(self) -> bytes:
        """Return the result as stored, or raise the error of an end without one."""
        outcome = self.outcome
        assert outcome is not None
        self._told = outcome.state is not TaskState.SUCCEEDED
        match outcome.state:
            case TaskState.SUCCEEDED:
                return outcome.result if outcome.result is not None else b"null"
            case TaskState.DEAD:
                raise self._dead(self.id, outcome.reason, outcome.errors)
            case TaskState.CANCELLED:
                raise TaskCancelled(self.id, outcome.reason)
            case TaskState.EXPIRED:
                raise TaskExpired(self.id, f"expired: {outcome.reason}")
            case None:
                raise TaskExpired(
                    self.id,
                    outcome.reason
                    or "does not exist: the id is unknown, or the task was deleted, or its retention has passed",
                )
        raise OrchestratorError(f"task {self.id} ended in the unknown state {outcome.state}")

    async def status(self) -> TaskStatus:
        """Its state, and in words what it waits for.

        Raises:
            NotFound: no such task, or its retention has passed.
        """
        from orchestrator.why import lookup

        store = self._parts.services.store
        return await store.read_with_retry(lambda: lookup.status(store, self.id), retry_for_s=self._retry_for_s)

    async def info(self) -> TaskInfo:
        """Everything that is known of it.

        Raises:
            NotFound: no such task, or its retention has passed.
        """
        from orchestrator.why import lookup

        store = self._parts.services.store
        return await store.read_with_retry(lambda: lookup.info(store, self.id), retry_for_s=self._retry_for_s)

    def output(self, after: str | None = None) -> AsyncGenerator[OutputChunk]:
        """Read the partial output of the task live; ends when the task has ended and all was read.

        Args:
            after: the `id` of a chunk or event that was seen before: go on behind it.

        Raises:
            InvalidInput: `after` is no such id.
            NotFound: the task does not exist; when reading.
            OrchestratorError: the client is closed; when reading.
        """
        return self._chunks(check_place(after))

    async def _chunks(self, after: Place) -> AsyncGenerator[OutputChunk]:
        async with aclosing(self._entries(after)) as entries:
            async for entry in entries:
                if entry.kind == "output":
                    yield as_chunk(entry)

    def events(self, after: str | None = None) -> AsyncGenerator[TaskEvent]:
        """Read the life of the task live, progress and output included; ends after the final event.

        Args:
            after: the `id` of a chunk or event that was seen before: go on behind it.

        Raises:
            InvalidInput: `after` is no such id.
            NotFound: the task does not exist; when reading.
            OrchestratorError: the client is closed; when reading.
        """
        return self._events(check_place(after))

    async def _events(self, after: Place) -> AsyncGenerator[TaskEvent]:
        async with aclosing(self._entries(after)) as entries:
            async for entry in entries:
                yield as_event(entry)

    def _entries(self, after: Place) -> AsyncGenerator[StreamEntry]:
        return self._parts.following.entries(self.id, after)

    async def cancel(self, reason: str = "", *, only_this: bool = False, actor: str | None = None) -> CancelStatus:
        """Cancel it and the tasks below it: waiting tasks end at once, running ones are told to stop.

        The call returns when it has reached all of them. If this program dies before, a supervisor goes on.
        `orc control list` shows it.

        Args:
            reason: kept with the task and its record.
            only_this: its children go on.
            actor: who cancels; the user of this process by default.

        Returns:
            `ENDED`, `SIGNALLED` (its worker stops it within a few seconds), `ALREADY` (it had ended), `UNKNOWN`.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """
        check_said(actor, reason, cut=True)
        call = scripts.cancel(self._parts.services.keys, ids=[self.id], reason=reason, only_this=only_this)
        cancelled = await self._parts.services.store.call(call, retry_for_s=self._retry_for_s)
        ((status, _),) = cancelled.answers
        if status in {CancelStatus.ENDED, CancelStatus.SIGNALLED} or cancelled.any_children:
            await self._parts.recorder.record_task("cancel", self.id, reason=reason, actor=actor)
        if cancelled.any_children:
            await bulk.cancel_children(self._parts.services.store, retry_for_s=self._retry_for_s)
        return status

    async def answer(self, value: Any, *, question: int | None = None, actor: str | None = None) -> AnswerStatus:
        """Answer the question that it waits with, so that it goes on.

        The first answer stands: the same one again does nothing, another one is refused.

        Args:
            value: a JSON value; one of the options, if the question has some.
            question: which question of the task, counted from 1; by default the latest one.
            actor: who answers; the user of this process by default.

        Returns:
            `ANSWERED`, or `ALREADY`: the question has the same answer.

        Raises:
            AnswerRefused: the task does not ask that now, or has another answer.
            InvalidInput: the answer is none of the options, or no JSON value.
            NotFound: no such task, or its retention has passed.
        """
        from orchestrator.client.answering import answer

        return (await answer(self._parts.services, self.id, value, number=question, actor=actor)).status

    async def retry(self, reason: str = "", *, with_children: bool = False, actor: str | None = None) -> RequeueStatus:
        """Let it run again after it has ended without a result: the same task, with its id, key and history.

        Failures and deaths count from now on. What is already told stays told; a new `result()` waits again.

        Args:
            reason: kept with the task and its record, which `orc control list` shows.
            with_children: first retry the tasks below it that ended without a result. A supervisor does all of it, also
                if this program dies; the call waits for it.
            actor: who retries; the user of this process by default.

        Returns:
            `REQUEUED`, `ALREADY` (it has not ended), `REFUSED` (it succeeded), `DAMAGED` (its record cannot be
            decoded), `UNKNOWN`.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """
        from orchestrator.control.sending import this_actor  # it loads pydantic, which plain clients do without

        check_said(actor, reason, cut=True)
        actor = actor or this_actor()
        if with_children:
            status = await self._retry_with_children(reason, actor)
        else:
            # An earlier cancel of a task above it, which has not reached it, must not end it after the retry.
            await bulk.cancel_children(self._parts.services.store, retry_for_s=self._retry_for_s)
            call = scripts.retry(
                self._parts.services.keys,
                ids=[self.id],
                token=new_token(),
                said=f"{actor}: {reason}" if reason else actor,
                max_wait_s=round(self._parts.services.settings.queue.max_wait_s),
            )
            ((status, _),) = await self._parts.services.store.call(call, retry_for_s=self._retry_for_s)
            if status is RequeueStatus.REQUEUED:
                await self._parts.recorder.record_task("retry", self.id, reason=reason, actor=actor)
        if status in {RequeueStatus.REQUEUED, RequeueStatus.ALREADY}:
            self._expect_another_end()
        return status

    async def _retry_with_children(self, reason: str, actor: str) -> RequeueStatus:
        from orchestrator.client.admin import Admin  # it loads pydantic

        store = self._parts.services.store
        sent = await Admin(lambda: self._parts.services).retry(
            [self.id], with_children=True, reason=reason[:SAID_CHARS], actor=actor
        )
        await sent.receipts(timeout=None)
        found = await store.read_with_retry(
            lambda: read_record(store, self.id, "state", "requeued"), retry_for_s=self._retry_for_s
        )
        if not found.exists:
            return RequeueStatus.UNKNOWN
        # The last word of the field is the token of the retry, the id of the command.
        if (found.field("requeued") or b"").endswith(f" {sent.id}".encode()):
            return RequeueStatus.REQUEUED
        if found.state is TaskState.SUCCEEDED:
            return RequeueStatus.REFUSED
        return RequeueStatus.DAMAGED if found.state.final else RequeueStatus.ALREADY

    @property
    def _retry_for_s(self) -> float:
        return self._parts.services.settings.redis.command_timeout_s


class WaitingHandle(TaskHandle[T_co]):
    """A handle of one waiter: its waits run inside a context manager. It shares what is known of the end.

    Attributes:
        shared: the handle that the client tracks; other waiters may share it.
    """

    __slots__ = ("_until_ended", "shared")
    _dead: ClassVar[type[TaskFailed]] = ChildFailed

    def __init__(
        self,
        shared: TaskHandle[T_co],
        until_ended: UntilEnded,
        parts: HandleParts,
        read: Callable[[bytes], T_co] | None,
    ) -> None:
        self.shared, self._until_ended = shared, until_ended
        known = shared.outcome
        super().__init__(shared.id, parts, read)
        shared.outcome = known
        # An earlier attempt may have learned of the failure, and the task may have been requeued since.
        self._told = known is not None and known.state is not TaskState.SUCCEEDED
        if shared.durability is not None:
            self.note_durability(shared.durability)

    @property
    def outcome(self) -> TaskOutcome | None:
        """End of the task, once that is known here."""
        return self.shared.outcome

    @outcome.setter
    def outcome(self, outcome: TaskOutcome | None) -> None:
        self.shared.outcome = outcome

    async def _wait(self) -> None:
        async with self._until_ended([self.id]):
            await self._parts.replies.wait(self)

    def _entries(self, after: Place) -> AsyncGenerator[StreamEntry]:
        return self._parts.following.entries(self.id, after, lambda: self._until_ended([self.id]))
