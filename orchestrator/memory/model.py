"""Values of the memory of agents: records, queries, and results of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.core.durations import Duration
    from orchestrator.vectors.rungs import Rung

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, a list of JSON values, or a dict with str keys."""
Tier: TypeAlias = Literal["stm", "im"]
"""`stm` holds short-term records, `im` intermediate ones. Reads look at both unless they name one."""
TIERS: Final[tuple[Tier, ...]] = ("stm", "im")
Order: TypeAlias = Literal["new", "old", "important"]
MAX_STEP: Final = 2**40
MAX_LIMIT: Final = 1000


class Unset:
    """The type of `UNSET`, which marks an argument that was not given where None is the JSON null."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record for the memory of an agent. An id is in one tier at a time.

    Attributes:
        step: step of the agent at which it happened, a whole number of at most 2^40. Recalls are in order of steps, and
            within a step in the order of storing.
        kind: kind of the record, as `state`, `observation` or `plan`.
        content: JSON value of at most `memory.max_record_bytes`.
        id: id within the agent. None: a new one that sorts by time.
        importance: any finite number.
        action: action that it is about.
        position: place in the plane.
        subject: id of the person that it is about; `erase` finds it by this.
        simulation: simulation that the record belongs to; it lists the record, see `orc.simulation`.
        agent_type: type of the agent, under which the simulation lists the record.
        version: None: one more than the stored version. A number: store only if the stored version is lower.
        ttl: retention, seconds or timedelta. None: that of the tier.
        meta: JSON values that stay when the content is updated.
        embedding: vector of the content, by which `similar` finds the record: numbers, or 32-bit floats as
            little-endian bytes. All vectors of a memory have the same number of dimensions, up to 4096.
    """

    step: int
    kind: str
    content: Json
    id: str | None = None
    importance: float = 0.0
    action: str | None = None
    position: tuple[float, float] | None = None
    subject: str | None = None
    simulation: str | None = None
    agent_type: str | None = None
    version: int | None = None
    ttl: Duration | None = None
    meta: Mapping[str, Json] = field(default_factory=dict)
    embedding: Sequence[float] | bytes | None = None


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record as memory holds it.

    Attributes:
        id: id within the agent.
        tier: tier that holds it.
        step: step at which it happened.
        kind: kind of the record.
        content: JSON value.
        version: version; rises with each change.
        importance: importance.
        action: action that it is about, or None.
        position: place in the plane, or None.
        subject: person that it is about, or None.
        simulation: simulation that it belongs to, or None.
        agent_type: type of the agent in the simulation, or None.
        meta: further JSON values.
        stored: time of the last `store`.
        expires: time at which it is removed.
        superseded_by: id of the record that replaces it in recalls, or None.
        has_vector: whether `similar` can find it.
    """

    id: str
    tier: Tier
    step: int
    kind: str
    content: Json
    version: int
    importance: float
    action: str | None
    position: tuple[float, float] | None
    subject: str | None
    simulation: str | None
    agent_type: str | None
    meta: Mapping[str, Json]
    stored: datetime
    expires: datetime
    superseded_by: str | None = None
    has_vector: bool = False


@dataclass(frozen=True, slots=True)
class RecordChange:
    """Result of a change of a record.

    Attributes:
        id: id of the record.
        version: version that is stored now.
        duplicate: whether the change was made before, by the same `op_id` or with the same version; nothing was
            changed again.
        older: whether a newer version is stored; nothing was changed.
    """

    id: str
    version: int
    duplicate: bool = False
    older: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuery:
    """Conditions of a query; a record must meet all of them.

    Attributes:
        since: lowest step.
        until: highest step.
        kinds: kinds, of which one must match; empty: any.
        actions: actions, of which one must match; empty: any.
        subject: person that the records are about.
        min_importance: lowest importance.
        tiers: tiers to search.
        order: `new` returns the latest steps first, `old` the earliest, `important` the highest importance.
        limit: maximum number of records, up to 1000.
    """

    since: int | None = None
    until: int | None = None
    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    subject: str | None = None
    min_importance: float | None = None
    tiers: tuple[Tier, ...] = TIERS
    order: Order = "new"
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Recall:
    """Records that a query found; iterates over them.

    Attributes:
        records: the records, in the order of the query.
        complete: False if the search stopped at its bound, so that more records may match.
        scanned: number of index entries that the server looked at.
    """

    records: tuple[StoredRecord, ...]
    complete: bool
    scanned: int

    def __iter__(self) -> Iterator[StoredRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> StoredRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[StoredRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> StoredRecord | tuple[StoredRecord, ...]:
        """Return the record or records at an index."""
        return self.records[index]


@dataclass(frozen=True, slots=True)
class ScoredRecord:
    """A record that `similar` found.

    Attributes:
        record: the record.
        score: cosine of the angle between its vector and that of the question: 1 for the same direction.
    """

    record: StoredRecord
    score: float


@dataclass(frozen=True, slots=True)
class SimilarRecords:
    """Records by the likeness of their vectors, the most similar first; iterates over them.

    Attributes:
        hits: the records with their scores.
        rung: way in which they were found.
        complete: False if the search stopped at a bound, or vectors are lost or missing in the index, so that records
            that are as similar may be missing.
    """

    hits: tuple[ScoredRecord, ...]
    rung: Rung
    complete: bool

    def __iter__(self) -> Iterator[ScoredRecord]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, index: int) -> ScoredRecord:
        """Return the hit at an index."""
        return self.hits[index]


@dataclass(frozen=True, slots=True)
class RecordAccess:
    """Accesses to a record, as `touch` counts them.

    Attributes:
        count: number of accesses.
        last: time of the last one.
    """

    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class ValueChange:
    """Difference of one field between two records.

    Attributes:
        kind: `number` for two numbers, `other` for other values, `added` or `removed` for a field of one record alone.
        previous: value in the earlier record; None if there is none.
        current: value in the later record; None if there is none.
        changed: whether the values differ.
        change: for numbers the later minus the earlier one.
        percent: for numbers the change in percent of the earlier one's absolute value; None if that is 0.
    """

    kind: Literal["number", "other", "added", "removed"]
    previous: Json
    current: Json
    changed: bool
    change: float | None = None
    percent: float | None = None
