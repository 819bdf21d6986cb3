"""Lays out the tasks of a flow as rows of one submit, and reads the answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

from orchestrator.client.completion import as_completed
from orchestrator.client.flow_handle import FlowHandle
from orchestrator.core.errors import InvalidInput, KeyConflict, OrchestratorError, StoreError, SubmitRefused
from orchestrator.core.plural import counted
from orchestrator.payloads.sizing import is_small
from orchestrator.tasks.flows import MOST_BYTES, flow_digest, keys_of, naming
from orchestrator.tasks.submission import FlowPlace, NamedArguments, check_args
from orchestrator.tasks.values import call_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orchestrator.client.handle import TaskHandle
    from orchestrator.payloads.payloads import Packed
    from orchestrator.services import Services
    from orchestrator.tasks.flows import Flow, Member
    from orchestrator.tasks.model import ResultPlace
    from orchestrator.tasks.scripts import SubmitAnswer, UnusualRow
    from orchestrator.tasks.submission import Parent, Submission, SubmissionValidator

NAMED: Final = 10
"""Ids of tasks in an error at most."""


class FlowSubmit:
    """One submit of a flow, which `lay_out` fills.

    Attributes:
        members: the tasks, each behind its predecessors.
        rows: of the tasks.
        large: the arguments that are too large for Redis.
        doubts: by name of the task the arguments that no known worker may take, as of a single submit.
    """

    def __init__(
        self,
        services: Services,
        validator: SubmissionValidator,
        flow: Flow,
        key: str | None,
        parent: Parent | None,
    ) -> None:
        self.members: list[Member] = []
        self.rows: list[UnusualRow] = []
        self.large: list[Packed | None] = []
        self.doubts: list[tuple[str, NamedArguments]] = []
        self._flow, self._validator, self._parent = flow, validator, parent
        self._large_allowed = services.payloads.store is not None
        self._key = key

    async def lay_out(self, trace: str) -> None:
        """Check the flow and make its rows, in a thread if its arguments are large together.

        Raises:
            InvalidInput: the flow, an argument or an option is invalid, or the flow is too large.
        """
        if is_small([task.submission.args for task in self._flow.tasks]):
            self._lay_out(trace)
        else:
            await to_thread.run_sync(self._lay_out, trace)

    def _lay_out(self, trace: str) -> None:
        self.members = self._flow.members()
        keys = keys_of(self._key, self.members)
        ids = self._validator.take_ids(len(self.members))
        by_name = {member.name: id_ for member, id_ in zip(self.members, ids, strict=True)}
        encoded: list[tuple[bytes, Sequence[ResultPlace]]] = []
        for member, key in zip(self.members, keys, strict=True):
            with naming(self._flow.name, member.name):
                encoded.append(self._encode(member, key, by_name))
        names = {id_: name for name, id_ in by_name.items()}
        digest = flow_digest(self.members, encoded, names) if self._key is not None else None
        numbers = {member.name: number for number, member in enumerate(self.members, 1)}
        for member, (args, results), id_, key in zip(self.members, encoded, ids, keys, strict=True):
            packed = self._validator.pack_arguments(args) if self._large_allowed else None
            after = tuple(-numbers[name] if how == "run" else numbers[name] for name, how in member.after.items())
            place = FlowPlace(id_, after, tuple(results), key, digest)
            sent = args if packed is None else packed.stored
            with naming(self._flow.name, member.name):
                self.rows.append(self._validator.member_row(member.submission, sent, place, self._parent, trace=trace))
            self.large.append(packed)
        total = sum(call_bytes(len(row.envelope)) for row in self.rows)
        if total > MOST_BYTES:
            raise InvalidInput(
                f"flow {self._flow.name!r} counts {total:,} bytes of arguments and options; one submit takes at most "
                f"{MOST_BYTES:,}, so store large data and send its address"
            )

    def _encode(self, member: Member, key: str | None, ids: Mapping[str, str]) -> tuple[bytes, Sequence[ResultPlace]]:
        """Return the arguments of a task as JSON, and where results belong; note names that may not fit."""
        task = member.submission
        values = member.arguments.values
        names, args = self._validator.encode_arguments(task.skill_name, values, stored_apart=self._large_allowed)
        if not member.arguments.results:
            check_args(task.skill, args)  # the worker checks arguments with results in them
        agent = task.options.get("agent")
        if not self._validator.accepts(task.skill_name, names, agent):
            self.doubts.append((member.name, NamedArguments(task.skill_name, names, agent, key)))
        return member.arguments.cut(args, ids)

    def accepted(
        self,
        tasks: Sequence[Submission],
        handles: Sequence[TaskHandle[Any]],
        answers: Sequence[SubmitAnswer | StoreError],
        accept: Callable[[Submission, TaskHandle[Any], SubmitAnswer], TaskHandle[Any]],
    ) -> FlowHandle:
        """Return the handle of the flow.

        Raises:
            SubmitRefused, KeyConflict, StoreError: it was not accepted.
        """
        outcomes: list[TaskHandle[Any] | SubmitRefused] = []
        statuses: list[str] = []
        for member, task, handle, answer in zip(self.members, tasks, handles, answers, strict=True):
            if isinstance(answer, StoreError):
                raise answer
            statuses.append(answer.status)
            try:
                outcomes.append(self._accept(member, task, handle, answer, accept))
            except SubmitRefused as refusal:
                outcomes.append(refusal)
        found = {
            member.name: outcome
            for member, outcome in zip(self.members, outcomes, strict=True)
            if not isinstance(outcome, SubmitRefused)
        }
        if len(found) < len(outcomes):
            raise self._refusal(statuses, outcomes)
        parts = next(iter(found.values())).parts
        return FlowHandle(self._flow.owner, found, parts, partial(as_completed, parts.replies))

    def _accept(
        self,
        member: Member,
        task: Submission,
        handle: TaskHandle[Any],
        answer: SubmitAnswer,
        accept: Callable[[Submission, TaskHandle[Any], SubmitAnswer], TaskHandle[Any]],
    ) -> TaskHandle[Any]:
        name = member.name
        match answer.status:
            case "conflict":
                raise KeyConflict(self._key or "", answer.detail)
            case "withheld":
                raise SubmitRefused(f"task {name!r} was not stored, because another task of its flow was refused")
            case "gone":
                raise SubmitRefused(f"task {name!r} was submitted before, and is not kept any longer")
            case "invalid":
                raise OrchestratorError(f"submit answered that {answer.detail!r} of task {name!r} is invalid")
        return accept(task, handle, answer)

    def _refusal(self, statuses: Sequence[str], outcomes: Sequence[TaskHandle[Any] | SubmitRefused]) -> SubmitRefused:
        if conflict := next((one for one in outcomes if isinstance(one, KeyConflict)), None):
            return conflict
        names = [member.name for member in self.members]
        if gone := [name for name, status in zip(names, statuses, strict=True) if status == "gone"]:
            kept = [one.id for one in outcomes if not isinstance(one, SubmitRefused)]
            return SubmitRefused(self._gone(gone, kept), outcomes)
        refused = [place for place, status in enumerate(statuses) if status != "withheld"]
        others = f", and {counted(len(refused) - 1, 'other')}" if len(refused) > 1 else ""
        return SubmitRefused(
            f"flow {self._flow.name!r} was not accepted, and none of its tasks was stored: "
            f"task {names[refused[0]]!r}{others}: {outcomes[refused[0]]}",
            outcomes,
        )

    def _gone(self, gone: Sequence[str], kept: Sequence[str]) -> str:
        """Say that tasks of an earlier submit are gone; name the others, whose ids are in `outcomes` too."""
        others = f" and {counted(len(gone) - 1, 'other')} are" if len(gone) > 1 else " is"
        more = f" and {counted(len(kept) - NAMED, 'other')}" if len(kept) > NAMED else ""
        return (
            f"flow {self._flow.name!r} was submitted before with key {self._key!r}, and its task {gone[0]!r}{others} "
            f"not kept any longer; submit it with another key. Its other tasks: {', '.join(kept[:NAMED])}{more}"
        )
