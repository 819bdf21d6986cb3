"""Sends progress and output of running attempts in batches: one call at a time, while the next batch grows.

A handler waits until Redis has stored its row, so the running handlers bound the queue. Each row has a number within
its attempt, so that a call that is sent twice adds nothing twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import Fenced, InvalidInput, ServerFull
from orchestrator.core.group_commit import GroupCommit
from orchestrator.core.log import get_logger
from orchestrator.core.payload import encode_json
from orchestrator.tasks import scripts
from orchestrator.tasks.model import EmitStatus
from orchestrator.tasks.scripts import EmitRow
from orchestrator.workers.runtime.verdicts import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.model import Delivery, Progress

WAITING_BYTES: Final = 16 * 1024 * 1024
"""Most bytes that may wait; a handler that would add more waits for room."""

_log = get_logger(__name__)


class Emitter:
    """Sends the rows of all attempts of this process in order."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._retry_for_s = services.settings.redis.command_timeout_s
        self._commits: GroupCommit[EmitRow, EmitStatus] = GroupCommit(
            "worker", self._call, size=lambda row: len(row.data), max_waiting_bytes=WAITING_BYTES
        )
        self.run, self.wait_for_room = self._commits.run, self._commits.wait_for_room

    def for_attempt(self, delivery: Delivery) -> AttemptOutput:
        """Return the output sender of one attempt."""
        return AttemptOutput(self, delivery)

    def encode(self, what: str, value: Any) -> bytes:
        """Encode a row as JSON.

        Raises:
            InvalidInput: JSON cannot represent the value, or it is too large.
        """
        settings = self._services.settings
        return encode_json(what, value, max_bytes=settings.output.max_chunk_bytes, max_depth=settings.queue.max_depth)

    async def send(self, row: EmitRow) -> EmitStatus:
        """Send one row, alone or in a batch; see `GroupCommit.add`."""
        return await self._commits.add(row)

    async def _call(self, rows: Sequence[EmitRow]) -> list[EmitStatus]:
        call = scripts.emit(self._services.keys, rows=rows, max_chunks=self._services.settings.output.max_chunks)
        statuses = await self._services.store.call(call, retry_for_s=self._retry_for_s)
        _log.debug("output_stored", count=len(rows))
        return statuses


class AttemptOutput:
    """Sends the output of one attempt: numbers its rows, and refuses more once the attempt is fenced."""

    __slots__ = ("_chunks", "_delivery", "_emitter", "_fenced", "_rows")

    def __init__(self, emitter: Emitter, delivery: Delivery) -> None:
        self._emitter, self._delivery = emitter, delivery
        self._rows = self._chunks = 0
        self._fenced = False

    async def progress(self, progress: Progress) -> None:
        """Store the progress; see `TaskContext.progress`."""
        _check_amount("done", progress.done)
        if progress.total is not None:
            _check_amount("total", progress.total)
        if not isinstance(progress.message, str):
            raise InvalidInput(f"message of progress must be a text, not {progress.message!r}")
        data = self._emitter.encode("progress", [progress.done, progress.total, one_line(progress.message)])
        try:
            await self._send("progress", data)
        except ServerFull as refused:
            # Progress is only for display, and a full server needs the task to end so that it frees memory.
            task = self._delivery
            _log.warning(
                "progress_dropped", task=task.task_id, agent=task.agent, attempt=task.attempt, error=str(refused)
            )

    async def emit(self, data: Any) -> None:
        """Store one chunk of output; see `TaskContext.emit`."""
        value = data.model_dump(mode="json") if hasattr(data, "model_dump") else data
        await self._send("output", self._emitter.encode(f"output of task {self._delivery.task_id}", value))

    async def _send(self, kind: str, data: bytes) -> None:
        await self._emitter.wait_for_room()
        if self._fenced:
            raise Fenced(self._delivery.task_id)
        self._rows += 1
        if kind == "output":
            self._chunks += 1
        row = EmitRow(
            self._delivery.task_id,
            self._delivery.generation,
            self._delivery.attempt,
            self._rows,
            kind,
            self._chunks if kind == "output" else 0,
            data,
        )
        if await self._emitter.send(row) is EmitStatus.STALE:
            self._fenced = True
            raise Fenced(self._delivery.task_id)


def _check_amount(name: str, value: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise InvalidInput(f"{name} of progress must be a number that is not negative, not {value!r}")
