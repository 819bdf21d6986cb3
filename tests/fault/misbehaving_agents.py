"""An agent whose handlers misbehave in every way that a worker must survive."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from orchestrator import Agent, TaskContext

SIZE: int = 2 * 1024 * 1024
BLOCK_S = float(os.environ.get("NASTY_BLOCK_S", "4"))
LEASE_S = float(os.environ.get("NASTY_LEASE_S", "1.3"))

misbehaving = Agent("misbehaving", concurrency=4, lease=LEASE_S)


class Unreadable(Exception):
    """An exception that cannot be shown."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("no repr")

    __str__ = __repr__


@misbehaving.skill
async def pid() -> int:
    """Answer who runs this."""
    return os.getpid()


@misbehaving.skill(process=True, max_attempts=2, backoff=0)
def dies() -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


@misbehaving.skill(timeout=0.2, max_attempts=1)
def never_returns() -> None:
    """Hold a thread for ever."""
    threading.Event().wait()


@misbehaving.skill(timeout=0.2, max_attempts=1)
async def ignores_cancellation() -> None:
    """Swallow every cancellation."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@misbehaving.skill
async def never_ends(marker: str) -> None:
    """Swallow every cancellation, without a time limit."""
    Path(marker).touch()  # noqa: ASYNC240 - a moment
    await ignores_cancellation()


@misbehaving.skill
async def blocks_the_loop(ctx: TaskContext) -> int:
    """Hold the event loop for longer than three leases."""
    time.sleep(BLOCK_S)  # noqa: ASYNC251 - that is the fault
    return ctx.attempt


@misbehaving.skill(max_deaths=1)
async def stuck(how: str) -> None:
    """Hold the event loop, or the interpreter itself, for ever."""
    if how == "loop":
        time.sleep(3600)  # noqa: ASYNC251 - that is the fault
    else:
        ctypes.PyDLL(None).sleep(3600)


@misbehaving.skill
async def large() -> str:
    """Return more than is kept."""
    return "x" * SIZE


@misbehaving.skill
async def unpicklable() -> Any:
    """Return what no other process could have."""
    return socket.socket()


@misbehaving.skill
async def not_json() -> dict[str, float]:
    """Return what JSON cannot hold."""
    return {"value": float("nan")}


@misbehaving.skill
async def wrong_type() -> int:
    """Return something else than promised."""
    return "many"  # type: ignore[return-value]


@misbehaving.skill(max_attempts=1)
async def unreadable() -> None:
    """Raise what cannot be shown."""
    raise Unreadable


@misbehaving.skill
def closes_output() -> str:
    """Close what the worker prints to."""
    sys.stdout.close()
    sys.stderr.close()
    return "closed"


@misbehaving.skill(max_attempts=1)
async def leaves() -> None:
    """Try to end the worker."""
    sys.exit("a handler left")


@misbehaving.skill(max_attempts=1)
async def interrupts() -> None:
    """Pretend that somebody pressed Ctrl-C."""
    raise KeyboardInterrupt


@misbehaving.skill(max_attempts=1)
async def cancels_itself() -> None:
    """Cancel the task that it runs in."""
    current = asyncio.current_task()
    assert current is not None
    current.cancel()
    await asyncio.sleep(0)
