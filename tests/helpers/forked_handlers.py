"""Handlers that tell about the process that runs them."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from orchestrator import Agent
from orchestrator.workers.runtime.fork_safety import open_files
from tests.helpers.subprocesses import parent_of

forked = Agent("forked", concurrency=100)


@forked.skill(process=True)
def family() -> list[int]:
    """The ids of this process and of its ancestors."""
    return [os.getpid(), os.getppid(), parent_of(os.getppid())]


@forked.skill(process=True)
def draw(seconds: float = 0.0) -> list[float]:
    """Random numbers of the standard library and of numpy, and the id of the process."""
    import numpy.random

    time.sleep(seconds)
    return [random.random(), float(numpy.random.random()), os.getpid()]  # noqa: NPY002 - what is shared


@forked.skill(process=True)
def files() -> list[str]:
    """The open files."""
    return sorted(target for number, target in open_files().items() if number > 2)


@forked.skill(process=True, max_attempts=2, backoff=0)
def stay(marker: str) -> str:
    """Write the ids of this process and of its parent, and stay; return in the second attempt."""
    path = Path(marker)
    if path.exists():
        return "second"
    part = path.with_suffix(".part")
    part.write_text(f"{os.getpid()} {os.getppid()}")
    part.rename(path)
    time.sleep(60)
    return "first"
