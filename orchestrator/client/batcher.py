"""Sends submits: those of many callers together, those of one caller in chunks.

While one call is under way the next batch grows, so nobody waits for a timer. A lone submit is sent by its own caller;
only those that arrive while a call is under way go through `run`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import checkpoint

from orchestrator.core.errors import OrchestratorError, ServerUnavailable, StoreError
from orchestrator.store.calls import pack_rows
from orchestrator.tasks import scripts
from orchestrator.tasks.scripts import UnusualRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from anyio.abc import TaskGroup

    from orchestrator.services import Services
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow

BATCH_ROWS: Final = 500
CHUNK_ROWS: Final = 250
"""Of many, the first chunk leaves the sooner, and the server is done with one about when the next is there."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""One call never carries more than this, so that it holds the server for milliseconds only."""


class Batcher:
    """Sends submit rows in batches, in the order they came."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._max_tasks = services.settings.queue.max_tasks
        self._max_wait_s = round(services.settings.queue.max_wait_s)
        self._retry_for_s = services.settings.redis.command_timeout_s
        self._pending: deque[tuple[SubmitRow, asyncio.Future[SubmitAnswer]]] = deque()
        self._busy = False
        self._wake = anyio.Event()

    async def add(self, row: SubmitRow) -> SubmitAnswer:
        """Send one row, alone or with others."""
        if self._busy:
            answer: asyncio.Future[SubmitAnswer] = asyncio.get_running_loop().create_future()
            self._pending.append((row, answer))
            return await answer
        self._busy = True
        try:
            return (await self.send([row]))[0]
        finally:
            # While others wait, the lead goes to `run`: whoever submits in a loop would take it again and again.
            self._busy = bool(self._pending)
            if self._pending:
                self._wake.set()

    async def run(self) -> None:
        """Send what piled up behind a call, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._pending:
                await self._send_pending()
            self._busy = False

    def _take_pending(self) -> list[tuple[SubmitRow, asyncio.Future[SubmitAnswer]]]:
        batch: list[tuple[SubmitRow, asyncio.Future[SubmitAnswer]]] = []
        while self._pending and len(batch) < BATCH_ROWS:
            row, answer = self._pending.popleft()
            if not answer.done():  # else its caller was cancelled before anything was sent
                batch.append((row, answer))
        if batch:
            size = len(next(_split_to_fit([row for row, _ in batch])))
            self._pending.extendleft(reversed(batch[size:]))
            del batch[size:]
        return batch

    async def _send_pending(self) -> None:
        batch = self._take_pending()
        try:
            answers = await self.send([row for row, _ in batch]) if batch else []
        except OrchestratorError as failure:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(failure)
        except BaseException:
            lost = ServerUnavailable("the client was closed before the submit was answered", outcome_unknown=True)
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(lost)
            raise
        else:
            for (_, answer), given in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(given)

    async def send(self, rows: Sequence[SubmitRow]) -> list[SubmitAnswer]:
        """Send up to 500 rows now. Repeated while Redis does not answer: a row that arrived before is no new task."""
        answers = await self._send_once(rows)
        # So many tasks of a lane had to end before a new one that one call did not do.
        while crowded := [place for place, answer in enumerate(answers) if answer.status == "crowded"]:
            for place, answer in zip(crowded, await self._send_once([rows[place] for place in crowded]), strict=True):
                answers[place] = answer
        return answers

    async def _send_once(self, rows: Sequence[SubmitRow]) -> list[SubmitAnswer]:
        call = scripts.submit(self._services.keys, rows=rows, max_tasks=self._max_tasks, max_wait_s=self._max_wait_s)
        return await self._services.store.call(call, retry_for_s=self._retry_for_s)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[Sending]:
        """Send chunks one after another; when the block ends, all have been answered or given up."""
        async with anyio.create_task_group() as group:
            yield Sending(self, group)

    def close(self) -> None:
        """Let nobody wait for a batcher that has stopped."""
        while self._pending:
            _, answer = self._pending.popleft()
            if not answer.done():
                answer.set_exception(OrchestratorError("the client was closed before the task was sent"))


class Sending:
    """Chunks of rows on their way, two at a time, so that the server has the next one when it is done with one."""

    def __init__(self, batcher: Batcher, group: TaskGroup) -> None:
        self._batcher, self._group = batcher, group
        self._room = anyio.Semaphore(2, fast_acquire=True)
        self._outcomes: list[Sequence[SubmitAnswer | StoreError]] = []
        self._failure: StoreError | None = None

    async def send(self, rows: Sequence[SubmitRow]) -> None:
        """Send the next chunk when there is room; not at all once one has failed."""
        for part in _split_to_fit(rows):
            # Two on their way may overtake each other, so what has an order goes alone.
            room = 2 if any(isinstance(row, UnusualRow) and row.lane for row in part) else 1
            for _ in range(room):
                await self._room.acquire()
            place = len(self._outcomes)
            self._outcomes.append(())
            self._group.start_soon(self._send, place, part, room)
        # One turn of the event loop for the call to be written, one for it to leave, while the next chunk is prepared.
        await checkpoint()
        await checkpoint()

    async def _send(self, place: int, rows: Sequence[SubmitRow], room: int) -> None:
        try:
            if self._failure is None:
                self._outcomes[place] = await self._batcher.send(rows)
            else:
                self._outcomes[place] = [_unsent(self._failure)] * len(rows)
        except StoreError as failure:
            self._failure = failure
            lost = failure.outcome_unknown
            self._outcomes[place] = [unanswered(failure, [row.id]) if lost else failure for row in rows]
        finally:
            for _ in range(room):
                self._room.release()

    def outcomes(self) -> Iterator[SubmitAnswer | StoreError]:
        """What became of each row, in order; to be asked at the end."""
        return chain.from_iterable(self._outcomes)


def _split_to_fit(rows: Sequence[SubmitRow]) -> Iterator[Sequence[SubmitRow]]:
    """Cut what would be too much for one call."""
    if len(rows) > 1 and len(pack_rows(rows)) > BATCH_BYTES:
        middle = len(rows) // 2
        yield from _split_to_fit(rows[:middle])
        yield from _split_to_fit(rows[middle:])
    else:
        yield rows


def unanswered(failure: BaseException | None, ids: Sequence[str]) -> ServerUnavailable:
    """What the caller of a submit is told whose outcome nobody knows."""
    tasks = f"task {ids[0]} may have arrived" if len(ids) == 1 else f"{len(ids)} tasks may have arrived (see task_ids)"
    lost = ServerUnavailable(
        f"{failure}; {tasks}: ask orc.task(id), or submit again with the same key", outcome_unknown=True, task_ids=ids
    )
    lost.__cause__ = failure
    return lost


def _unsent(failure: StoreError) -> StoreError:
    """The outcome of those behind a chunk that failed."""
    if not failure.outcome_unknown:
        return failure
    return ServerUnavailable(f"was not sent, because those before it got no answer: {failure}")
