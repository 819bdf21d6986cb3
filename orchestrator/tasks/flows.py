"""Flows: tasks that are submitted together and run after one another, and the references between them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, Unpack, cast, get_args, overload

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, encode_foreign
from orchestrator.core.payload import encode_json
from orchestrator.core.plural import counted
from orchestrator.core.reading import read_whole
from orchestrator.tasks.model import ResultPlace
from orchestrator.tasks.options import TASK_OPTIONS
from orchestrator.tasks.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.tasks.options import TaskOptions
    from orchestrator.tasks.submission import Arguments, NamedSkill, TypedSkill

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
AfterFailure: TypeAlias = Literal["cancel", "run"]
"""What becomes of a task after whose predecessor failed: it is cancelled, or runs all the same."""
MOST_TASKS: Final = 500
"""Tasks of a flow at most."""
MOST_EDGES: Final = 10_000
"""Pairs of a task and a predecessor in a flow at most."""
MOST_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the tasks of a flow at most; arguments above 4 KiB count a quarter."""
_DEFAULT_BYTES: Final = 64 * 1024
_NOT_IN_FLOWS: Final = {
    "key": "give submit_flow(key=) for all of its tasks",
    "on_busy": "a task of a flow joins its lane when its predecessors have ended",
    "durability": "all tasks of a flow are submitted at once, as durable as `queue.durability` says",
}
_LONGEST_KEY: Final = 256
_NOTHING: Final = object()
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


class TaskResult:
    """The result of a task of a flow, which stands for the value in the arguments of a later task.

    `FlowTask.result` and `FlowTask.result_or` make it.
    """

    # No slots: `is_small` weighs the default as it weighs a field of a dataclass.

    def __init__(self, task: FlowTask[Any], default: Any = _NOTHING) -> None:
        self.task, self.default = task, default

    def __repr__(self) -> str:
        return f"<result of task {self.task.name!r} of flow {self.task.flow!r}>"

    @property
    def has_default(self) -> bool:
        """True if a value takes its place if the task fails."""
        return self.default is not _NOTHING


@dataclass(frozen=True, slots=True)
class After:
    """A task after which another one runs, and what its failure does: `after=[After(page, failed="run")]`.

    Args:
        task: the predecessor.
        failed: `cancel` cancels the later task if the predecessor fails; `run` lets it run all the same.
    """

    task: FlowTask[Any]
    failed: AfterFailure = "cancel"

    def __post_init__(self) -> None:
        if self.failed not in get_args(AfterFailure):
            raise InvalidInput(
                f"failed= of After must be one of {', '.join(get_args(AfterFailure))}, not {self.failed!r}"
            )


class FlowTask(Generic[T_co]):
    """A task of a flow, as `Flow.task` returns it.

    Attributes:
        name: its name in the flow.
        flow: name of the flow.
        owner: the flow itself.
        submission: skill, arguments and options.
        after: the tasks of `after=`.
    """

    __slots__ = ("after", "flow", "name", "owner", "submission")

    def __init__(self, owner: Flow, name: str, submission: Submission, after: Sequence[FlowTask[Any] | After]) -> None:
        self.name, self.flow = name, owner.name
        self.owner, self.submission, self.after = owner, submission, after

    def __repr__(self) -> str:
        return f"FlowTask({self.name!r}, flow={self.flow!r})"

    @property
    def result(self) -> TaskResult:
        """Its result, for the arguments of a later task, which runs after this one then."""
        return TaskResult(self)

    def result_or(self, default: Any) -> TaskResult:
        """Return its result for the arguments of a later task, which runs also if this one fails.

        Args:
            default: a JSON value of up to 64 KiB, which stands in the arguments if this one fails.
        """
        return TaskResult(self, default)


class Flow:
    """Tasks that are submitted with one call, and run after one another: `await orc.submit_flow(flow)`.

    Args:
        name: for people, in errors; 1 to 128 letters, digits or `. _ @ : -`.

    Attributes:
        owner: the flow whose tasks results and predecessors name; the flow itself, unless it is a copy of the workers.
    """

    __slots__ = ("_tasks", "name", "owner")

    def __init__(self, name: str) -> None:
        self.name: str = check_name("flow", name)
        self.owner: Flow = self
        self._tasks: dict[str, FlowTask[Any]] = {}

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {counted(len(self._tasks), 'task')})"

    @property
    def tasks(self) -> tuple[FlowTask[Any], ...]:
        """Its tasks in the order in which they were added."""
        return tuple(self._tasks.values())

    @overload
    def task(
        self,
        skill: TypedSkill[T],
        args: Arguments = None,
        *,
        after: Sequence[FlowTask[Any] | After] = (),
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> FlowTask[T]: ...

    @overload
    def task(
        self,
        skill: str | NamedSkill,
        args: Arguments = None,
        *,
        after: Sequence[FlowTask[Any] | After] = (),
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> FlowTask[Any]: ...

    def task(
        self,
        skill: str | NamedSkill,
        args: Arguments = None,
        *,
        after: Sequence[FlowTask[Any] | After] = (),
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> FlowTask[Any]:
        """Add a task. Results of others may stand anywhere in its arguments: `{"pages": [a.result, b.result]}`.

        It runs after the tasks of `after` and those whose results it takes, once all of them have ended. If one of them
        fails (a dead letter, cancelled, expired, or gone), it is cancelled, unless `After(task, failed="run")` or
        `result_or` says otherwise.

        Args:
            skill: name of the skill, or the `Skill` itself.
            args: JSON object of its arguments, or a pydantic model; read when the flow is submitted.
            after: tasks of this flow, or `After` with one of them.
            name: its name in the flow; by default that of the skill, with a number behind it from the second on.
            options: the [options of a task](../task-options.md), except `key`, `on_busy` and `durability`. `delay`
                counts from the end of the last predecessor.

        Raises:
            InvalidInput: a task is of another flow, the name is taken, an option is not for flows, or there are too
                many tasks.
        """
        if unknown := options.keys() - TASK_OPTIONS.keys():
            raise InvalidInput(f"a task has no option {', '.join(sorted(unknown))}")
        for option, why in _NOT_IN_FLOWS.items():
            if options.get(option) is not None:
                raise InvalidInput(f"a task of a flow takes no {option}=: {why}")
        if len(self._tasks) >= MOST_TASKS:
            raise InvalidInput(f"flow {self.name!r} has {MOST_TASKS} tasks, the most that one submit takes")
        made: FlowTask[Any] = FlowTask(
            self, self._name(skill, name), Submission(skill, args, **options), _listed(after)
        )
        for one in made.after:
            self._check_own(made.name, one.task if isinstance(one, After) else one)
        for result in find_results(args):
            self._check_own(made.name, result.task)
        self._tasks[made.name] = made
        return made

    def _name(self, skill: str | NamedSkill, name: str | None) -> str:
        if name is not None:
            if check_name("task of a flow", name) in self._tasks:
                raise InvalidInput(f"flow {self.name!r} has a task {name!r} already; give each its own name")
            return name
        stem = Submission(skill).skill_name
        found, number = stem, 1
        while found in self._tasks:
            number += 1
            found = f"{stem}-{number}"
        return found

    def _check_own(self, name: str, other: object) -> None:
        if not isinstance(other, FlowTask):
            raise InvalidInput(f"task {name!r} of flow {self.name!r} runs after tasks of its flow, not after {other!r}")
        if other.owner is not self.owner:
            raise InvalidInput(
                f"task {name!r} of flow {self.name!r} cannot run after {other.name!r}, which is a task of another "
                f"flow ({other.flow!r})"
            )

    def inheriting(self, *, session: str | None, fair: str | None) -> Flow:
        """Return the same flow, whose tasks have this session and this key by default; for the workers."""
        copy = Flow(self.name)
        for task in self._tasks.values():
            options = dict(task.submission.options)
            for name, value in (("session", session), ("fair", fair)):
                if options.get(name) is None and value is not None:
                    options[name] = value
            submission = Submission(task.submission.skill, task.submission.args, **cast("TaskOptions", options))
            # They stay tasks of this flow, so that results and predecessors name them.
            copy._tasks[task.name] = FlowTask(self, task.name, submission, task.after)
        copy.owner = self
        return copy

    def members(self) -> list[Member]:
        """Check the flow, and return its tasks in the order in which they were added; for the client.

        A task that was added before one of its predecessors comes behind it.

        Raises:
            InvalidInput: it has no task, too many edges, a cycle, a result that its task might lack, or a task of
                another flow.
        """
        if not self._tasks:
            raise InvalidInput(f"flow {self.name!r} has no task; add one with flow.task()")
        found = {task.name: self._member(task) for task in self.tasks}
        edges = sum(len(member.after) for member in found.values())
        if edges > MOST_EDGES:
            raise InvalidInput(
                f"the tasks of flow {self.name!r} have {edges:,} predecessors; at most {MOST_EDGES:,} are allowed, so "
                "put a task between them that collects"
            )
        return self._in_order(found)

    def _member(self, task: FlowTask[Any]) -> Member:
        marked = MarkedArguments(task.submission.args)
        policies: dict[str, AfterFailure | None] = {}
        for one in task.after:
            other, policy = (one.task, one.failed) if isinstance(one, After) else (one, None)
            if policy is not None and policies.get(other.name, policy) not in {policy, None}:
                raise InvalidInput(f"task {task.name!r} of flow {self.name!r} has two policies for task {other.name!r}")
            policies[other.name] = policy or policies.get(other.name)
        plain = set[str]()
        for result in marked.results:
            self._check_own(task.name, result.task)
            policies.setdefault(result.task.name, None)
            if not result.has_default:
                plain.add(result.task.name)
        defaulted = {result.task.name for result in marked.results} - plain
        for name in plain:
            if policies[name] == "run":
                raise InvalidInput(
                    f"task {task.name!r} of flow {self.name!r} runs also if {name!r} fails, and takes its result, "
                    "which is missing then; take result_or(default)"
                )
        after = {name: policy or ("run" if name in defaulted else "cancel") for name, policy in policies.items()}
        return Member(task.name, task.submission, after, marked)

    def _in_order(self, found: dict[str, Member]) -> list[Member]:
        missing = {name: set(member.after) for name, member in found.items()}
        behind: dict[str, list[str]] = {name: [] for name in found}
        for name, others in missing.items():
            for other in others:
                behind[other].append(name)
        names = list(found)
        places = {name: place for place, name in enumerate(names)}
        ready, ordered = [places[name] for name, others in missing.items() if not others], list[Member]()
        while ready:
            name = names[heappop(ready)]
            ordered.append(found[name])
            for later in behind[name]:
                missing[later].discard(name)
                if not missing[later]:
                    heappush(ready, places[later])
        if len(ordered) < len(found):
            raise InvalidInput(
                f"flow {self.name!r} has a cycle, so these tasks would wait for each other: "
                f"{', '.join(_cycle({name: others for name, others in missing.items() if others}))}"
            )
        return ordered


@dataclass(frozen=True, slots=True)
class Member:
    """A task of a flow that was checked.

    Attributes:
        name: its name in the flow.
        submission: skill, arguments and options.
        after: what a failure does, by the names of its predecessors.
        arguments: with marks in place of results.
    """

    name: str
    submission: Submission
    after: Mapping[str, AfterFailure]
    arguments: MarkedArguments


class MarkedArguments:
    """Arguments in which a unique text marks each place of a result.

    After they are encoded, `cut` finds the marks and puts `null` there, so that no text of the arguments is taken for
    a result.

    Attributes:
        values: a copy of the arguments with marks; those that were given if there is no result in them.
        results: in the order of their marks, each once.
    """

    __slots__ = ("_args", "_token", "results", "values")

    def __init__(self, args: Arguments) -> None:
        self.results = list({id(result): result for result in find_results(args)}.values())
        self._args, self._token = args, secrets.token_hex(16)
        marks = {id(result): f"{self._token}{number}" for number, result in enumerate(self.results)}
        self.values: Any = self.with_results(lambda result: marks.get(id(result), result))

    def with_results(self, value_of: Callable[[TaskResult], Any]) -> Any:
        """Return the arguments with values in place of the results."""
        return _copied(self._args, value_of) if self.results else self._args

    def cut(self, args: bytes, ids: Mapping[str, str]) -> tuple[bytes, tuple[ResultPlace, ...]]:
        """Return the encoded arguments with `null` in place of the results, and where each result goes.

        Args:
            args: JSON.
            ids: ids of the tasks of the flow by name.

        Raises:
            InvalidInput: a default is no JSON, or too large.
        """
        if not self.results:
            return args, ()
        first, *rest = args.split(f'"{self._token}'.encode())
        parts, references, offset = [first], list[ResultPlace](), len(first)
        for piece in rest:
            number, behind = piece.split(b'"', 1)
            result = self.results[read_whole(number)]
            default = None
            if result.has_default:
                about = "the default of a result in its arguments"
                default = encode_json(about, result.default, max_bytes=_DEFAULT_BYTES, max_depth=64)
            references.append(ResultPlace(offset, ids[result.task.name], default))
            parts += [b"null", behind]
            offset += len(b"null") + len(behind)
        return b"".join(parts), tuple(references)


def find_results(args: Arguments) -> list[TaskResult]:
    """Return the results in arguments, in their order. Copies nothing, and looks at each list and object once."""
    found: list[TaskResult] = []
    seen: set[int] = set()
    stack: list[Any] = [_plain(args)]
    while stack:
        item = stack.pop()
        if isinstance(item, TaskResult):
            found.append(item)
        elif id(item) not in seen and (children := _children(item)):
            seen.add(id(item))
            # Nearly all lists have scalars only, so they get no loop in Python.
            if not _SCALARS.issuperset(map(type, children)):
                stack += reversed([child for child in children if type(child) not in _SCALARS])
    return found


def _copied(args: Arguments, value_of: Callable[[TaskResult], Any]) -> Any:
    """Copy arguments, with values in place of results. Copies each list and object once, however often it occurs."""
    copies: dict[int, Any] = {}
    waiting: list[tuple[Any, Any]] = []

    def copy(item: Any) -> Any:
        if isinstance(item, TaskResult):
            return value_of(item)
        if _children(item) is None:
            return item
        if id(item) not in copies:
            made: Any = {} if isinstance(item, dict) else []
            copies[id(item)] = made
            waiting.append((item, made))
        return copies[id(item)]

    found = copy(_plain(args))
    while waiting:
        item, made = waiting.pop()
        if isinstance(item, dict):
            made.update({name: child if type(child) in _SCALARS else copy(child) for name, child in item.items()})
        else:
            made += [child if type(child) in _SCALARS else copy(child) for child in item]
    return found


def _plain(args: Arguments) -> Any:
    return dict(args) if isinstance(args, Mapping) and not isinstance(args, dict) else args


def _children(item: Any) -> Collection[Any] | None:
    """Return the values of a list or an object; None for others. Nothing else is encoded as JSON with values in it."""
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list | tuple) else None


@contextmanager
def naming(flow: str, task: str) -> Iterator[None]:
    """Name a task of a flow in the error of its arguments or options."""
    try:
        yield
    except InvalidInput as refused:
        raise InvalidInput(f"task {task!r} of flow {flow!r}: {refused}") from refused


def check_flow(flow: object) -> None:
    """Refuse what is no flow.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(flow, Flow):
        raise InvalidInput(f"submit_flow takes a Flow, not {flow!r}")


def keys_of(key: str | None, members: Sequence[Member]) -> list[str | None]:
    """Return the idempotency keys of the tasks of a flow: the first has that of the flow, the others a name behind it.

    So another flow with this key, or a single task with it, is a conflict.

    Raises:
        InvalidInput: the key of the flow is none, or too long with the name of a task.
    """
    if key is None:
        return [None] * len(members)
    encode_foreign("key", key)
    found: list[str | None] = [key]
    for member in members[1:]:
        found.append(own := f"{key}/{member.name}")
        if len(own.encode()) > _LONGEST_KEY:
            raise InvalidInput(
                f"key of the flow is too long: with the name of task {member.name!r} it has {len(own.encode())} bytes, "
                f"and at most {_LONGEST_KEY} are allowed"
            )
    return found


def flow_digest(
    members: Sequence[Member], encoded: Sequence[tuple[bytes, Sequence[ResultPlace]]], names: Mapping[str, str]
) -> str:
    """Return the digest of what a flow does: its tasks, what runs after what, and which results they take.

    Args:
        members: the tasks.
        encoded: their arguments, as of `cut`.
        names: of the tasks by their ids.
    """
    body = hashlib.blake2b(digest_size=16, person=b"orc-flow")
    for member, (args, places) in zip(members, encoded, strict=True):
        options = member.submission.options
        taken = [(place.offset, names[place.task], place.default) for place in places]
        skill = member.submission.skill_name
        said = (member.name, skill, options.get("agent"), options.get("session"), sorted(member.after.items()), taken)
        body.update(repr(said).encode())
        body.update(args)
    return body.hexdigest()


def _listed(after: object) -> tuple[FlowTask[Any] | After, ...]:
    if isinstance(after, FlowTask | After):
        return (after,)
    if not isinstance(after, Sequence) or isinstance(after, str):
        raise InvalidInput(f"after= takes a list of tasks of the flow, not {after!r}")
    return tuple(after)


def _cycle(missing: Mapping[str, set[str]]) -> list[str]:
    """Return the names of one cycle among tasks that each wait for another one of them."""
    path: list[str] = []
    name = next(iter(missing))
    while name not in path:
        path.append(name)
        name = min(other for other in missing[name] if other in missing)
    return sorted(path[path.index(name) :])
