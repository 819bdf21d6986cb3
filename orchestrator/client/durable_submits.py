"""Sends submits of a durability level: the scripts of many submits share one wait for the disk or for a replica."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from orchestrator.client.batcher import (
    CHUNK_ROWS,
    is_flow,
    not_sent,
    row_size,
    send_crowded,
    unanswered,
)
from orchestrator.core.durability import DEFAULT, LEVELS, Durability
from orchestrator.core.errors import StoreError
from orchestrator.core.group_commit import GroupCommit, split_to_fit
from orchestrator.store.durable import DurableLink, Waited
from orchestrator.tasks import scripts
from orchestrator.tasks.scripts import CREATED
from orchestrator.tasks.submission import submit_caps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.client.loss_watch import LossWatch
    from orchestrator.core.durability import Level
    from orchestrator.services import Services
    from orchestrator.store.calls import Call
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow

MAX_ROWS: Final = 5000
MAX_BYTES: Final = 16 * 1024 * 1024
"""Bounds of the submits of one wait. A wait for the disk may take a second, so it serves more rows than one script."""

Outcome: TypeAlias = "tuple[SubmitAnswer | StoreError, Durability | None]"
"""Answer to a row, or why there is none; and what was confirmed of an accepted one."""


class DurableSubmits:
    """Sends rows over a connection per set of levels, opened at its first use."""

    def __init__(self, services: Services, losses: LossWatch) -> None:
        self._services, self._losses = services, losses
        self._within_s = services.settings.queue.durable_within_s
        self._retry_for_s = services.settings.redis.command_timeout_s
        self._links: dict[frozenset[Level], DurableLink] = {}
        self._commits: dict[Level, GroupCommit[SubmitRow, Outcome]] = {
            level: GroupCommit(
                "client",
                partial(self._send_alike, level),
                size=row_size,
                max_rows=MAX_ROWS,
                max_bytes=MAX_BYTES,
                sends_lone=False,
            )
            for level in LEVELS
            if level != DEFAULT
        }

    async def run(self) -> None:
        """Send queued rows until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                for commit in self._commits.values():
                    group.start_soon(commit.run)
        finally:
            with anyio.CancelScope(shield=True):
                for link in self._links.values():
                    await link.close()

    def close(self) -> None:
        """Refuse new rows, and fail those that wait."""
        for commit in self._commits.values():
            commit.close()

    async def add(self, level: Level, row: SubmitRow) -> tuple[SubmitAnswer, Durability]:
        """Send one row with those of concurrent callers, and wait for its level.

        Raises:
            ConfigError: the server cannot reach the level; the row was not stored.
            StoreError: Redis did not answer, or refused the row.
        """
        answer, durability = await self._commits[level].add(row)
        if isinstance(answer, StoreError):
            raise answer
        assert durability is not None
        return answer, durability

    async def send_all(self, levels: Sequence[Level], rows: Sequence[SubmitRow]) -> list[Outcome]:
        """Send the rows of one call, in order, and wait once per `MAX_ROWS` for all their levels.

        Args:
            levels: of each row.
            rows: any number.
        """
        waits = frozenset(levels) - {DEFAULT}
        outcomes: list[Outcome] = []
        for start in range(0, len(rows), MAX_ROWS):
            part = rows[start : start + MAX_ROWS]
            try:
                outcomes += await self._send(waits, levels[start : start + MAX_ROWS], part)
            except StoreError as failure:
                outcomes += [(error, None) for error in _errors_of(part, failure)]
                return outcomes + [(not_sent(failure), None)] * (len(rows) - len(outcomes))
        return outcomes

    async def _send_alike(self, level: Level, rows: Sequence[SubmitRow]) -> list[Outcome]:
        return await self._send(frozenset({level}), [level] * len(rows), rows)

    async def _send(self, waits: frozenset[Level], levels: Sequence[Level], rows: Sequence[SubmitRow]) -> list[Outcome]:
        link = self._links.get(waits)
        if link is None:
            link = self._links[waits] = DurableLink(self._services.store, waits, within_s=self._within_s)
        # Of the pipeline that answered each row: a later one may have waited at another server.
        reports: list[Mapping[Level, Durability]] = [{}] * len(rows)

        async def send(places: Sequence[int]) -> list[SubmitAnswer | StoreError]:
            found, waited = await self._submit(link, [levels[at] for at in places], [rows[at] for at in places])
            reported = {level: _report(level, waited) for level in waits}
            for at in places:
                reports[at] = reported
            return found

        answers = await send(range(len(rows)))
        await send_crowded(answers, send)
        self._losses.note_all([row.id for row, answer in zip(rows, answers, strict=True) if answer is CREATED])
        durabilities = [reported.get(level) for reported, level in zip(reports, levels, strict=True)]
        await self._count_missed(durabilities)
        return list(zip(answers, durabilities, strict=True))

    async def _submit(
        self, link: DurableLink, levels: Sequence[Level], rows: Sequence[SubmitRow]
    ) -> tuple[list[SubmitAnswer | StoreError], Waited]:
        keys, queue = self._services.keys, self._services.settings.queue
        parts = (
            [rows]
            if is_flow(rows)
            else [
                part
                for start in range(0, len(rows), CHUNK_ROWS)
                for part in split_to_fit(rows[start : start + CHUNK_ROWS], row_size)
            ]
        )
        calls: list[Call[Any]] = [
            scripts.submit(
                keys,
                rows=part,
                max_tasks=queue.max_tasks,
                max_wait_s=round(queue.max_wait_s),
                caps=submit_caps(queue, self._services.store.floor),
            )
            for part in parts
        ]
        asked = Counter(f"{level}:asked" for level in levels if level != DEFAULT)
        calls.append(scripts.count_durable(keys, counts=asked))
        (*replies, counted), waited = await link.run(calls, retry_for_s=self._retry_for_s)
        answers: list[SubmitAnswer | StoreError] = []
        for part, reply in zip(parts, replies, strict=True):
            answers += _errors_of(part, reply) if isinstance(reply, StoreError) else reply
        if isinstance(counted, StoreError):
            # Without this write the wait may have waited for nothing.
            waited = Waited(0, 0, dict.fromkeys(set(levels), str(counted)))
        return answers, waited

    async def _count_missed(self, durabilities: Sequence[Durability | None]) -> None:
        missed = Counter(f"{one.asked}:missed" for one in durabilities if one is not None and one.missed)
        if missed:
            with suppress(StoreError):  # a counter must not hide that the tasks exist
                await self._services.store.call(scripts.count_durable(self._services.keys, counts=missed))


def _report(level: Level, waited: Waited) -> Durability:
    missed = waited.missed.get(level, "")
    return Durability(level, DEFAULT if missed else level, waited.fsyncs, waited.replicas, missed)


def _errors_of(rows: Sequence[SubmitRow], failure: StoreError) -> list[StoreError]:
    """Return the error of each row. Those of a flow share one that names all, because they are stored together."""
    if not failure.outcome_unknown:
        return [failure] * len(rows)
    if is_flow(rows):
        return [unanswered(failure, [row.id for row in rows])] * len(rows)
    return [unanswered(failure, [row.id]) for row in rows]
