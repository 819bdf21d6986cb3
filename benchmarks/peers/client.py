"""Client process of a peer: `python -m benchmarks.peers.client APP`, under the peer's interpreter.

Prints "ready", then replies to each line of its input, a driver method with its arguments as JSON, with one line of
JSON. The app is a module whose `connected()` yields a client.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from importlib.util import find_spec

from benchmarks.traffic import LocalDriver


async def _serve(app: str) -> None:
    async with import_module(app).connected() as client:
        driver = LocalDriver(client)
        _answer("ready")
        # The loop is idle between two passes, so a blocking read is fine.
        while line := sys.stdin.readline():
            method, *arguments = json.loads(line)
            _answer(json.dumps(await getattr(driver, method)(*arguments)))


def _answer(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the input ends, on uvloop if the environment has it."""
    if find_spec("uvloop"):
        import uvloop

        uvloop.run(_serve(sys.argv[1]))
    else:
        asyncio.run(_serve(sys.argv[1]))


if __name__ == "__main__":
    main()
