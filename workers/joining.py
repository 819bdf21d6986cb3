"""Implements `ctx.join`: an attempt ends while tasks that it joins have not; a later attempt reads their results."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
)

import anyio
import msgspec

from orchestrator.client.handle import TaskHandle
from orchestrator.core.durations import instant_ms, to_ms
from orchestrator.core.errors import (
    ChildFailed,
    InvalidInput,
    JoinChanged,
    JoinTimeout,
    OrchestratorError,
    TaskError,
    TaskFailed,
)
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.scripts import JoinTerms
from orchestrator.workers.asking import NO_DEFAULT
from orchestrator.workers.signals import Joining

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.durations import Duration
    from orchestrator.tasks.queries import TaskOutcome
    from orchestrator.workers.asking import Asking

T_co = TypeVar("T_co", covariant=True)
Until: TypeAlias = Literal["all", "any"] | int
"""How many of the tasks must have ended."""
OnFailure: TypeAlias = Literal["raise", "collect", "cancel-rest"]
"""What the first failure of a task does: it is raised, it is one of the results, or it ends the other tasks too."""
MOST_JOINED: Final = 10_000
"""Tasks that one call joins at most."""
MOST_JOINERS: Final = 20
"""Tasks that may join one task at a time."""
NAMED: Final = 10
"""Tasks that an error names."""
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Joined(Generic[T_co]):
    """One of the tasks of a join, as it was when the join was over.

    Attributes:
        id: the task.
        ended: False of a task that has not ended, in a join that is over before all have.
        error: why it has no result; None if it has one, or has not ended.
    """

    id: str
    ended: bool
    error: TaskError | None
    _value: T_co

    @property
    def value(self) -> T_co:
        """Its result.

        Raises:
            TaskError: it ended without one: `error`.
            OrchestratorError: it has not ended.
        """
        if self.error is not None:
            raise self.error
        if not self.ended:
            raise OrchestratorError(f"task {self.id} has not ended, so it has no value; look at `ended` first")
        return self._value


class StoredJoin(msgspec.Struct, frozen=True):
    """A join to which an earlier attempt came.

    Attributes:
        over: whether its deadline has passed.
        met: how it was met; None if it was not.
    """

    over: bool = False
    met: MetJoin | None = None


class MetJoin(msgspec.Struct, frozen=True):
    """Outcome of a join that was met.

    Attributes:
        digest: of the ids of its tasks.
        failure: the task whose failure it raises; empty for none.
    """

    digest: str
    failure: str


class PendingJoin(msgspec.Struct, frozen=True):
    """The join that ends the attempt; its deadline is a delay or a time."""

    number: int
    count: int
    delay_ms: int = 0
    at_ms: int = 0


class JoinRecord(Protocol):
    """Reads the ends of tasks, and registers joins.

    All methods but `read_ends` raise `Fenced` once the attempt has lost its task.
    """

    async def load_join(self, join: Join) -> StoredJoin:
        """Return what earlier attempts stored of a join."""

    async def store_met(self, number: int, met: MetJoin) -> None:
        """Store how a join was met."""

    async def read_ends(self, handles: Sequence[TaskHandle[Any]]) -> Mapping[str, TaskOutcome]:
        """Return how those of the tasks ended that have ended."""

    async def register_join(
        self, ids: Sequence[str], terms: JoinTerms, *, wait_ms: int, earlier: Sequence[str] = ()
    ) -> None:
        """Register the tasks, for a wait of at least `wait_ms`; those that have ended are kept for that time.

        So are those of `earlier` joins, because the next attempt reads them again.

        Raises:
            WaitCycle: one of them waits for this task.
            JoinRefused: too many tasks join one of them, or wait for this task.
            UpgradeUnfinished: the pool admits programs that do not know joins.
        """

    async def cancel_tasks(self, ids: Sequence[str], reason: str) -> None:
        """Cancel tasks and those below them."""


class JoinCalls:
    """The `join` calls of one attempt.

    Attributes:
        pending: the join that is not over; once set, the attempt ends with it.
    """

    __slots__ = ("_asking", "_earlier", "_joins", "_lock", "_record", "pending")

    def __init__(self, record: JoinRecord, asking: Asking) -> None:
        self.pending: PendingJoin | None = None
        self._record, self._asking = record, asking
        self._joins = 0
        self._earlier = dict[str, None]()
        """Tasks of the joins that are over, in their order."""
        self._lock = anyio.Lock()

    async def join(
        self,
        handles: Sequence[TaskHandle[Any]],
        *,
        until: Until,
        failed: OnFailure,
        deadline: Duration | datetime | None,
        default: Any,
    ) -> Any:
        """Return the results, or raise `Joining`; see `TaskContext.join`."""
        self._asking.check_not_asked()
        self._joins += 1
        join = _checked(self._joins, handles, until, failed, Limit(deadline, default))
        if not join.handles:
            return []
        async with self._lock:
            self._asking.check_not_asked()
            stored = await self._record.load_join(join)
            if stored.met is not None and stored.met.digest != join.digest:
                raise JoinChanged(join.number)
            if stored.over:
                self._earlier.update(dict.fromkeys(join.ids))
                return self._time_out(join, default)
            ends = await self._record.read_ends(join.handles)
            if join.is_met(ends):
                self._earlier.update(dict.fromkeys(join.ids))
                met = MetJoin(join.digest, join.failure(ends, stored.met))
                if met != stored.met:
                    await self._record.store_met(join.number, met)
                return await self._results(join, handles, ends, met.failure)
            return await self._wait(join, ends)

    async def _wait(self, join: Join, ends: Mapping[str, TaskOutcome]) -> NoReturn:
        ids = join.ids
        missing = len(ids) - len(ends)
        now = set(ids)
        earlier = [id_ for id_ in self._earlier if id_ not in now]
        terms = JoinTerms(join.number, len(join.handles) - join.needed, join.failed != "collect")
        await self._record.register_join(ids, terms, wait_ms=join.wait_ms, earlier=earlier)
        self._asking.check_not_asked()
        self.pending = PendingJoin(join.number, missing, join.delay_ms, join.at_ms)
        self._asking.joins = True
        raise Joining(f"joins {missing} task{'s' * (missing != 1)}")

    def _time_out(self, join: Join, default: Any) -> Any:
        if default is NO_DEFAULT:
            raise JoinTimeout([handle.id for handle in join.handles[:NAMED]], len(join.handles))
        return default

    async def _results(
        self, join: Join, handles: Sequence[TaskHandle[Any]], ends: Mapping[str, TaskOutcome], failed: str
    ) -> list[Joined[Any]]:
        found = {handle.id: await _joined(handle, ends.get(handle.id)) for handle in join.handles}
        failure = found[failed].error if failed else None
        if failure is not None:
            rest = [one.id for one in found.values() if not one.ended]
            if join.failed == "cancel-rest" and rest:
                await self._record.cancel_tasks(rest, f"task {failed}, which was joined with it, has failed")
            raise failure
        return [found[handle.id] for handle in handles]


@dataclass(frozen=True, slots=True)
class Join:
    """One call of `join`, checked.

    Attributes:
        number: from 1, in the order of the calls of an attempt.
        handles: the tasks, each once.
        needed: how many of them must have ended.
        failed: what the first failure does.
        delay_ms: the deadline as a delay; 0 for none.
        at_ms: the deadline as a time; 0 for none.
        wait_ms: how long the task may wait.
    """

    number: int
    handles: tuple[TaskHandle[Any], ...]
    needed: int
    failed: OnFailure
    delay_ms: int
    at_ms: int
    wait_ms: int

    def is_met(self, ends: Mapping[str, TaskOutcome]) -> bool:
        """Return whether enough tasks have ended, or one has failed whose failure ends the join."""
        if len(ends) >= self.needed:
            return True
        return self.failed != "collect" and any(end.state is not TaskState.SUCCEEDED for end in ends.values())

    def failure(self, ends: Mapping[str, TaskOutcome], met: MetJoin | None) -> str:
        """Return the task whose failure a join that is met raises, or an empty string.

        What was stored holds, unless its task was retried since. The first time it is the first one in the order of the
        handles, if too few tasks have succeeded.
        """
        if self.failed == "collect":
            return ""
        failures = [one.id for one in self.handles if one.id in ends and ends[one.id].state is not TaskState.SUCCEEDED]
        if met is not None and (not met.failure or met.failure in failures):
            return met.failure
        enough = len(ends) - len(failures) >= self.needed
        return "" if enough or not failures else failures[0]

    @property
    def ids(self) -> list[str]:
        """Its tasks."""
        return [handle.id for handle in self.handles]

    @property
    def digest(self) -> str:
        """Digest of the ids of its tasks."""
        ids = " ".join(sorted(self.ids))
        return hashlib.blake2b(ids.encode(), digest_size=_DIGEST_BYTES).hexdigest()


class Limit(NamedTuple):
    """The deadline of a join, and what it returns then."""

    deadline: Duration | datetime | None
    default: Any


async def _joined(handle: TaskHandle[Any], end: TaskOutcome | None) -> Joined[Any]:
    if end is None:
        return Joined(handle.id, ended=False, error=None, _value=None)
    try:
        return Joined(handle.id, ended=True, error=None, _value=await handle.result_of(end))
    except TaskError as error:
        # Of whichever handle it is, another attempt would find the same task.
        found = ChildFailed(handle.id, error.reason, error.errors) if isinstance(error, TaskFailed) else error
        return Joined(handle.id, ended=True, error=found, _value=None)


def _checked(
    number: int,
    handles: Sequence[TaskHandle[Any]],
    until: Until,
    failed: OnFailure,
    limit: Limit,
) -> Join:
    deadline = limit.deadline
    for handle in handles:
        if not isinstance(handle, TaskHandle):
            raise InvalidInput(f"join takes handles of tasks, as `ctx.submit` returns them, not {handle!r}")
    unique = tuple({handle.id: handle for handle in handles}.values())
    if len(unique) > MOST_JOINED:
        raise InvalidInput(
            f"join takes at most {MOST_JOINED:,} tasks, not {len(unique):,}; join parts of them one after another"
        )
    if failed not in get_args(OnFailure):
        raise InvalidInput(f"failed= of join must be one of {', '.join(get_args(OnFailure))}, not {failed!r}")
    if limit.default is not NO_DEFAULT and deadline is None:
        raise InvalidInput("default= needs deadline=, because join() returns it when the deadline passes")
    delay_ms = at_ms = wait_ms = 0
    if isinstance(deadline, datetime):
        at_ms = instant_ms("deadline", deadline)
        wait_ms = at_ms - round(datetime.now(deadline.tzinfo).timestamp() * 1000)
    elif deadline is not None:
        delay_ms = wait_ms = max(1, to_ms("deadline", deadline))
    return Join(number, unique, _needed(until, len(unique)), failed, delay_ms, at_ms, max(0, wait_ms))


def _needed(until: Until, count: int) -> int:
    if until == "all":
        return count
    if until == "any":
        return 1
    if isinstance(until, bool) or not isinstance(until, int) or until < 1:
        raise InvalidInput(f'until= of join must be "all", "any" or a number of tasks from 1, not {until!r}')
    if until > count > 0:
        raise InvalidInput(f"until={until} of join asks for more ends than there are tasks ({count})")
    return until
