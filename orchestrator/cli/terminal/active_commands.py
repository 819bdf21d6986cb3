"""Formats the active control commands, also beside the agents, queues, limits and workers that they affect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal import output
from orchestrator.core.slots import parse_slot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.cli.terminal.options import Form
    from orchestrator.control.desired import ActiveCommand, Desired
    from orchestrator.services import Services

SHOWN = 20
"""How many active commands `orc status` shows, so that it stays one screen."""
COLUMN = "active_commands"
_WORDS = {"stop": "stopped", "pause": "paused", "limit": "limited", "log": "log level set"}


async def read_desired_state(services: Services) -> Desired:
    """Read the desired state."""
    from orchestrator.control.records import desired
    from orchestrator.control.signing import signer_of

    return await desired(services.store, signer_of(services.settings, place=services.keys.root))


def active_commands(found: Desired, *slots: str) -> list[dict[str, Any]]:
    """Return a row for each active command, of these slots or of all."""
    names = [slot for slot in slots if slot in found.active] if slots else sorted(found.active)
    return [_row(found.active[name]) for name in names]


def show_affected(
    form: Form, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, key: str, empty: str
) -> None:
    """Print a list whose rows have `active_commands`; a table has that column only when one of them is active."""
    if form == "table":
        columns = [*columns, COLUMN] if any(row[COLUMN] for row in rows) else columns
        rows = [{**row, COLUMN: _in_words(row[COLUMN])} for row in rows]
    output.show_list(form, rows, columns, key=key, empty=empty)


def show_affected_record(form: Form, record: Mapping[str, Any], *, key: str) -> None:
    """Print one thing that has `active_commands`."""
    shown = {**record, COLUMN: _in_words(record[COLUMN])} if form == "table" else record
    output.show_record(form, shown, key=key, skip=(COLUMN,))


def print_active_commands(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the active commands as a table of at most `SHOWN` rows."""
    shown = [
        [output.clean(str(row[name])) for name in ("slot", "state")]
        + [output.ago(row["since"]), output.clean(row["actor"]), output.clean(row["reason"]) or "-"]
        for row in rows[:SHOWN]
    ]
    output.write(output.table(shown, ("slot", "state", "since", "by", "reason")))
    if len(rows) > SHOWN:
        output.write(f"and {len(rows) - SHOWN} more; -o json shows all\n")


def _in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a table cell: `paused by ada@desk: too many errors`."""
    return "; ".join(
        f"{row['state']} by {row['actor']}" + (f": {row['reason']}" if row["reason"] else "") for row in rows
    )


def _row(one: ActiveCommand) -> dict[str, Any]:
    from orchestrator.core.durations import from_instant_ms

    return {
        "slot": one.slot,
        "state": _state(one),
        "actor": one.issued.actor,
        "reason": one.issued.reason,
        "since": from_instant_ms(one.issued.issued_ms),
        "command": one.issued.id,
    }


def _state(one: ActiveCommand) -> str:
    kind = parse_slot(one.slot).verb
    word = _WORDS.get(kind, kind)
    if parse_slot(one.slot)[:2] == ("drain", "worker"):
        return "to end" if one.ends_process else "draining"
    if kind == "drain":
        return "drained"
    if kind in {"limit", "log"}:
        return f"{word} to {getattr(one.command, 'rate' if kind == 'limit' else 'level', '?')}"
    return f"{word}, refuses new tasks" if one.mark in {"r", "b"} else word
