"""Keeps items in a folder of text files, one JSON object per line."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from base64 import b64decode, b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread

from orchestrator.core.errors import SecondaryStoreError
from orchestrator.core.log import get_logger
from orchestrator.secondary.model import REMOVALS_KEPT_S, SecondaryStore, StoredItem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

_SUFFIX: Final = ".jsonl"
_DRAFT: Final = ".new"
_SLACK: Final = 200
"""Superseded lines that a file may have beside as many as it has items."""
_NAME_CHARS: Final = 80
_log = get_logger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _Contents:
    """Items and removals of a file.

    Attributes:
        items: by id.
        removals: version up to which an id was removed, and the ms of it; None stands for the whole resource.
        lines: lines of the file.
        unreadable: those that hold nothing of ours.
    """

    items: dict[str, StoredItem] = field(default_factory=dict)
    removals: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    lines: int = 0
    unreadable: int = 0

    def add(self, item: StoredItem) -> None:
        """Add an item, unless it was removed or the file has it in the same or a higher version."""
        gone = max((self.removals[id_][0] for id_ in (None, item.id) if id_ in self.removals), default=None)
        known = self.items.get(item.id)
        if (gone is None or item.version > gone) and (known is None or item.version > known.version):
            self.items[item.id] = item

    def remove(self, id_: str | None, upto: int, ms: int) -> int:
        """Remove one item or all, up to a version; return their number."""
        self.removals[id_] = max(upto, self.removals.get(id_, (upto, 0))[0]), ms
        ids = list(self.items) if id_ is None else [id_]
        gone = [one for one in ids if one in self.items and self.items[one].version <= upto]
        for one in gone:
            del self.items[one]
        return len(gone)

    def encode(self) -> bytes:
        """Return the lines of a file that holds nothing else."""
        oldest_ms = _now_ms() - int(REMOVALS_KEPT_S * 1000)
        removals = ((id_, upto, ms) for id_, (upto, ms) in self.removals.items() if ms >= oldest_ms)
        lines = [_encode_removal(*removal) for removal in removals]
        return b"".join([*lines, *(_encode_item(item) for item in self.items.values())])


class JsonLinesStore(SecondaryStore):
    """A `SecondaryStore` in a folder: a file per resource, readable with any editor.

    A save appends lines to a file and flushes it to disk. Superseded lines go when the file is written anew. A damaged
    line, as after a crash in the middle of a write, is skipped and logged. Every call reads the whole file: a store for
    development and small teams.

    Args:
        folder: created when it is first used; on a disk of this machine.
    """

    __slots__ = ("_folder", "_limiter")

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._limiter: CapacityLimiter | None = None

    async def load(self, scope: str, resource: str, after: int | None = None) -> AsyncIterator[StoredItem]:
        """Iterate over the items with numbers above `after`, or all items; see `SecondaryStore`."""
        path = self._path(scope, resource)
        contents = await self._run("read", path, lambda: _read(path))
        chosen = (item for item in contents.items.values() if after is None or item.number > after)
        for item in sorted(chosen, key=lambda item: (item.number, item.id)):
            yield item

    async def save(self, scope: str, resource: str, items: Sequence[StoredItem]) -> None:
        """Add `items`, and replace those of a lower version; see `SecondaryStore`."""
        path, rows = self._path(scope, resource), list(items)
        if rows:
            await self._run("changed", path, lambda: _save(path, rows))

    async def delete(self, scope: str, resource: str, ids: Iterable[str] | None, *, upto: int) -> int:
        """Remove the items with these `ids`, or all, `upto` a version; see `SecondaryStore`."""
        path, names = self._path(scope, resource), [None] if ids is None else list(ids)

        def delete(contents: _Contents) -> int:
            now_ms = _now_ms()
            return sum(contents.remove(id_, upto, now_ms) for id_ in names)

        return await self._run("changed", path, lambda: _rewrite(path, delete)) if names else 0

    async def erase(self, subject: str) -> int:
        """Remove all items about a `subject`, in all scopes; see `SecondaryStore`."""

        def erase(contents: _Contents) -> int:
            gone = [id_ for id_, item in contents.items.items() if item.subject == subject]
            for id_ in gone:
                del contents.items[id_]
            return len(gone)

        def work() -> int:
            for draft in self._folder.glob(f"*{_DRAFT}"):
                # A kill has left it, or another process is about to replace the file with it.
                with _locked(draft.with_suffix(_SUFFIX)):
                    draft.unlink(missing_ok=True)
            marked = _encode_text(subject)
            paths = [path for path in sorted(self._folder.glob(f"*{_SUFFIX}")) if marked in path.read_bytes()]
            return sum(_rewrite(path, erase) for path in paths)

        return await self._run("changed", self._folder, work) if subject else 0

    async def aclose(self) -> None:
        """Do nothing: no file stays open."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _path(self, scope: str, resource: str) -> Path:
        # The digest tells names apart that a file system holds for equal, or that are too long for it.
        name = f"{scope}:{resource}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:24]
        return self._folder / f"{quote(name, safe='')[:_NAME_CHARS]}.{digest}{_SUFFIX}"

    async def _run(self, what: str, path: Path, work: Callable[[], T]) -> T:
        if self._limiter is None:
            self._limiter = CapacityLimiter(1)

        def run() -> T:
            try:
                return work()
            except OSError as failed:
                raise SecondaryStoreError(f"{path} could not be {what}: {failed.strerror}") from failed

        return await to_thread.run_sync(run, limiter=self._limiter)


def _read(path: Path) -> _Contents:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _Contents()
    return _parse(path, data)


def _parse(path: Path, data: bytes) -> _Contents:
    contents = _Contents()
    for line in data.splitlines():
        if not line:
            continue
        contents.lines += 1
        try:
            fields: Any = json.loads(line)
            if "removed" in fields:
                contents.remove(fields["removed"], int(fields["upto"]), int(fields["ms"]))
            else:
                contents.add(_decode_item(fields))
        except (ValueError, KeyError, TypeError, AttributeError):
            contents.unreadable += 1
    if contents.unreadable:
        _log.warning("saved_lines_unreadable", count=contents.unreadable, path=os.fspath(path))
    return contents


def _save(path: Path, items: Sequence[StoredItem]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as fd:
        size = os.fstat(fd).st_size
        data = _read_all(fd, size)
        contents = _parse(path, data)
        # After a crash in the middle of a line; it would swallow the first new one.
        torn = b"\n" if data and not data.endswith(b"\n") else b""
        before = dict(contents.items)
        for item in items:
            contents.add(item)
        new = [item for id_, item in contents.items.items() if before.get(id_) is not item]
        if not new:
            return
        if contents.lines + len(new) > 2 * len(contents.items) + _SLACK:
            _replace(path, contents.encode())
            return
        try:
            _write_all(fd, torn + b"".join(_encode_item(item) for item in new))
            os.fsync(fd)
        except OSError:
            # All or none: a full disk may have taken the first lines.
            os.ftruncate(fd, size)
            raise
        if size == 0:
            _sync_folder(path.parent)


def _rewrite(path: Path, change: Callable[[_Contents], int]) -> int:
    """Change the contents of a file, and write it anew without what is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as fd:
        contents = _parse(path, _read_all(fd, os.fstat(fd).st_size))
        count = change(contents)
        _replace(path, contents.encode())
        return count


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a file and lock it against the changes of other processes and threads."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_current(fd, path):
                yield fd
                return
        finally:
            os.close(fd)


def _is_current(fd: int, path: Path) -> bool:
    """Tell whether the file still has this name: another process may have replaced it before the lock was acquired."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _replace(path: Path, data: bytes) -> None:
    """Replace a file that the caller has locked."""
    draft = path.with_suffix(_DRAFT)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, data)
        os.fsync(fd)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    draft.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := os.pread(fd, size - len(data), len(data))):
        data += part
    return bytes(data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _encode_item(item: StoredItem) -> bytes:
    fields: dict[str, Any] = {"id": item.id, "number": item.number, "version": item.version}
    if item.subject:
        fields["subject"] = item.subject
    try:
        fields["data"] = item.data.decode()
    except UnicodeDecodeError:
        fields["base64"] = b64encode(item.data).decode()
    return json.dumps(fields).encode() + b"\n"


def _decode_item(fields: Any) -> StoredItem:
    data = fields["data"].encode() if "data" in fields else b64decode(fields["base64"], validate=True)
    return StoredItem(
        str(fields["id"]), int(fields["number"]), int(fields["version"]), data, str(fields.get("subject", ""))
    )


def _encode_removal(id_: str | None, upto: int, ms: int) -> bytes:
    return json.dumps({"removed": id_, "upto": upto, "ms": ms}).encode() + b"\n"


def _encode_text(text: str) -> bytes:
    return json.dumps(text).encode()


def _now_ms() -> int:
    return int(time.time() * 1000)
