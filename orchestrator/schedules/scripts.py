"""Wraps the scripts in `lua/schedules/`, one function per script. `tasks/submit` fires schedules."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text, read_whole, read_word
from orchestrator.store.calls import Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.schedules.model import FireOutcome
    from orchestrator.store.keys import PoolKeys


class PutStatus(StrEnum):
    """Result of storing a plan."""

    OK = "ok"
    SAME = "same"
    CHANGED = "changed"
    FULL = "full"


class SwitchStatus(StrEnum):
    """Result of a pause or a resume."""

    DONE = "done"
    ALREADY = "already"
    UNKNOWN = "unknown"
    CHANGED = "changed"


class SkipStatus(StrEnum):
    """Result of a skip: `ok`, or `stale` if the schedule no longer waited for the fire time."""

    OK = "ok"
    STALE = "stale"


class DueSchedule(NamedTuple):
    """A due schedule; `state` is that of its newest task, empty if that is gone."""

    name: str
    plan: bytes
    next_ms: int
    anchor_ms: int
    task: str
    state: str


class Due(NamedTuple):
    """Schedules that are due by the server's clock, and the seconds until the next one, if any."""

    now_ms: int
    wait_s: float | None
    schedules: list[DueSchedule]


class SkipRow(NamedTuple):
    """A fire time that led to no task, in the column order of `lua/schedules/skip.lua`."""

    name: str
    due: str
    next: str
    missed: int
    outcome: FireOutcome
    error: str = ""


def put(
    keys: PoolKeys, *, name: str, plan: bytes, digest: str, before: str, next_ms: str, anchor_ms: int, most: int = 2**31
) -> Call[PutStatus]:
    """Store a plan in place of the one with the digest `before`. An empty `next_ms` keeps the fire times."""
    args: dict[str, str | bytes | int] = {
        "pool": keys.root,
        "name": name,
        "plan": read_text(plan),
        "digest": digest,
        "before": before,
        "next_ms": next_ms,
        "anchor": str(anchor_ms),
        "most": most,
    }
    return Call("schedules/put", args, _put_status)


def pause(keys: PoolKeys, *, name: str, now_us: str = "") -> Call[SwitchStatus]:
    """Stop a schedule from firing."""
    return Call("schedules/pause", {"pool": keys.root, "name": name, "now_arg": now_us}, _switch_status)


def resume(keys: PoolKeys, *, name: str, before: str, next_ms: str) -> Call[SwitchStatus]:
    """Let a paused schedule with the digest `before` fire again."""
    args = {"pool": keys.root, "name": name, "before": before, "next_ms": next_ms}
    return Call("schedules/resume", args, _switch_status)


def delete(keys: PoolKeys, *, name: str) -> Call[bool]:
    """Delete a schedule and return True if it existed."""
    return Call("schedules/delete", {"pool": keys.root, "name": name}, lambda reply: bool(reply == b"deleted"))


def due(keys: PoolKeys, *, excluded: Iterable[str], limit: int, now_us: str = "") -> Call[Due]:
    """Return up to `limit` due schedules, without those excluded."""

    def parse(reply: list[Any]) -> Due:
        rows = zip(*[iter(reply[2:])] * 6, strict=True)
        found = [
            DueSchedule(
                read_text(name), plan, read_whole(next_ms), read_whole(anchor), read_text(task), read_text(state)
            )
            for name, plan, next_ms, anchor, task, state in rows
        ]
        return Due(read_whole(reply[0]), None if reply[1] < 0 else reply[1] / 1000, found)

    args: dict[str, str | bytes | int] = {
        "pool": keys.root,
        "excluded": pack_rows([(name,) for name in excluded]),
        "limit": limit,
        "now_arg": now_us,
    }
    return Call("schedules/due", args, parse)


def skip(keys: PoolKeys, *, rows: Sequence[SkipRow], now_us: str = "") -> Call[list[SkipStatus]]:
    """Advance schedules past fire times that led to no task and return one status per row."""
    packed = pack_rows([(*row[:4], row.outcome.value, row.error) for row in rows])
    args: dict[str, str | bytes | int] = {"pool": keys.root, "rows": packed, "now_arg": now_us}
    return Call("schedules/skip", args, lambda reply: [read_word(SkipStatus, status) for status in reply])


def repair(
    keys: PoolKeys, *, rows: Sequence[bytes], repair: bool, now_us: str = ""
) -> Call[list[tuple[int, str, bool]]]:
    """Check the index of schedules against their records, and return (index of the row, code, whether repaired)."""

    def parse(reply: list[Any]) -> list[tuple[int, str, bool]]:
        found = zip(*[iter(reply)] * 3, strict=True)
        return [(row - 1, read_text(code), bool(repaired)) for row, code, repaired in found]

    args: dict[str, str | bytes | int] = {
        "pool": keys.root,
        "rows": pack_rows([(opaque(name),) for name in rows]),
        "repair": "1" if repair else "0",
        "now_arg": now_us,
    }
    return Call("schedules/repair", args, parse)


def _put_status(reply: bytes) -> PutStatus:
    return read_word(PutStatus, reply)


def _switch_status(reply: bytes) -> SwitchStatus:
    return read_word(SwitchStatus, reply)
