"""Keys that hold what no program of the project writes: no process ends, and tasks go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator import Agent
from tests.helpers.local_team import local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server(alone=True)

GARBAGE: Final = {
    "not UTF-8": b"\xff\xfe",
    "infinite": b"inf",
    "no number": b"nan",
    "too large": b"1e300",
    "deep": b"[" * 10_000,
    "packed": b"\x93\x01",
    "long": b"a" * 1_000_000,
}
KINDS: Final = (
    *("agents", "board", "descriptions", "doorbell", "durability", "events", "format", "inbox", "leases", "offers"),
    *("replies", "room", "skills", "stats", "supervisors", "task", "versions", "worker", "workers"),
)
"""Keys of a pool in which a task has ended and a worker lives, by the first part of their names."""
WITHIN_S: Final = 10.0


def keys_of_kind(client: redis.Redis, root: str, kind: str) -> list[bytes]:
    """Return the keys of a pool whose names begin with a kind."""
    parts = len(root.split(":"))
    found: Any = client.keys(f"{root}:*")
    return [key for key in found if key.decode().split(":")[parts] == kind]


def damage(client: redis.Redis, key: bytes, garbage: bytes) -> None:
    """Add garbage to a key, and put it in place of the values that are there."""
    kind = client.type(key)
    writes: Sequence[tuple[Any, ...]] = ()
    if kind == b"zset":
        writes = [("ZADD", key, 1, garbage)]
    elif kind == b"set":
        writes = [("SADD", key, garbage)]
    elif kind == b"string":
        writes = [("SET", key, garbage)]
    elif kind == b"hash":
        fields: Any = client.hkeys(key)
        writes = [("HSET", key, field, garbage) for field in (*fields, garbage)]
    elif kind == b"stream":
        newest: Any = client.xrange(key, count=3)
        known = [word for _, fields in newest for name in fields for word in (name, garbage)]
        writes = [
            ("XADD", key, "*", *words) for words in ((garbage, garbage), known, ("a", "b", "c", "d", "e", "f")) if words
        ]
    for write in writes:
        client.execute_command(*write)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", KINDS)
async def test_garbage(redis_server: RedisServer, prefix: str, kind: str) -> None:
    """Supervisor, worker and client live on, whatever stands in one key; a new task ends."""
    agent = Agent("ada")

    @agent.skill
    async def echo(n: int) -> int:
        return n

    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        await team.work(agent)
        with redis_server.client() as client:
            for n, garbage in enumerate(GARBAGE.values()):
                assert await (await team.orc.submit("echo", {"n": n})).result(timeout=WITHIN_S) == n
                keys = keys_of_kind(client, team.services.keys.root, kind)
                assert keys, "the list of kinds names a key that is not there"
                for key in keys:
                    damage(client, key, garbage)
        assert await (await team.orc.submit("echo", {"n": -1})).result(timeout=WITHIN_S) == -1
