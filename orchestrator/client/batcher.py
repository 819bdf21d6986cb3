"""Coalesces submits: while one call is under way the next batch grows, so nobody waits for a timer.

A lone submit is sent by its own caller; only those that arrive while a call is under way go through `run`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import OrchestratorError, ServerUnavailable
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow

BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
"""One call never carries more than this, so that it holds the server for milliseconds only."""


class Batcher:
    """Sends submit rows in batches, in the order they came."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._max_tasks = services.settings.queue.max_tasks
        self._max_wait_s = round(services.settings.queue.max_wait_s)
        self._patience_s = services.settings.redis.command_timeout_s
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
        size = 0
        while self._pending and len(batch) < BATCH_ROWS and size < BATCH_BYTES:
            row, answer = self._pending.popleft()
            if not answer.done():  # else its caller was cancelled before anything was sent
                batch.append((row, answer))
                size += len(bytes(row.envelope))
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
        call = scripts.submit(self._services.keys, rows=rows, max_tasks=self._max_tasks, max_wait_s=self._max_wait_s)
        return await self._services.store.call(call, patience_s=self._patience_s)

    def close(self) -> None:
        """Let nobody wait for a batcher that has stopped."""
        while self._pending:
            _, answer = self._pending.popleft()
            if not answer.done():
                answer.set_exception(OrchestratorError("the client was closed before the task was sent"))
