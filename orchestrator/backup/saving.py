"""Reads a pool for a backup, in steps with pauses.

Each task is read in one transaction, so that it is saved as it was at one moment; a session's workspace too. Tasks that
are not changed during the backup form one state; a task that moves is saved before or after its move. The children of a
saved task are read behind it, so that no ended parent lacks a child (docs/internals/adr/0037).
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.backup.checks import check_task
from orchestrator.backup.rows import (
    MAGIC,
    VERSION,
    CommandsRow,
    Header,
    KeyRow,
    OutputRow,
    SavedTask,
    to_bytes,
    to_text,
)
from orchestrator.core.errors import InvalidInput, ServerRefused, StoreError
from orchestrator.core.formats import FORMAT, program_version, read_floor
from orchestrator.core.ids import decode_foreign, task_ms
from orchestrator.core.reading import read_text, read_whole
from orchestrator.repair.servers import each_server, scan, scan_hash
from orchestrator.store.failures import GroupMissing
from orchestrator.store.found_keys import name_key, root_of, sort_key
from orchestrator.store.key_kinds import Backup
from orchestrator.store.keys import CHANGES, DOCUMENT, MACHINES, META, PARTS, ScopeKeys, stem_of
from orchestrator.store.scoped import read_many
from orchestrator.tasks.records import TaskRecord

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

    from orchestrator.backup.rows import DataRow
    from orchestrator.services import Services
    from orchestrator.store.calls import Argument
    from orchestrator.store.found_keys import FoundKey

SHARE: Final = 0.25
"""Largest share of its time that a backup waits for Redis; it rests after each step.

A busy server answers later, so the backup rests longer."""
LONGEST_REST_S: Final = 2.0
MOST_AT_ONCE: Final = 100
FEW_BYTES: Final = 1 << 19
MANY_BYTES: Final = 1 << 21
"""A step reads twice as many tasks after one with few bytes, half as many after one with many."""
ENTRIES_AT_ONCE: Final = 200
MEMBERS_AT_ONCE: Final = 500
RECORDS_AT_ONCE: Final = 50
"""A record takes up to 64 KiB by default."""
PART_BYTES: Final = 1 << 22
YOUNG_MS: Final = 60_000
"""A child whose id is this much older than the backup, by the clock of its client, is found by SCAN."""
MOST_GENERATIONS: Final = 100
"""Tasks may submit each other without end; the backup reads children of children so deep behind SCAN."""
KEPT_SKIPPED: Final = 100
SHORT_STUB_MS: Final = 300_000
"""The stub of a deleted task is kept longer if tasks of a flow, or a parent, may still ask how it had ended."""
_READS: Final = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "list": ("LRANGE", 0, -1),
    "stream": ("XRANGE", "-", "+"),
}


class PoolSaver:
    """Reads a pool once.

    Args:
        services: of the pool.
        shared: whether to save the shared state of the prefix.

    Attributes:
        counts: rows by kind, tasks by state; `running` counts tasks that a worker had read.
        skipped: records that were not saved because they are damaged.
        server_s: seconds that Redis worked or made the backup wait.
    """

    def __init__(self, services: Services, *, shared: bool = True) -> None:
        self._store, self._keys = services.store, services.keys
        self._retry_for_s = services.settings.redis.command_timeout_s
        self._services, self._shared = services, shared
        self._at_once = 10
        self._begun_ms = 0
        self._step_s = time.monotonic()
        self._waited_s = 0.0
        self._children: dict[str, None] = {}
        self._memories: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.skipped: list[str] = []
        self.server_s = 0.0

    async def rows(self) -> AsyncGenerator[Sequence[Header | DataRow], None]:
        """Yield the rows of the file, a step at a time.

        Raises:
            StoreError: Redis does not answer, or refuses.
        """
        async for found in self._rows():
            for row in found:
                self._count(row)
            yield found
            await self._rest()

    async def now_ms(self) -> int:
        """Return the time of Redis."""
        seconds, microseconds = (await self._read([("TIME",)]))[0]
        return read_whole(seconds) * 1000 + read_whole(microseconds) // 1000

    async def read_floor(self) -> int:
        """Return the lowest format that the pool admits."""
        (stored,) = await self._read([("GET", self._keys.format)])
        return read_floor(stored) or FORMAT

    async def _rows(self) -> AsyncIterator[Sequence[Header | DataRow]]:
        yield [await self._header()]
        async for found in self._commands():
            yield found
        async with each_server(self._services) as stores:
            for store in stores:
                async for names in scan(
                    store, stem_of(self._keys.prefix), retry_for_s=self._retry_for_s, spent=self._spend
                ):
                    # A server may have many keys of other prefixes: the backup rests after each step of SCAN.
                    yield []
                    async for found in self._scanned(names):
                        yield found
        async for found in self._schedules():
            yield found
        known: set[str] = set()
        for _ in range(MOST_GENERATIONS):
            ids = self._children.keys() - known
            self._children.clear()
            known |= ids
            async for found in self._tasks(sorted(ids)):
                yield found
            if not self._children:
                break

    def _count(self, row: Header | DataRow) -> None:
        match row:
            case SavedTask() if not row.is_stub:
                self.counts["tasks"] += 1
                state = row.fields["state"]
                self.counts["running" if row.began else state] += 1
            case OutputRow():
                self.counts["output entries"] += len(row.entries)
            case KeyRow(more=False):
                key = name_key(row.scope, row.suffix)
                self.counts["schedules" if key.is_schedule else "workspaces" if key.is_workspace else "other keys"] += 1

    async def _rest(self) -> None:
        """Wait so long that the server works for the backup during `SHARE` of the time."""
        spent_s, self._waited_s = self._waited_s, 0.0
        self.server_s += spent_s
        rest_s = spent_s / SHARE - (time.monotonic() - self._step_s)
        if rest_s > 0:
            await anyio.sleep(min(LONGEST_REST_S, rest_s))
        self._step_s = time.monotonic()

    async def _read(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        started_s = time.monotonic()
        try:
            return await read_many(self._store, commands, retry_for_s=self._retry_for_s) if commands else []
        finally:
            self._spend(time.monotonic() - started_s)

    def _spend(self, seconds: float) -> None:
        self._waited_s += seconds

    async def _read_at_once(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Read in one transaction."""
        replies: list[Any] = (await self._read([("MULTI",), *commands, ("EXEC",)]))[-1]
        return replies

    # Header and commands ---------------------------------------------------------------------------------------------

    async def _header(self) -> Header:
        self._begun_ms = await self.now_ms()
        return Header(
            magic=MAGIC,
            version=VERSION,
            program=program_version(),
            server=(await self._store.server_info()).name,
            prefix=self._keys.prefix,
            pool=self._keys.pool,
            floor=await self.read_floor(),
            begun_ms=self._begun_ms,
            shared=self._shared,
        )

    async def _commands(self) -> AsyncIterator[Sequence[DataRow]]:
        keys = self._keys
        desired, revisions = await self._read_at_once([("HGETALL", keys.desired), ("HGETALL", keys.desired_revisions)])
        yield [CommandsRow(_pairs(desired), _pairs(revisions))]
        for full in (keys.control, keys.action_records):
            async for found in self._stream(full):
                yield found

    async def _stream(self, full: str) -> AsyncIterator[Sequence[DataRow]]:
        after, more = "-", False
        while True:
            (entries,) = await self._read([("XRANGE", full, after, "+", "COUNT", ENTRIES_AT_ONCE)])
            if not entries:
                return
            after = f"({read_text(entries[-1][0])}"
            yield [KeyRow("", full.removeprefix(self._keys.stem), "stream", _stream_values(entries), more=more)]
            more = True

    # Keys ------------------------------------------------------------------------------------------------------------

    async def _scanned(self, names: Sequence[bytes]) -> AsyncIterator[Sequence[DataRow]]:
        found = [sort_key(name, prefix=self._keys.prefix, pool=self._keys.pool) for name in names]
        ours = [key for key in found if key is not None and (self._shared or not key.scope)]
        tasks = [key.name for key in ours if key.is_task]
        async for rows in self._tasks(tasks):
            yield rows
        for key in ours:
            if key.is_workspace:
                yield await self._workspace(key.scope)
            elif key.is_chat:
                yield await self._chat(key)
            elif key.is_headers and key.scope not in self._memories:
                self._memories.add(key.scope)
                async for rows in self._memory(key.scope):
                    yield rows
            elif self._is_alone(key):
                yield await self._key(key)

    def _is_alone(self, key: FoundKey) -> bool:
        """Return whether a key is saved without others."""
        with_others = key.is_part_of_workspace or key.is_messages or key.is_part_of_memory or key.is_schedule
        return key.backup in {Backup.KEPT, Backup.UNTIL} and not with_others

    async def _key(self, key: FoundKey) -> Sequence[DataRow]:
        """Read one key; nothing if it is gone or of another type."""
        assert key.kind is not None
        try:
            content, left_ms = await self._read_at_once(self._reads(key.scope, key.suffix, key.kind.type))
        except ServerRefused as refusal:
            if not _is_damage(refusal):
                raise
            self._skip(f"{self._root(key.scope)}:{key.suffix}")
            return []
        return self._key_rows(key, content, left_ms)

    def _reads(self, scope: str, suffix: str, type_: str) -> list[Sequence[Argument]]:
        name, *options = _READS[type_]
        full = f"{self._root(scope)}:{suffix}"
        return [(name, full, *options), ("PTTL", full)]

    def _key_rows(self, key: FoundKey, content: Any, left_ms: int) -> Sequence[DataRow]:
        if not content or key.kind is None:
            return []
        type_ = key.kind.type
        if type_ == "string":
            members = [[to_text(content)]]
        elif type_ == "stream":
            return [
                self._key_row(key, _stream_values(part), left_ms, more=number > 0)
                for number, part in enumerate(_parts(content, ENTRIES_AT_ONCE, _entry_size))
            ]
        else:
            values = [to_text(value) for value in content]
            if type_ == "zset":  # in the order of ZADD
                values[::2], values[1::2] = values[1::2], values[::2]
            width = 2 if type_ in {"hash", "zset"} else 1
            members = [values[first : first + width] for first in range(0, len(values), width)]
        return [
            self._key_row(key, [text for member in part for text in member], left_ms, more=number > 0)
            for number, part in enumerate(_parts(members, MEMBERS_AT_ONCE, lambda member: sum(map(len, member))))
        ]

    def _key_row(self, key: FoundKey, values: list[str], left_ms: int, *, more: bool) -> KeyRow:
        assert key.kind is not None
        until_ms = 0
        if key.backup is Backup.UNTIL:
            until_ms, left_ms = self._begun_ms + max(left_ms, 1), 0
        return KeyRow(key.scope, key.suffix, key.kind.type, values, max(left_ms, 0), until_ms, more)

    async def _workspace(self, scope: str) -> Sequence[DataRow]:
        """Read all keys of a workspace in one transaction."""
        root, parts = self._root(scope), list[bytes]()
        while True:
            suffixes = [META, DOCUMENT, MACHINES, PARTS, CHANGES, *(read_text(part) for part in parts)]
            found = [key for key in (name_key(scope, suffix) for suffix in suffixes) if key.kind is not None]
            reads = [read for key in found for read in self._reads(scope, key.suffix, _type_of(key))]
            try:
                names, *replies = await self._read_at_once([("HKEYS", f"{root}:{PARTS}"), *reads])
            except ServerRefused as refusal:
                if not _is_damage(refusal):
                    raise
                self._skip(f"{root}:{META}")
                return []
            # The first round reads the names of logs, sets, scratches and inboxes; a new one needs another round.
            if sorted(names) == parts:
                break
            parts = sorted(names)
        rows: list[DataRow] = []
        for key, content, left_ms in zip(found, replies[::2], replies[1::2], strict=True):
            rows += self._key_rows(key, content, left_ms)
        return rows

    async def _chat(self, counts: FoundKey) -> Sequence[DataRow]:
        """Read the counts and the messages of a chat in one transaction. A restore makes its ids and its list again."""
        messages = name_key(counts.scope, ScopeKeys.chat_part(decode_foreign(counts.name), "q"))
        return await self._together(counts.scope, [counts, messages])

    async def _together(self, scope: str, keys: Sequence[FoundKey]) -> Sequence[DataRow]:
        reads = [read for key in keys for read in self._reads(scope, key.suffix, _type_of(key))]
        try:
            replies = await self._read_at_once(reads)
        except ServerRefused as refusal:
            if not _is_damage(refusal):
                raise
            self._skip(f"{self._root(scope)}:{keys[0].suffix}")
            return []
        rows: list[DataRow] = []
        for key, content, left_ms in zip(keys, replies[::2], replies[1::2], strict=True):
            rows += self._key_rows(key, content, left_ms)
        return rows

    async def _memory(self, scope: str) -> AsyncIterator[Sequence[DataRow]]:
        """Read the records of an agent, each with its header at once. A restore makes the indices again.

        Records move from the first tier to the second alone, so that none is missed between the two.
        """
        saved = set[bytes]()
        for tier in ("stm", "im"):
            parts = [name_key(scope, ScopeKeys.tier_part(tier, part)) for part in ("hdr", "rec", "acc")]
            full = [f"{self._root(scope)}:{key.suffix}" for key in parts]
            more = [False] * len(parts)
            try:
                async for listed in scan_hash(
                    self._store, full[0], count=MEMBERS_AT_ONCE, retry_for_s=self._retry_for_s
                ):
                    new = [id_ for id_ in listed if id_ not in saved]
                    saved.update(new)
                    for ids in _parts(new, RECORDS_AT_ONCE, len) if new else ():
                        replies = await self._read_at_once([*(("HMGET", key, *ids) for key in full), ("PTTL", full[0])])
                        rows: list[DataRow] = []
                        for at, key in enumerate(parts):
                            pairs = [
                                text
                                for id_, value, content in zip(ids, replies[at], replies[1], strict=True)
                                if value is not None and content is not None
                                for text in (to_text(id_), to_text(value))
                            ]
                            if pairs:
                                rows.append(self._key_row(key, pairs, replies[-1], more=more[at]))
                                more[at] = True
                        yield rows
            except ServerRefused as refusal:
                if not _is_damage(refusal):
                    raise
                self._skip(full[0])

    async def _schedules(self) -> AsyncIterator[Sequence[DataRow]]:
        """Read the schedules last, and the newest task of each, so that no saved fire lacks its task."""
        (names,) = await self._read([("ZRANGE", self._keys.schedules, 0, -1)])
        for name in names:
            key = name_key("", self._keys.schedule(to_text(name)).removeprefix(self._keys.stem))
            if key.kind is None:
                continue
            rows = await self._key(key)
            for row in rows:
                fields = _pairs_of(row.values) if isinstance(row, KeyRow) else {}
                if task := fields.get("task"):
                    self._children[task] = None
            yield rows

    # Tasks -----------------------------------------------------------------------------------------------------------

    async def _tasks(self, ids: Sequence[str]) -> AsyncIterator[Sequence[DataRow]]:
        rest = list(ids)
        while rest:
            batch, rest = rest[: self._at_once], rest[self._at_once :]
            try:
                yield await self._read_tasks(batch)
            except ServerRefused as refusal:
                if not _is_damage(refusal):
                    raise
                # A key of another type: find the one, and save the others.
                if len(batch) == 1:
                    self._skip(batch[0])
                else:
                    self._at_once = 1
                    rest = batch + rest

    async def _read_tasks(self, ids: Sequence[str]) -> Sequence[DataRow]:
        keys = self._keys
        replies = await self._read_at_once(
            [
                command
                for id_ in ids
                for command in (
                    ("HGETALL", keys.task(id_)),
                    ("PTTL", keys.task(id_)),
                    ("XREVRANGE", keys.out(id_), "+", "-", "COUNT", 1),
                    ("LRANGE", keys.children(id_), 0, -1),
                    ("PTTL", keys.children(id_)),
                )
            ]
        )
        rows: dict[str, SavedTask] = {}
        stubs: list[SavedTask] = []
        outputs: dict[str, str] = {}
        size = 0
        for at, id_ in enumerate(ids):
            flat, left_ms, newest, children, children_ms = replies[5 * at : 5 * at + 5]
            fields = _pairs(flat)
            if "deleted" in fields and "ended_as" in fields and left_ms > SHORT_STUB_MS:
                # A late attempt may have written a result there, which nothing reads.
                stubs.append(SavedTask(id_, left_ms, {name: fields[name] for name in ("deleted", "ended_as")}))
            if not fields or "deleted" in fields:
                continue
            if len(fields) == 1 and "state" not in fields:
                # A large value whose submit or verdict follows, or does not: then it expires within a minute.
                continue
            size += sum(map(len, flat))
            listed = [to_text(child) for child in children]
            self._children |= dict.fromkeys(child for child in listed if self._is_young(child))
            row = SavedTask(id_, max(left_ms, 0), fields, children=listed, children_ms=max(children_ms, 0))
            try:
                check_task(row)
            except InvalidInput:
                self._skip(id_)
                continue
            rows[id_] = row
            if newest:
                outputs[id_] = read_text(newest[0][0])
        self._at_once = (
            min(MOST_AT_ONCE, self._at_once * 2)
            if size < FEW_BYTES
            else max(1, self._at_once // 2)
            if size > MANY_BYTES
            else self._at_once
        )
        found: list[DataRow] = [row async for row in self._outputs(rows, outputs)]
        return [*found, *stubs, *await self._with_places(list(rows.values()))]

    def _is_young(self, child: str) -> bool:
        return task_ms(child) > self._begun_ms - YOUNG_MS

    async def _with_places(self, rows: Sequence[SavedTask]) -> Sequence[SavedTask]:
        """Add the places in queues and lanes; they decide the order only, so one that changed meanwhile is left out."""
        asked = self._places_of(rows)
        replies = await self._read_places([command for _, _, command in asked])
        changes: dict[int, dict[str, Any]] = {}
        for (at, what, _), reply in zip(asked, replies, strict=True):
            change = changes.setdefault(at, {})
            if what == "entry":
                # A worker has taken the entry, and ended the task or given it back, when it is gone.
                change["began"] = change.get("began", False) or reply == []
            elif not reply or isinstance(reply, Exception):
                continue
            elif what == "began":
                change[what] = True
            elif what == "digest":
                owner, _, digest = to_text(reply).partition(" ")
                change |= {"digest": digest} if owner == rows[at].id else {}
            else:
                change[what] = to_text(reply)
        return [_replace(row, changes.get(at)) for at, row in enumerate(rows)]

    def _places_of(self, rows: Sequence[SavedTask]) -> list[tuple[int, str, Sequence[Argument]]]:
        """Return what to read for each row: its number, what the reply tells, and the command."""
        keys = self._keys
        asked: list[tuple[int, str, Sequence[Argument]]] = []
        for at, row in enumerate(rows):
            state = row.fields["state"]
            if state == "ready":
                record = TaskRecord(row.id, {name: to_bytes(value) for name, value in row.fields.items()})
                asked.append((at, "score", ("ZSCORE", keys.queue(record.queue), row.id)))
            elif state == "assigned":
                agent, entry, _ = row.fields["at"].split(" ")
                inbox = keys.inbox(agent)
                asked.append((at, "began", ("XPENDING", inbox, "workers", entry, entry, 1)))
                # Behind XPENDING, because a worker may read the entry and end the task in between.
                asked.append((at, "entry", ("XRANGE", inbox, entry, entry)))
            if lane := row.fields.get("lane"):
                asked.append((at, "turn", ("ZSCORE", keys.lane(decode_foreign(lane)), row.id)))
            if idem := row.fields.get("idem"):
                asked.append((at, "digest", ("GET", keys.idempotency(decode_foreign(idem)))))
        return asked

    async def _read_places(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        async def read() -> list[Any]:
            replies = await self._store.pipeline(commands)
            for reply in replies:
                # An inbox that is gone has no group, and a key of another type has no place.
                if isinstance(reply, StoreError) and not isinstance(reply, GroupMissing) and not _is_damage(reply):
                    raise reply
            return replies

        started_s = time.monotonic()
        replies = await self._store.read_with_retry(read, retry_for_s=self._retry_for_s)
        self._spend(time.monotonic() - started_s)
        return replies

    async def _outputs(self, rows: dict[str, SavedTask], newest: dict[str, str]) -> AsyncIterator[OutputRow]:
        """Read output up to the entry that was the newest when the record was read."""
        for id_, last in newest.items():
            after = "-"
            while True:
                (entries,) = await self._read([("XRANGE", self._keys.out(id_), after, last, "COUNT", ENTRIES_AT_ONCE)])
                if entries:
                    listed = [[to_text(entry), *map(to_text, fields)] for entry, fields in entries]
                    yield OutputRow(id_, rows[id_].left_ms, listed)
                if len(entries) < ENTRIES_AT_ONCE:
                    break
                after = f"({read_text(entries[-1][0])}"

    def _root(self, scope: str) -> str:
        return root_of(self._keys.prefix, self._keys.pool, scope)

    def _skip(self, what: str) -> None:
        self.counts["damaged"] += 1
        if len(self.skipped) < KEPT_SKIPPED:
            self.skipped.append(what)


def _parts(members: Sequence[Any], most: int, size_of: Callable[[Any], int]) -> Iterable[Sequence[Any]]:
    """Yield the members of a key in parts that fit into a row: bounded in number and bytes."""
    first = size = 0
    for at, member in enumerate(members):
        more = size_of(member)
        if at > first and (at - first == most or size + more > PART_BYTES):
            yield members[first:at]
            first, size = at, 0
        size += more
    yield members[first:]


def _entry_size(entry: Sequence[Any]) -> int:
    return sum(map(len, entry[1]))


def _replace(row: SavedTask, change: dict[str, Any] | None) -> SavedTask:
    if not change:
        return row
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return SavedTask(**(fields | change))


def _is_damage(failure: StoreError) -> bool:
    """Return whether a key has another type. A missing right, for example, concerns all keys."""
    return isinstance(failure, ServerRefused) and ": WRONGTYPE " in str(failure)


def _type_of(key: FoundKey) -> str:
    assert key.kind is not None
    return key.kind.type


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    return _pairs_of([to_text(value) for value in flat])


def _pairs_of(values: Sequence[str]) -> dict[str, str]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _stream_values(entries: Iterable[Sequence[Any]]) -> list[str]:
    values: list[str] = []
    for entry, fields in entries:
        values += [to_text(entry), str(len(fields)), *map(to_text, fields)]
    return values
