"""Formats the active operator commands for what shows agents, queues, workers or everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.control.desired import ActiveCommand, Desired
    from orchestrator.services import Services

SHOWN = 20
"""Active commands on the screen of everything: it stays one screen, however many sessions are stopped."""
_WORDS = {"stop": "stopped", "pause": "paused", "limit": "limited", "log": "log level set"}


async def read_desired_state(services: Services) -> Desired:
    """What is active now."""
    from orchestrator.control.records import desired
    from orchestrator.control.signing import signer_of

    return await desired(services.store, signer_of(services.settings, place=services.keys.root))


def active_commands(found: Desired, *slots: str) -> list[dict[str, Any]]:
    """The active commands in these slots, or in all."""
    wanted: Mapping[str, ActiveCommand] = found.active
    names = [slot for slot in slots if slot in wanted] if slots else sorted(wanted)
    return [_row(wanted[name]) for name in names]


def in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Active commands in a cell of a table: `paused by ada@desk: too many errors`."""
    return "; ".join(
        f"{row['state']} by {row['actor']}" + (f": {row['reason']}" if row["reason"] else "") for row in rows
    )


def print_active_commands(rows: Sequence[Mapping[str, Any]]) -> None:
    """The active commands as a table for the screen of everything."""
    shown = [
        [output.clean(str(row[name])) for name in ("slot", "state")]
        + [output.ago(row["since"]), output.clean(row["actor"]), output.clean(row["reason"]) or "-"]
        for row in rows[:SHOWN]
    ]
    output.write(output.table(shown, ("slot", "state", "since", "by", "reason")))
    if len(rows) > SHOWN:
        output.write(f"and {len(rows) - SHOWN} more; -o json has all\n")


def _row(one: ActiveCommand) -> dict[str, Any]:
    from orchestrator.core.durations import from_instant_ms

    kind = one.slot.partition(":")[0]
    return {
        "slot": one.slot,
        "state": _state(kind, one),
        "actor": one.issued.actor,
        "reason": one.issued.reason,
        "since": from_instant_ms(one.issued.issued_ms),
        "command": one.issued.id,
    }


def _state(kind: str, one: ActiveCommand) -> str:
    if one.slot.startswith("drain:worker:"):
        return "to end" if one.ends_process else "draining"
    if kind == "drain":
        return "drained"
    word = _WORDS.get(kind, kind)
    if kind == "limit":
        return f"{word} to {getattr(one.command, 'rate', '?')}"
    if kind == "log":
        return f"{word} to {getattr(one.command, 'level', '?')}"
    return f"{word}, refuses new tasks" if one.mark in {"r", "b"} else word
