"""Without the extra `vectors`, programs import, store vectors with their buckets, and compare a few themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer

_PROGRAM = """
import sys

sys.modules["numpy"] = None
import asyncio

from orchestrator import Orchestrator, Record
from orchestrator.core.settings import Settings

settings = Settings(prefix=sys.argv[2], redis={"url": sys.argv[1]}, memory={"vector_rung": "lsh"})


async def main():
    async with Orchestrator(settings=settings) as orc:
        memory = orc.memory("ed")
        await memory.store_many(
            [Record(id=f"r{i}", step=i, kind="note", content=i, embedding=[1.0, float(i)]) for i in range(9)]
        )
        found = await memory.similar([1.0, 4.0], 1)
        coded = await memory.scope.read("HLEN", memory.scope.keys.key("lshrev"))
        print(found[0].record.id, found.rung, found.complete, coded)


asyncio.run(main())
"""


def test_a_program_without_numpy(redis_server: RedisServer, prefix: str) -> None:
    """A search compares the stored vectors in Python, and a store writes the buckets that other programs search."""
    command = [sys.executable, "-c", _PROGRAM, redis_server.url, prefix]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["r4", "exact", "True", "9"]
