"""Saves a pool to a file, describes such a file, and restores it."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from orchestrator.backup.contents import check_file
from orchestrator.backup.files import BackupFile, BackupReader
from orchestrator.backup.restoring import restore_file
from orchestrator.backup.saving import PoolSaver
from orchestrator.backup.target import Target, open_target
from orchestrator.core.durations import from_instant_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from orchestrator.backup.contents import CheckedBackup
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class SavedPool:
    """A finished backup.

    Attributes:
        bytes: size of the file.
        seconds: duration.
        server_seconds: time that Redis worked or made the backup wait.
        counts: what it holds: tasks by state, `running` beside `assigned`, and other things by name.
        skipped: keys and tasks that were not saved because they are damaged; at most 100.
    """

    bytes: int
    seconds: float
    server_seconds: float
    counts: Mapping[str, int]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackupView:
    """The contents of a backup file.

    Attributes:
        program, server: versions that wrote it.
        begun_at, ended_at: when it was made, by the clock of Redis.
        shared: whether it has the shared state of the prefix.
        counts: as of `SavedPool`.
        commands: number of active commands.
        jobs: number of jobs that were not done; they are not restored.
        skipped: what was not saved.
    """

    prefix: str
    pool: str
    program: str
    server: str
    floor: int
    begun_at: datetime
    ended_at: datetime
    shared: bool
    counts: Mapping[str, int]
    commands: int
    jobs: int
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RestoredPool:
    """A finished restore.

    Attributes:
        tasks: created tasks.
        repeated: tasks that the file has twice, or that an interrupted restore had created.
        interrupted: tasks that ran when they were saved; they are ready again.
        cancelled: tasks that were cancelled while they ran, so that they ended.
        other_keys: other written keys.
        commands: commands that are active again.
        refused_commands: commands that no configured secret has signed, and jobs; they are not active.
        corrected: damage codes of `orc keys check` that were corrected behind the restore.
    """

    tasks: int
    repeated: int
    interrupted: int
    cancelled: int
    other_keys: int
    commands: int
    refused_commands: tuple[str, ...]
    corrected: Mapping[str, int]


async def save_pool(
    services: Services,
    target: Path | Callable[[bytes], object],
    *,
    shared: bool = True,
    compress: bool = True,
    on_step: Callable[[int], None] = lambda _: None,
) -> SavedPool:
    """Save a pool.

    Args:
        services: of the pool.
        target: path of the new file, or what takes its bytes.
        shared: save the shared state of the prefix too.
        compress: write gzip.
        on_step: gets the number of saved tasks.

    Raises:
        InvalidInput: the file exists or cannot be made.
        BackupFailed: the file could not be written.
        StoreError: Redis does not answer, or refuses.
    """
    started_s = time.monotonic()
    saver = PoolSaver(services, shared=shared)
    file = BackupFile(target, compress=compress)
    with file:
        async with aclosing(saver.rows()) as steps:
            async for rows in steps:
                if rows:
                    await to_thread.run_sync(file.add, rows)
                on_step(saver.counts["tasks"])
        ended_ms, floor = await saver.now_ms(), await saver.read_floor()
        counts, skipped = dict(saver.counts), saver.skipped
        await to_thread.run_sync(lambda: file.finish(counts, ended_ms=ended_ms, skipped=skipped, floor=floor))
    return SavedPool(
        bytes=file.bytes,
        seconds=time.monotonic() - started_s,
        server_seconds=saver.server_s,
        counts=dict(saver.counts),
        skipped=tuple(saver.skipped),
    )


class SavedFile:
    """A backup file, checked as a whole. Made by `open_backup`."""

    def __init__(self, path: Path, reader: BackupReader, checked: CheckedBackup) -> None:
        self._path, self._reader, self._checked = path, reader, checked

    @property
    def view(self) -> BackupView:
        """Its contents."""
        header, end = self._checked.header, self._checked.end
        return BackupView(
            prefix=header.prefix,
            pool=header.pool,
            program=header.program,
            server=header.server,
            floor=self._checked.floor,
            begun_at=from_instant_ms(header.begun_ms),
            ended_at=from_instant_ms(end.ended_ms),
            shared=header.shared,
            counts=end.counts,
            commands=self._checked.commands,
            jobs=self._checked.jobs,
            skipped=tuple(end.skipped),
        )

    async def check_target(self, settings: Settings, *, shared: bool = True) -> bool:
        """Return whether an interrupted restore of this file is to be continued in the pool of `settings`.

        Raises:
            RestoreRefused: the pool is not empty.
        """
        async with open_target(settings) as services:
            return await Target(services, self._checked, shared=shared).check()

    async def restore(
        self, settings: Settings, *, shared: bool = True, on_step: Callable[[int], None] = lambda _: None
    ) -> RestoredPool:
        """Restore it into the pool of `settings`, which stays stopped.

        Args:
            settings: of the target.
            shared: restore the shared state of the prefix too.
            on_step: gets the number of restored rows.

        Raises:
            RestoreRefused: the pool is not empty.
            StoreError: Redis does not answer, or refuses; repeat the restore to go on.
        """
        async with open_target(settings) as services:
            report = await restore_file(
                self._reader, self._checked, services, source=self._path.name, shared=shared, on_step=on_step
            )
        return RestoredPool(
            tasks=report.tasks,
            repeated=report.repeated,
            interrupted=report.interrupted,
            cancelled=report.cancelled,
            other_keys=report.keys,
            commands=report.commands,
            refused_commands=tuple(report.refused_commands),
            corrected=dict(report.corrected),
        )


async def open_backup(path: Path) -> SavedFile:
    """Read a whole file and check it.

    Raises:
        DamagedBackup: it cannot be restored; the message names the place.
        InvalidInput: it cannot be read.
    """
    reader = BackupReader(path)
    checked: Any = await to_thread.run_sync(check_file, reader)
    return SavedFile(path, reader, checked)
