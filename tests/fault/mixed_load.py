"""A client program for an old and a new version: submits until it reads a line, then awaits every result."""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any, Final

import anyio

from orchestrator import Orchestrator, Submission

WAIT_S: Final = 60
PAUSE_S: Final = 0.03
FLIGHT: Final = 150
"""Tasks under way at once."""


class Load:
    """Submits tasks of many kinds and compares each result with the expected one."""

    def __init__(self, orc: Orchestrator) -> None:
        self._orc, self._dice = orc, random.Random()
        self._room = anyio.Semaphore(FLIGHT)
        self._stopped = threading.Event()
        self.submitted: list[str] = []
        self.wrong: list[str] = []

    def stop_at_a_line(self) -> None:
        """Wait for a line on the standard input."""
        sys.stdin.readline()
        self._stopped.set()

    async def run(self) -> None:
        """Submit until it is told to stop, and wait for all results."""
        threading.Thread(target=self.stop_at_a_line, daemon=True).start()
        number = 0
        async with anyio.create_task_group() as waiting:
            while not self._stopped.is_set():
                number += 1
                for _ in range(8):
                    await self._room.acquire()
                batch = [Submission("echo", {"n": n}) for n in range(7)]
                handles = await self._orc.submit_many(batch)
                for n, handle in enumerate(handles):
                    waiting.start_soon(self._await, handle, n)
                handle, expected = await self._submit_one(number)
                waiting.start_soon(self._await, handle, expected)
                await anyio.sleep(PAUSE_S)

    async def _submit_one(self, number: int) -> tuple[Any, Any]:
        """Submit one task of some kind, and return its handle and its result; `...` for any result."""
        echo, short_s = {"n": number}, self._dice.random() / 2
        kinds: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
            ("flaky", {"fails": 2}, {}, ...),
            ("nap", {}, {}, "rested"),
            ("family", {"children": 3}, {}, 3),
            ("step", {}, {}, None),
            ("stamp", {}, {}, "stamped"),
            ("pause", {"seconds": short_s}, {}, ...),
            ("echo", echo, {"session": f"s{number % 7}"}, number),
            ("echo", echo, {"lane": f"l{number % 3}"}, number),
            ("echo", echo, {"delay": short_s}, number),
            ("echo", echo, {"agent": "scribe", "priority": "critical"}, number),
            ("echo", echo, {"key": f"{id(self)}-{number}"}, number),
        ]
        skill, args, options, expected = kinds[number % len(kinds)]
        return await self._orc.submit(skill, args, **options), expected

    async def _await(self, handle: Any, expected: object) -> None:
        try:
            self.submitted.append(handle.id)
            try:
                result = await handle.result(timeout=WAIT_S)
            except Exception as failure:  # noqa: BLE001 - each one is a finding
                self.wrong.append(f"{handle.id}: {type(failure).__name__}: {failure}")
            else:
                if expected is not ... and result != expected:
                    self.wrong.append(f"{handle.id}: {result!r} instead of {expected!r}")
        finally:
            self._room.release()


async def main() -> None:
    """Run the load and print what became of it as one line of JSON."""
    async with Orchestrator() as orc:
        load = Load(orc)
        print("ready", flush=True)  # noqa: T201
        await load.run()
        print(json.dumps({"submitted": load.submitted, "wrong": load.wrong}), flush=True)  # noqa: T201


if __name__ == "__main__":
    anyio.run(main)
