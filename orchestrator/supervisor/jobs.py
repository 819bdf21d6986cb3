"""Runs the jobs of operators in batches, oldest job first.

A job stays in the desired state until it is done and records its progress, so that the next leader continues it. A
batch may run twice then, so that each action must be idempotent (`lua/tasks/retry.lua`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.control import scripts
from orchestrator.control.commands import Job
from orchestrator.control.outcomes import in_words, progress, read_progress
from orchestrator.control.receipts import SIGNATURE, SUPERVISOR, read_signed
from orchestrator.control.signing import signer_of
from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.supervisor.bulk_actions import BULK_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.desired import ActiveCommand
    from orchestrator.control.signing import Signer
    from orchestrator.services import Services

BATCH: Final = 500

_log = get_logger(__name__)


class Jobs:
    """Runs the jobs of the desired state."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._jobs: Sequence[ActiveCommand] = ()
        self._changed = anyio.Event()
        self._finished: set[str] = set()

    def set(self, jobs: Sequence[ActiveCommand]) -> None:
        """Set the jobs to run."""
        self._jobs = jobs
        if any(job.issued.id not in self._finished for job in jobs):
            self._changed.set()

    @property
    def _signer(self) -> Signer:
        return signer_of(self._services.settings, place=self._services.keys.root)

    async def run(self) -> None:
        """Run jobs until cancelled."""
        pauses = Pauses()
        while True:
            todo = [job for job in self._jobs if job.issued.id not in self._finished]
            if not todo:
                self._changed = anyio.Event()
                self._finished &= {job.issued.id for job in self._jobs}
                await self._changed.wait()
                continue
            try:
                await self._do(todo[0])
                pauses.reset()
            except StoreError as failure:
                _log.failure("job_interrupted", command=todo[0].issued.id, error=failure)
                await anyio.sleep(pauses.next_s())

    async def _do(self, job: ActiveCommand) -> None:
        kind, id_ = job.command.kind, job.issued.id
        action = BULK_ACTIONS.get(kind)
        if action is None:
            await self._finish_job(id_, "refused", f"this version does not support {kind}")
            return
        tasks = await self._selection(id_)
        if not isinstance(job.command, Job) or not job.command.means(tasks):
            _log.error("selection_mismatched", command=id_)
            await self._finish_job(id_, "refused", "the stored selection does not match the command")
            return
        total = len(tasks)
        at, ends = await self._progress(id_)
        while at < total:
            batch = tasks[at : at + BATCH]
            try:
                ends += await action(self._services, job, batch)
            except ServerRefused as refusal:
                await self._finish_job(id_, "failed", f"after {at} of {total} ({in_words(ends)}): {refusal}")
                return
            at += len(batch)
            if at < total:
                await self._note(id_, at, total, ends)
        await self._finish_job(id_, "done", in_words(ends))
        _log.info("job_done", command=id_, kind=kind, outcomes=ends)

    async def _selection(self, id_: str) -> list[str]:
        """Read the selected tasks once, so that the checked tasks are those that are changed."""
        tasks: list[str] = []
        while page := await self._services.store.execute(
            "LRANGE", self._services.keys.selection(id_), len(tasks), len(tasks) + BATCH - 1
        ):
            tasks += [read_text(task) for task in page]
        return tasks

    async def _progress(self, id_: str) -> tuple[int, Counter[str]]:
        """Read the progress of the job, by this or an earlier leader."""
        receipts_key = self._services.keys.receipts(id_)
        signed = SIGNATURE + SUPERVISOR.encode()
        noted, signature = await self._services.store.execute("HMGET", receipts_key, SUPERVISOR, signed)
        said = read_signed(id_, SUPERVISOR, noted or b"", signature, self._signer)
        if said is None or said[1] != "progress":
            return 0, Counter()
        return read_progress(said[2])

    async def _note(self, id_: str, at: int, total: int, ends: Counter[str]) -> None:
        row = scripts.ReceiptRow(id_, SUPERVISOR, "progress", progress(at, total, ends))
        await self._services.store.call(scripts.receipt(self._services.keys, rows=[row], signer=self._signer))

    async def _finish_job(self, id_: str, word: str, detail: str) -> None:
        call = scripts.finish_job(
            self._services.keys, id_=id_, sender=SUPERVISOR, status=word, detail=detail, signer=self._signer
        )
        await self._services.store.call(call)
        self._finished.add(id_)
