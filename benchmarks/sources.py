"""Code forms of the source documents about memory and chats, as a baseline.

Measured and tested beside memory and chats, with their faults; used nowhere else. The commands and their order are
those of the documents; the calls await a client of redis-py, as a handler would.
"""

from __future__ import annotations

import json
import math
import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# --------------------------------------------------------------------- states of an agent, in twelve commands

RELATIVE_SIZE = 20


async def update_relative_index(
    client: Any, agent: str, state_id: str, step: int, max_size: int = RELATIVE_SIZE
) -> None:
    """Add a state to the index by position, and trim the index."""
    await client.zadd(f"agent:{agent}:state:relative_index", {state_id: step})
    await client.zremrangebyrank(f"agent:{agent}:state:relative_index", 0, -max_size - 1)


async def store_agent_state(client: Any, agent: str, state: dict[str, Any], simulation: str, step: int) -> str:
    """Store a state with its indices, each with a command of its own."""
    state_id = f"{agent}-{step}"
    state |= {
        "state_id": state_id,
        "agent_id": agent,
        "simulation_id": simulation,
        "step_number": step,
        "stored_at": int(time.time()),
    }
    await client.hset(f"agent:{agent}:state:{state_id}", mapping=state)
    await client.zadd(f"agent:{agent}:state:timeline", {state_id: step})
    await update_relative_index(client, agent, state_id, step)
    if "position_x" in state and "position_y" in state:
        cell = f"{int(float(state['position_x']))}:{int(float(state['position_y']))}"
        await client.sadd(f"spatial:{cell}:states", state_id)
        await client.sadd(f"agent:{agent}:state:spatial_keys", cell)
    if "agent_type" in state:
        await client.sadd(f"type:{state['agent_type']}:agents", agent)
        await client.sadd(f"type:{state['agent_type']}:states", state_id)
    await client.sadd(f"simulation:{simulation}:agents", agent)
    await client.sadd(f"simulation:{simulation}:states", state_id)
    await client.zadd(f"simulation:{simulation}:timeline", {state_id: step})
    return state_id


async def state_at(client: Any, agent: str, position: int) -> dict[bytes, bytes] | None:
    """Return the state at a position from the newest: its own rank for 0, and wrong ranks for negative ones (B20)."""
    rank = -1 - position if position <= 0 else position
    ids = await client.zrange(f"agent:{agent}:state:relative_index", rank, rank)
    if not ids:
        return None
    return await client.hgetall(f"agent:{agent}:state:{ids[0].decode()}") or None


async def state_history(client: Any, agent: str, steps: int = 5) -> list[dict[bytes, bytes]]:
    """Return the last states, with two commands for each."""
    states = []
    for number in range(steps):
        state = await state_at(client, agent, -number if number > 0 else 0)
        if not state:
            break
        states.append(state)
    return states


# ----------------------------------------------------------------------------- memories, in five commands and three


async def store_memory(
    client: Any, agent: str, memory_id: str, record: str, *, step: int, kind: str, action: str, importance: float
) -> None:
    """Store a memory with its indices, each with a command of its own."""
    stm = f"agent:{agent}:stm"
    await client.hset(stm, memory_id, record)
    await client.zadd(f"{stm}:timeline", {memory_id: step})
    await client.sadd(f"{stm}:type:{kind}", memory_id)
    await client.sadd(f"{stm}:action_type:{action}", memory_id)
    await client.zadd(f"{stm}:importance", {memory_id: importance})


async def important_of_kind(
    client: Any, agent: str, *, since: int, until: int, kind: str, least: float
) -> list[dict[str, Any]]:
    """Return the memories of a kind between two steps with an importance, through keys that all callers share (B23)."""
    stm = f"agent:{agent}:stm"
    await client.delete("temp:time_range", "temp:importance")
    in_range = await client.zrangebyscore(f"{stm}:timeline", since, until)
    if not in_range:
        return []
    await client.sadd("temp:time_range", *in_range)
    await client.sinterstore("temp:result", ["temp:time_range", f"{stm}:type:{kind}"])
    important = await client.zrevrangebyscore(f"{stm}:importance", "+inf", least)
    if not important:
        return []
    await client.sadd("temp:importance", *important)
    await client.sinterstore("temp:final_result", ["temp:result", "temp:importance"])
    ids = list(await client.smembers("temp:final_result"))
    return [json.loads(record) for record in await client.hmget(stm, ids) if record] if ids else []


# ------------------------------------------------------- vectors: sets of ids, and a string for the vector of each


async def store_vector(client: Any, agent: str, memory_id: str, vector: bytes, buckets: Iterable[str]) -> None:
    """Store a vector, and add its id to each bucket."""
    await client.set(f"agent:{agent}:stm:embedding:{memory_id}", vector)
    for bucket in buckets:
        await client.sadd(f"agent:{agent}:stm:vector_buckets:{bucket}", memory_id)


async def search_similar_vectors(
    client: Any, agent: str, query: Sequence[float], buckets: Iterable[str], k: int = 5
) -> list[tuple[str, float]]:
    """Return the most similar vectors among those that share a bucket, which are read one by one."""
    candidates: set[bytes] = set()
    for bucket in buckets:
        candidates.update(await client.smembers(f"agent:{agent}:stm:vector_buckets:{bucket}"))
    similarities = []
    for name in candidates:
        memory_id = name.decode()
        data = await client.get(f"agent:{agent}:stm:embedding:{memory_id}")
        if data:
            similarities.append((memory_id, _cosine_similarity(query, struct.unpack(f"<{len(data) // 4}f", data))))
    similarities.sort(key=lambda each: each[1], reverse=True)
    return similarities[:k]


def _cosine_similarity(one: Sequence[float], other: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / (math.sqrt(sum(a * a for a in one)) * math.sqrt(sum(b * b for b in other)))


# ------------------------------------------------------------------- chats: a capped list, and a hash beside it

_PUSH = """
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], 0, ARGV[2] - 1)
return redis.call('LLEN', KEYS[1])
"""
SESSION_S = 86_400


async def append_message(client: Any, session: str, message: Any, *, cap: int) -> None:
    """Push a message and trim the list in a script, then write the hash and both lifetimes."""
    key = f"app:env:tenant:session:{session}:mem"
    await client.eval(_PUSH, 1, f"{key}:messages", json.dumps(message), cap)
    async with client.pipeline(transaction=False) as pipe:
        pipe.hset(key, mapping={"last_seen": time.time(), "version": 1})
        pipe.expire(key, SESSION_S)
        pipe.expire(f"{key}:messages", SESSION_S)
        await pipe.execute()


async def load_session(client: Any, session: str) -> tuple[dict[bytes, bytes], list[Any]]:
    """Return the hash and the messages, oldest first, and start both lifetimes again: four trips."""
    key = f"app:env:tenant:session:{session}:mem"
    fields = await client.hgetall(key)
    messages = await client.lrange(f"{key}:messages", 0, -1)
    await client.expire(key, SESSION_S)
    await client.expire(f"{key}:messages", SESSION_S)
    return fields, [json.loads(message) for message in reversed(messages)]
