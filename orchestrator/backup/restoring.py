"""Restores a backup into an empty pool.

The whole file is checked before the first write. The restored pool is stopped, because the original may still run the
same tasks; and as long as the restore has not finished, no program starts in it, older versions included: the floor of
the pool holds a word that none of them admits (`core.formats.RESTORING`).
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from orchestrator.backup import scripts
from orchestrator.backup.checks import check_row, read_entries
from orchestrator.backup.names import name_key, root_of, sort_key
from orchestrator.backup.rows import CommandsRow, KeyRow, OutputRow, SavedTask, to_bytes
from orchestrator.backup.scripts import Restored, RestoredKey, RestoredOutput, RestoredTask, raw
from orchestrator.backup.servers import each_server, scan
from orchestrator.control import scripts as control_scripts
from orchestrator.control.commands import SetLimit, Stop
from orchestrator.control.desired import read_desired
from orchestrator.control.scripts import RestoreRow
from orchestrator.control.sending import send
from orchestrator.control.signing import Signer, signer_of
from orchestrator.core.command_record import check_said, pack_slot_value, read_slot_value
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import ConfigError, InvalidInput, RestoreRefused
from orchestrator.core.formats import FORMAT, RESTORING, Floor
from orchestrator.core.rates import parse_rate
from orchestrator.core.slots import STOP_ALL
from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.services import open_services, pool_keys
from orchestrator.store.keys import META, stem_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from orchestrator.backup.files import BackupReader
    from orchestrator.backup.rows import DataRow, End, Header
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from orchestrator.store.store import Store

ROWS_AT_ONCE: Final = 100
BYTES_AT_ONCE: Final = 1 << 19
COMMANDS_AT_ONCE: Final = 500
FOUND_KEYS: Final = 5
"""Keys of an occupied target that a refusal names."""
_SHIFTED: Final = ("born", "fresh", "dies")
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class CheckedBackup:
    """The contents of a file of which every row was checked.

    Attributes:
        commands: number of active commands, and of jobs, which are not restored.
    """

    header: Header
    end: End
    commands: int
    jobs: int
    signed: bool


@dataclass(slots=True)
class RestoreReport:
    """The result of a restore.

    Attributes:
        tasks: created tasks.
        repeated: tasks that the file has twice, or that an interrupted restore had created.
        interrupted: created tasks that a worker had when they were saved; they are ready again.
        cancelled: created tasks that ended, because they were cancelled while they ran.
        refused_commands: commands that no configured secret has signed, and jobs; they are not active.
        corrected: damage codes that the check behind the restore corrected, with their numbers.
    """

    tasks: int = 0
    repeated: int = 0
    interrupted: int = 0
    cancelled: int = 0
    keys: int = 0
    commands: int = 0
    refused_commands: list[str] = field(default_factory=list)
    corrected: Counter[str] = field(default_factory=Counter)


def check_file(reader: BackupReader) -> CheckedBackup:
    """Read a whole file and check it. Blocks.

    Raises:
        DamagedBackup: it cannot be restored; the message names the place.
        InvalidInput: it cannot be read.
    """
    commands = jobs = 0
    signed = False
    counts: Counter[str] = Counter()
    for row in reader.rows():
        assert reader.header is not None
        try:
            check_row(row, pool=reader.header.pool)
        except InvalidInput as wrong:
            raise reader.damaged(str(wrong)) from None
        match row:
            case SavedTask():
                counts["tasks"] += 1
            case CommandsRow():
                desired = _desired(row, Signer("", "", reader.header.root))
                commands, jobs = commands + len(desired.commands), jobs + len(desired.jobs)
                signed = signed or any(one.issued.key for one in desired.commands.values())
    assert reader.header is not None
    assert reader.end is not None
    if counts["tasks"] != reader.end.counts.get("tasks", 0):
        raise reader.damaged("the number of its tasks is wrong")
    if reader.header.floor > FORMAT:
        raise reader.damaged(f"it is of a pool of format {reader.header.floor}, and this program has {FORMAT}")
    return CheckedBackup(reader.header, reader.end, commands, jobs, signed)


@asynccontextmanager
async def open_target(settings: Settings) -> AsyncIterator[Services]:
    """Connect to a pool that may be restored only in part, which other programs refuse."""
    floor = Floor(settings.pool, pool_keys(settings).root)
    async with open_services(settings, name="restore", floor=floor) as services:
        yield services


class Target:
    """The pool into which a backup is restored.

    Args:
        services: of the pool.
        checked: the file.
        shared: whether to restore the shared state of the prefix.
    """

    def __init__(self, services: Services, checked: CheckedBackup, *, shared: bool) -> None:
        self._services, self._store, self._keys = services, services.store, services.keys
        self._checked, self._shared = checked, shared and checked.header.shared
        self._mark = f"{RESTORING} {checked.end.sha256[:32]}"

    async def check(self) -> bool:
        """Return whether a restore of the same file was interrupted here.

        Raises:
            RestoreRefused: the pool is not empty, or another file was restored in part.
            ConfigError: the saved commands are signed, and no secret is configured.
        """
        header = self._checked.header
        if self._checked.signed and not signer_of(self._services.settings, place=self._keys.root).wanted:
            raise ConfigError(
                "the commands in this backup are signed; set control.secret to the secret of the saved pool, "
                "so that its stops and pauses can be signed for the restored one"
            )
        mark = await self._store.execute("GET", self._keys.format)
        if mark == self._mark.encode():
            return True
        if mark is not None and mark.startswith(RESTORING.encode()):
            raise self._occupied()
        found = await self._find_keys()
        if found:
            raise RestoreRefused(
                f"the target is not empty: {', '.join(found)}; restore into a prefix without data "
                f"(--into {header.prefix}-restored), or, if only shared state is there, add --only-pool"
            )
        return False

    def _occupied(self) -> RestoreRefused:
        return RestoreRefused(
            f"pool {self._keys.pool!r} holds a part of another backup; finish that restore, or use another prefix"
        )

    async def _find_keys(self) -> list[str]:
        found: list[str] = []
        allowed = self._keys.format.encode()
        async with each_server(self._services) as stores:
            for store in stores:
                async for names in scan(store, stem_of(self._keys.prefix)):
                    keys = [(name, sort_key(name, prefix=self._keys.prefix, pool=self._keys.pool)) for name in names]
                    for name, key in keys:
                        matters = name != allowed and (
                            name.startswith(self._keys.stem.encode())
                            or (self._shared and key is not None and bool(key.scope))
                        )
                        if matters and len(found) < FOUND_KEYS:
                            found.append(name.decode(errors="backslashreplace"))
                    if len(found) == FOUND_KEYS:
                        return found
        return found

    async def begin(self) -> None:
        """Mark the pool, so that no program starts in it, and look again.

        Raises:
            RestoreRefused: a program came first.
        """
        before: bytes | None = await self._store.execute("SET", self._keys.format, self._mark, "GET")
        if before is not None and before.startswith(RESTORING.encode()) and before != self._mark.encode():
            await self._store.execute("SET", self._keys.format, before)
            raise self._occupied()
        fixed = [key for key in self._keys.fixed if key != self._keys.format]
        if before != self._mark.encode() and await self._store.execute("EXISTS", *fixed):
            await self._store.execute("SET", self._keys.format, before or str(self._checked.header.floor))
            raise RestoreRefused(f"a program uses pool {self._keys.pool!r}; stop it, or use another prefix")

    async def finish(self) -> None:
        """Admit programs."""
        await self._store.execute("SET", self._keys.format, self._checked.header.floor)


class Restorer:
    """Writes the rows of a checked file.

    Args:
        services: of the target.
        checked: the file.
        source: name of the file, for people.
        shared: whether to restore the shared state of the prefix.
        now_ms: time of Redis.
    """

    def __init__(self, services: Services, checked: CheckedBackup, *, source: str, shared: bool, now_ms: int) -> None:
        self._services, self._store, self._keys = services, services.store, services.keys
        self._header, self._shared = checked.header, shared
        self._shift_ms = now_ms - checked.header.begun_ms
        self._now_ms = now_ms
        saved = from_instant_ms(checked.header.begun_ms).strftime("%Y-%m-%d %H:%M:%S UTC")
        self._origin = f"{source[:100]} of {saved}"
        self._tasks: list[RestoredTask] = []
        self._outputs: list[RestoredOutput] = []
        self._rows: list[RestoredKey] = []
        self._scope = ""
        self._size = 0
        self._commands: CommandsRow | None = None
        self._signers = self._pick_signers()
        self.report = RestoreReport()

    def _pick_signers(self) -> tuple[Signer, Signer]:
        """Return the signers of the saved pool and of the target."""
        settings = self._services.settings
        return signer_of(settings, place=self._header.root), signer_of(settings, place=self._keys.root)

    @property
    def stop_reason(self) -> str:
        """The reason of the stop of the restored pool."""
        return f"restored from {self._origin}, pool {self._header.pool} of {self._header.prefix}; `orc start` starts it"

    async def stop(self, *, refuse: bool) -> None:
        """Stop the pool; with `refuse` also submits."""
        reason = self.stop_reason[:500]
        check_said(None, reason)
        await send(self._store, self._services.settings, Stop(refuse=refuse), reason=reason)

    async def add(self, row: DataRow) -> None:
        """Write a row, together with others."""
        match row:
            case CommandsRow():
                self._commands = row
            case SavedTask():
                self._tasks.append(self._task(row))
                self._size += sum(map(len, row.fields.values())) + 40 * len(row.children)
                self.report.interrupted += row.began
            case OutputRow():
                entries = [(entry, [raw(text) for text in fields]) for entry, *fields in row.entries]
                self._outputs.append(RestoredOutput(row.id, row.left_ms, entries))
                self._size += sum(len(text) for entry in row.entries for text in entry)
            case KeyRow():
                if row.scope and not self._shared:
                    return
                scope = _moved_scope(row.scope, self._header.pool, self._keys.pool)
                if scope != self._scope:
                    await self._flush_keys()
                    self._scope = scope
                self._rows += self._key(row)
                self._size += sum(map(len, row.values))
        if len(self._tasks) + len(self._outputs) + len(self._rows) >= ROWS_AT_ONCE or self._size >= BYTES_AT_ONCE:
            await self.flush()

    async def flush(self) -> None:
        """Write what was collected."""
        if self._outputs:
            await self._store.call(scripts.restore_output(self._keys, rows=self._outputs), retry_for_s=self._retry_s)
        if self._tasks:
            settings = self._services.settings
            done: Restored = await self._store.call(
                scripts.restore_tasks(
                    self._keys,
                    rows=self._tasks,
                    origin=self._origin,
                    keep_ms=max(_DAY_MS, round(settings.queue.max_wait_s * 1000)),
                    dead_ttl_s=round(settings.results.dead_ttl_s),
                ),
                retry_for_s=self._retry_s,
            )
            self.report.tasks += done.created
            self.report.repeated += done.known
            self.report.cancelled += done.cancelled
        await self._flush_keys()
        self._outputs, self._tasks, self._size = [], [], 0

    async def _flush_keys(self) -> None:
        if self._rows:
            root = root_of(self._keys.prefix, self._keys.pool, self._scope)
            await self._store.call(scripts.restore_keys(root, rows=self._rows), retry_for_s=self._retry_s)
            self.report.keys += sum(row.first for row in self._rows)
            self._rows = []

    @property
    def _retry_s(self) -> float:
        return self._services.settings.redis.command_timeout_s

    def _task(self, row: SavedTask) -> RestoredTask:
        ended = row.fields.get("ended")
        return RestoredTask(
            id=row.id,
            left_ms=row.left_ms,
            fields=[raw(text) for pair in row.fields.items() for text in pair],
            score=row.score,
            turn=row.turn,
            began=row.began,
            digest=raw(row.digest),
            children=row.children,
            children_ms=row.children_ms,
            # Its letter is kept as long as its record, so the time that the file has lain does not count.
            dead_ms=int(ended) + max(0, self._shift_ms) if ended and row.fields["state"] == "dead" else self._now_ms,
        )

    def _key(self, row: KeyRow) -> Iterator[RestoredKey]:
        values, key = row.values, name_key(row.scope, row.suffix)
        if row.scope and row.suffix == META:
            # All keys of a workspace end together, at the time that is stored here.
            fields = dict(zip(values[::2], values[1::2], strict=True))
            fields |= {name: str(int(fields[name]) + self._shift_ms) for name in _SHIFTED if name in fields}
            values = [text for pair in fields.items() for text in pair]
        elif key.is_log:
            yield self._stream(row, [self._resigned_entry(fields) for _, fields in read_entries(values)])
            return
        if row.type == "stream":
            yield self._stream(row, [fields for _, fields in read_entries(values)])
            return
        packed = [raw(text) for text in values]
        yield RestoredKey(row.suffix, row.type, packed, not row.more, row.left_ms, row.until_ms)
        if key.is_schedule and not row.more:
            fields = dict(zip(values[::2], values[1::2], strict=True))
            due = "inf" if "paused" in fields else fields["next"]
            index = self._keys.schedules.removeprefix(self._keys.stem)
            yield RestoredKey(index, "zset", [raw(due), raw(key.name)], first=False, left_ms=0, until_ms=0)

    def _stream(self, row: KeyRow, contents: Sequence[Sequence[str]]) -> RestoredKey:
        ids = [entry for entry, _ in read_entries(row.values)]
        entries = [(entry, [raw(text) for text in fields]) for entry, fields in zip(ids, contents, strict=True)]
        return RestoredKey(row.suffix, row.type, entries, not row.more, row.left_ms, row.until_ms)

    # Commands --------------------------------------------------------------------------------------------------------

    def _resigned_entry(self, fields: Sequence[str]) -> list[str]:
        """Return an entry of the log of commands, signed for the target if it was signed for the saved pool."""
        stored = dict(zip(fields[::2], fields[1::2], strict=True))
        if "c" in stored and stored.get("s"):
            stored["s"] = self._resign(to_bytes(stored["c"]), stored["s"]) or stored["s"]
        return [text for pair in stored.items() for text in pair]

    def _resign(self, packed: bytes, signature: str) -> str:
        before, now = self._signers
        return now.sign(packed) if before.accepts(packed, signature) else ""

    async def restore_commands(self) -> None:
        """Make the saved commands active, except a stop of everything, which the restore has replaced, and jobs.

        The epoch rises, so that no command that was signed before the restore is accepted again.
        """
        if self._commands is None:
            return
        before, now = self._signers
        desired = _desired(self._commands, before)
        rows: list[RestoreRow] = []
        for slot, found in desired.commands.items():
            if slot == STOP_ALL:
                continue
            stored = read_slot_value(found.value)
            value = pack_slot_value(replace_signature(stored, now.sign(stored.packed)))
            command: Any = found.command
            rate = parse_rate(command.rate) if isinstance(command, SetLimit) else None
            rows.append(
                RestoreRow(
                    slot,
                    max(1, desired.revisions.get(slot, 0)),
                    value,
                    rate.count if rate else None,
                    rate.window_us if rate else None,
                )
            )
        for first in range(0, max(1, len(rows)), COMMANDS_AT_ONCE):
            await self._store.call(
                control_scripts.restore(
                    self._keys,
                    rows=rows[first : first + COMMANDS_AT_ONCE],
                    verified=now.wanted,
                    epoch=desired.epoch + 1,
                    pruned=0,
                ),
                retry_for_s=self._retry_s,
            )
        self.report.commands = len(rows)
        self.report.refused_commands = [
            *sorted(desired.doubtful - set(desired.commands)),
            *[f"{job.command.kind} ({job.issued.words})" for job in desired.jobs],
        ]


async def restore_file(
    reader: BackupReader,
    checked: CheckedBackup,
    services: Services,
    *,
    source: str,
    shared: bool,
    on_step: Callable[[int], None],
) -> RestoreReport:
    """Restore a checked file into an empty pool, or go on with an interrupted restore.

    Raises:
        RestoreRefused: the target is not empty.
        DamagedBackup: the file has changed since it was checked.
        StoreError: Redis does not answer, or refuses; repeat the restore to go on.
    """
    target = Target(services, checked, shared=shared)
    await target.check()
    await target.begin()
    store = services.store
    seconds, microseconds = await store.execute("TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    restorer = Restorer(services, checked, source=source, shared=shared, now_ms=now_ms)
    stopped, done = False, 0
    rows = reader.rows()
    while batch := await anyio.to_thread.run_sync(_take, rows):
        for row in batch:
            # The log of commands comes first, so that the entry of this stop follows it.
            if not stopped and not _is_log(row):
                await restorer.flush()
                await restorer.stop(refuse=True)
                stopped = True
            await restorer.add(row)
            done += 1
        on_step(done)
    await restorer.flush()
    if not stopped:
        await restorer.stop(refuse=True)
    await restorer.restore_commands()
    await _correct(store, services.settings, restorer.report)
    # Submits wait from now on, so that no schedule loses a fire time before the start.
    await restorer.stop(refuse=False)
    await target.finish()
    return restorer.report


def _take(rows: Iterator[DataRow]) -> list[DataRow]:
    taken: list[DataRow] = []
    for row in rows:
        taken.append(row)
        if len(taken) == ROWS_AT_ONCE:
            break
    return taken


def _is_log(row: DataRow) -> bool:
    return isinstance(row, CommandsRow) or (isinstance(row, KeyRow) and name_key(row.scope, row.suffix).is_log)


async def _correct(store: Store, settings: Settings, report: RestoreReport) -> None:
    """Check the places of all tasks, and correct those of lanes whose members moved during the backup."""
    async with aclosing(PoolScan(store, KeyLifetimes.of(settings), repair=True).steps()) as steps:
        async for findings in steps:
            report.corrected.update(finding.code for finding in findings if not finding.damage.harmless)


def replace_signature(stored: Any, signature: str) -> Any:
    """Return a slot's value with another signature."""
    import msgspec

    return msgspec.structs.replace(stored, signature=signature)


def _desired(row: CommandsRow, signer: Signer) -> Any:
    return read_desired(_flat(row.desired), signer, _flat(row.revisions))


def _flat(fields: Mapping[str, str]) -> list[bytes]:
    return [to_bytes(text) for pair in fields.items() for text in pair]


def _moved_scope(scope: str, before: str, now: str) -> str:
    """Return a scope in the target: the locks of a pool are named after it."""
    return f"locks:{now}" if scope.startswith("locks:") and before else scope
