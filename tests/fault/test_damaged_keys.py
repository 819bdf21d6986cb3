"""Keys that hold what no program of the project writes: no process ends, and tasks go on."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest

from orchestrator import Agent
from orchestrator.core.errors import StoreError
from orchestrator.store.key_kinds import kind_of
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

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
STAYS: Final = frozenset({"desired", "desired:revisions", "format", "leader", "leader:format", "redacted"})
"""Keys of the whole pool that guard; some of them stop all."""
WORST: Final = ("doorbell", "queues", "events", "agent:ada", "limit:@ada", "versions:echo")
NAMED: Final = (
    *(
        "agent:ada",
        "agent:ada:workers",
        "offers:ada",
        "leases:ada",
        "lent:ada",
        "inbox:ada",
        "limit:@ada",
        "parked:ada",
    ),
    *("queue:agent:ada", "queue:skill:echo", "suspects:skill:echo", "awaited:skill:echo", "skills:echo", "room:echo"),
    *("versions:echo", "descriptions:echo"),
)


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


def retype(client: redis.Redis, key: str) -> None:
    """Put a key of another type in place of one."""
    client.delete(key)
    found = kind_of(key.partition("}:")[2])
    assert found is not None
    if found[0].type == "string":
        client.rpush(key, "x")
    else:
        client.set(key, "x")


async def end_task(team: LocalTeam, n: int) -> None:
    """Submit tasks until one ends, because Redis may refuse the first ones or lose them with the key."""
    with anyio.fail_after(WITHIN_S):
        while True:
            with suppress(StoreError, TimeoutError):
                assert await (await team.orc.submit("echo", {"n": n})).result(timeout=1.0) == n
                return
            await anyio.sleep(0.05)


@pytest.mark.parametrize(
    ("which", "part", "of"),
    [
        ("worst", 0, 1),
        *(
            pytest.param(which, part, 4, marks=pytest.mark.slow)
            for which in ("of the pool", "named")
            for part in range(4)
        ),
    ],
)
async def test_another_type(redis_server: RedisServer, prefix: str, which: str, part: int, of: int) -> None:
    """A key of another type is renamed by itself, and tasks end soon. Twin: `desired` stays."""
    agent = Agent("ada", rate="1000/s")

    @agent.skill
    async def echo(n: int) -> int:
        return n

    settings = local_settings(redis_server.url, prefix, supervisor__sweep_s=0.2, worker__heartbeat_s=0.2)
    async with run_local_team(settings) as team:
        await team.work(agent)
        await end_task(team, 0)
        keys = team.services.keys
        several = [f"{keys.stem}{name}" for name in (WORST if which == "worst" else NAMED)]
        if which == "of the pool":
            several = [key for key in keys.fixed if key.removeprefix(keys.stem) not in STAYS]
        with redis_server.client() as client:
            for n, key in enumerate(several[part::of]):
                retype(client, key)
                await end_task(team, n)
                await wait_for(partial(client.keys, glob(keys, key)), f"{key} to be renamed", WITHIN_S)
                await end_task(team, n)
            assert not client.keys(glob(keys, keys.desired))


def glob(keys: PoolKeys, key: str) -> str:
    """Return the pattern of what a key is renamed to."""
    return f"{keys.stem}mistyped:{key.removeprefix(keys.stem)}:[0-9]*".replace("{", "?").replace("}", "?")


async def test_stops_of_another_type(redis_server: RedisServer, prefix: str) -> None:
    """The key of the stops is not renamed: nothing starts until a person looks at it, and tasks end afterwards."""
    agent = Agent("ada")

    @agent.skill
    async def echo(n: int) -> int:
        return n

    settings = local_settings(redis_server.url, prefix, supervisor__sweep_s=0.1)
    async with run_local_team(settings) as team:
        await team.work(agent)
        await end_task(team, 0)
        keys = team.services.keys
        with redis_server.client() as client:
            retype(client, keys.desired)
            retype(client, keys.doorbell)
            await wait_for(partial(client.keys, glob(keys, keys.doorbell)), "a look at the keys", WITHIN_S)
            assert client.type(keys.desired) == b"string"
            with pytest.raises(StoreError):
                await team.orc.submit("echo", {"n": 1})
            client.delete(keys.desired)
        await end_task(team, 2)
