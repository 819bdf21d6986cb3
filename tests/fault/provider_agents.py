"""An agent whose calls of a provider last until their worker is killed, or end."""

from __future__ import annotations

import os

import anyio

from orchestrator import Agent, TaskContext
from orchestrator.workers.runtime import provider_calls
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE

PROVIDER = "model:gpt"
# Of a dead worker, so that the test need not wait for long.
provider_calls.LEASE_MS = 1500  # type: ignore[misc]

caller = Agent("caller", concurrency=4, lease=1, limits=[PROVIDER])


@caller.skill
async def call(ctx: TaskContext, for_s: float = 0.0) -> int:
    """Call the provider; the call of the first attempt takes `for_s`."""
    async with ctx.provider(PROVIDER, tokens=10):
        note = Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "called")
        AttemptLog(os.environ[ATTEMPT_LOG_VARIABLE]).write(note)
        await anyio.sleep(for_s if ctx.attempt == 1 else 0)
    return ctx.attempt
