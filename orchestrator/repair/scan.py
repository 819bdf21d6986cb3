"""Scans all keys of a pool in small steps and compares every record with every index.

Each check runs in one script, so a task that moves during the scan is not reported. The scan reads only keys of the
pool, and reports keys that it cannot read.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.agents import scripts as registry
from orchestrator.core.errors import InvalidInput, ServerRefused
from orchestrator.core.ids import check_name
from orchestrator.repair.findings import RepairFinding
from orchestrator.repair.queue_bytes import QueueBytes
from orchestrator.schedules import scripts as schedules
from orchestrator.store.key_kinds import kind_of
from orchestrator.store.scanning import scan_steps
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.inbox import find_filled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store

KEYS_AT_ONCE: Final = 500
ROWS_AT_ONCE: Final = 100
ENTRIES_AT_ONCE: Final = 50
"""An entry takes up to 16 KiB."""

_DAY_S: Final = 86_400
_INDEXES: Final = frozenset(
    {
        *(
            "queue:agent:A",
            "queue:skill:S",
            "suspects:QUEUE",
            "scheduled",
            "asking",
            "joining",
            "after",
            "joins:ID",
            "expiring",
            "parked:A",
            "held:SCOPE",
        ),
        *("lane:KEY", "share:wait:FLOW", "tag:T", "dead"),
    }
)
_IN_TURN: Final = frozenset({"lane:KEY", "share:wait:FLOW"})
_LISTED: Final = frozenset({"queue:agent:A", "queue:skill:S", "suspects:QUEUE", "held:SCOPE"})
_OF_AGENT: Final = frozenset({"agent:A", "agent:A:workers", "offers:A", "leases:A", "lent:A", "inbox:A"})
_WITH_TASK: Final = {"task:ID": "", "out:ID": "out"}


@dataclass(frozen=True, slots=True)
class KeyLifetimes:
    """Lifetimes that a repair gives to keys without one."""

    max_wait_s: int
    dead_ttl_s: int
    leader_s: int

    @classmethod
    def of(cls, settings: Settings) -> KeyLifetimes:
        """Read them from the settings."""
        return cls(
            max_wait_s=round(settings.queue.max_wait_s),
            dead_ttl_s=round(settings.results.dead_ttl_s),
            leader_s=max(1, round(settings.supervisor.leader_lease_s)),
        )

    def of_kind(self, suffix: str) -> int:
        """Return the lifetime of a kind; the next write of the key restores a shorter one."""
        own = {
            "dead": self.dead_ttl_s,
            "leader": self.leader_s,
            "replies:C": 3600,
            "stats:MINUTE": 3 * _DAY_S,
            "mistyped:KEY": 30 * _DAY_S,
        }
        return own.get(suffix, _DAY_S)


class AgentTurn(NamedTuple):
    """The agents that a scan checks, if it is one of `turns` scans which together check all."""

    number: int
    turns: int

    def has(self, agent: bytes) -> bool:
        """Return whether it is the turn of an agent."""
        return self.turns == 1 or zlib.crc32(agent) % self.turns == self.number


ALL_AGENTS: Final = AgentTurn(0, 1)


class PoolScan:
    """Scans the pool once.

    Args:
        store: of the pool.
        lifetimes: that keys without one get.
        repair: whether to repair what is found.
        agent_turn: the agents whose registration is checked, and their inboxes if they hold no entry.

    Attributes:
        agents_seen: number of agents whose record was seen, also of those that were not checked.
        keys_seen: number of keys so far; SCAN may return a key twice, and returns all again after a restart of Redis.
        places_seen: tasks in indexes, and entries of inboxes.
    """

    def __init__(
        self, store: Store, lifetimes: KeyLifetimes, *, repair: bool, agent_turn: AgentTurn = ALL_AGENTS
    ) -> None:
        self._store, self._lifetimes, self._repair = store, lifetimes, repair
        self._agent_turn = agent_turn
        self._checked: set[tuple[str, str]] = set()
        self._root = store.keys.stem.encode()
        self._task_root = self._root + b"task:"
        self._scanners: dict[str, Callable[[_Key], AsyncIterator[list[RepairFinding]]]] = {
            **dict.fromkeys(_INDEXES, self._scan_index),
            "queues": self._scan_queues,
            "share:taken:KEY": self._scan_taken,
            "inbox:A": self._scan_inbox,
            "schedules": self._scan_schedules,
        }
        self._lanes: dict[tuple[bytes, bytes], None] = {}
        self.keys_seen = 0
        self.places_seen = 0
        self.agents_seen = 0

    async def steps(self) -> AsyncGenerator[list[RepairFinding], None]:
        """Yield the findings of each step; a step takes a few short commands.

        Raises:
            ServerUnavailable: Redis does not answer, or restarts again and again; start a new scan.
        """
        recount = QueueBytes(self._store) if self._repair else None
        begin_again = recount.begin if recount else (lambda: None)
        options = ("MATCH", self._root + b"*", "COUNT", KEYS_AT_ONCE)
        async for names in scan_steps(self._store, ("SCAN",), *options, again=begin_again):
            ours = [name for name in names if name.startswith(self._root)]
            self.keys_seen += len(ours)
            yield []
            if recount:
                await recount.look()
            async for found in self._scan_keys(ours):
                yield found
            if recount:
                await recount.add(
                    [name.removeprefix(self._task_root) for name in ours if name.startswith(self._task_root)]
                )
        if recount:
            await recount.correct()
        # The turn of a lane is known when all its members are found, and so is what stands for a key in its queue.
        async for found in self._check_tasks(list(self._lanes)):
            yield found

    async def check_types(self, names: Iterable[str]) -> list[RepairFinding]:
        """Check types and lifetimes of a few keys."""
        keys = [_Key.of(name.encode("utf-8", "backslashreplace"), self._root) for name in names]
        return [finding async for found in self._check_types(keys) for finding in found]

    async def _scan_keys(self, names: Sequence[bytes]) -> AsyncIterator[list[RepairFinding]]:
        parsed = await self._with_turn([_Key.of(name, self._root) for name in names])
        async for found in self._check_types(parsed):
            yield found
        rows = [(key.name, _WITH_TASK[key.kind].encode()) for key in parsed if key.kind in _WITH_TASK]
        rows += [(b"", b"idem:" + key.name) for key in parsed if key.kind == "idem:KEY"]
        rows += [(b"", key.suffix) for key in parsed if key.kind in _LISTED]
        async for found in self._check_tasks(rows):
            yield found
        async for found in self._check_registry(parsed):
            yield found
        async for found in self._check_schedules([key.name for key in parsed if key.kind == "schedule:NAME"]):
            yield found
        self._lanes |= dict.fromkeys((b"", key.suffix) for key in parsed if key.kind in _IN_TURN)
        for key in parsed:
            if scan := self._scanners.get(key.kind):
                async for found in scan(key):
                    yield found

    async def _with_turn(self, keys: list[_Key]) -> list[_Key]:
        """Leave out the agents whose turn it is not, except inboxes that hold entries."""
        self.agents_seen += sum(key.kind == "agent:A" for key in keys)
        others = {key.full for key in keys if key.kind in _OF_AGENT and not self._agent_turn.has(key.name)}
        if not others:
            return keys
        # An inbox whose name is not one of an agent is not read.
        inboxes = [key.text for key in keys if key.kind == "inbox:A" and key.full in others and key.proper_name()]
        filled = (await find_filled(self._store, inboxes))[0] if inboxes else set[str]()
        return [key for key in keys if key.full not in others or (key.kind == "inbox:A" and key.text in filled)]

    # Keys as such ----------------------------------------------------------------------------------------------------

    async def _check_types(self, keys: Sequence[_Key]) -> AsyncIterator[list[RepairFinding]]:
        """Check types and lifetimes; lifetimes of records, output and idempotency keys are checked with the tasks."""
        if not self._repair and (renamed := [key for key in keys if key.kind == "mistyped:KEY"]):
            yield [RepairFinding("renamed", key.text, "", repaired=False) for key in renamed]
        if strange := [key for key in keys if not key.kind]:
            yield [RepairFinding("foreign", key.text, "", repaired=False) for key in strange]
        known = [key for key in keys if key.kind and key.kind != "task:ID"]
        for first in range(0, len(known), ROWS_AT_ONCE):
            batch = known[first : first + ROWS_AT_ONCE]
            rows = [(key.suffix, key.type, self._ttl_s(key), key.guards) for key in batch]
            found = await self._store.call(tasks.check_keys(self._store.keys, rows=rows, repair=self._repair))
            yield [
                RepairFinding(
                    code, batch[row].text, "" if code == "no-lifetime" else f"not a {batch[row].type}", repaired=done
                )
                for row, code, done in found
            ]

    def _ttl_s(self, key: _Key) -> int:
        return 0 if key.permanent or key.kind in {"out:ID", "idem:KEY"} else self._lifetimes.of_kind(key.kind)

    # Tasks -----------------------------------------------------------------------------------------------------------

    async def _check_tasks(self, rows: Sequence[tuple[bytes, bytes]]) -> AsyncIterator[list[RepairFinding]]:
        waiting = [list(rows[first : first + ROWS_AT_ONCE]) for first in range(0, len(rows), ROWS_AT_ONCE)]
        while waiting:
            batch = waiting.pop(0)
            try:
                judged = await self._store.call(
                    tasks.repair(
                        self._store.keys,
                        rows=batch,
                        repair=self._repair,
                        max_wait_s=self._lifetimes.max_wait_s,
                        dead_ttl_s=self._lifetimes.dead_ttl_s,
                    )
                )
            except ServerRefused as refusal:
                # Redis refuses one task of the batch: halve it to find that task and go on with the rest.
                if len(batch) == 1:
                    yield [RepairFinding("unreadable", _subject(*batch[0]), str(refusal), repaired=False)]
                else:
                    half = len(batch) // 2
                    waiting[:0] = [batch[:half], batch[half:]]
                continue
            if judged.rows < len(batch):
                waiting.insert(0, batch[judged.rows :])
            lost = [batch[row][0] for row, code, _ in judged.found if code == "lost-lane"]
            self._lanes |= dict.fromkeys((id_, b"lane") for id_ in lost)
            yield [
                RepairFinding(code, _subject(*batch[row]), _text(batch[row][1]), repaired=repaired)
                for row, code, repaired in judged.found
            ]

    async def _scan_index(self, key: _Key) -> AsyncIterator[list[RepairFinding]]:
        async for listed in self._members("ZSCAN", key):
            ids = listed[::2]
            self.places_seen += len(ids)
            async for found in self._check_tasks([(id_, key.suffix) for id_ in ids]):
                yield found

    async def _scan_queues(self, key: _Key) -> AsyncIterator[list[RepairFinding]]:
        async for names in self._members("SSCAN", key):
            async for found in self._check_tasks([(b"", b"queue:" + name) for name in names]):
                yield found

    async def _scan_taken(self, key: _Key) -> AsyncIterator[list[RepairFinding]]:
        async for ids in self._members("SSCAN", key):
            async for found in self._check_tasks([(id_, key.suffix) for id_ in ids]):
                yield found

    async def _members(self, command: str, key: _Key) -> AsyncIterator[list[bytes]]:
        """Read a set or a sorted set in steps; a key of another type has no members."""
        try:
            async for listed in scan_steps(self._store, (command, key.full), "COUNT", ROWS_AT_ONCE):
                yield listed
        except ServerRefused:
            return

    # Inboxes and the registry ----------------------------------------------------------------------------------------

    async def _scan_inbox(self, key: _Key) -> AsyncIterator[list[RepairFinding]]:
        agent = key.proper_name()
        after = "0-0"
        while agent and after:
            call = tasks.check_inbox(
                self._store.keys, agent=agent, after=after, limit=ENTRIES_AT_ONCE, repair=self._repair
            )
            try:
                checked = await self._store.call(call)
            except ServerRefused as refusal:
                yield [RepairFinding("unreadable", key.text, str(refusal), repaired=False)]
                return
            self.places_seen += ENTRIES_AT_ONCE if checked.after else 0
            after = checked.after
            yield [
                RepairFinding(code, f"{key.text} {entry}".rstrip(), "", repaired=repaired)
                for entry, code, repaired in checked.found
            ]

    async def _check_registry(self, keys: Sequence[_Key]) -> AsyncIterator[list[RepairFinding]]:
        agents = [key.proper_name() for key in keys if key.kind in {"agent:A", "agent:A:workers"}]
        skills = [key.proper_name() for key in keys if key.kind in {"skills:S", "versions:S", "room:S"}]
        named = [("agent", name) for name in agents if name] + [("skill", name) for name in skills if name]
        # One check is enough for all keys of an agent, and for a key that SCAN returns twice.
        rows = [row for row in dict.fromkeys(named) if row not in self._checked]
        self._checked.update(rows)
        for first in range(0, len(rows), ENTRIES_AT_ONCE):
            batch = rows[first : first + ENTRIES_AT_ONCE]
            try:
                found = await self._store.call(registry.repair(self._store.keys, rows=batch, repair=self._repair))
            except ServerRefused as refusal:
                yield [RepairFinding("unreadable", " ".join(batch[0]), str(refusal), repaired=False)]
                continue
            yield [RepairFinding(code, " ".join(batch[row]), "", repaired=repaired) for row, code, repaired in found]

    # Schedules -------------------------------------------------------------------------------------------------------

    async def _scan_schedules(self, key: _Key) -> AsyncIterator[list[RepairFinding]]:
        async for listed in self._members("ZSCAN", key):
            async for found in self._check_schedules(listed[::2]):
                yield found

    async def _check_schedules(self, names: Sequence[bytes]) -> AsyncIterator[list[RepairFinding]]:
        for first in range(0, len(names), ROWS_AT_ONCE):
            batch = names[first : first + ROWS_AT_ONCE]
            found = await self._store.call(schedules.repair(self._store.keys, rows=batch, repair=self._repair))
            yield [
                RepairFinding(code, f"schedule {_text(batch[row])}", "", repaired=repaired)
                for row, code, repaired in found
            ]


@dataclass(frozen=True, slots=True)
class _Key:
    """One key; `kind` is its suffix in the table of keys, empty for a foreign key."""

    full: bytes
    suffix: bytes
    kind: str
    name: bytes
    type: str
    permanent: bool
    guards: bool = False

    @classmethod
    def of(cls, full: bytes, root: bytes) -> _Key:
        suffix = full.removeprefix(root)
        found = kind_of(suffix.decode("utf-8", "surrogateescape"))
        if found is None:
            return cls(full, suffix, "", b"", "", permanent=True)
        kind, name = found
        type_ = kind.type.partition(",")[0]
        return cls(
            full, suffix, kind.suffix, name.encode("utf-8", "surrogateescape"), type_, kind.permanent, kind.guards
        )

    @property
    def text(self) -> str:
        return _text(self.full)

    def proper_name(self) -> str | None:
        """Return the name in the key, if it is a valid one."""
        try:
            return check_name("key", _text(self.name))
        except InvalidInput:
            return None


def _subject(id_: bytes, place: bytes) -> str:
    return _text(id_ or place)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
