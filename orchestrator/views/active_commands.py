"""Reads the active control commands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.control.desired import read_desired as parse_fields
from orchestrator.control.records import desired
from orchestrator.control.signing import signer_of
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.reading import read_whole
from orchestrator.core.slots import parse_slot
from orchestrator.tasks.queries import server_ms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.control.commands import SetShare
    from orchestrator.control.desired import ActiveCommand, Desired
    from orchestrator.control.signing import Signer
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class ActiveCommandView:
    """An active control command.

    Attributes:
        slot: its slot, as `stop:agent:editor`.
        verb: `stop`, `pause`, `hold` (a pause with an end), `drain`, `limit`, `share` or `log`.
        kind: of a stop, pause, hold or drain: `all`, `agent`, `session`, `family`, `skill`, `queue`, `limit` or
            `worker`.
        name: of the agent, session, skill, queue, worker or limit, or the encoded key of a share.
        refuses: of a stop: new tasks are refused.
        ends_process: of the drain of a worker: it exits when it has drained.
        value: the rate of a limit, the log level, or weight and cap of a share.
        until: the end of a pause that has one.
        actor: who gave it.
        reason: of the command.
        since: time of issue.
        command: id of the command.
    """

    slot: str
    verb: str
    kind: str
    name: str
    refuses: bool
    ends_process: bool
    value: str | None
    actor: str
    reason: str
    since: datetime
    command: str
    until: datetime | None = None


async def read_desired(services: Services) -> Desired:
    """Read the desired state with its signatures checked, without pauses that have ended."""
    found = await desired(services.store, _signer(services))
    if not any(parse_slot(slot).verb == "hold" for slot in found.active):
        return found
    return _without_ended(found, await server_ms(services.store))


def desired_reads(services: Services) -> list[tuple[str, ...]]:
    """Return the two commands that read the desired state, for a view that sends them with others."""
    return [("HGETALL", services.keys.desired), ("TIME",)]


def parse_desired(services: Services, fields: Sequence[bytes], time: Sequence[bytes]) -> Desired:
    """Return what `read_desired` does, from the replies to `desired_reads`."""
    return _without_ended(parse_fields(fields or (), _signer(services)), time_ms(time))


def time_ms(reply: Sequence[bytes]) -> int:
    """Return the time of the server from the reply to TIME."""
    return read_whole(reply[0]) * 1000 + read_whole(reply[1]) // 1000


def _without_ended(found: Desired, now_ms: int) -> Desired:
    active = {slot: one for slot, one in found.active.items() if one.until_ms is None or one.until_ms > now_ms}
    return replace(found, active=active)


def _signer(services: Services) -> Signer:
    return signer_of(services.settings, place=services.keys.root)


async def read_stops(services: Services) -> list[ActiveCommandView]:
    """Read the active stops, and the pauses with an end, by slot."""
    found = await read_desired(services)
    return [view(one) for slot, one in sorted(found.active.items()) if parse_slot(slot).verb in {"stop", "hold"}]


def of_slots(found: Desired, *slots: str) -> tuple[ActiveCommandView, ...]:
    """Return the active commands of these slots."""
    return tuple(view(found.active[slot]) for slot in slots if slot in found.active)


def view(one: ActiveCommand) -> ActiveCommandView:
    """Return the view of an active command."""
    from orchestrator.control.commands import SetLimit, SetLogLevel, SetShare

    slot = parse_slot(one.slot)
    command = one.command if slot.verb in {"limit", "log", "share"} else None
    rate = command.rate if isinstance(command, SetLimit) else None
    level = command.level if isinstance(command, SetLogLevel) else None
    share = _share(command) if isinstance(command, SetShare) else None
    return ActiveCommandView(
        slot=one.slot,
        verb=slot.verb,
        kind=slot.kind,
        name=slot.name,
        refuses=one.mark in {"r", "b"},
        ends_process=one.ends_process,
        value=rate or level or share,
        actor=one.issued.actor,
        reason=one.issued.reason,
        since=from_instant_ms(one.issued.issued_ms),
        command=one.issued.id,
        until=None if one.until_ms is None else from_instant_ms(one.until_ms),
    )


def _share(command: SetShare) -> str:
    most = "" if command.at_most is None else f", at most {command.at_most}"
    return f"weight {command.weight}{most}"
