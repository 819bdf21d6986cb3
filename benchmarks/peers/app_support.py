"""Environment of a peer's app: server address, event loop, gate; runs under the peer's interpreter.

A peer's workers start at once. An app that calls `wait_at_gate` in its last line has imported everything and is not
connected, so that two processes begin together, as in the other systems.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

URL_VARIABLE = "BENCH_REDIS_URL"
GATE_VARIABLE = "BENCH_GATE"
_LOOK_S = 0.001
_TIMEOUT_S = 20.0


def redis_url() -> str:
    """Return the address of the server that is measured."""
    return os.environ[URL_VARIABLE]


def use_uvloop() -> None:
    """Use uvloop, as ours and the raw loop do, so that the comparison is fair."""
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def wait_at_gate() -> None:
    """Wait in a worker process; return at once in a client, which has no gate."""
    if (folder := os.environ.get(GATE_VARIABLE)) is None:
        return
    gate = Path(folder)
    (gate / f"ready-{os.getpid()}").touch()
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not (gate / "open").exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError("The gate stayed shut.")
        time.sleep(_LOOK_S)


def waiting_at(gate: Path) -> int:
    """Count the waiting processes."""
    return sum(1 for _ in gate.glob("ready-*"))


def open_gate(gate: Path) -> None:
    """Let the waiting processes begin."""
    (gate / "open").touch()
