"""Puts large arguments into the payload store before their submits, and takes back those of refused ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from orchestrator.core.errors import StoreError
from orchestrator.payloads.payloads import AT_ONCE, Packed, Payloads
from orchestrator.payloads.sizing import is_small

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.client.handle import TaskHandle
    from orchestrator.tasks.scripts import SubmitAnswer
    from orchestrator.tasks.submission import Draft, NamedArguments, Parent, Submission, SubmissionValidator


class LargeArguments:
    """The arguments of the submits of one client that are too large for Redis."""

    def __init__(self, payloads: Payloads, validator: SubmissionValidator) -> None:
        self._payloads, self._check = payloads, validator.check
        self.enabled = payloads.store is not None

    async def check(
        self, task: Submission, parent: Parent | None, doubts: list[NamedArguments], *, trace: str
    ) -> tuple[Draft, Packed | None]:
        """Check a submission as `SubmissionValidator.check` does, in a thread if its arguments are large."""
        large: list[Packed] = []
        check = partial(self._check, task, parent, doubts, trace=trace, large=large)
        draft = check() if is_small(task.args) else await to_thread.run_sync(check)
        return draft, large[0] if large else None

    async def put(self, id_: str, packed: Packed) -> None:
        """Store the arguments of a task, before it is submitted.

        Raises:
            PayloadStoreUnavailable: they were not stored.
        """
        await self._payloads.put(id_, packed)

    async def put_all(self, rows: Sequence[tuple[str, Packed | None]]) -> None:
        """Store the arguments of several tasks; errors as of `put`."""
        large = [(id_, packed) for id_, packed in rows if packed is not None]
        for first in range(0, len(large), AT_ONCE):
            failures: list[Exception] = []

            async def put(id_: str, packed: Packed, failures: list[Exception] = failures) -> None:
                try:
                    await self._payloads.put(id_, packed)
                except Exception as failure:  # noqa: BLE001 - one of them is raised below, outside a group
                    failures.append(failure)

            async with anyio.create_task_group() as group:
                for id_, packed in large[first : first + AT_ONCE]:
                    group.start_soon(put, id_, packed)
            if failures:
                raise failures[0]

    async def settle_all(
        self,
        handles: Sequence[TaskHandle[Any]],
        large: Sequence[Packed | None],
        answers: Sequence[SubmitAnswer | StoreError],
    ) -> None:
        """Settle several tasks; `large` may be empty."""
        for handle, packed, answer in zip(handles, large, answers, strict=False):
            if packed is not None:
                await self.settle(handle.id, packed, answer)

    async def settle(self, id_: str, packed: Packed, answer: SubmitAnswer | StoreError) -> None:
        """Delete the arguments of a task that Redis refused, or knows by another id."""
        if isinstance(answer, StoreError):
            kept = answer.outcome_unknown
        else:
            kept = answer.status == "created" or answer.detail == id_
        if not kept:
            await self._payloads.discard(id_, packed.part)
