"""An agent whose handler leaves a process behind that its worker started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator import Agent

parent = Agent("parent")


@parent.skill
def spawn() -> list[int]:
    """Start a process that sleeps; the ids of this worker and of that process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return [os.getpid(), child.pid]


@parent.skill(process=True)
def spawn_apart(pid_file: str) -> None:
    """Start a program in a process of this handler, and wait for it; the ids of both go into a file."""
    program = subprocess.Popen(["sleep", "600"])
    part = Path(pid_file).with_suffix(".part")
    part.write_text(f"{os.getppid()} {os.getpid()} {program.pid}")
    part.rename(pid_file)
    program.wait()
