"""Wraps the scripts in `lua/workspace/`, one function per script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.core.reading import read_text
from orchestrator.store.calls import Argument, Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import WorkspaceSettings
    from orchestrator.locks.fenced_writer import CallerRow
    from orchestrator.store.keys import ScopeKeys


class PathRow(NamedTuple):
    """One change of a path, in the column order of `lua/workspace/patch.lua`."""

    path: str
    mode: str
    value: bytes
    condition: str
    number: int


@dataclass(frozen=True, slots=True)
class ChangeCall:
    """The arguments that every change of a workspace begins with."""

    keys: ScopeKeys
    caller: CallerRow
    limits: bytes


@dataclass(frozen=True, slots=True)
class ChangeReply:
    """Reply to a change: `ok` or `duplicate` with the revision and the results, or why nothing was changed."""

    status: str
    revision: int
    rest: tuple[Any, ...]


@cache
def pack_limits(settings: WorkspaceSettings) -> bytes:
    """Pack the lifetimes and caps of workspaces."""
    return pack_rows(
        [
            (
                round(settings.ttl_s * 1000),
                round(settings.life_s * 1000),
                round(settings.dedup_s * 1000),
                settings.max_dedup,
                settings.max_items,
                settings.max_bytes,
                settings.max_events,
                settings.max_event_bytes,
                settings.max_parts,
                int(settings.json_projection),
            )
        ]
    )


def patch(change: ChangeCall, *, rows: Sequence[PathRow], owner: str = "") -> Call[ChangeReply]:
    """Change up to 500 paths of the document, or of the scratch of `owner`: all or none."""
    packed = pack_rows([(row.path, row.mode, opaque(row.value), row.condition, row.number) for row in rows])
    return _call("patch", change, rows=packed, owner=owner)


def append(change: ChangeCall, *, log: str, texts: Sequence[bytes], cap: int) -> Call[ChangeReply]:
    """Append up to 500 JSON texts to a log (its encoded name); `cap` is at least their number."""
    return _call("append", change, name=log, rows=pack_rows([(opaque(text),) for text in texts]), cap=cap)


def members(change: ChangeCall, *, name: str, mode: str, changed: Sequence[str]) -> Call[ChangeReply]:
    """Add up to 500 members to a set (its encoded name), or remove them; `mode` is add or remove."""
    return _call("members", change, name=name, mode=mode, rows=pack_rows([(member,) for member in changed]))


def transition(
    change: ChangeCall, *, id_: str, to: str, text: bytes, expect: Sequence[str] | None
) -> Call[ChangeReply]:
    """Change the state of a state machine if its state is in `expect`.

    None accepts any state; an empty sequence requires that the machine does not exist.
    """
    expects = "any" if expect is None else "one" if expect else "absent"
    rows = pack_rows([(state,) for state in expect or ()])
    return _call("transition", change, id=id_, to=to, text=text, expects=expects, rows=rows)


def publish(change: ChangeCall, *, owner: str, entry: str, target: str, name: str, cap: int) -> Call[ChangeReply]:
    """Move a scratch entry into the document (`target` path) or to the end of a log (`target` log, encoded name)."""
    return _call("publish", change, owner=owner, entry=entry, target=target, name=name, cap=cap)


def join(change: ChangeCall, *, member: str, text: bytes, lease_ms: int) -> Call[ChangeReply]:
    """Add an agent to the directory; a lease of 0 removes it."""
    return _call("join", change, member=member, text=text, lease_ms=lease_ms)


def present(keys: ScopeKeys, *, limit: int = 500) -> Call[list[tuple[str, int, bytes]]]:
    """List the agents in the directory: name, ms left, JSON."""

    def parse(reply: list[Any]) -> list[tuple[str, int, bytes]]:
        return [(read_text(name), left, text) for name, left, text in zip(*[iter(reply)] * 3, strict=True)]

    return Call("workspace/present", {"scope": keys.root, "limit": limit, "now_arg": ""}, parse)


def tail(keys: ScopeKeys, *, log: str, after: int, limit: int) -> Call[list[bytes]]:
    """Read the entries of a log (its encoded name) after a number, the oldest first."""
    return Call("workspace/tail", {"scope": keys.root, "name": log, "after": after, "limit": limit}, list)


def direct(change: ChangeCall, *, to: str, word: str, text: bytes, most: int) -> Call[ChangeReply]:
    """Add a directive to an agent's inbox."""
    return _call("direct", change, to=to, word=word, text=text, most=most)


def acknowledge(change: ChangeCall, *, to: str, entries: Sequence[str]) -> Call[ChangeReply]:
    """Remove up to 500 directives from an agent's inbox."""
    return _call("acknowledge", change, to=to, rows=pack_rows([(entry,) for entry in entries]))


def clear(change: ChangeCall, *, events: bool) -> Call[ChangeReply]:
    """Empty a workspace, with its stored events or without them."""
    return _call("clear", change, events=int(events))


def _call(verb: str, change: ChangeCall, **args: Argument) -> Call[ChangeReply]:
    head: Arguments = {"scope": change.keys.root, "caller": pack_rows([change.caller]), "limits": change.limits}
    return Call(f"workspace/{verb}", {**head, **args, "now_arg": ""}, _parse)


def _parse(reply: list[Any]) -> ChangeReply:
    status = read_text(reply[0])
    if status in {"ok", "duplicate"}:
        return ChangeReply(status, reply[1], tuple(reply[2:]))
    return ChangeReply(status, 0, tuple(reply[1:]))
