"""What a worker says of commands that stand: once each, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.control.commands import Stop, encode_command
from orchestrator.control.desired import ActiveCommand, Desired
from orchestrator.control.signing import Signer
from orchestrator.core.command_record import VERSION, Issued
from orchestrator.store.keys import PoolKeys
from orchestrator.workers.runtime import receipts
from orchestrator.workers.runtime.active_commands import WorkerCommands
from orchestrator.workers.runtime.in_flight import InFlight
from orchestrator.workers.runtime.receipts import CommandReceipts

if TYPE_CHECKING:
    import pytest


class Sink:
    """Counts the receipts that are sent."""

    def __init__(self) -> None:
        self.rows = 0

    def call(self, call: Any) -> None:
        """Take a batch."""
        self.rows += 1


def standing(count: int) -> Desired:
    """So many sessions are stopped."""
    stops = [Stop(session=f"s{n}") for n in range(count)]
    issued = [Issued(VERSION, f"id-{n}", encode_command(stop), "ann", "", 1, 2, 0) for n, stop in enumerate(stops)]
    slots = [stop.changes[0].slot for stop in stops]
    return Desired(active={slot: ActiveCommand(slot, "-", one) for slot, one in zip(slots, issued, strict=True)})


def test_more_stand_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered once, not again with each change of the state."""
    monkeypatch.setattr(receipts, "KNOWN", 3)
    commands, sink, keys = WorkerCommands(), Sink(), PoolKeys("a:b:c", "p")
    said = CommandReceipts(
        keys=keys,
        worker="w",
        in_flight=InFlight(grace_s=lambda: 1),
        commands=commands,
        signer=lambda: Signer("", "", keys.root),
    )
    commands.desired = standing(10)
    said.acknowledge_active()
    said.send(sink)  # type: ignore[arg-type]
    assert sink.rows == 1
    said.acknowledge_active()
    said.send(sink)  # type: ignore[arg-type]
    assert sink.rows == 1
