"""Wraps the scripts in `lua/backup/`, one function per script."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.errors import RestoreRefused
from orchestrator.core.reading import read_text
from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from orchestrator.store.keys import PoolKeys


class Begun(StrEnum):
    """Outcome of `backup/begin`."""

    BEGUN = "begun"
    CONTINUED = "continued"
    OCCUPIED = "occupied"
    USED = "used"


def begin(keys: PoolKeys, *, mark: str, run: str) -> Call[Begun]:
    """Mark a pool for a run of a restore."""
    fixed = [(key.removeprefix(keys.stem),) for key in keys.fixed if key != keys.format]
    args: Arguments = {"pool": keys.root, "mark": mark, "run": run, "fixed": pack_rows(fixed)}
    return Call("backup/begin", args, lambda reply: Begun(read_text(reply)))


def finish(keys: PoolKeys, *, mark: str, floor: int) -> Call[int]:
    """Admit programs to a restored pool.

    Raises:
        RestoreRefused: see `written`.
    """
    args: Arguments = {"pool": keys.root, "mark": mark, "floor": str(floor)}
    return Call("backup/finish", args, lambda done: written(done - 1))


def written(reply: Any) -> int:
    """Return the number in the reply of a script of a restore.

    Raises:
        RestoreRefused: a later run has replaced this one.
    """
    if reply == -1:
        raise RestoreRefused("another run of this restore has begun later, and goes on or has ended; this one stops")
    return int(reply)


class Restored(NamedTuple):
    """Numbers of created tasks, of those that existed, and of created ones that ended because they were cancelled."""

    created: int
    known: int
    cancelled: int


class RestoredTask(NamedTuple):
    """A task, in the column order of `lua/backup/restore_tasks.lua`.

    Attributes:
        fields: names and values.
        score: its place in its queue, or empty.
        turn: its place in its lane, or empty.
        began: a worker had read its entry.
        digest: of its idempotency key, or empty.
        dead_ms: time by which the list of dead letters shows it.
    """

    id: str
    left_ms: int
    fields: Sequence[msgspec.Raw]
    score: str
    turn: str
    began: bool
    digest: msgspec.Raw
    children: Sequence[str]
    children_ms: int
    dead_ms: int


def restore_tasks(
    keys: PoolKeys,
    *,
    mark: str,
    rows: Sequence[RestoredTask],
    origin: str,
    keep_ms: int,
    dead_ttl_s: int,
    now_us: str = "",
) -> Call[Restored]:
    """Create up to 100 tasks.

    Args:
        keys: of the pool.
        mark: of the run.
        rows: the tasks.
        origin: the backup, for people.
        keep_ms: lifetime of records that have none.
        dead_ttl_s: minimum lifetime of dead letters.
        now_us: test override.

    Raises:
        RestoreRefused: see `written`.
    """

    def parse(reply: list[int]) -> Restored:
        written(0 if reply else -1)
        return Restored(*reply)

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows(rows),
        "origin": origin,
        "keep_ms": keep_ms,
        "dead_ttl_s": dead_ttl_s,
        "mark": mark,
        "now_arg": now_us,
    }
    return Call("backup/restore_tasks", args, parse)


class RestoredOutput(NamedTuple):
    """Output of a task; an entry is its id, and names and values of its fields."""

    id: str
    left_ms: int
    entries: Sequence[tuple[str, Sequence[msgspec.Raw]]]


def restore_output(keys: PoolKeys, *, mark: str, rows: Sequence[RestoredOutput]) -> Call[int]:
    """Add output of tasks that do not exist yet, and return the number of added entries.

    Raises:
        RestoreRefused: see `written`.
    """
    return Call("backup/restore_output", {"pool": keys.root, "rows": pack_rows(rows), "mark": mark}, written)


class RestoredKey(NamedTuple):
    """A key or a part of one, in the column order of `lua/backup/restore_keys.lua`.

    Attributes:
        values: of the key, as the command that adds them takes them; of a stream the id and the fields of each entry.
        first: the first part, which replaces the key.
        before: number of members of a list in the parts before.
        left_ms: lifetime; 0: it keeps the one that it has.
        until_ms: time at which it ends; 0: none.
    """

    suffix: str
    type: str
    values: Sequence[msgspec.Raw | tuple[str, Sequence[msgspec.Raw]]]
    first: bool
    before: int
    left_ms: int
    until_ms: int


def restore_keys(root: str, *, mark: str, rows: Sequence[RestoredKey], now_us: str = "") -> Call[int]:
    """Write up to 100 keys below one root, and return the number of written rows.

    Args:
        root: of the pool or of a scope.
        mark: of the run; empty for a scope, which may be in another slot than the mark.
        rows: the keys.
        now_us: test override.

    Raises:
        RestoreRefused: see `written`.
    """
    args: Arguments = {"pool": root, "rows": pack_rows(rows), "mark": mark, "now_arg": now_us}
    return Call("backup/restore_keys", args, written)


def raw(text: str) -> msgspec.Raw:
    """Return the text of a row of the file as an argument."""
    return opaque(text.encode("latin-1"))
