"""Walks through the tasks that may match a filter, in short reads, with a cursor behind each of them. Reads only.

A session, a parent or a tag has an index. Without one, the walk goes through the places of the states that are wanted,
in the order in which tasks move, so that a task that moves meanwhile is found twice and not missed.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.core.formats import Feature
from orchestrator.core.ids import encode_foreign
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text, read_whole, readable
from orchestrator.core.together import read_at_once
from orchestrator.store.paging import PAGE
from orchestrator.tasks.inbox import GROUP, find_filled
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import mark_running
from orchestrator.tasks.records import TaskRecord, decode_lane, list_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from orchestrator.store.store import Store

_PLACES_AT_ONCE: Final = 25
_ENDS_AT_ONCE: Final = 20
"""Entries of the stream of ends that one command returns; each has up to 500 tasks."""
_ENDS_READS: Final = 5
"""Commands of one read of the stream of ends, when it has other ends than those that are wanted."""
_DELIVERED: Final = frozenset({TaskState.ASSIGNED, TaskState.RUNNING, TaskState.CANCELLING})
_WAITING: Final = frozenset(
    {TaskState.SCHEDULED, TaskState.AWAITING_INPUT, TaskState.JOINING, TaskState.AWAITING_TASKS}
)
_IN_ONE_KEY: Final = _WAITING | {TaskState.DEAD}
_SCORE: Final = re.compile(r"-?(?:inf|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
_NEWEST: Final = "\x7f"
"""Sorts behind every id of a task."""


class Cursor(NamedTuple):
    """The position behind a task.

    Attributes:
        stage: kind of the place, as in `_STAGES`.
        place: name of the place.
        position: in this place.
        lane: encoded name of the lane whose first task is at `position`, if the walk is inside this lane.
        member: position in the lane.
    """

    stage: str
    place: str = ""
    position: str = ""
    lane: str = ""
    member: str = ""

    @property
    def text(self) -> str:
        """The cursor for a later call."""
        return urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def parse_cursor(text: str) -> Cursor:
    """Read a cursor.

    Raises:
        InvalidInput: it is none.
    """
    try:
        cursor = msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Cursor)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        cursor = Cursor("")
    if cursor.stage not in _STAGES:
        raise InvalidInput(f"cursor {ascii(text)[:80]} is not one of a list of tasks; give one as it was returned")
    return cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The conditions that say where tasks may be.

    Attributes:
        states: the states that are wanted.
    """

    states: frozenset[TaskState]
    session: str | None = None
    parent: str | None = None
    tag: str | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class WalkStep:
    """One read.

    Attributes:
        tasks: those that have a record, each with the cursor behind it.
        looked: number of tasks that were read, also of those that are gone.
        cursor: behind the last one.
    """

    tasks: list[tuple[TaskRecord, Cursor]]
    looked: int
    cursor: Cursor


class _Candidate(NamedTuple):
    """A task that a place lists; `known` as in `list_records`."""

    id: str
    position: str
    known: TaskState | None = None


def _is_score(text: str) -> bool:
    """Return whether a part of a cursor, which comes from outside, is a score as Redis writes it."""
    return _SCORE.fullmatch(text) is not None


# ---------------------------------------------------------------------------------------------------------- the places


class _TaskPlace(Protocol):
    """A key that lists tasks."""

    @property
    def name(self) -> str: ...

    async def read(self, store: Store, after: str, count: int) -> list[_Candidate]:
        """Read the next tasks, at most `count`; none at the end.

        Fewer are the last ones, except in the stream of ends.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Sorted:
    """A sorted set. A position is a score and a member, so that changes of the set move no position."""

    name: str
    key: str
    newest_first: bool = False

    async def read(self, store: Store, after: str, count: int) -> list[_Candidate]:
        order = ("REV",) if self.newest_first else ()
        if not after:
            return self._candidates(await store.execute("ZRANGE", self.key, 0, count - 1, *order, "WITHSCORES"))
        score, _, member = after.partition(" ")
        if not _is_score(score):
            raise InvalidInput("the cursor is not one of a list of tasks; give one as it was returned")
        end = "-inf" if self.newest_first else "+inf"
        by_score = ("BYSCORE", *order, "LIMIT", 0, count, "WITHSCORES")
        flat = await store.execute("ZRANGE", self.key, score, end, *by_score)
        found = self._behind(flat, score, member)
        if found or len(flat) < 2 * count:
            return found
        # More tasks than a page have the same score.
        rank = await store.execute("ZREVRANK" if self.newest_first else "ZRANK", self.key, member)
        if rank is None:
            rank = await self._count_before(store, score)
        first = max(0, rank - count // 2)
        while flat:
            flat = await store.execute("ZRANGE", self.key, first, first + 2 * count - 1, *order, "WITHSCORES")
            if found := self._behind(flat, score, member):
                return found
            first += 2 * count
        return []

    async def _count_before(self, store: Store, score: str) -> int:
        limits = (f"({score}", "+inf") if self.newest_first else ("-inf", f"({score}")
        return int(await store.execute("ZCOUNT", self.key, *limits))

    def _behind(self, flat: Sequence[bytes], score: str, member: str) -> list[_Candidate]:
        at, last = float(score), member.encode()
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        if self.newest_first:
            fresh = [(id_, text) for id_, text in pairs if (float(text), id_) < (at, last)]
        else:
            fresh = [(id_, text) for id_, text in pairs if (float(text), id_) > (at, last)]
        return self._candidates([value for pair in fresh for value in pair])

    @staticmethod
    def _candidates(flat: Sequence[bytes]) -> list[_Candidate]:
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [_Candidate(read_text(id_), f"{read_text(score)} {read_text(id_)}") for id_, score in pairs]


@dataclass(frozen=True, slots=True)
class _Listed:
    """A list of ids, oldest first. A position is an id and its index.

    The list of a parent has up to 100,000. They are appended, so that an id keeps its index until older ones are
    dropped: a page is read from there on. The list of a session has about 1000, and is read at once.
    """

    name: str
    key: str
    newest_first: bool = False

    async def read(self, store: Store, after: str, count: int) -> list[_Candidate]:
        last, _, index = after.partition(" ")
        if not self.newest_first:
            first = int(index) if index.isdecimal() else 0
            page = list(enumerate(await self._ids(store, first, first + count), first))
            if not last:
                return self._candidates(page[:count])
            if page and page[0][1] == last:
                return self._candidates(page[1 : count + 1])
        ids = await self._ids(store, 0, -1)
        if self.newest_first:
            ids.reverse()
        found = list(enumerate(ids))
        if last in ids:
            found = found[ids.index(last) + 1 :]
        elif last:
            found = [(n, id_) for n, id_ in found if (id_ < last if self.newest_first else id_ > last)]
        return self._candidates(found[:count])

    async def _ids(self, store: Store, first: int, last: int) -> list[str]:
        return [read_text(id_) for id_ in await store.execute("LRANGE", self.key, first, last)]

    @staticmethod
    def _candidates(found: list[tuple[int, str]]) -> list[_Candidate]:
        return [_Candidate(id_, f"{id_} {index}") for index, id_ in found]


@dataclass(frozen=True, slots=True)
class _InboxPlace:
    """The inbox of an agent. A task runs if a worker has read its entry."""

    name: str
    key: str

    async def read(self, store: Store, after: str, count: int) -> list[_Candidate]:
        try:
            entries = await store.execute("XRANGE", self.key, f"({after}" if after else "-", "+", "COUNT", count)
            if not entries:
                return []
            pending = await store.execute("XPENDING", self.key, GROUP, entries[0][0], entries[-1][0], count)
        except StoreError:
            if await store.execute("EXISTS", self.key):
                raise
            return []  # the agent was forgotten at this moment
        read = {row[0] for row in pending}
        return [
            _Candidate(read_text(flat[1]), read_text(entry), TaskState.RUNNING if entry in read else TaskState.ASSIGNED)
            for entry, flat in entries
        ]


@dataclass(frozen=True, slots=True)
class _EndStream:
    """The stream of ends, newest first. A position is an entry and the number of the task in it."""

    name: str
    key: str
    letters: frozenset[str]

    async def read(self, store: Store, after: str, count: int) -> list[_Candidate]:
        last, _, number = after.partition(" ")
        found: list[_Candidate] = []
        before = last or "+"
        passed: _Candidate | None = None
        for _ in range(_ENDS_READS):
            entries = await store.execute("XREVRANGE", self.key, before, "-", "COUNT", _ENDS_AT_ONCE)
            for entry, flat in entries:
                pairs = list(zip(flat[::2], flat[1::2], strict=True))[::-1]
                first = read_whole(number) + 1 if read_text(entry) == last else 0
                found += [
                    _Candidate(read_text(id_), f"{read_text(entry)} {first + n}")
                    for n, (id_, letter) in enumerate(pairs[first:])
                    if read_text(letter) in self.letters
                ]
                if pairs:
                    passed = _Candidate(read_text(pairs[-1][0]), f"{read_text(entry)} {len(pairs) - 1}")
            if found or len(entries) < _ENDS_AT_ONCE:
                return found[:count]
            before = f"({read_text(entries[-1][0])}"
        # A task that ended in another way, so that the walk goes on behind it, and a caller may stop.
        return [] if passed is None else [passed]


# ------------------------------------------------------------------------------------------------------------- the walk

_INDICES: Final = ("parent", "session", "tag")
_STAGES: Final = (*_INDICES, "waiting", "ready", "inboxes", "ended", "dead")


@dataclass(slots=True)
class _Walk:
    store: Store
    scope: Scope
    errors: bool
    at_once: int
    skipped: frozenset[str] = field(default=frozenset())
    """Tasks of an index that were read before, when places follow that have them too."""

    async def steps(self, cursor: Cursor | None) -> AsyncIterator[WalkStep]:
        stages = await self._stages(cursor)
        if cursor is not None:
            stages = stages[stages.index(cursor.stage) :]
        for stage in stages:
            if stage not in _INDICES:
                self.skipped = self.skipped or await self._listed()
            resumed = cursor if cursor is not None and cursor.stage == stage else Cursor(stage)
            if resumed.lane:
                async for step in self._lane(resumed):
                    yield step
            places = [place for place in await self._places(stage) if place.name >= resumed.place]
            if places and resumed.position and places[0].name == resumed.place:
                async for step in self._read(stage, places.pop(0), resumed.position):
                    yield step
            for first in range(0, len(places), _PLACES_AT_ONCE):
                async for step in self._read_several(stage, places[first : first + _PLACES_AT_ONCE]):
                    yield step

    async def _read_several(self, stage: str, places: Sequence[_TaskPlace]) -> AsyncIterator[WalkStep]:
        """Read the first tasks of several places together, because many places have few tasks.

        The stream of ends, whose reads may return less than there is, is the only place of its stage.
        """
        if len(places) == 1:
            async for step in self._read(stage, places[0], ""):
                yield step
            return
        count = max(2, self.at_once // len(places))
        firsts = await read_at_once([partial(place.read, self.store, "", count) for place in places])
        found, turns = await self._look_up(stage, [one for first in firsts for one in first])
        for place, candidates in zip(places, firsts, strict=True):
            async for step in self._steps_of(stage, place, candidates, found, turns):
                yield step
            if len(candidates) == count:
                async for step in self._read(stage, place, candidates[-1].position):
                    yield step

    async def _read(self, stage: str, place: _TaskPlace, after: str) -> AsyncIterator[WalkStep]:
        while candidates := await place.read(self.store, after, self.at_once):
            found, turns = await self._look_up(stage, candidates)
            async for step in self._steps_of(stage, place, candidates, found, turns):
                yield step
            after = candidates[-1].position

    async def _look_up(
        self, stage: str, candidates: Sequence[_Candidate]
    ) -> tuple[dict[str, TaskRecord], dict[str, str]]:
        """Return the records of tasks, and the lanes of those that have a turn."""
        found = {task.id: task for task in await self._records(candidates, stage)}
        return found, {} if stage in _INDICES else await self._lanes(list(found.values()))

    async def _steps_of(
        self,
        stage: str,
        place: _TaskPlace,
        candidates: Sequence[_Candidate],
        found: Mapping[str, TaskRecord],
        turns: Mapping[str, str],
    ) -> AsyncIterator[WalkStep]:
        block: list[tuple[TaskRecord, Cursor]] = []
        looked = 0
        for candidate in candidates:
            looked += 1
            cursor = Cursor(stage, place.name, candidate.position, turns.get(candidate.id, ""))
            if task := found.get(candidate.id):
                block.append((task, cursor))
            if candidate.id in turns:
                yield WalkStep(block, looked, cursor)
                block, looked = [], 0
                async for step in self._lane(cursor):
                    yield step
        if candidates:
            yield WalkStep(block, looked, Cursor(stage, place.name, candidates[-1].position))

    async def _records(self, candidates: Sequence[_Candidate], stage: str) -> list[TaskRecord]:
        wanted = {one.id: one.known for one in candidates if one.id not in self.skipped}
        records = await list_records(self.store, wanted, errors=self.errors)
        # Only inboxes tell which tasks run.
        return records if stage == "inboxes" else await mark_running(self.store, records)

    async def _lanes(self, tasks: Sequence[TaskRecord]) -> dict[str, str]:
        """Return those of the tasks that have the turn of a lane, with their lanes, if tasks behind them are wanted."""
        if TaskState.READY not in self.scope.states:
            return {}
        lanes = list(dict.fromkeys(task.lane for task in tasks if task.lane is not None))
        firsts = await self.store.pipeline(
            [("ZRANGE", self.store.keys.lane(decode_lane(lane)), 0, 0) for lane in lanes]
        )
        return {
            read_text(first[0]): lane
            for lane, first in zip(lanes, firsts, strict=True)
            if first and not isinstance(first, StoreError)
        }

    async def _lane(self, cursor: Cursor) -> AsyncIterator[WalkStep]:
        """Yield the tasks behind the one that has the turn of a lane; they are in no queue."""
        if not cursor.lane:
            return
        place, member = _Sorted("", self.store.keys.lane(decode_lane(cursor.lane))), cursor.member
        while candidates := await place.read(self.store, member, self.at_once):
            found = {task.id: task for task in await self._records(candidates, "")}
            member = candidates[-1].position
            tasks = [
                (found[one.id], cursor._replace(member=one.position))
                for one in candidates
                # The first one is at the position of the cursor, and another one may have got its turn.
                if one.id in found and found[one.id].waits_for_turn
            ]
            yield WalkStep(tasks, len(candidates), cursor._replace(member=member))

    async def _stages(self, cursor: Cursor | None) -> list[str]:
        states = self.scope.states
        waits = bool(states & (_WAITING | {TaskState.READY}))
        delivered = bool(states & (_DELIVERED | {TaskState.READY}))
        places = {
            # The first task of a lane may be anywhere, and those behind it are ready.
            "waiting": waits,
            "ready": TaskState.READY in states,
            "inboxes": delivered,
            "ended": bool(_letters(states)),
            "dead": TaskState.DEAD in states,
        }
        walked = [stage for stage, needed in places.items() if needed]
        if cursor is not None and cursor.stage in walked:
            return walked
        index = await self._index() if cursor is None else cursor.stage
        if index is None:
            return walked
        if cursor is not None and (index in places or not getattr(self.scope, index)):
            raise InvalidInput("the cursor is of a list with another filter; give the filter that returned it")
        return [index] if index == "tag" or await self._is_complete(index) else [index, *walked]

    async def _index(self) -> str | None:
        """Return the index that has all tasks of the scope, or the newest of them; None without one."""
        scope, keys = self.scope, self.store.keys
        if scope.parent is not None:
            return "parent"
        if scope.session is not None:
            return "session"
        if scope.tag is None or not self.store.floor.admits(Feature.TAG_INDEX):
            return None
        if scope.states <= _IN_ONE_KEY:
            # A tag may have many tasks of which few are dead.
            listed = {
                TaskState.DEAD: keys.dead,
                TaskState.SCHEDULED: keys.scheduled,
                TaskState.AWAITING_INPUT: keys.asking,
                TaskState.JOINING: keys.joining,
                TaskState.AWAITING_TASKS: keys.awaiting_tasks,
            }
            sizes = await self.store.pipeline(
                [("ZCARD", key) for key in (keys.tag(scope.tag), *(listed[state] for state in scope.states))]
            )
            counts = [size for size in sizes if not isinstance(size, StoreError)]
            if len(counts) == len(sizes) and sum(counts[1:]) < counts[0]:
                return None
        return "tag"

    async def _is_complete(self, index: str) -> bool:
        keys, scope = self.store.keys, self.scope
        if index == "session":
            encoded = encode_foreign("session", scope.session or "")
            listed, dropped = await self.store.pipeline(
                [("ZSCORE", keys.sessions, encoded), ("HGET", keys.dropped_of_sessions, encoded)]
            )
            # A session that was active before about 10,000 others is not listed, and has no list.
            return not dropped and (listed is not None or await self.store.execute("ZCARD", keys.sessions) < 10_000)
        return not await self.store.execute("HGET", keys.task(scope.parent or ""), "dropped")

    async def _listed(self) -> frozenset[str]:
        """Return the tasks in the list of the session or parent, whose rows came first."""
        keys, scope = self.store.keys, self.scope
        if scope.parent is not None:
            key = keys.children(scope.parent)
        elif scope.session is not None:
            key = keys.session(scope.session)
        else:
            return frozenset()
        return frozenset(read_text(id_) for id_ in await self.store.execute("LRANGE", key, 0, -1))

    async def _places(self, stage: str) -> list[_TaskPlace]:
        """Return the places of a stage in the order of their names, by which a cursor goes on."""
        keys, scope, store = self.store.keys, self.scope, self.store
        match stage:
            case "parent":
                return [_Listed("", keys.children(scope.parent or ""))]
            case "session":
                return [_Listed("", keys.session(scope.session or ""), newest_first=True)]
            case "tag":
                return [_Sorted("", keys.tag(scope.tag or ""), newest_first=True)]
            case "waiting":
                return [
                    _Sorted("asking", keys.asking),
                    _Sorted("joining", keys.joining),
                    # Tasks of flows move from here to `scheduled`, and into queues, so that no walk may pass them.
                    _Sorted("predecessors", keys.awaiting_tasks),
                    _Sorted("scheduled", keys.scheduled),
                ]
            case "ready":
                return await _ready_places(store, scope.queue)
            case "inboxes":
                agents = sorted(read_text(name) for name in await store.execute("ZRANGE", keys.agents, 0, -1))
                filled, _ = await find_filled(store, [keys.inbox(agent) for agent in agents])
                return [_InboxPlace(agent, keys.inbox(agent)) for agent in agents if keys.inbox(agent) in filled]
            case "ended":
                return [_EndStream("", keys.events, _letters(scope.states))]
            case _:
                return [_Sorted("", keys.dead, newest_first=True)]


async def _ready_places(store: Store, queue: str | None) -> list[_TaskPlace]:
    keys = store.keys
    replies = await store.pipeline(
        [
            ("ZRANGE", keys.agents, 0, -1),
            ("SMEMBERS", keys.queues),
            ("SMEMBERS", keys.suspected_queues),
            ("SMEMBERS", keys.suspended_scopes),
            ("SMEMBERS", keys.share_flows),
        ]
    )
    agents, queues, suspected, scopes, flows = ({read_text(name) for name in readable(reply, [])} for reply in replies)
    addressed = [agent for name in queues if (agent := QueueName.parse(name).agent)]
    if queue is not None:
        queues, suspected = {queue}, suspected & {queue}
        flows = {flow for flow in flows if flow.startswith(f"{queue}:")}
    places = [keys.held(scope) for scope in scopes]
    # Few agents, if any, have parked tasks.
    places += await _present(store, [keys.parked(agent) for agent in {*agents, *addressed}])
    places += [keys.queue(name) for name in queues]
    places += [keys.suspects(name) for name in suspected]
    places += [keys.share_flow(flow) for flow in flows]
    return [_Sorted(key.removeprefix(keys.stem), key) for key in sorted(places)]


async def _present(store: Store, names: Sequence[str]) -> list[str]:
    """Return those of the keys that exist; with one round trip and a command per 500 keys if none does."""
    left: list[Sequence[str]] = [names[first : first + PAGE] for first in range(0, len(names), PAGE)]
    found: list[str] = []
    while left:
        counts = [readable(reply, 0) for reply in await store.pipeline([("EXISTS", *part) for part in left])]
        halves: list[Sequence[str]] = []
        for part, count in zip(left, counts, strict=True):
            if count == len(part):
                found += part
            elif count:
                middle = len(part) // 2
                halves += [part[:middle], part[middle:]]
        left = halves
    return found


def _letters(states: frozenset[TaskState]) -> frozenset[str]:
    """Return the letters of final states in the stream of ends; dead letters have a list of their own."""
    return frozenset(state.value[0] for state in states if state.final and state is not TaskState.DEAD)


def walk(
    store: Store, scope: Scope, after: Cursor | None = None, *, errors: bool = False, at_once: int | None = None
) -> AsyncIterator[WalkStep]:
    """Yield the tasks that may be in a scope; a record may have another state, session, parent or tag.

    Args:
        store: the store.
        scope: where to look.
        after: go on behind this cursor.
        errors: read the tracebacks, too.
        at_once: tasks that one read of a place returns; a page of the store by default.
    """
    return _Walk(store, scope, errors, at_once or PAGE).steps(after)
