"""An agent whose handler leaves a process behind that its worker started."""

from __future__ import annotations

import os
import subprocess
import sys

from orchestrator import Agent

parent = Agent("parent")


@parent.skill
def spawn() -> list[int]:
    """Start a process that sleeps; the ids of this worker and of that process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return [os.getpid(), child.pid]
