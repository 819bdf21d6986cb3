"""An agent whose handler goes on behind its lease, as that of a worker process that was paused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import redis

from orchestrator import Agent, Fenced, LockLost, TaskContext
from orchestrator.store.keys import ScopeKeys
from tests.helpers.vectors import add_late, note, vector

late = Agent("late", concurrency=1, lease=1.0)


@late.skill
async def remember(ctx: TaskContext, gate: str, count: int) -> str:
    """Store vectors at once in a second attempt; in a first one only when the gate opens, whatever has happened."""
    if ctx.attempt > 1:
        await ctx.memory.store_many([note(seed) for seed in range(20)])
        return "done"
    with anyio.CancelScope(shield=True):
        await ctx.memory.store(note(0))
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - the test opens it
            await anyio.sleep(0.02)
        keys = ScopeKeys(os.environ["ORC_PREFIX"], "agent", "late")
        with redis.Redis.from_url(os.environ["ORC_REDIS__URL"]) as client:
            # Half of them for records that are there, with the very vectors that the test asks for.
            names = [f"{number + 1}:{'r' if number % 2 else 'gone'}{number % 20}" for number in range(count)]
            await add_late(client, keys, names, seed=0)
        refused = 0
        for seed in range(0, 40, 4):
            try:
                await ctx.memory.store_many([note(1000 + seed + more, embedding=vector(seed)) for more in range(4)])
            except (Fenced, LockLost):
                refused += 1
        sys.stdout.write(f"refused {refused}\n")
        sys.stdout.flush()
    return "late"
