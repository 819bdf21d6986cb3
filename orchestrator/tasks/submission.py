"""Validates submissions and lays them out as rows for the submit script."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
    runtime_checkable,
)

import msgspec
from msgspec.structs import replace

from orchestrator.core.durations import instant_ms, to_ms, to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, encode_foreign
from orchestrator.core.payload import encode_json
from orchestrator.core.queue_name import QueueName
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import Envelope, encode_envelope, encode_plain
from orchestrator.tasks.scripts import SubmitRow, UnusualRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.ids import TaskIds
    from orchestrator.core.settings import Settings

PRIORITIES: Final = {"critical": 0, "high": 1, "normal": 2, "low": 3}
STRICT_AGING_MS: Final = 10**13
"""Weight of one priority level when nothing ages: more than any time in ms until the year 2286."""
USUAL_RANK: Final = PRIORITIES["normal"] * STRICT_AGING_MS
USUAL_TTL_S: Final = 86_400
"""What a row leaves out; `lua/includes/record.lua` and `lifetime.lua` put it back."""

_KNOWN_MAX: Final = 1000
"""Names are checked once: a cache, not a leak."""

Duration: TypeAlias = float | timedelta
OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "replace"]
ON_BUSY: Final = get_args(OnBusy)

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class NamedSkill(Protocol):
    """Anything with the name of a skill: `orchestrator.Skill` is one."""

    @property
    def name(self) -> str:
        """The skill's name."""
        ...


class TypedSkill(NamedSkill, Protocol[T_co]):
    """A skill that also knows the types of its arguments and of its results."""

    def check_args(self, args: bytes) -> None:
        """Refuse JSON arguments that its workers would refuse.

        Raises:
            InvalidInput: with the arguments that do not fit.
        """
        ...

    def read_result(self, data: bytes) -> T_co:
        """Read a result as what the handler returns."""
        ...


class DumpsJson(Protocol):
    """A pydantic model."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Its fields as plain JSON values."""
        ...


Arguments: TypeAlias = Mapping[str, Any] | DumpsJson | None


class Submission(msgspec.Struct, frozen=True):
    """One task to submit.

    Attributes:
        skill: name of the handler, or the `Skill` itself.
        args: JSON object of its arguments, or a pydantic model.
        agent: give it to this agent; by default any agent with the skill takes it.
        session: the conversation it belongs to.
        priority: critical, high, normal, low or 0-9, lower first.
        delay: seconds or timedelta until it may start.
        at: aware time when it may start.
        start_by: aware time after which it is no longer started (it expires).
        key: idempotency key; the same key and body is the same task.
        timeout: seconds or timedelta that one attempt may take.
        max_attempts: failures until it is a dead letter.
        tags: free labels, at most `queue.max_tags`.
        result_ttl: seconds or timedelta that the ended task is kept.
        lane: tasks of one lane run one after another, in the order in which they were submitted.
        on_busy: what if the lane has a task that has not ended. `enqueue`: run behind it and all that wait; `reject`:
            refuse this one; `interrupt`: cancel that one and run this next; `replace`: cancel all that have not begun.
    """

    skill: str | NamedSkill
    args: Arguments = None
    agent: str | None = None
    session: str | None = None
    priority: str | int = "normal"
    delay: Duration | None = None
    at: datetime | None = None
    start_by: datetime | None = None
    key: str | None = None
    timeout: Duration | None = None
    max_attempts: int | None = None
    tags: Sequence[str] = ()
    result_ttl: Duration | None = None
    lane: str | None = None
    on_busy: OnBusy = "enqueue"


class SubmitOptions(TypedDict, total=False):
    """The keyword arguments of a submit, for type checkers; what each means is told by `Submission`."""

    agent: str | None
    session: str | None
    priority: str | int
    delay: Duration | None
    at: datetime | None
    start_by: datetime | None
    key: str | None
    timeout: Duration | None
    max_attempts: int | None
    tags: Sequence[str]
    result_ttl: Duration | None
    lane: str | None
    on_busy: OnBusy


@dataclass(frozen=True, slots=True)
class Parent:
    """The attempt that submits a child task."""

    task_id: str
    generation: str
    depth: int


Draft: TypeAlias = tuple[str, bytes] | UnusualRow
"""A submission that was checked: skill and arguments of a usual one, else its row without an id."""


class SubmissionValidator:
    """Turns submissions into rows; refuses what cannot be meant before anything is sent."""

    def __init__(self, settings: Settings, *, ids: TaskIds) -> None:
        self._settings, self._new_id = settings, ids.next
        aging_s = settings.queue.aging_s
        self._aging_ms = STRICT_AGING_MS if aging_s is None else round(aging_s * 1000)
        self._ttl_s = round(settings.results.ttl_s)
        self._max_args_bytes, self._max_depth = settings.queue.max_args_bytes, settings.queue.max_depth
        self._all_unusual = 2 * self._aging_ms != USUAL_RANK or self._ttl_s != USUAL_TTL_S
        self._known_names: set[str] = set()
        self._titles: dict[str, str] = {}

    def row(self, task: Submission, parent: Parent | None = None) -> SubmitRow:
        """Check one submission and give it an id.

        Raises:
            InvalidInput: with the field and what it may be.
        """
        return self.number(self.check(task, parent))

    def number(self, draft: Draft) -> SubmitRow:
        """Give a checked submission an id, greater than those given before."""
        if isinstance(draft, tuple):
            return SubmitRow(self._new_id(), opaque(encode_plain(draft)))
        return replace(draft, id=self._new_id())

    def check(self, task: Submission, parent: Parent | None = None) -> Draft:
        """Check one submission; of many all are checked before any is sent, and the rest is done while they are sent.

        Raises:
            InvalidInput: with the field and what it may be.
        """
        skill = task.skill if isinstance(task.skill, str) else task.skill.name
        args = self.arguments(skill, task.args)
        if not isinstance(task.skill, str):
            _check(task.skill, args)
        if parent is not None or self._all_unusual or _has_options(task):
            return self._unusual(skill, args, task, parent)
        return skill, args

    def arguments(self, skill: str, args: Arguments) -> bytes:
        """The arguments of a task as JSON.

        Raises:
            InvalidInput: they are no object, too large, too deep, or no JSON.
        """
        title = self._titles.get(skill) or self._title(skill)
        return encode_json(title, _mapping(title, args), max_bytes=self._max_args_bytes, max_depth=self._max_depth)

    def _unusual(self, skill: str, args: bytes, task: Submission, parent: Parent | None) -> UnusualRow:
        queue = self._settings.queue
        level = _level(task.priority)
        depth = parent.depth + 1 if parent else 0
        if depth > queue.max_child_depth:
            raise InvalidInput(
                f"task of {skill!r} would be child number {depth} in a row; at most {queue.max_child_depth} are allowed"
            )
        envelope = encode_envelope(
            Envelope(
                skill=skill,
                args=args,
                priority=level,
                session=_foreign("session", task.session),
                tags=self._tags(task.tags),
                timeout_s=None if task.timeout is None else _positive("timeout", task.timeout),
                max_attempts=_attempts(task.max_attempts),
                key=task.key,
                parent=parent.task_id if parent else None,
                depth=depth,
            )
        )
        rank = level * self._aging_ms
        ttl_s = self._ttl_s if task.result_ttl is None else -(-to_ms("result_ttl", task.result_ttl) // 1000)
        return UnusualRow(
            id="",
            envelope=opaque(envelope),
            rank=None if rank == USUAL_RANK else rank,
            ttl_s=None if ttl_s == USUAL_TTL_S else ttl_s,
            queue=None if task.agent is None else str(QueueName.of_agent(self._name("agent", task.agent))),
            skill=None if task.agent is None else skill,
            delay_ms=None if task.delay is None else to_ms("delay", task.delay),
            at_ms=None if task.at is None else instant_ms("at", task.at),
            start_by_ms=None if task.start_by is None else instant_ms("start_by", task.start_by),
            idem=None if task.key is None else encode_foreign("key", task.key),
            digest=None if task.key is None else _digest(skill, task, args),
            parent=parent.task_id if parent else None,
            parent_generation=parent.generation if parent else None,
            lane=None if task.lane is None else encode_foreign("lane", task.lane),
            on_busy=_on_busy(task),
        )

    def _title(self, skill: str) -> str:
        title = f"arguments of {self._name('skill', skill)!r}"
        if len(self._titles) < _KNOWN_MAX:
            self._titles[skill] = title
        return title

    def _name(self, kind: str, value: str) -> str:
        if value not in self._known_names:
            check_name(kind, value)
            if len(self._known_names) < _KNOWN_MAX:
                self._known_names.add(value)
        return value

    def _tags(self, tags: Sequence[str]) -> tuple[str, ...]:
        if not tags:
            return ()
        if isinstance(tags, str):
            raise InvalidInput(f"tags must be a list of texts, not the text {tags!r}")
        if len(tags) > self._settings.queue.max_tags:
            raise InvalidInput(f"a task has {len(tags)} tags; at most {self._settings.queue.max_tags} are allowed")
        for tag in tags:
            encode_foreign("tag", tag)
        return tuple(tags)


def _has_options(task: Submission) -> bool:
    return not (
        task.priority == "normal"
        and task.agent is None
        and task.session is None
        and task.delay is None
        and task.at is None
        and task.start_by is None
        and task.key is None
        and task.timeout is None
        and task.max_attempts is None
        and not task.tags
        and task.result_ttl is None
        and task.lane is None
        and task.on_busy == "enqueue"
    )


def _mapping(title: str, args: Arguments) -> Mapping[str, Any]:
    if isinstance(args, dict):
        return args
    if args is None:
        return {}
    if isinstance(args, Mapping):
        return dict(args)
    if hasattr(args, "model_dump"):
        try:
            dumped = args.model_dump(mode="json")
        except Exception as invalid:
            # Also what serialisers of the user's own raise.
            raise InvalidInput(f"{title} cannot be sent: {invalid}") from invalid
        if isinstance(dumped, dict):
            return dumped
    raise InvalidInput(f"{title} must be a mapping or a pydantic model, not {type(args).__name__}")


def _check(skill: NamedSkill, args: bytes) -> None:
    check: Callable[[bytes], None] | None = getattr(skill, "check_args", None)
    if check is not None:
        check(args)


def _level(priority: str | int) -> int:
    if isinstance(priority, str) and priority in PRIORITIES:
        return PRIORITIES[priority]
    if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= 9:
        return priority
    raise InvalidInput(f"priority {priority!r} is not known; use critical, high, normal, low or 0 to 9 (lower first)")


def _attempts(value: int | None) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000):
        return value
    raise InvalidInput(f"max_attempts must be a whole number from 1 to 1000, not {value!r}")


def _on_busy(task: Submission) -> str | None:
    """Return the value for the row; None: the task waits for its turn."""
    if task.on_busy == "enqueue":
        return None
    if task.on_busy not in ON_BUSY:
        raise InvalidInput(f"on_busy {task.on_busy!r} is not known; use {', '.join(ON_BUSY)}")
    if task.lane is None:
        raise InvalidInput(f"on_busy={task.on_busy!r} needs a lane; give lane=, or leave out on_busy")
    if task.delay is not None or task.at is not None:
        raise InvalidInput(
            f"on_busy={task.on_busy!r} decides when the task is submitted, and a delayed one joins its lane later; "
            "leave out on_busy, or delay and at"
        )
    return task.on_busy


def _positive(name: str, value: Duration) -> float:
    seconds = to_seconds(name, value)
    if seconds == 0:
        raise InvalidInput(f"{name} must be more than 0 seconds")
    return seconds


def _foreign(kind: str, value: str | None) -> str | None:
    if value is not None:
        encode_foreign(kind, value)
    return value


def _digest(skill: str, task: Submission, args: bytes) -> str:
    # The body is what the task does; when and how urgently it runs may differ between two sends of one request.
    body = hashlib.blake2b(args, digest_size=16, person=b"orc-submission")
    body.update(repr((skill, task.agent, task.session)).encode())
    return body.hexdigest()
