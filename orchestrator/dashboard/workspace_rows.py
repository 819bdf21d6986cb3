"""Turns events, values and differences of a workspace into rows of a page, cut to what a page may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import InvalidInput
from orchestrator.dashboard.texts import json_text, without_secrets
from orchestrator.workspace.difference import DiffLine, diff_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.dashboard.texts import Texts
    from orchestrator.workspace.difference import NameDifference
    from orchestrator.workspace.model import Change, WorkspaceEvent

KINDS: Final = (
    "patch", "append", "add", "remove", "transition", "publish", "join", "direct", "acknowledge", "clear",
)  # fmt: skip
NAME_CHARS: Final = 160
VALUE_CHARS: Final = 160
CHANGES: Final = 3
"""Changes of one event that a list shows."""
DIFFERENCES: Final = 40
LEFT_OUT: Final = "(a value too large for its event)"
LINES: Final = 60
LINE_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event in a list.

    Attributes:
        changes: what it changed, in words.
        more: changes that are left out.
    """

    id: str
    kind: str
    revision: int
    agent: str
    at: datetime
    changes: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """A name that two states hold differently.

    Attributes:
        how: added, removed or changed, with versions and authors.
        lines: the lines that differ; None if the values are too long for it.
        more: lines that are left out.
    """

    kind: str
    name: str
    how: str
    lines: tuple[DiffLine, ...] | None
    more: int


def session_of(asked: PageRequest) -> str:
    """Return the session of a page; its id may be any text, so it is in the query and not in the path.

    Raises:
        InvalidInput: the query names none.
        NotFound: the user may not see it.
    """
    session = asked.query.get("id", "")
    if not session:
        raise InvalidInput("the address names no session; it ends as ?id=SESSION")
    asked.identity.check(session=session)
    return session


def event_rows(texts: Texts, events: Iterable[WorkspaceEvent]) -> list[EventRow]:
    """Return the rows of events."""
    return [
        EventRow(
            id=event.id,
            kind=texts.cut(event.kind, 40),
            revision=event.revision,
            agent=texts.cut(event.agent, NAME_CHARS),
            at=event.at,
            changes=tuple(texts.cut(_changed(event, change), 2 * VALUE_CHARS) for change in event.changes[:CHANGES]),
            more=max(0, len(event.changes) - CHANGES),
        )
        for event in events
    ]


def _changed(event: WorkspaceEvent, change: Change) -> str:
    name = str(change.name)[:NAME_CHARS]
    match event.kind:
        case "transition":
            return f"{name}: {event.detail.get('previous_state') or 'new'} → {event.detail.get('state')}"
        case "join":
            return f"{name} {'joined' if event.detail.get('joined') else 'left'}"
        case "direct":
            return f"{event.detail.get('kind')} to {name}: {_short(change.value, name)}"
        case "acknowledge":
            return f"{name} acknowledged {len(event.detail.get('ids') or ())}"
        case "add" | "remove":
            return f"{name} {'+' if event.kind == 'add' else '-'} {_short(change.value, name)}"
    if change.deleted:
        return f"{name} deleted, was {_short(change.previous, name)}"
    value = _short(change.value, name) if change.told or change.value is not None else LEFT_OUT
    was = f", was {_short(change.previous, name)}" if change.previous is not None else ""
    return f"{name} v{change.version} = {value}{was}"


def _short(value: Any, name: str) -> str:
    text = json_text(value, most=VALUE_CHARS, name=name)
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"


def difference_rows(
    texts: Texts, found: Sequence[NameDifference], untold: Collection[tuple[str, str]]
) -> list[DifferenceRow]:
    """Return the rows of the first differences; those in `untold` have a value that an event left out."""
    return [
        DifferenceRow(
            one.kind,
            texts.cut(one.name, NAME_CHARS),
            texts.cut(_how(one), NAME_CHARS),
            *((None, 0) if (one.kind, one.name) in untold else _cut_lines(texts, one)),
        )
        for one in found[:DIFFERENCES]
    ]


def version_lines(texts: Texts, change: Change) -> tuple[tuple[DiffLine, ...] | None, int]:
    """Return the lines in which a change of a path differs from the version before, and the number left out."""
    if not change.told:
        return None, 0
    before = "" if change.previous is None and change.version == 1 else without_secrets(change.previous, change.name)
    return _cut(texts, diff_lines(before, "" if change.deleted else without_secrets(change.value, change.name)))


def _cut_lines(texts: Texts, one: NameDifference) -> tuple[tuple[DiffLine, ...] | None, int]:
    before, after = (_comparable(one.kind, one.name, held) for held in (one.before, one.after))
    return _cut(texts, diff_lines("" if one.before is None else before, "" if one.after is None else after))


def _cut(texts: Texts, lines: Sequence[DiffLine] | None) -> tuple[tuple[DiffLine, ...] | None, int]:
    if lines is None:
        return None, 0
    shown = tuple(DiffLine(line.sign, texts.cut(line.text, LINE_CHARS)) for line in lines[:LINES])
    return shown, len(lines) - len(shown)


def _comparable(kind: str, name: str, held: Any) -> Any:
    """Return what of an entry is compared: a value, the lines of a log, the members of a set."""
    if held is None:
        return None
    match kind:
        case "log":
            return "\n".join(f"{one.number} {one.agent}: {json_text(one.value, most=LINE_CHARS)}" for one in held)
        case "set":
            return "\n".join(sorted(held))
        case "state":
            return {"state": held.state, "value": without_secrets(held.value)}
    return without_secrets(held.value, name)


def _how(one: NameDifference) -> str:
    was, is_ = one.before, one.after
    match one.kind:
        case "log" | "set":
            return f"{one.how}: {len(was or ())} → {len(is_ or ())}"
    versions = " → ".join(f"version {held.version}{_by(held)}" for held in (was, is_) if held is not None)
    return f"{one.how}: {versions}"


def _by(held: Any) -> str:
    return f" by {held.agent}" if held.agent else ""


def is_sent_by_forms(text: str) -> bool:
    """Return whether a form of HTML sends a text as it is: browsers change NUL and the ends of lines."""
    return not set(text) & {"\0", "\r", "\n"}
