"""Looks at a memory while many writers change it: no record without its index entries, no entry without its record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from orchestrator import MemoryQuery, Orchestrator, Record
from orchestrator.memory.headers import decode_header
from tests.lua.memory.records import TIERS, entries_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator import Memory
    from orchestrator.core.settings import Settings
    from orchestrator.store.calls import Argument

KINDS, ACTIONS = ("state", "plan"), ("go", "eat")
INDICES = [
    "exp", "time", "imp", "subj:bob", "cell:0_0", "cell:1_0", *[f"kind:{kind}" for kind in KINDS],
    *[f"act:{action}" for action in ACTIONS],
]  # fmt: skip


async def look(memory: Memory) -> int:
    """Read all keys at one moment, compare the indices with the headers, and return the number of records."""
    scope, seen = memory._scope, 0
    commands: list[Sequence[Argument]] = [("MULTI",)]
    for tier in TIERS:
        commands += [("HGETALL", scope.keys.key(f"{tier}:{part}")) for part in ("hdr", "rec")]
        commands += [("ZRANGE", scope.keys.key(f"{tier}:{part}"), 0, -1, "WITHSCORES") for part in INDICES]
    replies = iter((await scope.store.pipeline([*commands, ("EXEC",)]))[-1])
    for _ in TIERS:
        headers, contents, *held = [
            dict(zip(flat[::2], flat[1::2], strict=True)) for flat in [next(replies) for _ in range(2 + len(INDICES))]
        ]
        expected: dict[str, dict[bytes, float]] = {part: {} for part in INDICES}
        for id_, packed in headers.items():
            for part, score in entries_of(decode_header(packed)).items():
                expected[part][id_] = score
        assert contents.keys() == headers.keys()
        for part, entries in zip(INDICES, held, strict=True):
            assert {id_: float(score) for id_, score in entries.items()} == expected[part], part
        seen += len(headers)
    return seen


async def write(memory: Memory, worker: int) -> None:
    """Store, touch, delete and query."""
    for number in range(60):
        id_ = f"r{(worker * 7 + number * 3) % 25}"
        match number % 5:
            case 4:
                await memory.delete(id_)
            case 3:
                await memory.touch(id_)
            case _:
                record = Record(
                    step=number % 7, kind=KINDS[number % 2], content=number, id=id_, action=ACTIONS[worker % 2],
                    importance=number, position=(number % 20, 0), subject="bob" if number % 3 else None,
                )  # fmt: skip
                await memory.store(record, tier="im" if number % 9 == 0 else "stm")
        found = await memory.query(MemoryQuery(kinds=(KINDS[0],), min_importance=10))
        assert all(each.kind == KINDS[0] and each.importance >= 10 for each in found)


async def test_no_moment_contradicts(settings: Settings) -> None:
    """Stores, moves, touches, deletes and queries at once: at no moment is an entry missing or left over."""
    limits = settings.memory.model_copy(update={"max_stm_records": 10})
    async with Orchestrator(settings=settings.model_copy(update={"memory": limits})) as orc:
        memory, done, seen = orc.memory("ed"), asyncio.Event(), list[int]()

        async def watch() -> None:
            while not done.is_set():
                seen.append(await look(memory))

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            await asyncio.gather(*[write(memory, worker) for worker in range(6)])
            done.set()
        assert len(seen) > 10
        assert max(seen) > 10
        # A twin: the look finds an entry that is missing.
        newest = await memory.at()
        assert newest is not None
        key = memory._scope.keys.key(f"{newest.tier}:imp")
        await orc.services.store.execute("ZREM", key, newest.id)
        with pytest.raises(AssertionError, match="imp"):
            await look(memory)
