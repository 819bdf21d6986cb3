"""Formats the active control commands, also beside the agents, queues, limits and workers that they affect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.cli.terminal.options import Form
    from orchestrator.views.active_commands import ActiveCommandView

SHOWN = 20
"""How many active commands `orc status` shows, so that it stays one screen."""
COLUMN = "active_commands"
_WORDS = {"stop": "stopped", "pause": "paused", "limit": "limited", "share": "share set", "log": "log level set"}


def active_commands(found: Iterable[ActiveCommandView]) -> list[dict[str, Any]]:
    """Return a row for each active command."""
    return [
        {
            "slot": one.slot,
            "state": _state(one),
            "actor": one.actor,
            "reason": one.reason,
            "since": one.since,
            "until": one.until,
            "command": one.command,
        }
        for one in found
    ]


def show_affected(
    form: Form, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, key: str, empty: str
) -> None:
    """Print a list whose rows have `active_commands`; a table has that column only when one of them is active."""
    if form == "table":
        columns = [*columns, COLUMN] if any(row[COLUMN] for row in rows) else columns
        rows = [{**row, COLUMN: in_words(row[COLUMN])} for row in rows]
    output.show_list(form, rows, columns, key=key, empty=empty)


def show_affected_record(form: Form, record: Mapping[str, Any], *, key: str) -> None:
    """Print one thing that has `active_commands`."""
    shown = {**record, COLUMN: in_words(record[COLUMN])} if form == "table" else record
    output.show_record(form, shown, key=key, skip=(COLUMN,))


def print_active_commands(rows: Sequence[Mapping[str, Any]], total: int) -> None:
    """Print the first active commands as a table of at most `SHOWN` rows."""
    shown = [
        [output.clean(str(row[name])) for name in ("slot", "state")]
        + [output.ago(row["since"]), output.clean(row["actor"]), output.clean(row["reason"]) or "-"]
        for row in rows[:SHOWN]
    ]
    output.write(output.table(shown, ("slot", "state", "since", "by", "reason")))
    if total > len(shown):
        more = f"; -o json shows {'all' if len(rows) == total else len(rows)}" if len(rows) > len(shown) else ""
        output.write(f"and {total - len(shown)} more{more}\n")


def in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a table cell: `paused by ada@desk: too many errors`."""
    return "; ".join(
        f"{row['state']} by {row['actor']}" + (f": {row['reason']}" if row["reason"] else "") for row in rows
    )


def _state(one: ActiveCommandView) -> str:
    word = _WORDS.get(one.verb, one.verb)
    if one.verb == "drain":
        return "to end" if one.ends_process else "draining" if one.kind == "worker" else "drained"
    if one.verb == "hold":
        return f"paused until {one.until:%H:%M:%S} UTC" if one.until else "paused"
    if one.verb in {"limit", "share", "log"}:
        return f"{word} to {one.value or '?'}"
    return f"{word}, refuses new tasks" if one.refuses else word
