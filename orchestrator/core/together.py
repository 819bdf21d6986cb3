"""Runs several reads at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


async def read_at_once(reads: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of functions that run at the same time, in their order.

    Raises:
        Exception: the first failure, by itself and not in a group, after all have ended.
    """
    results: dict[int, T] = {}
    failures: list[Exception] = []

    async def run(number: int, read: Callable[[], Awaitable[T]]) -> None:
        try:
            results[number] = await read()
        except Exception as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    async with anyio.create_task_group() as group:
        for number, read in enumerate(reads):
            group.start_soon(run, number, read)
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(reads))]
