"""Child tasks without a server: validated like real submits, recorded, and ended as the test scripts them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeAlias, cast

from pydantic import ValidationError
from pydantic_core import to_json

from orchestrator.client.client import Orchestrator
from orchestrator.client.flow_handle import FlowHandle
from orchestrator.client.handle import HandleParts, TaskHandle
from orchestrator.core.errors import (
    ChildFailed,
    KeyConflict,
    OrchestratorError,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
)
from orchestrator.core.ids import TaskIds
from orchestrator.core.payload import decode_json
from orchestrator.tasks.flows import check_flow, keys_of, naming
from orchestrator.tasks.model import CancelStatus, TaskState, decode_envelope
from orchestrator.tasks.options import without_defaults
from orchestrator.tasks.queries import TaskOutcome as Ended
from orchestrator.tasks.scripts import UnusualRow
from orchestrator.tasks.submission import NamedSkill, Submission, SubmissionValidator
from orchestrator.testing.offline import packed_envelope
from orchestrator.workers.runtime.filling import ENDS

if TYPE_CHECKING:
    from orchestrator.client.handle import UntilEnded
    from orchestrator.core.durations import Duration
    from orchestrator.services import Services
    from orchestrator.tasks.flows import Flow, TaskResult
    from orchestrator.tasks.options import TaskOptions
    from orchestrator.tasks.submission import Parent

Answer: TypeAlias = Callable[[Submission], Any]
Children: TypeAlias = Mapping[str | NamedSkill, Any] | Answer
"""Results of child tasks: by skill a list (one for each child, in order), one result for all, or a function of the
submission; or one function for all skills. An exception in place of a result sets how the child ends."""

UNSCRIPTED: Final = object()


class ScriptedClient(Orchestrator):
    """Records the children of one attempt and scripts their ends.

    Attributes:
        submitted: the children with plain names and arguments, and with the keys that the handler set.
        misuse: error of the test. Raised where it is found, and kept here because a handler may catch it.
    """

    def __init__(self, services: Services, children: Children) -> None:
        super().__init__(settings=services.settings)
        self.submitted: list[Submission] = []
        self.misuse: Exception | None = None
        self._offline, self._checks = services, SubmissionValidator(services.live, ids=TaskIds(listens=False))
        self._answers = _answers(children)
        self._keyed: dict[str, tuple[str | None, TaskHandle[Any]]] = {}

    @property
    def services(self) -> Services:
        """Services without a server."""
        return self._offline

    async def submit_one(self, task: Submission, parent: Parent | None = None) -> TaskHandle[Any]:
        """Validate and record one child; see `Orchestrator.submit_one`."""
        return self._record(task, parent)

    def _record(self, task: Submission, parent: Parent | None, end: object = UNSCRIPTED) -> TaskHandle[Any]:
        """Validate and record one child, which ends so, or as the test scripts it."""
        row = self._checks.row(task, parent)
        idem, digest = (row.idem, row.digest) if isinstance(row, UnusualRow) else (None, None)
        if idem is not None and idem in self._keyed:
            known_digest, known = self._keyed[idem]
            if digest != known_digest:
                raise KeyConflict(task.options.get("key") or "", known.id)
            return known
        plain = _plain(task, parent, decode_json(decode_envelope(packed_envelope(row)).args))
        self.submitted.append(plain)
        handle = ScriptedHandle(row.id, self, plain, skill=task.skill)
        try:
            handle.end(self._answers(plain) if end is UNSCRIPTED else end)
        except Exception as broken:
            self.misuse = broken
            raise
        if idem is not None:
            self._keyed[idem] = digest, handle
        return handle

    async def submit_many(self, tasks: Iterable[Submission], parent: Parent | None = None) -> list[TaskHandle[Any]]:
        """Validate and record children; see `Orchestrator.submit_many`."""
        return [await self.submit_one(task, parent) for task in tasks]

    async def submit_flow(self, flow: Flow, *, key: str | None = None, parent: Parent | None = None) -> FlowHandle:
        """Validate and record the tasks of a flow; see `Orchestrator.submit_flow`.

        A result in the arguments is that of the scripted task, or its default if that fails; None if it has none.
        A task whose predecessor fails is cancelled, and its script is not used, unless it runs also then.
        """
        check_flow(flow)
        members = flow.members()
        handles: dict[str, TaskHandle[Any]] = {}
        for member, own_key in zip(members, keys_of(key, members), strict=True):
            args = member.arguments.with_results(lambda result: _result_of(result, handles))
            options = dict(member.submission.options)
            if own_key is not None:
                options["key"] = own_key
            known = all(_is_known(result, handles) for result in member.arguments.results)
            skill = member.submission.skill if known else member.submission.skill_name
            end = _end_for([handles[name] for name, how in member.after.items() if how == "cancel"])
            with naming(flow.name, member.name):
                task = Submission(skill, args, **cast("TaskOptions", options))
                handles[member.name] = self._record(task, parent, end)
        return ScriptedFlow(flow.owner, handles, next(iter(handles.values())).parts, self.as_completed)

    async def as_completed(
        self,
        handles: Iterable[TaskHandle[Any]],
        *,
        timeout: Duration | None = None,  # noqa: ARG002 - nothing is waited for
    ) -> AsyncGenerator[TaskHandle[Any]]:
        """Give the children in their order; see `Orchestrator.as_completed`."""
        for handle in handles:
            if handle.outcome is None:
                await handle.result()
            yield handle

    def unscripted(self, task: Submission) -> NoReturn:
        """Fail because the handler awaits a child without a scripted result.

        Raises:
            AssertionError: always.
        """
        count = sum(other.skill == task.skill for other in self.submitted)
        self.misuse = AssertionError(
            f"no result is scripted for a child of {task.skill!r} that the handler awaits; it has submitted {count} of "
            f"them: give children={{{task.skill!r}: [result, ...]}}, or a function"
        )
        raise self.misuse


class ScriptedHandle(TaskHandle[Any]):
    """Handle of a child that ends as the test scripts it."""

    __slots__ = ("_client", "_late", "_task")
    _dead: ClassVar[type[TaskFailed]] = ChildFailed

    def __init__(self, id_: str, client: ScriptedClient, task: Submission, *, skill: object) -> None:
        nothing: Any = self  # It implements its own reply and event sources.
        read = getattr(skill, "read_result", None)
        super().__init__(id_, HandleParts(client.services, nothing, nothing, nothing), read)
        self._client, self._task = client, task
        self._late: TimeoutError | None = None

    @property
    def late(self) -> bool:
        """Return whether the test scripts a `TimeoutError` for it."""
        return self._late is not None

    def end(self, answer: object) -> None:
        """Set the result, or the exception in place of one."""
        match answer:
            case TimeoutError():
                self._late = answer
            case TaskFailed():
                self.outcome = Ended(TaskState.DEAD, None, answer.reason, answer.errors)
            case TaskCancelled():
                self.outcome = Ended(TaskState.CANCELLED, None, answer.reason)
            case TaskExpired():
                self.outcome = Ended(TaskState.EXPIRED, None, str(answer))
            case BaseException():
                self.outcome = Ended(TaskState.DEAD, None, f"{type(answer).__name__}: {answer}")
            case _ if answer is not UNSCRIPTED:
                self.outcome = Ended(TaskState.SUCCEEDED, self._json(answer))

    def _json(self, answer: object) -> bytes:
        try:
            data = to_json(answer, inf_nan_mode="constants")
            if self._read is not None:
                self._read(data)
        except (ValidationError, ValueError) as invalid:
            raise AssertionError(
                f"the scripted result {answer!r} is none that {self._task.skill!r} returns: {invalid}"
            ) from None
        return data

    def waiting_in(self, until_ended: UntilEnded) -> TaskHandle[Any]:  # noqa: ARG002 - it never waits
        """Return the handle itself, because it has no slot to lend."""
        return self

    async def cancel(
        self,
        reason: str = "",
        *,
        only_this: bool = False,  # noqa: ARG002
        actor: str | None = None,  # noqa: ARG002
    ) -> CancelStatus:
        """Cancel the child, unless it has ended."""
        if self.outcome is not None:
            return CancelStatus.ALREADY
        self.outcome = Ended(TaskState.CANCELLED, None, reason)
        return CancelStatus.ENDED

    # The sources that a handle reads the end and the output of its task from.

    @property
    def last_failure(self) -> None:
        """None, because there is no connection."""

    async def wait(self, *_: object) -> NoReturn:
        """Raise, because the child has no scripted end."""
        if self._late is not None:
            raise self._late
        self._client.unscripted(self._task)

    look = wait

    async def poll(self, _: object) -> None:
        """Do nothing, because all ends are known."""

    def entries(self, *_: object) -> NoReturn:
        """Raise, because a scripted child has no output."""
        raise OrchestratorError(
            "a scripted child has no output; run a whole team for this: orchestrator.workers.testing.Team"
        )


class ScriptedFlow(FlowHandle):
    """Handle of a flow whose tasks end as the test scripts them."""

    __slots__ = ()

    async def cancel(self, reason: str = "", *, actor: str | None = None) -> dict[str, CancelStatus]:
        """Cancel the tasks that have not ended; see `FlowHandle.cancel`."""
        return {name: await self.task(name).cancel(reason, actor=actor) for name in self.names}


def _end_for(predecessors: Iterable[TaskHandle[Any]]) -> object:
    """Return the end of a task that is cancelled because a predecessor failed, with the reason of the server."""
    for handle in predecessors:
        state = handle.outcome.state if handle.outcome is not None else None
        if state in ENDS:
            return TaskCancelled("", f"task {handle.id}, after which it runs, {ENDS[state]}")
    return UNSCRIPTED


def _is_known(result: TaskResult, handles: Mapping[str, TaskHandle[Any]]) -> bool:
    """Return whether a result, or the default in its place, is one that a worker would put in."""
    handle = handles[result.task.name]
    return handle.outcome is not None and (result.has_default or handle.outcome.state is TaskState.SUCCEEDED)


def _result_of(result: TaskResult, handles: Mapping[str, TaskHandle[Any]]) -> Any:
    """Return what stands in the arguments in place of a result."""
    outcome = handles[result.task.name].outcome
    if outcome is not None and outcome.result is not None:
        return decode_json(outcome.result)
    return result.default if result.has_default else None


def _plain(task: Submission, parent: Parent | None, args: dict[str, Any]) -> Submission:
    options = without_defaults(task.options)
    if parent is not None and options.get("key", "").startswith(f"{parent.task_id}/"):
        del options["key"]
    if "tags" in options:
        options["tags"] = tuple(options["tags"])
    return Submission(task.skill_name, args, **options)


def _answers(children: Children) -> Answer:
    if callable(children):
        return _caught(children)
    by_skill: dict[str, Any] = {}
    for skill, given in children.items():
        name = skill if isinstance(skill, str) else skill.name
        by_skill[name] = list(given) if isinstance(given, list | tuple) else given

    def answer(task: Submission) -> object:
        given = by_skill.get(str(task.skill), UNSCRIPTED)
        if isinstance(given, list):
            return given.pop(0) if given else UNSCRIPTED
        return _caught(given)(task) if callable(given) else given

    return answer


def _caught(function: Answer) -> Answer:
    """Wrap a function so that it may raise the end of a child. Other exceptions are errors of the test."""

    def answer(task: Submission) -> object:
        try:
            return function(task)
        except (TaskError, TimeoutError) as ends:
            return ends

    return answer
