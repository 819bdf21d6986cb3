"""The command listener: reads commands, notes and the desired state in the heartbeat thread, and tells the event loop.

It does not need the event loop, so a stop command reaches a worker whose loop is blocked.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final

from orchestrator.control.desired import read_desired
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_whole
from orchestrator.workers.runtime.active_commands import interrupted
from orchestrator.workers.runtime.control_reader import MAX_BYTES, NOTHING, ControlReader
from orchestrator.workers.runtime.receipts import CommandReceipts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from orchestrator.control.desired import Desired
    from orchestrator.control.signing import Signer
    from orchestrator.services import SyncStore
    from orchestrator.workers.runtime.control_reader import Note
    from orchestrator.workers.runtime.parts import WorkerParts

LISTEN_BACK_S: Final = 1
"""The first read starts this long before now, so that no command falls between the desired state and the stream."""
_log = get_logger(__name__)


class CommandListener:
    """Applies commands and notes to one worker.

    Args:
        parts: of the worker.
        loop: its event loop.
        on_changed: called in the event loop when the desired state has changed.
        on_suspects: called in the event loop when suspects wait.
        on_awaited: called in the event loop with an agent when awaited tasks may arrive in its inbox.
        wake: ends the wait of the heartbeat thread; safe from any thread.
        connect_timeout_s: limit for a connection.
        retry_cap_s: longest pause before it connects again.
    """

    def __init__(
        self,
        parts: WorkerParts,
        *,
        loop: asyncio.AbstractEventLoop,
        on_changed: Callable[[], None],
        on_suspects: Callable[[], None],
        on_awaited: Callable[[str], None],
        wake: Callable[[], None],
        connect_timeout_s: float,
        retry_cap_s: float,
    ) -> None:
        self._parts, self._loop, self._wake = parts, loop, wake
        self._on_changed, self._on_suspects, self._on_awaited = on_changed, on_suspects, on_awaited
        self._connect_timeout_s, self._retry_cap_s = connect_timeout_s, retry_cap_s
        self._receipts = CommandReceipts(
            keys=parts.services.keys,
            worker=parts.worker,
            in_flight=parts.in_flight,
            commands=parts.commands,
            signer=lambda: self._signer,
        )
        self._reader: ControlReader | None = None
        self._unchecked: list[tuple[str, Sequence[bytes]]] = []
        self._state_outdated = True
        self._known_until_s = 0.0
        self._notifying = False

    @property
    def _signer(self) -> Signer:
        return signer_of(self._parts.services.settings, place=self._parts.services.keys.root)

    def refresh(self) -> None:
        """Read the desired state again soon; safe from any thread."""
        self._state_outdated = True
        self._wake()

    def check_sequence(self, sequence: str, *, known_until_s: float) -> None:
        """Read the desired state again soon, unless it has this sequence number.

        Args:
            sequence: number of the stored state.
            known_until_s: how long the registry has this worker (see `WorkerCommands`).
        """
        if sequence != str(self._parts.commands.desired.seq):
            self._state_outdated = True
        self._known_until_s = known_until_s

    @property
    def connected(self) -> bool:
        """True if it has opened its connection."""
        return self._reader is not None

    def fileno(self) -> int | None:
        """Return the file descriptor of a read under way."""
        return self._reader.fileno() if self._reader is not None and self._reader.listening else None

    def wait_s(self, *, reachable: bool) -> float:
        """Return the seconds until `turn` must run even if nothing arrives."""
        if self._reader is not None and (self._reader.listening or reachable):
            return self._reader.wait_s()
        return math.inf

    def turn(self, store: SyncStore, *, reachable: bool) -> bool:
        """Read what has arrived and act on it.

        Args:
            store: for the desired state and for receipts.
            reachable: whether the last heartbeat succeeded; without that it does not spend time on connecting.

        Returns:
            False if it may have missed something, so that the next heartbeat is due.

        Raises:
            StoreError: Redis did not answer.
        """
        received = NOTHING
        if self._reader is None and reachable:
            self._reader = self._open_reader(store)
        if self._reader is not None and (self._reader.listening or reachable):
            received = self._reader.turn()
        for note in received.notes:
            _log.debug("note_received", kind=note.kind)
            self._handle_note(note)
        self._unchecked += received.commands
        self._state_outdated = self._state_outdated or received.gap or bool(received.commands)
        if reachable:
            self.process(store)
        return not received.gap

    def process(self, store: SyncStore) -> None:
        """Read the desired state if it may have changed, apply it, and send receipts.

        Raises:
            StoreError: Redis did not answer.
        """
        if self._state_outdated:
            keys = self._parts.services.keys
            merged = self._parts.commands.accept(self._read_desired(store))
            self._notify_loop()
            for call in merged.calls(keys, self._signer):
                store.call(call)
            self._state_outdated = not merged.complete
            self._receipts.acknowledge_active()
        if not self._state_outdated:
            # Only now: a stop that was given while the registry did not have this worker is in the state just read.
            commands = self._parts.commands
            was_outdated, commands.known_until_s = commands.outdated, max(self._known_until_s, commands.known_until_s)
            if was_outdated:
                self._notify_loop()
        entries, self._unchecked = self._unchecked, []
        if entries:
            try:
                self._receipts.receive(store, entries)
            except StoreError:
                self._unchecked = entries
                raise
        # Set before `settle` looks, so that it misses no attempt that ends meanwhile.
        self._parts.in_flight.on_drop = self._wake if self._receipts.waiting else None
        self._receipts.settle()
        self._receipts.send(store)

    def _read_desired(self, store: SyncStore) -> Desired:
        # A command or an end that comes between the two reads would have no revision, or an older one: this worker
        # could not write it back, and so must not acknowledge it.
        keys = self._parts.services.keys
        revisions = store.execute("HGETALL", keys.desired_revisions)
        while True:
            reply = store.execute("HGETALL", keys.desired)
            again = store.execute("HGETALL", keys.desired_revisions)
            if again == revisions:
                return read_desired(reply, self._signer, revisions)
            revisions = again

    def close(self) -> None:
        """Close the connection."""
        self._parts.in_flight.on_drop = None
        if self._reader is not None:
            self._reader.close()

    def _open_reader(self, store: SyncStore) -> ControlReader:
        seconds, _ = store.execute("TIME")
        return ControlReader(
            store.long_read(name="listener", connect_timeout_s=self._connect_timeout_s, max_bytes=MAX_BYTES),
            keys=self._parts.services.keys,
            worker=self._parts.worker,
            since=f"{read_whole(seconds) - LISTEN_BACK_S}000-0",
            retry_cap_s=self._retry_cap_s,
        )

    def _handle_note(self, note: Note) -> None:
        if note.kind == "suspects":
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._on_suspects)
        if note.kind == "awaited":
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._on_awaited, note.task_id)
        if note.kind != "cancel":
            return
        in_flight = self._parts.in_flight
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(in_flight.cancel, note.task_id, note.generation)
        # At once for a handler in a thread, or one that blocks the loop: it reads `ctx.cancelled`.
        attempt = in_flight.find(note.task_id, note.generation)
        if attempt is not None:
            attempt.mark_cancelled()

    def _notify_loop(self) -> None:
        def notify() -> None:
            self._notifying = False
            self._on_changed()

        if not self._notifying:
            self._notifying = True
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(notify)
        for attempt, _ in interrupted(self._parts.commands.desired, self._parts.in_flight):
            attempt.mark_cancelled()
