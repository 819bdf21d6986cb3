"""Keeps items in an SQLite file, from a thread."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from anyio import CapacityLimiter, to_thread

from orchestrator.core.errors import SecondaryStoreError
from orchestrator.secondary.model import REMOVALS_KEPT_S, SecondaryStore, StoredItem

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

_BUSY_S: Final = 10.0
"""Time that a change waits for the changes of other processes."""
_PAGE: Final = 500
_ALL: Final = ""
"""Id of the removal of a whole resource."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS items (
    scope TEXT NOT NULL, resource TEXT NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, version INTEGER NOT NULL,
    subject TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (scope, resource, id)
);
CREATE INDEX IF NOT EXISTS items_by_number ON items (scope, resource, number, id);
CREATE INDEX IF NOT EXISTS items_by_subject ON items (subject) WHERE subject != '';
CREATE TABLE IF NOT EXISTS removals (
    scope TEXT NOT NULL, resource TEXT NOT NULL, id TEXT NOT NULL, upto INTEGER NOT NULL, ms INTEGER NOT NULL,
    PRIMARY KEY (scope, resource, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS removals_by_time ON removals (ms);
"""
_SAVE: Final = """
INSERT INTO items (scope, resource, id, number, version, subject, data)
SELECT :scope, :resource, :id, :number, :version, :subject, :data
WHERE NOT EXISTS (
    SELECT 1 FROM removals
    WHERE scope = :scope AND resource = :resource AND id IN ('', :id) AND upto >= :version
)
ON CONFLICT (scope, resource, id) DO UPDATE
SET number = excluded.number, version = excluded.version, subject = excluded.subject, data = excluded.data
WHERE excluded.version > items.version
"""
_LOAD: Final = """
SELECT id, number, version, data, subject FROM items
WHERE scope = ? AND resource = ? AND (number, id) > (?, ?) ORDER BY number, id LIMIT ?
"""
_REMOVE: Final = """
INSERT INTO removals (scope, resource, id, upto, ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, resource, id) DO UPDATE SET upto = max(upto, excluded.upto), ms = excluded.ms
"""
_DELETE: Final = "DELETE FROM items WHERE scope = ? AND resource = ? AND version <= ?"
_DELETE_ONE: Final = _DELETE + " AND id = ?"
_LOWEST: Final = -(2**63)

T = TypeVar("T")


class SqliteStore(SecondaryStore):
    """A `SecondaryStore` in an SQLite file. One thread at a time uses it, so that no event loop waits for the disk.

    The file has a write-ahead log, so that readers and one writer of several processes do not wait for each other; it
    must lie on a disk of this machine.

    Args:
        path: file; created, with its directory, when it is first used.
    """

    __slots__ = ("_connection", "_limiter", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._limiter: CapacityLimiter | None = None
        self._connection: sqlite3.Connection | None = None

    async def load(self, scope: str, resource: str, after: int | None = None) -> AsyncIterator[StoredItem]:
        """Iterate over the items with numbers above `after`, or all items; see `SecondaryStore`."""
        last: tuple[int, str] = (_LOWEST, "") if after is None else (after + 1, "")
        while True:
            row = (scope, resource, *last, _PAGE)
            page = await self._run("read", partial(_load_page, row=row))
            for id_, number, version, data, subject in page:
                yield StoredItem(id_, number, version, data, subject)
            if len(page) < _PAGE:
                return
            last = page[-1][1], page[-1][0]

    async def save(self, scope: str, resource: str, items: Sequence[StoredItem]) -> None:
        """Add `items`, and replace those of a lower version; see `SecondaryStore`."""
        rows = [
            {
                "scope": scope,
                "resource": resource,
                "id": item.id,
                "number": item.number,
                "version": item.version,
                "subject": item.subject,
                "data": item.data,
            }
            for item in items
        ]
        if rows:
            await self._change(lambda connection: connection.executemany(_SAVE, rows))

    async def delete(self, scope: str, resource: str, ids: Iterable[str] | None, *, upto: int) -> int:
        """Remove the items with these `ids`, or all, `upto` a version; see `SecondaryStore`."""
        names = None if ids is None else list(ids)

        def delete(connection: sqlite3.Connection) -> int:
            now_ms = int(time.time() * 1000)
            connection.execute("DELETE FROM removals WHERE ms < ?", (now_ms - int(REMOVALS_KEPT_S * 1000),))
            rows = [(scope, resource, id_, upto, now_ms) for id_ in ([_ALL] if names is None else names)]
            connection.executemany(_REMOVE, rows)
            if names is None:
                return connection.execute(_DELETE, (scope, resource, upto)).rowcount
            return sum(connection.execute(_DELETE_ONE, (scope, resource, upto, id_)).rowcount for id_ in names)

        return await self._forget(delete)

    async def erase(self, subject: str) -> int:
        """Remove all items about a `subject`, in all scopes; see `SecondaryStore`."""
        if not subject:
            return 0
        statement = "DELETE FROM items WHERE subject = ?"
        return await self._forget(lambda connection: connection.execute(statement, (subject,)).rowcount)

    async def aclose(self) -> None:
        """Close the file. The next call opens it again."""
        if self._connection is not None:
            await self._run("closed", lambda _: self._close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _forget(self, delete: Callable[[sqlite3.Connection], int]) -> int:
        """Delete rows, and their pages from the write-ahead log."""

        def work(connection: sqlite3.Connection) -> int:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                deleted = delete(connection)
            # Otherwise the write-ahead log would keep the deleted text until it is written from its start again.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return deleted

        return await self._run("changed", work)

    async def _change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                change(connection)

        await self._run("changed", work)

    async def _run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._limiter is None:
            self._limiter = CapacityLimiter(1)

        def run() -> T:
            try:
                return work(self._open())
            except (sqlite3.Error, OSError) as failed:
                raise SecondaryStoreError(f"{self._path} could not be {what}: {failed}") from failed

        return await to_thread.run_sync(run, limiter=self._limiter)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # One thread at a time uses it, which the limiter ensures.
            connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                # What is deleted is overwritten with zeros.
                connection.execute("PRAGMA secure_delete = ON")
                connection.executescript(_SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _load_page(connection: sqlite3.Connection, row: tuple[str | int, ...]) -> list[tuple[str, int, int, bytes, str]]:
    return connection.execute(_LOAD, row).fetchall()
