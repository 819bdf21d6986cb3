"""Agents whose handlers run in processes, with imports that are usual beside this project's own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from orchestrator import Agent

crunch_25 = Agent("bench-crunch-25", concurrency=25)
crunch_100 = Agent("bench-crunch-100", concurrency=100)


class Sums(BaseModel):
    """A small result."""

    rows: list[float]


@crunch_25.skill(process=True)
@crunch_100.skill(process=True)
def crunch(folder: str = "") -> Sums:
    """Add some numbers; in a folder note the start, and hold the process until a file `gate` is there."""
    if folder:
        Path(folder, str(os.getpid())).touch()
        while not Path(folder, "gate").exists():
            time.sleep(0.05)
    return Sums(rows=np.ones((3, 4)).sum(axis=1).tolist())
