"""Reads the control stream and the notes of a worker with one long blocking read.

Both streams announce changes that are stored elsewhere, so after a gap the worker reads the stored state again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.services import ReplyTooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import LongRead, PoolKeys

READ_COUNT: Final = 100
"""Entries of each stream per read, so that a flood of them does not delay heartbeats."""

BLOCK_S: Final = 30.0
MARGIN_S: Final = 10.0
"""Time after the end of a blocking read before the connection counts as lost."""

MAX_BYTES: Final = 16 * 1_048_576
"""Largest reply. A hundred commands are far smaller, so the reader skips anything larger."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """A note for this worker.

    Its `kind` is `cancel`: end the attempt with this generation, `suspects`: some wait for a process with room, or
    `awaited`: awaited tasks may arrive in the inbox of an agent, whose name is in place of the task.
    """

    kind: str
    task_id: str
    generation: str


@dataclass(frozen=True, slots=True)
class Received:
    """The result of one read.

    Attributes:
        commands: entries of the control stream: id and fields.
        notes: notes for this worker.
        gap: the connection was lost, so that entries may be missing.
    """

    commands: Sequence[tuple[str, Sequence[bytes]]] = ()
    notes: Sequence[Note] = ()
    gap: bool = False


NOTHING: Final = Received()


class ControlReader:
    """Reads the pool's control stream and the notes of one worker, in one thread.

    Args:
        link: a connection that it closes.
        keys: of the pool.
        worker: id of the worker.
        since: id of the control stream entry after which it starts.
        retry_cap_s: longest pause before it connects again.
    """

    def __init__(self, link: LongRead, *, keys: PoolKeys, worker: str, since: str, retry_cap_s: float) -> None:
        self._link = link
        self._streams = (keys.control, keys.notes(worker))
        # Worker ids are unique, so all notes of this one are new.
        self._cursors = {self._streams[0]: since, self._streams[1]: "0-0"}
        self._pauses = Pauses(cap_s=retry_cap_s)
        self._until_s = 0.0
        """End of the read under way, or of the pause before the next one."""

    @property
    def listening(self) -> bool:
        """True if a read is under way."""
        return self._link.under_way

    def fileno(self) -> int:
        """Return the file descriptor of the read under way."""
        return self._link.fileno()

    def wait_s(self) -> float:
        """Return the seconds until `turn` must run even if the descriptor does not become readable."""
        return 0.0 if self._link.more else max(0.0, self._until_s - time.monotonic())

    def turn(self) -> Received:
        """Start a read, or take its result. Only connecting blocks."""
        if self._link.under_way:
            return self._take()
        if time.monotonic() < self._until_s:
            return NOTHING
        command: tuple[str | int, ...] = (
            "XREAD", "COUNT", READ_COUNT, "BLOCK", int(BLOCK_S * 1000),
            "STREAMS", *self._streams, *[self._cursors[stream] for stream in self._streams],
        )  # fmt: skip
        try:
            self._link.begin(*command)
        except StoreError as failure:
            return self._lost(failure)
        self._until_s = time.monotonic() + BLOCK_S + MARGIN_S
        return NOTHING

    def _take(self) -> Received:
        try:
            taken = self._link.take()
        except ReplyTooLarge as failure:
            self._cursors = dict.fromkeys(self._streams, "$")
            return self._lost(failure)
        except StoreError as failure:
            return self._lost(failure)
        if taken is None:
            if time.monotonic() > self._until_s:
                return self._lost(StoreError("no answer to a read whose time is over"))
            return NOTHING
        self._until_s = 0.0
        self._pauses.reset()
        found: dict[bytes, list[Any]] = dict(taken[0] or ())
        for name, entries in found.items():
            self._cursors[read_text(name)] = read_text(entries[-1][0])
        commands, notes = (found.get(stream.encode(), []) for stream in self._streams)
        return Received(
            [(read_text(entry), fields) for entry, fields in commands], [_note(fields) for _, fields in notes]
        )

    def _lost(self, failure: StoreError) -> Received:
        self._link.close()
        pause_s = self._pauses.next_s(failure)
        self._until_s = time.monotonic() + pause_s
        _log.failure("command_listener_disconnected", error=failure, retry_in_ms=round(pause_s * 1000))
        return Received(gap=True)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def _note(fields: Sequence[bytes]) -> Note:
    said = dict(zip(fields[::2], fields[1::2], strict=False))
    return Note(*(read_text(said.get(name, b"")) for name in (b"k", b"t", b"g")))
