"""One typed wrapper per script in `lua/workspace/`: values in, a `Call` out, a `ChangeReply` back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.store.calls import Arguments, Call, opaque, pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.keys import ScopeKeys


class CallerRow(NamedTuple):
    """Who makes a change.

    Attributes:
        op: id of the change; the same one again changes nothing.
        lock: suffix of the lock under which it is made.
        value: what that lock must hold.
        agent: in whose name; may be empty.
    """

    op: str
    lock: str
    value: str
    agent: str


class PathRow(NamedTuple):
    """One change of a path, in the column order of `lua/workspace/patch.lua`."""

    path: str
    mode: str
    value: bytes
    condition: str
    number: int


@dataclass(frozen=True, slots=True)
class ChangeReply:
    """What a change was answered: `ok` or `duplicate` with a revision and more, or why it was refused."""

    status: str
    revision: int
    rest: tuple[Any, ...]


def _answer(reply: list[Any]) -> ChangeReply:
    status = reply[0].decode()
    if status in {"ok", "duplicate"}:
        return ChangeReply(status, reply[1], tuple(reply[2:]))
    return ChangeReply(status, 0, tuple(reply[1:]))


def _head(keys: ScopeKeys, caller: CallerRow, workspace_limits: bytes) -> dict[str, str | bytes | int]:
    return {"scope": keys.root, "caller": pack_rows([caller]), "limits": workspace_limits}


def patch(
    keys: ScopeKeys,
    *,
    caller: CallerRow,
    workspace_limits: bytes,
    rows: Sequence[PathRow],
    owner: str = "",
    now_us: str = "",
) -> Call[ChangeReply]:
    """Change up to 500 paths of the document, or of the scratch of `owner`: all or none."""
    packed = pack_rows([(row.path, row.mode, opaque(row.value), row.condition, row.number) for row in rows])
    args: Arguments = {**_head(keys, caller, workspace_limits), "rows": packed, "owner": owner, "now_arg": now_us}
    return Call("workspace/patch", args, _answer)


def append(
    keys: ScopeKeys,
    *,
    caller: CallerRow,
    workspace_limits: bytes,
    log: str,
    texts: Sequence[bytes],
    cap: int,
    now_us: str = "",
) -> Call[ChangeReply]:
    """Append up to 500 JSON texts to a log (its encoded name); `cap` is at least as many."""
    rows = pack_rows([(opaque(text),) for text in texts])
    args: Arguments = {
        **_head(keys, caller, workspace_limits),
        "name": log,
        "rows": rows,
        "cap": cap,
        "now_arg": now_us,
    }
    return Call("workspace/append", args, _answer)


def members(
    keys: ScopeKeys,
    *,
    caller: CallerRow,
    workspace_limits: bytes,
    name: str,
    mode: str,
    changed: Sequence[str],
    now_us: str = "",
) -> Call[ChangeReply]:
    """Add up to 500 members to a set (its encoded name), or remove them: `mode` is add or remove."""
    args: Arguments = {
        **_head(keys, caller, workspace_limits),
        "name": name,
        "mode": mode,
        "rows": pack_rows([(member,) for member in changed]),
        "now_arg": now_us,
    }
    return Call("workspace/members", args, _answer)


def transition(
    keys: ScopeKeys,
    *,
    caller: CallerRow,
    workspace_limits: bytes,
    id_: str,
    to: str,
    text: bytes,
    expect: Sequence[str] | None,
    now_us: str = "",
) -> Call[ChangeReply]:
    """Move a state machine; `expect`: None any state, nothing in it: it may not be there yet."""
    args: Arguments = {
        **_head(keys, caller, workspace_limits),
        "id": id_,
        "to": to,
        "text": text,
        "expects": "any" if expect is None else "one" if expect else "absent",
        "rows": pack_rows([(state,) for state in expect or ()]),
        "now_arg": now_us,
    }
    return Call("workspace/transition", args, _answer)


def publish(
    keys: ScopeKeys,
    *,
    caller: CallerRow,
    workspace_limits: bytes,
    owner: str,
    entry: str,
    target: str,
    name: str,
    cap: int,
    now_us: str = "",
) -> Call[ChangeReply]:
    """Move a scratch entry into the document (`target` path) or to the end of a log (`target` log, encoded name)."""
    args: Arguments = {
        **_head(keys, caller, workspace_limits),
        "owner": owner,
        "entry": entry,
        "target": target,
        "name": name,
        "cap": cap,
        "now_arg": now_us,
    }
    return Call("workspace/publish", args, _answer)


def join(
    keys: ScopeKeys,
    *,
    caller: CallerRow,
    workspace_limits: bytes,
    member: str,
    text: bytes,
    lease_ms: int,
    now_us: str = "",
) -> Call[ChangeReply]:
    """Enter an agent into the directory; a lease of 0 takes it out."""
    args: Arguments = {
        **_head(keys, caller, workspace_limits),
        "member": member,
        "text": text,
        "lease_ms": lease_ms,
        "now_arg": now_us,
    }
    return Call("workspace/join", args, _answer)


def present(keys: ScopeKeys, *, limit: int = 500, now_us: str = "") -> Call[list[tuple[str, int, bytes]]]:
    """Who is in the directory now: name, ms left, JSON."""

    def parse(reply: list[Any]) -> list[tuple[str, int, bytes]]:
        return [(name.decode(), left, text) for name, left, text in zip(*[iter(reply)] * 3, strict=True)]

    return Call("workspace/present", {"scope": keys.root, "limit": limit, "now_arg": now_us}, parse)


def tail(keys: ScopeKeys, *, log: str, after: int, limit: int) -> Call[list[bytes]]:
    """Entries of a log (its encoded name) behind a number, the oldest first."""
    args: Arguments = {"scope": keys.root, "name": log, "after": after, "limit": limit}
    return Call("workspace/tail", args, _entries)


def direct(
    keys: ScopeKeys,
    *,
    caller: CallerRow,
    workspace_limits: bytes,
    to: str,
    word: str,
    text: bytes,
    most: int,
    now_us: str = "",
) -> Call[ChangeReply]:
    """Leave a directive for an agent."""
    args: Arguments = {
        **_head(keys, caller, workspace_limits),
        "to": to,
        "word": word,
        "text": text,
        "most": most,
        "now_arg": now_us,
    }
    return Call("workspace/direct", args, _answer)


def acknowledge(
    keys: ScopeKeys, *, caller: CallerRow, workspace_limits: bytes, to: str, entries: Sequence[str], now_us: str = ""
) -> Call[ChangeReply]:
    """Remove up to 500 directives that an agent has carried out."""
    args: Arguments = {
        **_head(keys, caller, workspace_limits),
        "to": to,
        "rows": pack_rows([(entry,) for entry in entries]),
        "now_arg": now_us,
    }
    return Call("workspace/acknowledge", args, _answer)


def clear(keys: ScopeKeys, *, caller: CallerRow, workspace_limits: bytes, now_us: str = "") -> Call[ChangeReply]:
    """Empty a workspace; its events stay."""
    return Call("workspace/clear", {**_head(keys, caller, workspace_limits), "now_arg": now_us}, _answer)


def _entries(reply: list[bytes]) -> list[bytes]:
    return reply
