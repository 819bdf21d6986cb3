"""Counts what a store sends: round trips and commands."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    import pytest

    from orchestrator.store.store import Store

T = TypeVar("T")


@dataclass
class CountedReads:
    """What was sent since the count began.

    Attributes:
        trips: waits for the server, one behind another: what is sent at the same time waits once.
    """

    trips: int = 0
    commands: list[str] = field(default_factory=list)


@contextmanager
def counted_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedReads]:
    """Count what a store sends in the block; a script is one command."""
    counted = CountedReads()
    answered = 0  # the longest row of waits of which the last one has ended
    execute, pipeline = store.execute, store.pipeline

    async def waited(reply: Awaitable[T]) -> T:
        nonlocal answered
        trip = answered + 1
        counted.trips = max(counted.trips, trip)
        try:
            return await reply
        finally:
            answered = max(answered, trip)

    async def counted_execute(*command: Any) -> Any:
        counted.commands.append(str(command[0]))
        return await waited(execute(*command))

    async def counted_pipeline(commands: Sequence[Sequence[Any]]) -> list[Any]:
        if commands:
            counted.commands += [str(command[0]) for command in commands]
            return await waited(pipeline(commands))
        return await pipeline(commands)

    with monkeypatch.context() as patch:
        for name, instead in (("execute", counted_execute), ("pipeline", counted_pipeline)):
            patch.setattr(store, name, instead)
        yield counted
