"""Reads and decodes the events of a workspace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import DamagedData, InvalidInput
from orchestrator.core.ids import decode_foreign
from orchestrator.core.reading import msgpack_reader, read_as, read_json, read_readable, read_text, read_whole
from orchestrator.store.following import BEGINNING, END
from orchestrator.store.keys import CHANGES
from orchestrator.workspace.model import Change, WorkspaceEvent
from orchestrator.workspace.queries import entry_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from orchestrator.store.scoped import ScopedStore

UNREADABLE: Final = "unreadable"
_PAGE: Final = 500
_read_row: Final = msgpack_reader(list[Any])
_PLACE: Final = re.compile(r"\d{1,20}-\d{1,20}")


def check_event_id(after: str) -> str:
    """Return `after` if it is an event id or `$`.

    Raises:
        InvalidInput: it is neither.
    """
    if after == END or _PLACE.fullmatch(after):
        return after
    raise InvalidInput(f"{after!r} is not an event id; take one from an event or a snapshot, 0-0 or $")


def parse_event(entry: bytes, flat: Sequence[bytes]) -> WorkspaceEvent:
    """Decode one stream entry.

    Raises:
        DamagedData: no script wrote it.
    """
    return read_as("an event", _parse_event, (entry, flat))


def _parse_event(stored: tuple[bytes, Sequence[bytes]]) -> WorkspaceEvent:
    entry, flat = stored
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    kind, id_ = read_text(fields[b"k"]), read_text(entry)
    changes, detail = _CHANGES[kind](_read_row(fields[b"c"]))
    return WorkspaceEvent(
        id_, kind, read_whole(fields[b"r"]), read_text(fields[b"a"]), tuple(changes), detail, entry_time(id_)
    )


def read_event(entry: bytes, flat: Sequence[bytes]) -> WorkspaceEvent:
    """Decode one stream entry; a damaged one has the kind `unreadable` and no changes."""
    try:
        return parse_event(entry, flat)
    except DamagedData:
        id_ = read_text(entry)
        return WorkspaceEvent(id_, UNREADABLE, 0, "", (), {}, entry_time(id_))


def _value(shown: str | bool) -> tuple[Any, bool]:  # noqa: FBT001 - it is what the stream holds
    """Return the value and whether the event contains it; see `lua/includes/workspace.lua`."""
    return (read_json(shown.encode()), True) if isinstance(shown, str) else (None, shown is False)


def _change(name: str, version: int, shown: Any, before: Any) -> Change:
    value, told = _value(shown)
    previous, told_before = _value(before)
    return Change(name, version, value, previous, deleted=shown is False, told=told and told_before)


def _patch(rows: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    return [_change(*row) for row in rows], {}


def _append(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    name, first, dropped, *texts = row
    log = decode_foreign(name)
    changes = []
    for number, text in enumerate(texts, first):
        value, told = _value(text)
        changes.append(Change(log, number, value, None, told=told))
    return changes, {"first": first, "dropped": dropped}


def _members(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    name, *members = row
    return [Change(decode_foreign(name), 0, member, None) for member in members], {}


def _transition(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    id_, version, to, before, text, text_before = row
    return [_change(id_, version, text, text_before)], {"state": to, "previous_state": before or None}


def _publish(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    target, *rest = row
    if target == "log":
        changes, detail = _append(rest)
        return changes, {"target": target, **detail}
    return [_change(*rest)], {"target": target}


def _join(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    return [Change(row[0], 0, None, None)], {"joined": row[1]}


def _direct(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    to, word, entry, text = row
    value, told = _value(text)
    return [Change(to, 0, value, None, told=told)], {"kind": word, "id": entry}


def _acknowledge(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    return [Change(row[0], 0, None, None)], {"ids": row[1:]}


def _clear(row: list[Any]) -> tuple[list[Change], dict[str, Any]]:
    return [], {"events": row[0] == "events"}


_CHANGES: Final = {
    "patch": _patch,
    "append": _append,
    "add": _members,
    "remove": _members,
    "transition": _transition,
    "publish": _publish,
    "join": _join,
    "direct": _direct,
    "acknowledge": _acknowledge,
    "clear": _clear,
}


async def read_events(
    scope: ScopedStore, *, after: str = BEGINNING, until: str | None = None
) -> AsyncGenerator[WorkspaceEvent]:
    """Yield the stored events after `after`, up to and including `until` if given."""
    while True:
        page = await scope.read("XRANGE", scope.keys.key(CHANGES), f"({after}", until or "+", "COUNT", _PAGE)
        for event in read_readable(_parse_event, page):
            yield event
        if len(page) < _PAGE:
            return
        after = read_text(page[-1][0])
