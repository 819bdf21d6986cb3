"""Rebuilds past states of workspaces in bounded reads, and keeps some of them for the next step.

Events are read forward from the nearest earlier state that is kept, and a state is kept after each 500 events. A call
reads a bounded number of events; one that does not reach its place says how far it came, and the next call goes on
there. What is kept is a copy of what Redis tells: a process that keeps nothing rebuilds the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orchestrator.core.reading import read_text, read_whole
from orchestrator.store.keys import CHANGES, META
from orchestrator.workspace.events import read_event
from orchestrator.workspace.replaying import ReplayedState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.scoped import ScopedStore
    from orchestrator.workspace.model import WorkspaceEvent

EVERY: Final = 500
"""Events between two kept states, which one read returns."""
MOST_READS: Final = 3
MOST_EVENTS: Final = 7500
"""Events of one of these reads, if they are small."""
READ_BYTES: Final = 3_000_000
"""A read asks for as many events as had this size in the read before."""
KEPT_BYTES: Final = 24_000_000
"""Size of all kept states of a process, as `_Kept.bytes` estimates them."""
_ENTRY_BYTES: Final = 120

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EventLog:
    """First and last event of a workspace.

    Attributes:
        born: tells this workspace from an earlier one of the session, which has ended.
        first: oldest stored event.
        last: newest event.
        count: number of stored events.
    """

    born: str
    first: WorkspaceEvent
    last: WorkspaceEvent
    count: int


@dataclass(frozen=True, slots=True)
class PastState:
    """State of a workspace after an event.

    Attributes:
        state: the state; not to be changed.
        reached: False if the call stopped before the place that was asked for.
    """

    state: ReplayedState
    reached: bool


@dataclass(slots=True)
class _Kept:
    """Kept states of one workspace, by the place of their last event."""

    places: list[Place] = field(default_factory=list)
    states: list[ReplayedState] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def before(self, place: Place) -> ReplayedState | None:
        """Return the last kept state that is not after a place."""
        at = bisect_right(self.places, place)
        return self.states[at - 1] if at else None

    def by_revision(self, revision: int) -> ReplayedState | None:
        """Return the last kept state that is not after a revision."""
        at = bisect_right(self.states, revision, key=lambda state: state.revision)
        return self.states[at - 1] if at else None

    def add(self, state: ReplayedState, read_bytes: int) -> None:
        place = place_of(state.event)
        at = bisect_right(self.places, place)
        if at and self.places[at - 1] == place:
            return
        self.places.insert(at, place)
        self.states.insert(at, state)
        self.sizes.insert(at, read_bytes + state.entries * _ENTRY_BYTES)

    def drop_before(self, revision: int) -> None:
        """Drop the states before a revision."""
        first = bisect_left(self.states, revision, key=lambda state: state.revision)
        for kept in (self.places, self.states, self.sizes):
            del kept[:first]

    def thin_out(self, needed: set[Place]) -> bool:
        """Drop every second state, from the second newest on, but those at some places; return whether any was."""
        last = len(self.places) - 1
        stay = [n for n, place in enumerate(self.places) if (last - n) % 2 == 0 or place in needed]
        self.places, self.states, self.sizes = (
            [self.places[n] for n in stay],
            [self.states[n] for n in stay],
            [self.sizes[n] for n in stay],
        )
        return len(stay) <= last


class KeptStates:
    """Past states of the workspaces that a process was asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Estimated size of what is kept."""
        return sum(kept.bytes for kept in self._kept.values())

    async def reach(self, scope: ScopedStore, log: EventLog, wanted: Sequence[int | str]) -> list[PastState]:
        """Return the states at some places, each a revision or the id of an event, in their order.

        A place between two events has the state of the earlier one.
        """
        kept = self._of(scope, log)
        found: dict[int | str, PastState] = {}
        reads = MOST_READS
        # The next call goes on where this one stopped, however little room there is.
        needed: set[Place] = set()
        for each in sorted(set(wanted), key=lambda one: self._start(kept, one)[1]):
            found[each], reads = await self._walk(scope, kept, each, reads)
            if not found[each].reached:
                state = found[each].state
                kept.add(state.copy(), 0)
                needed.add(place_of(state.event))
        self._make_room(needed)
        return [found[each] for each in wanted]

    def _of(self, scope: ScopedStore, log: EventLog) -> _Kept:
        key = (scope.keys.root, log.born)
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        # States behind which trimmed events follow lead to values that were changed since.
        kept.drop_before(log.first.revision - 1)
        return kept

    @staticmethod
    def _start(kept: _Kept, wanted: int | str) -> tuple[ReplayedState, Place]:
        state = kept.by_revision(wanted) if isinstance(wanted, int) else kept.before(place_of(wanted))
        state = state or ReplayedState()
        return state, place_of(state.event)

    async def _walk(self, scope: ScopedStore, kept: _Kept, wanted: int | str, reads: int) -> tuple[PastState, int]:
        start, _ = self._start(kept, wanted)
        state, count, read_bytes = start.copy(), EVERY, 0
        # The states between two kept ones are at most so many events away.
        since = 0
        while True:
            if _is_at(state, wanted):
                return PastState(state, reached=True), reads
            if not reads:
                return PastState(state, reached=False), reads
            reads -= 1
            page = await scope.read("XRANGE", scope.keys.key(CHANGES), f"({state.event}", "+", "COUNT", count)
            for entry, fields in page:
                event = read_event(entry, fields)
                if _is_behind(event, wanted):
                    return PastState(state, reached=True), reads
                state.take_any(event)
                since, read_bytes = since + 1, read_bytes + sum(map(len, fields))
                if since >= EVERY:
                    kept.add(state.copy(), read_bytes)
                    since = read_bytes = 0
            if len(page) < count:
                return PastState(state, reached=True), reads
            page_bytes = sum(sum(map(len, fields)) for _, fields in page)
            count = min(MOST_EVENTS, max(EVERY, READ_BYTES * len(page) // page_bytes))

    def _make_room(self, needed: set[Place]) -> None:
        while self.bytes > KEPT_BYTES:
            if len(self._kept) > 1:
                self._kept.popitem(last=False)
                continue
            (kept,) = self._kept.values()
            if not kept.thin_out(needed):
                return


def place_of(event: str) -> Place:
    """Return the id of an event as numbers, which are in the order of the events."""
    ms, _, number = event.partition("-")
    return read_whole(ms), read_whole(number)


def _is_at(state: ReplayedState, wanted: int | str) -> bool:
    if isinstance(wanted, int):
        return state.revision >= wanted
    return place_of(state.event) >= place_of(wanted)


def _is_behind(event: WorkspaceEvent, wanted: int | str) -> bool:
    return event.revision > wanted if isinstance(wanted, int) else place_of(event.id) > place_of(wanted)


async def read_event_log(scope: ScopedStore) -> EventLog | None:
    """Read where the events begin and end; None if none is stored."""
    key = scope.keys.key(CHANGES)
    born, count, first, last = await scope.read_many(
        [
            ("HGET", scope.keys.key(META), "born"),
            ("XLEN", key),
            ("XRANGE", key, "-", "+", "COUNT", 1),
            ("XREVRANGE", key, "+", "-", "COUNT", 1),
        ]
    )
    if not first or not last:
        return None
    return EventLog(read_text(born), read_event(*first[0]), read_event(*last[0]), count)
