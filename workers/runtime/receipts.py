"""Sends command receipts: received, then done.

Runs in the heartbeat thread, so that a worker whose event loop is blocked answers too. It applies no command, because
the worker obeys the desired state alone; a command with a wrong signature only gets the receipt `refused`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from orchestrator.control import scripts
from orchestrator.control.commands import DrainWorker, Stop, StopWorker
from orchestrator.control.entries import named_entries, nonces, read_entry, refuse_replays
from orchestrator.control.refusals import Refusals
from orchestrator.control.scripts import ReceiptRow
from orchestrator.core.log import get_logger
from orchestrator.tasks.model import root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.control.commands import Command
    from orchestrator.control.signing import Signer
    from orchestrator.services import PoolKeys, SyncStore
    from orchestrator.workers.runtime.active_commands import WorkerCommands
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.in_flight import InFlight

BATCH_ROWS: Final = 500
KEPT_ROWS: Final = 10_000
"""Most receipts that wait for Redis; the oldest are dropped."""

KNOWN: Final = 10_000
"""Answered commands that are remembered, beside the active ones, which come up again with each change."""

REFUSALS_A_MINUTE: Final = 100
"""Limits the receipts for invalid entries, so that a flood of them does not become a flood of receipts."""

_log = get_logger(__name__)


class CommandReceipts:
    """Answers the commands that are meant for one worker."""

    def __init__(
        self,
        *,
        keys: PoolKeys,
        worker: str,
        in_flight: InFlight,
        commands: WorkerCommands,
        signer: Callable[[], Signer],
    ) -> None:
        self._keys, self._worker, self._signer = keys, worker, signer
        self._in_flight, self._commands = in_flight, commands
        self._known: OrderedDict[str, None] = OrderedDict()
        self._open: dict[str, Stop | DrainWorker | StopWorker] = {}
        self._rows: deque[ReceiptRow] = deque(maxlen=KEPT_ROWS)
        self._refusals = Refusals(REFUSALS_A_MINUTE)

    @property
    def waiting(self) -> bool:
        """True if an open command waits for attempts to end."""
        return bool(self._open)

    def receive(self, store: SyncStore, entries: Sequence[tuple[str, Sequence[bytes]]]) -> None:
        """Verify entries of the control stream and acknowledge those for this worker.

        Raises:
            StoreError: Redis did not answer; `acknowledge_active` does not depend on that.
        """
        verified = [read_entry(entry, fields, self._signer()) for entry, fields in entries]
        ours = [one for one in verified if one.problem or (one.command is not None and self._is_for_us(one.command))]
        replies = [store.execute(*command) for command in nonces(self._keys, ours)]
        active_ids = self._active_ids()
        named = named_entries(ours, replies)
        pages = [store.execute("XRANGE", self._keys.control, first, first) for first in named if first]
        judged = refuse_replays(ours, named, pages)
        # A replay must not replace the receipt of the valid command with the same id.
        for one in self._refusals.take([one for one in judged if one.problem and one.id not in self._known]):
            self._rows.append(ReceiptRow(one.id, self._worker, "refused", one.problem))
        for one in judged:
            if not one.problem and one.command is not None and one.id not in self._known:
                self._acknowledge(one.id, one.command, is_active=one.id in active_ids)

    def acknowledge_active(self) -> None:
        """Acknowledge all active commands that are not answered yet, also those from before the worker started."""
        for found in list(self._commands.desired.active.values()):
            if found.issued.id not in self._known and self._is_for_us(command := found.command):
                self._acknowledge(found.issued.id, command, is_active=True)

    def settle(self) -> None:
        """Complete the open commands that have ended, or whose attempts have."""
        if not self._open:
            return
        active_ids = self._active_ids()
        for id_, command in list(self._open.items()):
            if id_ not in active_ids:
                self._close(id_, "the command has ended")
            elif self._is_finished(command):
                self._close(id_, self._abandoned_handlers())

    def send(self, store: SyncStore) -> None:
        """Send the waiting receipts.

        Raises:
            StoreError: Redis did not answer; the receipts are kept.
        """
        while self._rows:
            batch = [self._rows[i] for i in range(min(BATCH_ROWS, len(self._rows)))]
            store.call(scripts.receipt(self._keys, rows=batch, signer=self._signer()))
            for _ in batch:
                self._rows.popleft()

    def _is_for_us(self, command: Command) -> bool:
        if command.audience == "worker":
            return getattr(command, "worker", None) == self._worker
        return command.audience == "all"

    def _active_ids(self) -> set[str]:
        return {found.issued.id for found in self._commands.desired.active.values()}

    def _acknowledge(self, id_: str, command: Command, *, is_active: bool) -> None:
        self._known[id_] = None
        if len(self._known) > KNOWN + len(self._commands.desired.active):
            self._known.popitem(last=False)
        _log.info("command_received", command=id_, kind=command.kind)
        if isinstance(command, Stop | DrainWorker | StopWorker) and is_active and not self._is_finished(command):
            self._open[id_] = command
            running = sum(attempt.running for attempt in self._affected(command))
            self._rows.append(ReceiptRow(id_, self._worker, "received", f"{running} running"))
            return
        self._rows.append(ReceiptRow(id_, self._worker, "done", self._abandoned_handlers() if is_active else ""))

    def _close(self, id_: str, detail: str) -> None:
        del self._open[id_]
        self._rows.append(ReceiptRow(id_, self._worker, "done", detail))

    def _is_finished(self, command: Stop | DrainWorker | StopWorker) -> bool:
        # A drain is not finished before the event loop has ended the read under way.
        return not self._affected(command) and (isinstance(command, Stop) or self._commands.draining)

    def _affected(self, command: Stop | DrainWorker | StopWorker) -> list[Attempt]:
        """Find the attempts that a command ends; one whose envelope is not read has no skill, and will not start."""
        attempts = self._in_flight.all()
        if not isinstance(command, Stop):
            return attempts
        if command.agent is not None:
            return [one for one in attempts if one.delivery.agent == command.agent]
        if command.skill is not None:
            return [one for one in attempts if one.envelope.skill == command.skill]
        if command.session is not None:
            return [one for one in attempts if one.envelope.session == command.session]
        if command.family is not None:
            return [one for one in attempts if root_of(one.delivery.task_id, one.envelope) == command.family]
        return attempts

    def _abandoned_handlers(self) -> str:
        count = self._in_flight.abandoned_handlers
        return f"{count} abandoned, still running" if count else ""
