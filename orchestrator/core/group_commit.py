"""Group commit: concurrent callers share calls to Redis. While one call is in flight, the next batch grows.

At rest a lone row is sent by its own caller. Where recent calls met others, a row first waits for those that arrive in
the same turns of the event loop (docs/internals/adr/0062). No row waits for a timer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from orchestrator.core.errors import OrchestratorError, ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

MAX_ROWS: Final = 500
MAX_BYTES: Final = 256 * 1024
"""Bounds of one call, so that it occupies the server for less than 2 ms. Each pass of a kilobyte through a script takes
about a microsecond."""
MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
MAX_GATHER_S: Final = 0.0005
"""Longest time for which rows wait for others; the time of the last call is a limit too."""
GATHER_ABOVE: Final = 1.25
"""Rows wait for others while recent calls carried more rows than this on average, with those that came meanwhile."""
LOAD_CALLS: Final = 8
"""Weight of the average: calls after which it has followed two thirds of a change."""

Row = TypeVar("Row")
Answer = TypeVar("Answer")


class GroupCommit(Generic[Row, Answer]):
    """Sends rows in batches, in the order in which they arrive.

    Args:
        owner: named in errors: `client` or `worker`.
        send: sends one batch and returns one answer per row.
        size: returns the bytes that a row adds to a call.
        max_waiting_bytes: `wait_for_room` blocks while at least this much waits behind a call.
        max_rows, max_bytes: bounds of one batch.
        sends_lone: at rest, a row that finds no call in flight is sent at once; else it waits a turn of the event loop
            for others, which is right where a call takes much longer than a round trip.
    """

    def __init__(
        self,
        owner: str,
        send: Callable[[Sequence[Row]], Awaitable[Sequence[Answer]]],
        *,
        size: Callable[[Row], int],
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        sends_lone: bool = True,
    ) -> None:
        self._owner, self._send, self._size, self._max_waiting_bytes = owner, send, size, max_waiting_bytes
        self._max_rows, self._max_bytes, self._sends_lone = max_rows, max_bytes, sends_lone
        self._waiting: deque[tuple[Row, asyncio.Future[Answer] | None, int]] = deque()
        self._waiting_bytes = 0
        self._busy = self._closed = False
        self._load, self._call_s, self._last_rows = 1.0, 0.0, 1
        self._wake, self._room = anyio.Event(), anyio.Event()

    async def add(self, row: Row) -> Answer:
        """Send one row, alone or in a batch, and return its answer.

        Raises:
            OrchestratorError: what `send` raised; or the row was not sent because its owner has closed.
            ServerUnavailable: its owner has closed before Redis answered.
        """
        if self._closed:
            raise self._unsent()
        if self._busy or self._gathers or not self._sends_lone:
            if not self._busy:
                self._busy = True
                self._wake.set()
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._queue(row, answer)
            return await answer
        self._busy = True
        try:
            return (await self._timed([row]))[0]
        finally:
            # `run` takes over while rows wait: a caller that submits in a loop would send for all the others.
            self._busy = bool(self._waiting)
            if self._waiting:
                self._wake.set()

    def put(self, row: Row) -> None:
        """Queue a row whose answer `send` handles itself; `send` must not fail."""
        self._queue(row, None)
        if not self._busy:
            self._busy = True
            self._wake.set()

    def _queue(self, row: Row, answer: asyncio.Future[Answer] | None) -> None:
        size = self._size(row)
        self._waiting.append((row, answer, size))
        self._waiting_bytes += size

    async def wait_for_room(self) -> None:
        """Wait while too many bytes are queued, as in an outage."""
        while self._waiting_bytes >= self._max_waiting_bytes and not self._closed:
            await self._room.wait()

    async def run(self) -> None:
        """Send queued rows until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                if self._gathers or not self._sends_lone:
                    # One turn of the event loop: rows that arrive in the same turn share a call.
                    await checkpoint()
                while self._waiting:
                    if self._gathers:
                        await self._gather()
                    await self._send_waiting()
                self._busy = False
        finally:
            self.close()

    def close(self) -> None:
        """Refuse new rows, and fail those that wait."""
        self._closed = True
        while self._waiting:
            self._fail(self._take(), self._unsent())
        self._announce_room()

    @property
    def _gathers(self) -> bool:
        return self._load > GATHER_ABOVE

    async def _gather(self) -> None:
        """Wait for further rows until a turn of the event loop brings none, or as many wait as the last call had."""
        ends_s = time.monotonic() + min(self._call_s, MAX_GATHER_S)
        while (count := len(self._waiting)) < self._last_rows or count == 1:
            await checkpoint()
            if len(self._waiting) == count or time.monotonic() >= ends_s:
                return

    async def _timed(self, rows: Sequence[Row]) -> Sequence[Answer]:
        started_s = time.monotonic()
        answers = await self._send(rows)
        self._call_s, self._last_rows = time.monotonic() - started_s, len(rows)
        self._load += (len(rows) + len(self._waiting) - self._load) / LOAD_CALLS
        return answers

    async def _send_waiting(self) -> None:
        batch = self._take()
        if not batch:
            return
        try:
            answers = await self._timed([row for row, _ in batch])
        except OrchestratorError as failure:
            self._fail(batch, failure)
        except BaseException:
            lost = f"the {self._owner} was closed before Redis answered"
            self._fail(batch, ServerUnavailable(lost, outcome_unknown=True))
            raise
        else:
            for (_, answer), given in zip(batch, answers, strict=True):
                if answer is not None and not answer.done():
                    answer.set_result(given)

    def _take(self) -> list[tuple[Row, asyncio.Future[Answer] | None]]:
        batch: list[tuple[Row, asyncio.Future[Answer] | None]] = []
        total = 0
        while self._waiting and len(batch) < self._max_rows:
            row, answer, size = self._waiting[0]
            if batch and total + size > self._max_bytes:
                break
            self._waiting.popleft()
            self._waiting_bytes -= size
            if answer is None or not answer.done():  # else its caller was cancelled
                batch.append((row, answer))
                total += size
        if self._waiting_bytes < self._max_waiting_bytes:
            self._announce_room()
        return batch

    def _announce_room(self) -> None:
        # All waiters share the event, so a waiter must not replace it.
        self._room.set()
        self._room = anyio.Event()

    @staticmethod
    def _fail(batch: Sequence[tuple[Row, asyncio.Future[Answer] | None]], failure: Exception) -> None:
        for _, answer in batch:
            if answer is not None and not answer.done():
                answer.set_exception(failure)

    def _unsent(self) -> OrchestratorError:
        return OrchestratorError(f"the {self._owner} was closed before this was sent")


def split_to_fit(
    rows: Sequence[Row], size: Callable[[Row], int], *, max_bytes: int = MAX_BYTES
) -> Iterator[Sequence[Row]]:
    """Cut rows into parts of at most `max_bytes`; a larger row is a part of its own."""
    start = total = 0
    for end, row in enumerate(rows):
        added = size(row)
        if end > start and total + added > max_bytes:
            yield rows[start:end]
            start, total = end, 0
        total += added
    yield rows[start:]
