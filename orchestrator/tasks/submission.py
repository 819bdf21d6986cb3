"""Validates submissions and lays them out as rows for the submit script."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, Unpack, runtime_checkable

from msgspec.structs import replace

from orchestrator.core.errors import InvalidInput, QueueFull
from orchestrator.core.formats import Feature
from orchestrator.core.ids import check_name, encode_foreign
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.payload import encode_json
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_whole
from orchestrator.payloads.payloads import Packed, argument_caps, pack
from orchestrator.payloads.reference import ARGS
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import Envelope, ResultPlace, encode_envelope, encode_plain
from orchestrator.tasks.options import PRIORITIES, TASK_OPTIONS, TaskOptions, without_defaults
from orchestrator.tasks.scripts import SubmitCaps, SubmitRow, UnusualRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.formats import Floor
    from orchestrator.core.ids import TaskIds
    from orchestrator.core.settings import QueueSettings, Settings

STRICT_AGING_MS: Final = 10**13
"""Weight of one priority level when nothing ages: more than any time in ms until the year 2286."""
USUAL_RANK: Final = PRIORITIES["normal"] * STRICT_AGING_MS
USUAL_TTL_S: Final = 3600
"""What a row leaves out; `lua/includes/record.lua` supplies it."""
KEYED_TTL_S: Final = 86_400
"""Least default lifetime of an ended task with an idempotency key, because a repeat may come late."""

_CONVERT: Final = {name: option.convert for name, option in TASK_OPTIONS.items()}
_ENVELOPE_FIELDS: Final = {name: option.envelope for name, option in TASK_OPTIONS.items() if option.envelope}

_KNOWN_MAX: Final = 1000
"""Number of skills whose titles are cached."""

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class NamedSkill(Protocol):
    """Anything with the name of a skill: `orchestrator.Skill` is one."""

    @property
    def name(self) -> str:
        """Name of the skill."""
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
        """Return its fields as plain JSON values."""
        ...


Arguments: TypeAlias = Mapping[str, Any] | DumpsJson | None


@dataclass(init=False, slots=True)
class Submission:
    """One task to submit.

    Attributes:
        skill: name of the skill, or the `Skill` itself.
        args: JSON object of its arguments, or a pydantic model.
        options: the [options](../task-options.md) that were given.
    """

    skill: str | NamedSkill
    args: Arguments
    options: TaskOptions

    def __init__(self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]) -> None:
        if options and not TASK_OPTIONS.keys() >= options.keys():
            raise TypeError(f"a task has no option {', '.join(options.keys() - TASK_OPTIONS.keys())}")
        self.skill, self.args, self.options = skill, args, options

    @property
    def skill_name(self) -> str:
        """Name of the skill."""
        return self.skill if isinstance(self.skill, str) else self.skill.name


@dataclass(frozen=True, slots=True)
class Parent:
    """The attempt that submits a child task."""

    task_id: str
    generation: str
    depth: int
    trace: str = ""
    """The trace context that its task carries; a worker that does not trace hands it on to the child."""
    root: str | None = None
    """First task of its family, maybe itself; None if an older program has submitted it."""


@dataclass(frozen=True, slots=True)
class FlowPlace:
    """The place of a task in its flow.

    Attributes:
        id: of the task.
        after: numbers of the tasks after which it runs, as in `UnusualRow`.
        results: that belong into its arguments.
        key: its idempotency key, if the flow has one.
        digest: of the flow.
    """

    id: str
    after: tuple[int, ...]
    results: tuple[ResultPlace, ...]
    key: str | None
    digest: str | None


class NamedArguments(NamedTuple):
    """Arguments of a task, by name.

    Attributes:
        agent: the agent that it is addressed to.
        key: its idempotency key.
    """

    skill: str
    names: Collection[str]
    agent: str | None
    key: str | None


def submit_caps(queue: QueueSettings, floor: Floor) -> SubmitCaps:
    """Return the caps of bytes and of queues.

    Supervisors of an older version assign tasks and do not subtract their bytes, so that an empty queue would be full.
    """
    if not floor.admits(Feature.BYTES_CAPPED):
        return SubmitCaps(queues=queue.max_queues)
    return SubmitCaps(queue.max_queue_bytes, queue.max_pool_bytes, queue.max_queues)


def queue_full(detail: str, queue: QueueSettings) -> QueueFull:
    """Return the error for a task that found no room; `lua/tasks/submit.lua` documents the detail."""
    if detail == "after":
        return QueueFull("awaiting_tasks", queue.max_tasks)
    if detail == "queues":
        return QueueFull(detail, queue.max_queues)
    if detail.startswith("bytes "):
        _, held, name = detail.split(" ", 2)
        if name == "*":
            return QueueFull("pool", queue.max_pool_bytes, read_whole(held))
        return QueueFull(name, queue.max_queue_bytes, read_whole(held))
    return QueueFull(detail, queue.max_tasks)


Draft: TypeAlias = tuple[str, bytes] | SubmitRow
"""A submission that was checked: skill and arguments of a usual one, else its row without an id."""


class SubmissionValidator:
    """Checks submissions and turns them into rows, before anything is sent.

    Attributes:
        accepts: tells without waiting whether some worker takes arguments with these names; by default, it does.
    """

    def __init__(self, settings: Settings | LiveSettings, *, ids: TaskIds) -> None:
        self._live, self._ids, self._new_id = LiveSettings.of(settings), ids, ids.next
        self._titles: dict[str, str] = {}
        self.accepts: Callable[[str, Collection[str], str | None], bool] = lambda *_: True
        self._use(self._live.current)

    def _use(self, settings: Settings) -> None:
        """Keep what a submit needs of the settings, because it must be fast."""
        self._settings = settings
        aging_s = settings.queue.aging_s
        self._aging_ms = STRICT_AGING_MS if aging_s is None else round(aging_s * 1000)
        self._ttl_s = round(settings.results.ttl_s)
        self._caps, self._max_depth = argument_caps(settings), settings.queue.max_depth
        self._max_args_bytes = settings.queue.max_args_bytes
        self._all_unusual = 2 * self._aging_ms != USUAL_RANK or self._ttl_s != USUAL_TTL_S

    @property
    def result_ttl_s(self) -> int:
        """The lifetime of an ended task without an idempotency key."""
        return round(self._live.current.results.ttl_s)

    def row(self, task: Submission, parent: Parent | None = None, *, trace: str = "") -> SubmitRow:
        """Check one submission and give it an id; see `check`.

        Raises:
            InvalidInput: with the field and what it may be.
        """
        return self.number(self.check(task, parent, trace=trace))

    def number(self, draft: Draft) -> SubmitRow:
        """Give a checked submission an id, greater than those given before."""
        if isinstance(draft, tuple):
            return SubmitRow(self._new_id(), opaque(encode_plain(draft)))
        return replace(draft, id=self._new_id())

    def number_all(self, drafts: Sequence[Draft]) -> list[SubmitRow]:
        """Give checked submissions their ids, as `number` does."""
        return [
            SubmitRow(id_, opaque(encode_plain(draft))) if isinstance(draft, tuple) else replace(draft, id=id_)
            for id_, draft in zip(self._ids.take(len(drafts)), drafts, strict=True)
        ]

    def check(
        self,
        task: Submission,
        parent: Parent | None = None,
        doubts: list[NamedArguments] | None = None,
        *,
        trace: str = "",
        large: list[Packed] | None = None,
    ) -> Draft:
        """Check one submission; of many all are checked before any is sent, and the rest is done while they are sent.

        Args:
            task: the submission.
            parent: the attempt that submits it.
            doubts: gets the names of arguments that `accepts` does not accept.
            trace: the trace context that the task carries; by default that of the parent.
            large: gets the arguments that must be put into the payload store before the row is sent; without it, such
                arguments are refused.

        Raises:
            InvalidInput: with the field and what it may be.
        """
        if self._settings is not self._live.current:
            self._use(self._live.current)
        skill = task.skill_name
        title = self._titles.get(skill) or self._title(skill)
        values = _mapping(title, task.args)
        most = self._max_args_bytes if large is None else self._caps.max_bytes
        args = encode_json(title, values, max_bytes=most, max_depth=self._max_depth)
        if doubts is not None and not self.accepts(skill, values, task.options.get("agent")):
            doubts.append(NamedArguments(skill, values, task.options.get("agent"), task.options.get("key")))
        if not isinstance(task.skill, str):
            check_args(task.skill, args)
        digest = None if "key" not in task.options else _digest(skill, task.options, args)
        if large is not None and len(args) > self._caps.inline_bytes:
            packed = pack(ARGS, args, compression=self._settings.payload.compression)
            large.append(packed)
            args = packed.stored
        plain = parent is None and not self._all_unusual
        if plain and not trace and not task.options:
            return skill, args
        options = without_defaults(task.options)
        if plain and not options:
            if not trace:
                return skill, args
            return SubmitRow("", opaque(encode_envelope(Envelope(skill, args, trace=trace))))
        return self._unusual(
            skill, args, options, parent, trace=trace or (parent.trace if parent else ""), digest=digest
        )

    def encode_arguments(self, skill: str, args: Arguments, *, stored_apart: bool) -> tuple[Collection[str], bytes]:
        """Return the names of the arguments of a task of a flow, and the arguments as JSON.

        Args:
            skill: of the task.
            args: with marks in place of results.
            stored_apart: they may be as large as a payload.

        Raises:
            InvalidInput: they are no object, too large, too deep, or no JSON.
        """
        if self._settings is not self._live.current:
            self._use(self._live.current)
        title = self._titles.get(skill) or self._title(skill)
        most = self._caps.max_bytes if stored_apart else self._max_args_bytes
        values = _mapping(title, args)
        return values, encode_json(title, values, max_bytes=most, max_depth=self._max_depth)

    def pack_arguments(self, args: bytes) -> Packed | None:
        """Return what goes to the payload store, if arguments are too large for Redis."""
        if len(args) <= self._caps.inline_bytes:
            return None
        return pack(ARGS, args, compression=self._settings.payload.compression)

    def take_ids(self, count: int) -> list[str]:
        """Return new ids, each greater than those given before."""
        return list(self._ids.take(count))

    def member_row(
        self,
        task: Submission,
        args: bytes,
        place: FlowPlace,
        parent: Parent | None = None,
        *,
        trace: str = "",
    ) -> UnusualRow:
        """Return the row of a task of a flow, whose arguments were checked.

        Raises:
            InvalidInput: with the option and what it may be.
        """
        skill = task.skill_name
        options = without_defaults(task.options)
        if place.key is not None:
            options["key"] = place.key
        row = self._unusual(
            skill,
            args,
            options,
            parent,
            trace=trace or (parent.trace if parent else ""),
            digest=place.digest,
            results=place.results,
        )
        return replace(row, id=place.id, after=place.after)

    def arguments(self, skill: str, args: Arguments) -> bytes:
        """Return the arguments of a task as JSON.

        Raises:
            InvalidInput: they are no object, too large, too deep, or no JSON.
        """
        if self._settings is not self._live.current:
            self._use(self._live.current)
        title = self._titles.get(skill) or self._title(skill)
        return encode_json(title, _mapping(title, args), max_bytes=self._max_args_bytes, max_depth=self._max_depth)

    def _unusual(
        self,
        skill: str,
        args: bytes,
        options: dict[str, Any],
        parent: Parent | None,
        *,
        trace: str,
        digest: str | None,
        results: tuple[ResultPlace, ...] = (),
    ) -> UnusualRow:
        queue = self._settings.queue
        depth = parent.depth + 1 if parent else 0
        if depth > queue.max_child_depth:
            raise InvalidInput(
                f"task of {skill!r} would be child number {depth} in a row; at most {queue.max_child_depth} are allowed"
            )
        values = {name: _CONVERT[name](name, value) for name, value in options.items()}
        if len(values.get("tags", ())) > queue.max_tags:
            raise InvalidInput(f"a task has {len(values['tags'])} tags; at most {queue.max_tags} are allowed")
        _check_on_busy(options)
        key = options.get("key")
        envelope = Envelope(
            skill=skill,
            args=args,
            key=key,
            parent=parent.task_id if parent else None,
            depth=depth,
            trace=trace,
            root=parent.root if parent and parent.root != parent.task_id else None,
            results=results,
            **{_ENVELOPE_FIELDS[name]: value for name, value in values.items() if name in _ENVELOPE_FIELDS},
        )
        rank = envelope.priority * self._aging_ms
        ttl_s = values.get("result_ttl", self._ttl_s if key is None else max(self._ttl_s, KEYED_TTL_S))
        agent = values.get("agent")
        return UnusualRow(
            id="",
            envelope=opaque(encode_envelope(envelope)),
            rank=None if rank == USUAL_RANK else rank,
            ttl_s=None if ttl_s == USUAL_TTL_S else ttl_s,
            queue=None if agent is None else str(QueueName.of_agent(agent)),
            skill=None if agent is None else skill,
            delay_ms=values.get("delay"),
            at_ms=values.get("at"),
            start_by_ms=values.get("start_by"),
            idem=values.get("key"),
            digest=None if key is None else digest,
            parent=parent.task_id if parent else None,
            parent_generation=parent.generation if parent else None,
            lane=values.get("lane"),
            on_busy=values.get("on_busy"),
            session=None if envelope.session is None else encode_foreign("session", envelope.session),
            tags=tuple(encode_foreign("tag", tag) for tag in envelope.tags) or None,
            fair=None if envelope.fair is None else encode_foreign("fair", envelope.fair),
            budget=" ".join(values["budget"]) if values.get("budget") else None,
        )

    def _title(self, skill: str) -> str:
        title = f"arguments of {check_name('skill', skill)!r}"
        if len(self._titles) < _KNOWN_MAX:
            self._titles[skill] = title
        return title


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


def check_args(skill: str | NamedSkill, args: bytes) -> None:
    """Refuse JSON arguments that a skill with types would refuse.

    Raises:
        InvalidInput: with the arguments that do not fit.
    """
    check: Callable[[bytes], None] | None = getattr(skill, "check_args", None)
    if check is not None:
        check(args)


def _check_on_busy(options: dict[str, Any]) -> None:
    if "on_busy" not in options:
        return
    policy = f"on_busy={options['on_busy']!r}"
    if "lane" not in options:
        raise InvalidInput(f"{policy} needs a lane; give lane=, or leave out on_busy")
    if "delay" in options or "at" in options:
        raise InvalidInput(
            f"{policy} decides when the task is submitted, and a delayed one joins its lane later; "
            "leave out on_busy, or delay and at"
        )


def _digest(skill: str, options: TaskOptions, args: bytes) -> str:
    # The body is what the task does; when and how urgently it runs may differ between two sends of one request.
    body = hashlib.blake2b(args, digest_size=16, person=b"orc-submission")
    body.update(repr((skill, options.get("agent"), options.get("session"))).encode())
    return body.hexdigest()
