"""Finds what Redis has lost of the desired state, by comparing it with what a reader knows.

Every command notes a revision for its slots. So the newer of two values of a slot is known, and a slot whose command
has ended differs from one that is lost. docs/internals/adr/0018 has the reasons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.control import scripts
from orchestrator.control.commands import SetLimit
from orchestrator.control.scripts import RestoreRow
from orchestrator.core.rates import parse_rate
from orchestrator.core.reading import read_whole
from orchestrator.core.slots import parse_slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.desired import ActiveCommand, Desired
    from orchestrator.control.signing import Signer
    from orchestrator.store.calls import Call
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.store import Store

BATCH: Final = 500
PRUNE_AFTER_MS: Final = 3_600_000
"""A reader that was cut off for longer cannot tell whether a command has ended or was lost, and takes it as ended."""


class Merged(NamedTuple):
    """The newer parts of two desired states.

    Attributes:
        desired: the state that holds.
        rows: slots that must be written back to Redis.
        lost: slots for which Redis had an older command, or none.
        complete: False if Redis has lost anything.
    """

    desired: Desired
    rows: Sequence[RestoreRow] = ()
    lost: Sequence[str] = ()
    complete: bool = True

    def calls(self, keys: PoolKeys, signer: Signer) -> list[Call[int]]:
        """Return the script calls that write it back."""
        if self.complete:
            return []
        starts = range(0, max(1, len(self.rows)), BATCH)
        return [
            scripts.restore(
                keys,
                rows=self.rows[at : at + BATCH],
                verified=signer.wanted,
                epoch=self.desired.epoch,
                # With the last batch: the script takes older revisions for ended ones from then on.
                pruned=self.desired.pruned if at == starts[-1] else 0,
            )
            for at in starts
        ]


def merge(known: Desired, stored: Desired) -> Merged:
    """Take each slot from the state that has it in the newer revision; `known` was read before `stored`."""
    rows: list[RestoreRow] = []
    remembered = known.commands
    for slot, revision in known.revisions.items():
        found = stored.revisions.get(slot, 0)
        if revision > found and (found or revision > stored.pruned):
            rows.append(_row(slot, revision, remembered.get(slot)))
    # A reader that was cut off wrote back a command whose end it did not know.
    rows += [
        RestoreRow(slot, known.pruned)
        for slot in stored.commands
        if slot not in known.revisions and 0 < stored.revisions.get(slot, 0) <= known.pruned
    ]
    if not rows and known.epoch <= stored.epoch:
        return Merged(stored)
    commands = stored.commands
    lost: list[str] = []
    for row in rows:
        command = remembered.get(row.slot) if row.value else None
        if command != commands.pop(row.slot, None):
            lost.append(row.slot)
        if command is not None:
            commands[row.slot] = command
    config = {parse_slot(slot).name: found for slot, found in commands.items() if parse_slot(slot).verb == "config"}
    merged = replace(
        stored,
        seq=max(known.seq, stored.seq),
        epoch=max(known.epoch, stored.epoch),
        active={slot: found for slot, found in commands.items() if parse_slot(slot).verb != "config"},
        config=config,
        revisions={**stored.revisions, **{row.slot: row.revision for row in rows}},
        pruned=max(known.pruned, stored.pruned),
    )
    return Merged(merged, rows, lost, complete=False)


def _row(slot: str, revision: int, found: ActiveCommand | None) -> RestoreRow:
    if found is None:
        return RestoreRow(slot, revision)
    command: Any = found.command
    if isinstance(command, SetLimit):
        rate = parse_rate(command.rate)
        return RestoreRow(slot, revision, found.value, rate.count, rate.window_us)
    return RestoreRow(slot, revision, found.value)


async def prune_revisions(store: Store, stored: Desired) -> None:
    """Remove the revisions of commands that ended long ago.

    Raises:
        StoreError: Redis did not answer.
    """
    active = stored.commands
    ended = [(slot, revision) for slot, revision in stored.revisions.items() if slot not in active]
    if not ended:
        return
    seconds, _ = await store.execute("TIME")
    oldest = read_whole(seconds) * 1000 - PRUNE_AFTER_MS
    old = [(slot, revision) for slot, revision in ended if revision < oldest]
    for at in range(0, len(old), BATCH):
        await store.call(scripts.prune(store.keys, rows=old[at : at + BATCH]))
