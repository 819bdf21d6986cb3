"""Lays out the tasks of a flow as rows of one submit, and reads the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

from orchestrator.client.flow_handle import FlowHandle
from orchestrator.core.errors import InvalidInput, KeyConflict, OrchestratorError, StoreError, SubmitRefused
from orchestrator.core.ids import encode_foreign
from orchestrator.payloads.sizing import is_small
from orchestrator.tasks.flows import MOST_BYTES, flow_digest
from orchestrator.tasks.submission import FlowPlace, NamedArguments
from orchestrator.tasks.values import call_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from orchestrator.client.handle import TaskHandle
    from orchestrator.payloads.payloads import Packed
    from orchestrator.services import Services
    from orchestrator.tasks.flows import Flow, Member
    from orchestrator.tasks.scripts import SubmitAnswer, UnusualRow
    from orchestrator.tasks.submission import Parent, Submission, SubmissionValidator

_LONGEST_KEY: Final = 256


class FlowSubmit:
    """One submit of a flow.

    Attributes:
        members: the tasks, each behind its predecessors.
    """

    def __init__(
        self,
        services: Services,
        validator: SubmissionValidator,
        flow: Flow,
        key: str | None,
        parent: Parent | None,
    ) -> None:
        self.members = flow.members()
        self._flow, self._validator, self._parent = flow, validator, parent
        self._large_allowed = services.payloads.store is not None
        self._key = key
        # The first task of every flow with this key has the same one, so that another flow finds it.
        self._keys = [
            None if key is None else _key_of(key, member.name if place else "")
            for place, member in enumerate(self.members)
        ]

    def doubts(self, accepts: Callable[[str, Collection[str], str | None], bool]) -> list[NamedArguments]:
        """Return the arguments that no known worker may take, as of a single submit."""
        found: list[NamedArguments] = []
        for member, key in zip(self.members, self._keys, strict=True):
            skill, agent = _skill_of(member), member.submission.options.get("agent")
            names = _names_of(member.arguments.values)
            if not accepts(skill, names, agent):
                found.append(NamedArguments(skill, names, agent, key))
        return found

    async def rows(self, trace: str) -> tuple[list[UnusualRow], list[Packed | None]]:
        """Return the rows, and the arguments that are too large for Redis.

        Raises:
            InvalidInput: an argument or an option is invalid, or the flow is too large.
        """
        ids = self._validator.take_ids(len(self.members))
        by_name = {member.name: id_ for member, id_ in zip(self.members, ids, strict=True)}
        encode = self._encode_all
        encoded = (
            encode(by_name)
            if all(is_small(member.arguments.values) for member in self.members)
            else await to_thread.run_sync(encode, by_name)
        )
        names = {id_: name for name, id_ in by_name.items()}
        digest = flow_digest(self.members, encoded, names) if self._key is not None else None
        numbers = {member.name: number for number, member in enumerate(self.members, 1)}
        rows: list[UnusualRow] = []
        large: list[Packed | None] = []
        for member, (args, results), id_, key in zip(self.members, encoded, ids, self._keys, strict=True):
            packed = None
            if self._large_allowed and (packed := self._validator.pack_arguments(args)) is not None:
                args = packed.stored  # noqa: PLW2901
            after = tuple(-numbers[name] if how == "run" else numbers[name] for name, how in member.after.items())
            place = FlowPlace(id_, after, results, key, digest)
            rows.append(self._validator.member_row(member.submission, args, place, self._parent, trace=trace))
            large.append(packed)
        total = sum(call_bytes(len(row.envelope)) for row in rows)
        if total > MOST_BYTES:
            raise InvalidInput(
                f"flow {self._flow.name!r} counts {total:,} bytes of arguments and options; one submit takes at most "
                f"{MOST_BYTES:,}, so store large data and send its address"
            )
        return rows, large

    def _encode_all(self, ids: dict[str, str]) -> list[tuple[bytes, Any]]:
        found: list[tuple[bytes, Any]] = []
        for member in self.members:
            skill = member.submission.skill
            args = self._validator.encode_arguments(skill, member.arguments.values, stored_apart=self._large_allowed)
            if not isinstance(skill, str) and not member.arguments.results and hasattr(skill, "check_args"):
                skill.check_args(args)  # the worker checks arguments with results in them
            found.append(member.arguments.cut(f"the arguments of task {member.name!r}", args, ids))
        return found

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
        found: list[TaskHandle[Any]] = []
        refused: dict[str, Exception] = {}
        outcomes: list[Exception] = []
        for member, task, handle, answer in zip(self.members, tasks, handles, answers, strict=True):
            if isinstance(answer, StoreError):
                raise answer
            try:
                if answer.status == "conflict":
                    raise KeyConflict(self._key or "", answer.detail)
                found.append(_accept(member, task, handle, answer, accept))
            except SubmitRefused as refusal:
                if answer.status != "withheld":
                    refused[member.name] = refusal
                outcomes.append(refusal)
            else:
                outcomes.append(SubmitRefused(f"task {member.name!r} was not submitted with the rest of its flow"))
        if refused:
            name, first = next(iter(refused.items()))
            if conflict := next((one for one in refused.values() if isinstance(one, KeyConflict)), None):
                raise conflict
            others = f", and {len(refused) - 1} others" if len(refused) > 1 else ""
            raise SubmitRefused(
                f"flow {self._flow.name!r} was not accepted, and none of its tasks was stored: "
                f"task {name!r}{others}: {first}",
                outcomes,
            )
        parts = found[0].parts
        by_name = {member.name: handle for member, handle in zip(self.members, found, strict=True)}
        return FlowHandle(self._flow.owner, by_name, parts)


def _accept(
    member: Member,
    task: Submission,
    handle: TaskHandle[Any],
    answer: SubmitAnswer,
    accept: Callable[[Submission, TaskHandle[Any], SubmitAnswer], TaskHandle[Any]],
) -> TaskHandle[Any]:
    if answer.status == "withheld":
        raise SubmitRefused(f"task {member.name!r} was not stored, because another task of its flow was refused")
    if answer.status == "gone":
        raise SubmitRefused(
            f"the flow was submitted before with this key, and its task {member.name!r} is not kept any longer; "
            "submit it with another key"
        )
    if answer.status == "invalid":
        raise OrchestratorError(f"submit answered that {answer.detail!r} of task {member.name!r} is invalid")
    return accept(task, handle, answer)


def _skill_of(member: Member) -> str:
    skill = member.submission.skill
    return skill if isinstance(skill, str) else skill.name


def _names_of(values: Any) -> Collection[str]:
    if isinstance(values, dict):
        return values
    dumped: Any = values.model_dump(mode="json") if hasattr(values, "model_dump") else {}
    return dumped if isinstance(dumped, dict) else {}


def _key_of(key: str, name: str) -> str:
    """Return the idempotency key of a task; `name` is empty for the first one.

    Raises:
        InvalidInput: the key of the flow is none, or too long with the name of the task.
    """
    encode_foreign("key", key)
    found = f"{key}/{name}"
    if len(found.encode()) > _LONGEST_KEY:
        raise InvalidInput(
            f"key of the flow is too long: with the name of task {name!r} it has "
            f"{len(found.encode())} bytes, and at most {_LONGEST_KEY} are allowed"
        )
    return found
