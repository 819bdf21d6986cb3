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
from orchestrator.services import ReplyTooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import LongRead, PoolKeys

READ_COUNT: Final = 100
"""Entries of each stream that are read at once: in a flood the heartbeat has its turn in between."""

BLOCK_S: Final = 30.0
MARGIN_S: Final = 10.0
"""A read that has no answer so long after its end has lost its connection."""

MAX_BYTES: Final = 16 * 1_048_576
"""A hundred commands are far smaller; whatever is larger is none of ours, and is passed over."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """A note for this worker: `kind` `cancel` asks for the end of one attempt, which its generation names."""

    kind: str
    task_id: str
    generation: str


@dataclass(frozen=True, slots=True)
class Received:
    """What one read brought.

    Attributes:
        commands: entries of the control stream: id and fields.
        notes: for this worker.
        gap: something may have been missed, because the connection was lost.
    """

    commands: Sequence[tuple[str, Sequence[bytes]]] = ()
    notes: Sequence[Note] = ()
    gap: bool = False


NOTHING: Final = Received()


class ControlReader:
    """Reads the pool's control stream and the notes of one worker, in one thread.

    Args:
        link: a connection of its own.
        keys: of the pool.
        worker: whose notes.
        since: entry of the control stream behind which it begins.
        retry_cap_s: the longest pause before it connects again.
    """

    def __init__(self, link: LongRead, *, keys: PoolKeys, worker: str, since: str, retry_cap_s: float) -> None:
        self._link = link
        self._streams = (keys.control, keys.notes(worker))
        # Nobody else has had this worker's id: all of its notes are news.
        self._cursors = {self._streams[0]: since, self._streams[1]: "0-0"}
        self._pauses = Pauses(cap_s=retry_cap_s)
        self._until_s = 0.0
        """As long as it may take, or pauses."""

    @property
    def listening(self) -> bool:
        """Whether a read is under way, so that there is a `fileno`."""
        return self._link.under_way

    def fileno(self) -> int:
        """What becomes readable when there is something to hear."""
        return self._link.fileno()

    def wait_s(self) -> float:
        """Seconds until `turn` wants to be called again, even if nothing becomes readable."""
        return 0.0 if self._link.more else max(0.0, self._until_s - time.monotonic())

    def turn(self) -> Received:
        """Begin to listen, or hear what has come; waits for a connection at most."""
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
            self._cursors[name.decode()] = entries[-1][0].decode()
        commands, notes = (found.get(stream.encode(), []) for stream in self._streams)
        return Received(
            [(entry.decode(), fields) for entry, fields in commands], [_note(fields) for _, fields in notes]
        )

    def _lost(self, failure: StoreError) -> Received:
        self._link.close()
        pause_s = self._pauses.next_s()
        self._until_s = time.monotonic() + pause_s
        _log.warning("command_listener_disconnected", error=str(failure), again_in_s=round(pause_s, 3))
        return Received(gap=True)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def _note(fields: Sequence[bytes]) -> Note:
    said = dict(zip(fields[::2], fields[1::2], strict=False))
    return Note(*(said.get(name, b"").decode(errors="replace") for name in (b"k", b"t", b"g")))
