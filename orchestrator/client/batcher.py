"""Sends submits: those of concurrent callers in shared calls, those of one `submit_many` in chunks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from orchestrator.core.errors import ServerRefused, ServerUnavailable, StoreError
from orchestrator.core.formats import Feature
from orchestrator.core.group_commit import MAX_BYTES, GroupCommit, split_to_fit
from orchestrator.tasks import scripts
from orchestrator.tasks.scripts import CREATED, UnusualRow
from orchestrator.tasks.submission import submit_caps
from orchestrator.tasks.values import ROW_BYTES, call_bytes, split_row, write_commands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
    from typing import Any

    from anyio.abc import TaskGroup

    from orchestrator.client.loss_watch import LossWatch
    from orchestrator.services import Services
    from orchestrator.store.calls import Call
    from orchestrator.store.store import Store
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow
    from orchestrator.tasks.submission import Draft

Answer = TypeVar("Answer", bound="SubmitAnswer | StoreError")

CHUNK_ROWS: Final = 250
"""Small enough that the first chunk leaves early: the server finishes one about when the next one arrives."""


class Batcher:
    """Sends submit rows in batches, in the order in which they arrive."""

    def __init__(self, services: Services, losses: LossWatch) -> None:
        self._services, self._losses = services, losses
        self._retry_for_s = services.settings.redis.command_timeout_s
        self._commits: GroupCommit[SubmitRow, SubmitAnswer] = GroupCommit("client", self.send, size=self.call_bytes)
        self.run, self.close = self._commits.run, self._commits.close

    def add(self, row: SubmitRow) -> Coroutine[Any, Any, SubmitAnswer]:
        """Send one row, alone or in a batch; see `GroupCommit.add`."""
        return self._commits.add(row)

    async def send(self, rows: Sequence[SubmitRow]) -> list[SubmitAnswer]:
        """Send up to 500 rows now; repeat while Redis does not answer. A row that has arrived is not stored twice."""
        answers = await self._send_once(rows)
        if all_created(answers):
            self._losses.note_all([row.id for row in rows])
            return answers
        await send_crowded(answers, lambda places: self._send_once([rows[place] for place in places]))
        self._losses.note_all([row.id for row, answer in zip(rows, answers, strict=True) if answer is CREATED])
        return answers

    def call_bytes(self, row: SubmitRow) -> int:
        """Return what a row counts of the bytes of a call."""
        size = len(row.envelope)
        return call_bytes(size) if size > ROW_BYTES and self._writes_apart() else size

    def split(self, rows: Sequence[SubmitRow]) -> Iterable[Sequence[SubmitRow]]:
        """Cut rows into parts that fit into a call each."""
        lengths = [len(row.envelope) for row in rows]
        if max(lengths, default=0) <= ROW_BYTES and sum(lengths) <= MAX_BYTES:
            return (rows,)
        return split_to_fit(rows, self.call_bytes)

    def _writes_apart(self) -> bool:
        return self._services.store.floor.admits(Feature.VALUES_APART)

    async def _send_once(self, rows: Sequence[SubmitRow]) -> list[SubmitAnswer]:
        if not (self._writes_apart() and any(len(row.envelope) > ROW_BYTES for row in rows)):
            return await self._services.store.call(self._call(rows), retry_for_s=self._retry_for_s)
        split = [split_row(row) for row in rows]
        writes = write_commands(self._services.keys, [value for _, value in split if value is not None])
        call = self._call([row for row, _ in split])
        answers = await self._services.store.call_behind(writes, call, retry_for_s=self._retry_for_s)
        if lost := [place for place, answer in enumerate(answers) if answer.status == "lost"]:
            lost = list(range(len(rows))) if is_flow(rows) else lost
            # Redis did not take the values, for example because the user may not write. Scripts may.
            call = self._call([rows[place] for place in lost])
            again = await self._services.store.call(call, retry_for_s=self._retry_for_s)
            for place, answer in zip(lost, again, strict=True):
                answers[place] = answer
        return answers

    def _call(self, rows: Sequence[SubmitRow]) -> Call[list[SubmitAnswer]]:
        queue = self._services.settings.queue
        return scripts.submit(
            self._services.keys,
            rows=rows,
            max_tasks=queue.max_tasks,
            max_wait_s=round(queue.max_wait_s),
            caps=submit_caps(queue, self._services.store.floor),
        )

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[Sending]:
        """Send chunks in order; at the end of the block all are answered or failed."""
        async with anyio.create_task_group() as group:
            yield Sending(self, group)


class Sending:
    """Chunks of rows, two in flight at a time, so that the server gets the next one as soon as it has finished one."""

    def __init__(self, batcher: Batcher, group: TaskGroup) -> None:
        self._batcher, self._group = batcher, group
        self._room = anyio.Semaphore(2, fast_acquire=True)
        self._outcomes: list[Sequence[SubmitAnswer | StoreError]] = []
        self._failure: StoreError | None = None

    async def send(self, rows: Sequence[SubmitRow]) -> None:
        """Send the next chunk when there is room; none after a failure."""
        for part in self._batcher.split(rows):
            # Two chunks in flight may overtake each other, so rows with a lane are sent alone.
            room = 2 if any(isinstance(row, UnusualRow) and row.lane for row in part) else 1
            for _ in range(room):
                await self._room.acquire()
            place = len(self._outcomes)
            self._outcomes.append(())
            self._group.start_soon(self._send, place, part, room)
        # Two turns of the event loop, to write the call and to send it, while the next chunk is prepared.
        await checkpoint()
        await checkpoint()

    async def _send(self, place: int, rows: Sequence[SubmitRow], room: int) -> None:
        try:
            if self._failure is None:
                self._outcomes[place] = await self._batcher.send(rows)
            else:
                self._outcomes[place] = [not_sent(self._failure)] * len(rows)
        except StoreError as failure:
            self._failure = failure
            lost = failure.outcome_unknown
            self._outcomes[place] = [unanswered(failure, [row.id]) if lost else failure for row in rows]
        finally:
            for _ in range(room):
                self._room.release()

    def outcomes(self) -> Iterator[SubmitAnswer | StoreError]:
        """Yield the outcome of each row, in order; call it after the block."""
        return chain.from_iterable(self._outcomes)


def all_created(answers: Sequence[SubmitAnswer | StoreError]) -> bool:
    """Return whether every row is a new task, as nearly always."""
    return answers.count(CREATED) == len(answers)


async def send_crowded(answers: list[Answer], send: Callable[[Sequence[int]], Awaitable[Sequence[Answer]]]) -> None:
    """Send crowded rows again until none is left, and replace their answers.

    A row is crowded when one call could not end all tasks of its lane.

    Args:
        answers: one per row.
        send: sends the rows at these places, and returns their answers.
    """
    while crowded := [
        place
        for place, answer in enumerate(answers)
        if not isinstance(answer, StoreError) and answer.status == "crowded"
    ]:
        for place, answer in zip(crowded, await send(crowded), strict=True):
            answers[place] = answer


async def require_features(store: Store, drafts: Sequence[Draft]) -> None:
    """Check that no program of the pool is older than what the submits of one call need.

    Call it before they are queued, because the refusal of a batch would refuse the submits of other callers, too. The
    floor of a pool never falls, so that it admits them when they are sent.

    Raises:
        UpgradeUnfinished: the pool admits such programs.
    """
    unusual = [draft for draft in drafts if isinstance(draft, UnusualRow)]
    if any(row.fair for row in unusual):
        await store.require(Feature.FAIR_SHARES)
    if any(row.after is not None for row in unusual):
        await store.require(Feature.FLOWS)
    if any(row.budget for row in unusual):
        await store.require(Feature.BUDGETS)


def is_flow(rows: Sequence[SubmitRow]) -> bool:
    """Return whether rows are a flow, which one call submits whole or not at all."""
    return isinstance(rows[0], UnusualRow) and rows[0].after is not None


def row_size(row: SubmitRow) -> int:
    """Return the bytes that a row adds to a call."""
    return len(row.envelope)


def unanswered(failure: BaseException | None, ids: Sequence[str]) -> StoreError:
    """Make the error of a submit with unknown outcome: Redis did not answer, or refused it in the middle."""
    tasks = f"task {ids[0]} may have arrived" if len(ids) == 1 else f"{len(ids)} tasks may have arrived (see task_ids)"
    kind = ServerRefused if isinstance(failure, ServerRefused) else ServerUnavailable
    lost = kind(
        f"{failure}; {tasks}: ask orc.task(id), or submit again with the same key", outcome_unknown=True, task_ids=ids
    )
    lost.__cause__ = failure
    return lost


def not_sent(failure: StoreError) -> StoreError:
    """Make the error of rows behind a failed chunk."""
    if not failure.outcome_unknown:
        return failure
    if isinstance(failure, ServerRefused):
        return ServerRefused(f"was not sent, because those before it were refused: {failure}")
    return ServerUnavailable(f"was not sent, because those before it got no answer: {failure}")
