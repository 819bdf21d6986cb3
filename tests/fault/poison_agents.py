"""An agent whose tasks take their worker process with them, each in its own way, and one that harms nobody."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Final

import anyio

from orchestrator import Agent, TaskContext
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE

MEMORY_VARIABLE: Final = "POISON_AGENTS_MEMORY_MB"
"""How much more address space a worker may have than when it imported this."""

if MEMORY_VARIABLE in os.environ:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    allowed_bytes = pages * resource.getpagesize() + int(os.environ[MEMORY_VARIABLE]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (allowed_bytes, allowed_bytes))

attempt_log = AttemptLog(os.environ.get(ATTEMPT_LOG_VARIABLE, os.devnull))
poison = Agent(
    "poison",
    concurrency=int(os.environ.get(SLOTS_VARIABLE, "20")),
    lease=float(os.environ.get(LEASE_VARIABLE, "10")),
)


@poison.skill
async def good(ctx: TaskContext, seconds: float) -> str:
    """Take a while."""
    attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "begun"))
    await anyio.sleep(seconds)
    attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "ended"))
    return "good"


@poison.skill
async def deadly(ctx: TaskContext, how: str) -> None:
    """Take the process along."""
    attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "begun"))
    await anyio.sleep(0.1)
    match how:
        case "exits":
            os._exit(3)
        case "crashes":
            ctypes.string_at(0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "blocks":
            time.sleep(3600)  # noqa: ASYNC251 - that is the fault


@poison.skill(max_attempts=2, backoff=0)
async def greedy(ctx: TaskContext) -> int:
    """Want more memory than there may be."""
    attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), "begun"))
    hoard = []
    while True:
        hoard.append(bytearray(16 * 2**20))
