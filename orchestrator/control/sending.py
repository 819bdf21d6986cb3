"""Sends a command: adds the server's time and the pool's epoch, signs it, and calls `control/append`."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.control import scripts
from orchestrator.control.commands import (
    ClearLimit,
    Command,
    Job,
    SetBudget,
    SetLimit,
    SetShare,
    TimedPause,
    encode_command,
)
from orchestrator.control.desired import read_number
from orchestrator.control.scripts import AppendStatus
from orchestrator.control.signing import signer_of
from orchestrator.core.amounts import show_amount
from orchestrator.core.command_record import VERSION, Issued, check_said, pack_issued
from orchestrator.core.errors import CommandRefused, StoreError
from orchestrator.core.formats import Feature
from orchestrator.core.ids import new_task_id, new_token
from orchestrator.core.rates import parse_rate
from orchestrator.core.reading import read_whole
from orchestrator.core.scrubbing import mask_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store

SELECT_BATCH: Final = 500

_REFUSALS: Final = {
    AppendStatus.REPLAYED: "it was given before",
    AppendStatus.EXPIRED: "it arrived too late; give it again",
    AppendStatus.EARLY: "its time of issue is in the future; check the clock of Redis",
    AppendStatus.STALE: "it was issued before `orc control renew`; give it again",
    AppendStatus.ENDED: "the restore that gave it has ended, or another run has replaced it",
    AppendStatus.HELD: "a pause that ends later is active",
    AppendStatus.USED: "attempts hold amounts of the budget, or tasks wait for it; cancel these, or raise the budget",
    AppendStatus.DAMAGED: "keys of the budget are damaged; `orc keys check` names them",
    AppendStatus.BUSY: "more commands than control.per_minute were given in this minute; try again in the next one",
}


@dataclass(frozen=True, slots=True)
class AcceptedCommand:
    """Ids of an accepted command.

    Attributes:
        id: of the command.
        entry: of its entry in the control stream.
    """

    id: str
    entry: str


def this_actor() -> str:
    """Return the default actor: user and host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


async def send(
    store: Store,
    settings: Settings,
    command: Command,
    *,
    actor: str | None = None,
    reason: str = "",
    tasks: Sequence[str] = (),
    retry_for_s: float = 0.0,
    restore: str = "",
    id_: str | None = None,
) -> AcceptedCommand:
    """Send a command.

    Args:
        store: of the pool.
        settings: secret and validity of commands.
        command: the command.
        actor: user and host of this process by default.
        reason: for the record.
        tasks: the selected tasks of a job.
        retry_for_s: retry for this time while Redis does not answer; the command takes effect once.
        restore: mark of the restore of a backup that sends it; it is refused when that has ended.
        id_: a new task id that the caller chose, so that a repeat of the whole call is refused as replayed.

    Raises:
        CommandRefused: Redis did not accept it; nothing changed.
        UpgradeUnfinished: a pause with an end, a share or a budget, and the pool admits programs that do not know
            it.
        InvalidInput: actor or reason is too long or not valid Unicode.
        StoreError: Redis did not answer.
    """
    keys, signer = store.keys, signer_of(settings, place=store.keys.root)
    actor, reason = actor or this_actor(), mask_known(reason)
    check_said(actor, reason)
    if isinstance(command, Job):
        command = command.selecting(tasks)
    if isinstance(command, TimedPause):
        await store.require(Feature.TIMED_PAUSES)
    if getattr(command, "family", None) is not None:
        await store.require(Feature.FAMILY_STOPS)
    if isinstance(command, ClearLimit):
        await store.require(Feature.PROVIDER_LIMITS)
    if isinstance(command, SetShare):
        await store.require(Feature.FAIR_SHARES)
    budget = command.definition if isinstance(command, SetBudget) else None
    if budget is not None:
        await store.require(Feature.BUDGETS)
    issued = await _issue(store, settings, command, id_=id_ or new_task_id(), actor=actor, reason=reason)
    for at in range(0, len(tasks), SELECT_BATCH):
        batch = tasks[at : at + SELECT_BATCH]
        await store.call(scripts.select(keys, id_=issued.id, at=at, tasks=batch), retry_for_s=retry_for_s)
    packed = pack_issued(issued)
    rate = parse_rate(command.rate) if isinstance(command, SetLimit) else None
    call = scripts.append(
        keys,
        issued=issued,
        packed=packed,
        signature=signer.sign(packed),
        changes=[scripts.ChangeRow.of(slot, mark, rate, budget) for slot, mark in command.changes],
        job=command.job,
        per_minute=settings.control.per_minute,
        token=new_token(),
        restore=restore,
    )
    answer = await store.call(call, retry_for_s=retry_for_s)
    if answer.status is AppendStatus.BELOW:
        unit, _, spent = answer.entry.partition(" ")
        said = f"{show_amount(read_whole(spent))} {unit} is spent already; set a limit of at least that"
        raise CommandRefused(issued.id, answer.status, f"command {command.kind} was refused: {said}")
    if answer.status is not AppendStatus.ACCEPTED:
        raise CommandRefused(
            issued.id, answer.status, f"command {command.kind} was refused: {_REFUSALS[answer.status]}"
        )
    return AcceptedCommand(issued.id, answer.entry)


async def _issue(store: Store, settings: Settings, command: Command, *, id_: str, actor: str, reason: str) -> Issued:
    now_ms, epoch = await _clock_and_epoch(store)
    if isinstance(command, TimedPause):
        command = command.ending(now_ms)
    return Issued(
        version=VERSION,
        id=id_,
        command=encode_command(command),
        actor=actor,
        reason=reason,
        issued_ms=now_ms,
        not_after_ms=now_ms + round(settings.control.valid_s * 1000),
        epoch=epoch,
        key=signer_of(settings, place=store.keys.root).key,
    )


async def _clock_and_epoch(store: Store) -> tuple[int, int]:
    time, epoch = await store.pipeline([("TIME",), ("HGET", store.keys.desired, "epoch")])
    for reply in (time, epoch):
        if isinstance(reply, StoreError):
            raise reply
    return read_whole(time[0]) * 1000 + read_whole(time[1]) // 1000, read_number(epoch or b"")
