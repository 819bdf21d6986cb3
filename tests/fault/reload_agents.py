"""Agents of the tests of SIGHUP."""

from __future__ import annotations

import os
import re
import subprocess
import time

import anyio

from orchestrator import Agent
from orchestrator.core.log import get_logger

agent = Agent("clerk", concurrency=4, limits=["shared"])
free = Agent("free", concurrency=4)

_log = get_logger(__name__)


@agent.skill
async def stamp() -> str:
    """Do nothing; the limit decides when."""
    _log.debug("stamped")
    return "done"


@free.skill
async def fail() -> None:
    """Fail."""
    raise ValueError("as always")


@free.skill
async def hold(seconds: float) -> None:
    """Take a while."""
    await anyio.sleep(seconds)


@free.skill
async def size(length: int) -> str:
    """Return a text of this length."""
    return "x" * length


@free.skill
def masks() -> list[str]:
    """Return which signals a program blocks and ignores that a handler starts."""
    return _masks()


@free.skill(process=True)
def masks_apart() -> list[str]:
    """Return the same in a process of the handler."""
    return _masks()


@free.skill(process=True)
def hold_apart(seconds: float) -> None:
    """Take a while in a process of the handler."""
    time.sleep(seconds)


def _masks() -> list[str]:
    status = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^Sig(?:Blk|Ign):\s*(\w+)$", status, re.MULTILINE)


@free.skill(process=True)
def show(text: str) -> int:
    """Log a text from a process of the handler, and return the id of that process."""
    _log.info("shown", text=text)
    return os.getpid()
