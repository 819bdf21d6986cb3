"""Wraps the scripts in `lua/repair/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from orchestrator.core.errors import ServerRefused
from orchestrator.core.reading import read_text
from orchestrator.store.calls import Argument, Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from orchestrator.store.keys import ScopeKeys


class Finding(NamedTuple):
    """A finding of a script.

    Attributes:
        row: index of the row.
        place: the part of the scope that is meant, if it is not the row itself.
    """

    row: int
    code: str
    place: str
    repaired: bool


Answer: TypeAlias = list[Finding] | ServerRefused
"""Answer of a script; the caller puts a refusal of Redis in its place."""


def check_locks(keys: ScopeKeys, *, rows: Sequence[bytes], repair: bool, now_us: str = "") -> Call[Answer]:
    """Check that up to 100 locks, by their suffixes, are listed while they are held."""
    return _call("check_locks", keys, repair, now_us, rows=pack_rows([(opaque(row),) for row in rows]))


def check_parts(keys: ScopeKeys, *, rows: Sequence[tuple[bytes, str]], repair: bool, now_us: str = "") -> Call[Answer]:
    """Check that a workspace lists up to 100 parts of it: (suffix, type)."""
    packed = pack_rows([(opaque(suffix), type_) for suffix, type_ in rows])
    return _call("check_parts", keys, repair, now_us, rows=packed)


def check_workspace(keys: ScopeKeys, *, ttl_ms: int, repair: bool, now_us: str = "") -> Call[Answer]:
    """Compare the counts of a workspace with what is there."""
    return _call("check_workspace", keys, repair, now_us, ttl_ms=ttl_ms)


class CheckedChat(NamedTuple):
    """Findings of a part of a chat; `next`: index of the next message to check, 0 at the end."""

    next: int
    findings: list[Finding]


def check_chat(keys: ScopeKeys, *, source: str, first: int, repair: bool, now_us: str = "") -> Call[CheckedChat]:
    """Check up to 500 messages of a chat from index `first` on, and its counts with the first; `source` is encoded."""
    args: Arguments = {
        "scope": keys.root,
        "source": source,
        "first": first,
        "repair": "1" if repair else "0",
        "now_arg": now_us,
    }

    def parse(reply: list[Any]) -> CheckedChat:
        return CheckedChat(reply[0], _findings(reply[1:]))

    return Call("repair/check_chat", args, parse)


def check_chats(keys: ScopeKeys, *, rows: Sequence[bytes], repair: bool, now_us: str = "") -> Call[Answer]:
    """Check that up to 100 chats of a session, by their encoded sources, are there as the session lists them."""
    return _call("check_chats", keys, repair, now_us, rows=pack_rows([(opaque(row),) for row in rows]))


def check_records(
    keys: ScopeKeys,
    *,
    tier: str,
    part: str,
    rows: Sequence[bytes],
    repair: bool,
    unlisted: Container[bytes] = (),
    now_us: str = "",
) -> Call[Answer]:
    """Check up to 100 members of a key of a tier of memory, as `time` or `kind:K`; a row of -1 is the tier.

    `unlisted` are those that an index of their simulation lacks.
    """
    packed = pack_rows([(opaque(row), int(row in unlisted)) for row in rows])
    return _call("check_records", keys, repair, now_us, tier=tier, part=part, rows=packed)


def _call(verb: str, keys: ScopeKeys, repair: bool, now_us: str, **args: Argument) -> Call[Answer]:  # noqa: FBT001
    every: Arguments = {"scope": keys.root, **args, "repair": "1" if repair else "0", "now_arg": now_us}
    return Call(f"repair/{verb}", every, _parse)


def _parse(reply: list[Any]) -> Answer:
    return _findings(reply)


def _findings(reply: list[Any]) -> list[Finding]:
    found = zip(*[iter(reply)] * 4, strict=True)
    return [
        Finding(row - 1, read_text(code), place.decode(errors="backslashreplace"), bool(repaired))
        for row, code, place, repaired in found
    ]
