"""Keeps payloads in a folder, which all clients, workers and supervisors of the pool must see.

An object is written under a temporary name, flushed to the disk and renamed, so that a reader finds all of it or
nothing. Each task has its own folder, so that deleting a task lists only that.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from orchestrator.core.errors import PayloadMissing, PayloadStoreUnavailable
from orchestrator.core.ids import new_token
from orchestrator.payloads.reference import parse_name
from orchestrator.payloads.store import BATCH, StoredObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
UNFINISHED: Final = ".unfinished-"
"""Begins the name of a file that is being written."""
EMPTY_S: Final = 3600.0
"""Age of an empty folder that a sweep removes."""
_ATTEMPTS: Final = 5
"""How often a write makes the folder again that a sweep has removed, because it was empty."""


class FolderStore:
    """Implements `PayloadStore` in a folder.

    Args:
        root: absolute path. It and everything below it that this class makes belong to the user alone.
        parts: folders below it that belong to the pool.

    Attributes:
        address: its place, for people.
    """

    def __init__(self, root: str, parts: Sequence[str]) -> None:
        self._base = Path(root, *parts)
        self.address = self._base.as_uri()

    async def put(self, name: str, data: bytes) -> None:
        """Store an object; see `PayloadStore`."""
        await to_thread.run_sync(self._put, name, data)

    async def get(self, name: str, *, max_bytes: int) -> bytes:
        """Read an object; see `PayloadStore`."""
        return await to_thread.run_sync(self._get, name, max_bytes)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; see `PayloadStore`."""
        await to_thread.run_sync(self._delete, names)

    async def names_below(self, folder: str) -> list[str]:
        """List the objects of a task; see `PayloadStore`."""
        return await to_thread.run_sync(self._names_below, folder)

    async def sweep(self) -> AsyncIterator[Sequence[StoredObject]]:
        """List all objects; see `PayloadStore`."""
        objects = self._walk()
        while batch := await to_thread.run_sync(self._step, objects):
            yield batch

    # ------------------------------------------------------------------------------------------------- in a thread

    def _put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        for attempt in range(_ATTEMPTS):
            unfinished = path.with_name(f"{UNFINISHED}{new_token()}")
            try:
                made = _make_folder(path.parent)
                self._check_inside(path)
                _write(unfinished, data)
                unfinished.rename(path)
                for folder in (path.parent, *made):
                    _flush_folder(folder)
            except FileNotFoundError as gone:
                if attempt == _ATTEMPTS - 1:
                    raise self._failed("write", gone) from gone
            except BaseException as failure:
                # Also a full disk: nothing of the value is left.
                with suppress(OSError):
                    unfinished.unlink(missing_ok=True)
                if isinstance(failure, OSError):
                    raise self._failed("write", failure) from failure
                raise
            else:
                return

    def _get(self, name: str, max_bytes: int) -> bytes:
        path = self._path(name)
        try:
            self._check_inside(path)
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
                return file.read(max_bytes + 1)
        except FileNotFoundError:
            # An unmounted folder would make every value look lost.
            if not self._base.is_dir():
                gone = FileNotFoundError(errno.ENOENT, "the folder of the pool does not exist")
                raise self._failed("read", gone) from None
            raise PayloadMissing(name, self.address) from None
        except OSError as failure:
            raise self._failed("read", failure) from failure

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            path = self._path(name)
            try:
                self._check_inside(path)
                path.unlink(missing_ok=True)
                for folder in (path.parent, path.parent.parent):
                    with suppress(OSError):  # it is not empty, or already gone
                        folder.rmdir()
            except OSError as failure:
                raise self._failed("delete", failure) from failure

    def _names_below(self, folder: str) -> list[str]:
        path = self._path(f"{folder}/args").parent
        try:
            return [f"{folder}/{file.name}" for file in path.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as failure:
            raise self._failed("list", failure) from failure

    def _step(self, objects: Iterator[StoredObject]) -> list[StoredObject]:
        try:
            return list(islice(objects, BATCH))
        except OSError as failure:
            raise self._failed("list", failure) from failure

    def _walk(self) -> Iterator[StoredObject]:
        for day in _entries(self._base):
            for task in _entries(Path(day)):
                seen = False
                for file in _entries(Path(task), folders=False):
                    with suppress(FileNotFoundError):
                        status = Path(file).lstat()
                        seen = True
                        name = Path(file).relative_to(self._base).as_posix()
                        yield StoredObject(name, status.st_size, status.st_mtime)
                if not seen:
                    # A process was killed between the folder and its file.
                    with suppress(OSError):
                        if time.time() - Path(task).stat().st_mtime > EMPTY_S:
                            Path(task).rmdir()

    def _path(self, name: str) -> Path:
        if parse_name(name) is None:
            raise PayloadStoreUnavailable(f"{name!r} is no name of a payload; the reference to it is damaged")
        return self._base / name

    def _check_inside(self, path: Path) -> None:
        """Refuse a folder that a link leads out of the store."""
        parent, base = os.path.realpath(path.parent), os.path.realpath(self._base)
        if not parent.startswith(f"{base}{os.sep}"):
            raise PayloadStoreUnavailable(
                f"{path.parent} leads out of the payload store {self.address}; remove the link"
            )

    def _failed(self, action: str, failure: OSError) -> PayloadStoreUnavailable:
        if failure.errno in FULL:
            advice = "free space, or delete ended tasks"
        elif failure.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            advice = "give the user of this process access to the folder"
        else:
            advice = "check that the folder is mounted, and run `orc doctor`"
        return PayloadStoreUnavailable(
            f"cannot {action} in the payload store {self.address}: {failure.strerror or failure}; {advice}"
        )


def _make_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents for this user alone; return the folders that have a new entry."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    changed = []
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            changed.append(path.parent)
    return changed


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:  # noqa: PTH123
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _entries(folder: Path, *, folders: bool = True) -> list[str]:
    """List the folders, or the files, in a folder in order; an empty list if it is gone."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        return sorted(
            entry.path for entry in found if (entry.is_dir if folders else entry.is_file)(follow_symlinks=False)
        )
    return []
