"""Common ways to share state, as a baseline: many writers of one JSON blob in one string.

Measured and tested beside the workspace, with their faults; used nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from redis.exceptions import WatchError

_MERGE = """
local blob = redis.call('GET', KEYS[1])
local state = blob and cjson.decode(blob) or {version = 0, history = {}}
state.version = state.version + 1
state.history[#state.history + 1] = cjson.decode(ARGV[1])
redis.call('SET', KEYS[1], cjson.encode(state))
return state.version
"""
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
TRIES = 3
_LOCKED_MS, _PAUSE_S = 30_000, 0.1


def with_one_more(blob: bytes | None, message: Any) -> str:
    """Return the blob with one more message and the next version."""
    state: dict[str, Any] = json.loads(blob) if blob else {"version": 0, "history": []}
    state["version"] += 1
    state["history"].append(message)
    return json.dumps(state)


async def kept(client: Any, key: str) -> int:
    """Count the messages of the blob."""
    return len(json.loads(await client.get(key) or b'{"history":[]}')["history"])


async def merge(client: Any, key: str, message: Any) -> int:
    """Change the blob in a script; returns 0 retries."""
    await client.eval(_MERGE, 1, key, json.dumps(message))
    return 0


async def watch(client: Any, key: str, message: Any) -> int:
    """Change the blob under WATCH and MULTI, and repeat after a conflict; returns the number of retries."""
    tries = 0
    async with client.pipeline() as pipe:
        while True:
            try:
                await pipe.watch(key)
                state = with_one_more(await pipe.get(key), message)
                pipe.multi()
                pipe.set(key, state)
                await pipe.execute()
            except WatchError:
                tries += 1
            else:
                return tries


async def blind(client: Any, key: str, message: Any) -> int:
    """Read, change and write without any check; returns 0 retries."""
    await client.set(key, with_one_more(await client.get(key), message))
    return 0


async def under_lock(client: Any, key: str, message: Any) -> int:
    """Change the blob under a lock with three tries, 100 ms apart; returns the failed tries, or -1 after giving up."""
    token = os.urandom(16).hex()
    for tries in range(TRIES):
        if await client.set(f"{key}:lock", token, nx=True, px=_LOCKED_MS):
            try:
                await blind(client, key, message)
            finally:
                await client.eval(_RELEASE, 1, f"{key}:lock", token)
            return tries
        if tries < TRIES - 1:
            await asyncio.sleep(_PAUSE_S)
    return -1
