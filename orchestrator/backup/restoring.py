"""Restores a backup into an empty pool.

The whole file is checked before the first write. The restored pool is stopped, because the original may still run the
same tasks; and as long as the restore has not finished, no program starts in it, older versions included: the floor of
the pool holds a word that none of them admits (`core.formats.RESTORING`).
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import msgspec

from orchestrator.backup import scripts
from orchestrator.backup.checks import DEADLINE, STORED, read_entries, read_header
from orchestrator.backup.contents import desired_of
from orchestrator.backup.rows import CommandsRow, KeyRow, OutputRow, SavedTask, to_bytes, to_text
from orchestrator.backup.scripts import Restored, RestoredKey, RestoredOutput, RestoredTask, raw
from orchestrator.backup.target import Target
from orchestrator.control import scripts as control_scripts
from orchestrator.control.commands import SetLimit, Stop
from orchestrator.control.scripts import AppendStatus, RestoreRow
from orchestrator.control.sending import send
from orchestrator.control.signing import Signer, signer_of
from orchestrator.core.command_record import check_said, pack_slot_value, read_slot_value
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import CommandRefused
from orchestrator.core.rates import parse_rate
from orchestrator.core.slots import STOP_ALL
from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.repair.scope_scan import ScopeScan
from orchestrator.store.found_keys import name_key, root_of
from orchestrator.store.keys import META

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.backup.contents import CheckedBackup
    from orchestrator.backup.files import BackupReader
    from orchestrator.backup.rows import DataRow
    from orchestrator.services import Services

ROWS_AT_ONCE: Final = 100
BYTES_AT_ONCE: Final = 1 << 19
COMMANDS_AT_ONCE: Final = 500
FOUND_KEYS: Final = 5
"""Keys of an occupied target that a refusal names."""
_SHIFTED: Final = ("born", "fresh", "dies")
_DAY_MS: Final = 86_400_000


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


class Restorer:
    """Writes the rows of a checked file.

    Args:
        services: of the target.
        checked: the file.
        source: name of the file, for people.
        shared: whether to restore the shared state of the prefix.
        now_ms: time of Redis.
        target: the begun run.
    """

    def __init__(
        self, services: Services, checked: CheckedBackup, *, source: str, shared: bool, now_ms: int, target: Target
    ) -> None:
        self._target, self._mark = target, target.mark
        self._services, self._store, self._keys = services, services.store, services.keys
        self._header, self.shared = checked.header, shared
        self._shift_ms = now_ms - checked.header.begun_ms
        self._now_ms = now_ms
        saved = from_instant_ms(checked.header.begun_ms).strftime("%Y-%m-%d %H:%M:%S UTC")
        self._origin = f"{source[:100]} of {saved}"
        self._tasks: list[RestoredTask] = []
        self._outputs: list[RestoredOutput] = []
        self._rows: list[RestoredKey] = []
        self._scope = ""
        self._before = 0
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
        try:
            await send(self._store, self._services.settings, Stop(refuse=refuse), reason=reason, restore=self._mark)
        except CommandRefused as refused:
            if refused.status is AppendStatus.ENDED:
                scripts.written(-1)
            raise

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
                if row.scope and not self.shared:
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
            await self._store.call(
                scripts.restore_output(self._keys, mark=self._mark, rows=self._outputs), retry_for_s=self._retry_s
            )
        if self._tasks:
            settings = self._services.settings
            done: Restored = await self._store.call(
                scripts.restore_tasks(
                    self._keys,
                    mark=self._mark,
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
            if self._scope:
                # A scope may be in another slot than the mark, so its script cannot check that itself.
                await self._target.check_run()
            mark = "" if self._scope else self._mark
            await self._store.call(scripts.restore_keys(root, mark=mark, rows=self._rows), retry_for_s=self._retry_s)
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
            dead_ms=int(ended) + max(0, self._shift_ms)
            if ended and row.fields.get("state") == "dead"
            else self._now_ms,
        )

    def _key(self, row: KeyRow) -> Iterator[RestoredKey]:
        values, key = row.values, name_key(row.scope, row.suffix)
        if key.is_headers:
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [text for id_, packed in pairs for text in (id_, self._shifted_header(packed))]
        elif row.scope and (row.suffix == META or key.is_chat):
            # All keys of a workspace end together, at the time that is stored here; those of a chat too.
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
        self._before = self._before if row.more else 0
        yield RestoredKey(row.suffix, row.type, packed, not row.more, self._before, row.left_ms, row.until_ms)
        self._before += len(values)
        if key.is_schedule and not row.more:
            fields = dict(zip(values[::2], values[1::2], strict=True))
            due = "inf" if "paused" in fields else fields["next"]
            index = self._keys.schedules.removeprefix(self._keys.stem)
            yield RestoredKey(index, "zset", [raw(due), raw(key.name)], first=False, before=0, left_ms=0, until_ms=0)

    def _shifted_header(self, packed: str) -> str:
        """Return the header of a record of memory with its times of end and storing after the time of the file."""
        header = read_header(packed)
        for place in (DEADLINE, STORED):
            header[place] += self._shift_ms
        return to_text(msgspec.msgpack.encode(header))

    def _stream(self, row: KeyRow, contents: Sequence[Sequence[str]]) -> RestoredKey:
        ids = [entry for entry, _ in read_entries(row.values)]
        entries = [(entry, [raw(text) for text in fields]) for entry, fields in zip(ids, contents, strict=True)]
        return RestoredKey(row.suffix, row.type, entries, not row.more, 0, row.left_ms, row.until_ms)

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
        desired = desired_of(self._commands, before)
        rows: list[RestoreRow] = []
        for slot, found in desired.commands.items():
            if slot == STOP_ALL:
                continue
            stored = read_slot_value(found.value)
            value = pack_slot_value(msgspec.structs.replace(stored, signature=now.sign(stored.packed)))
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
            scripts.written(
                await self._store.call(
                    control_scripts.restore(
                        self._keys,
                        rows=rows[first : first + COMMANDS_AT_ONCE],
                        verified=now.wanted,
                        epoch=desired.epoch + 1,
                        pruned=0,
                        mark=self._mark,
                    ),
                    retry_for_s=self._retry_s,
                )
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
    restorer = Restorer(services, checked, source=source, shared=shared, now_ms=now_ms, target=target)
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
    await target.check_run()
    await _correct(services, restorer.report, shared=restorer.shared)
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


async def _correct(services: Services, report: RestoreReport, *, shared: bool) -> None:
    """Check the places of all tasks, correct those of lanes whose members moved meanwhile, and make indices again."""
    pool = PoolScan(services.store, KeyLifetimes.of(services.settings), repair=True)
    scans = [pool.steps(), ScopeScan(services, repair=True).steps()] if shared else [pool.steps()]
    for scan in scans:
        async with aclosing(scan) as steps:
            async for findings in steps:
                report.corrected.update(
                    each.code for each in findings if not each.damage.harmless and not each.damage.index
                )


def _moved_scope(scope: str, before: str, now: str) -> str:
    """Return a scope in the target: the locks of a pool are named after it."""
    return f"locks:{now}" if scope.startswith("locks:") and before else scope
