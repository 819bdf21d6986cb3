"""An agent whose module takes long to import in the process of its handler: as long as a test wants."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

from orchestrator import Agent

GATE_VARIABLE: Final = "SLOW_IMPORT_GATE"

slow = Agent("slow")
gate = os.environ.get(GATE_VARIABLE)
if gate and sys.argv[:1] == ["-c"]:
    Path(f"{gate}.importing").touch()
    while not Path(gate).exists():
        time.sleep(0.01)


@slow.skill(process=True)
def note(file: str) -> None:
    """Note that the handler began."""
    Path(file).touch()
