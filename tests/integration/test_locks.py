"""Named locks beside a real server: waiting in order, renewal, loss, cancellation, crashes of others, what is left."""

from __future__ import annotations

import re
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import InvalidInput, LockBusy, LockLost, NotHeld, Orchestrator
from orchestrator.locks import scripts
from orchestrator.locks.model import PROFILES, new_nonce
from orchestrator.store.keys import ScopeKeys
from tests.faultkit.proxy import FaultProxy
from tests.helpers.counting import CommandCounter
from tests.helpers.guards import keys_of
from tests.helpers.local_team import local_settings
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.locks.named import Lease, Locks
    from tests.faultkit.servers import RedisServer

SCOPE = "session:s 1"


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client."""
    async with Orchestrator(settings=settings) as client:
        yield client


@pytest.fixture
async def locks(orc: Orchestrator) -> Locks:
    """The locks of one session."""
    return orc.locks(SCOPE, owner="me")


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[Locks]:
    """The same locks, for somebody else."""
    async with Orchestrator(settings=settings) as client:
        yield client.locks(SCOPE, owner="somebody else")


def left(client: redis.Redis, prefix: str) -> set[str]:
    """What is left of locks."""
    names = {name.partition("}:")[2] for name in keys_of(client, prefix) if "{session:" in name}
    return names - {"fence"}


async def test_lease(locks: Locks, other: Locks, redis_client: redis.Redis, prefix: str) -> None:
    """A lease tells lock, scope, token, fence, deadline; nobody else gets it meanwhile; then nothing is left."""
    async with locks.hold("n:1", ttl=5) as lease:
        assert (lease.lock, lease.scope, lease.held) == ("n:1", SCOPE, True)
        assert len(lease.token) == 32
        assert 4 < lease.deadline - time.monotonic() <= 5
        assert await other.try_acquire("n:1") is None
        seen = await other.peek("n:1")
        assert seen is not None
        assert (seen.holder, seen.fence, seen.waiting) == ("me", lease.fence, 0)
        assert [lock.name for lock in await other.list()] == ["n:1"]
        first = lease.fence
    assert not lease.held
    assert await locks.peek("n:1") is None
    assert left(redis_client, prefix) == set()
    async with other.hold("n:1") as lease:
        assert lease.fence > first


async def test_held_lock_is_renewed(locks: Locks, other: Locks) -> None:
    """A block may last longer than the lock: it is renewed by itself."""
    async with locks.hold("n", ttl=0.3) as lease:
        await anyio.sleep(0.8)
        assert lease.held
        assert await other.try_acquire("n") is None


async def test_unrenewed_lock_lapses(locks: Locks, other: Locks) -> None:
    """Twin: a lock of `try_acquire` is not renewed; another one gets it, and its owner hears so."""
    mine = await locks.try_acquire("n", ttl=0.2)
    assert mine is not None
    async with other.hold("n", wait=2) as lease:
        assert lease.fence > mine.fence
        assert not mine.held
        with pytest.raises(NotHeld, match="no longer held: it had lapsed"):
            await mine.extend()
        with pytest.raises(NotHeld, match="had lapsed before it was released"):
            await mine.release()
        assert lease.held
    with pytest.raises(NotHeld, match="was released before"):
        await mine.release()


async def test_extended_lock(locks: Locks, other: Locks) -> None:
    """The owner gives an unrenewed lock more time, and releases it."""
    mine = await locks.try_acquire("n", ttl=0.2)
    assert mine is not None
    await mine.extend(5)
    await anyio.sleep(0.3)
    assert mine.held
    assert await other.try_acquire("n") is None
    await mine.release()
    again = await other.try_acquire("n")
    assert again is not None
    await again.release()


async def test_busy_lock_names_its_holder(locks: Locks, other: Locks, redis_client: redis.Redis, prefix: str) -> None:
    """Who waits in vain hears who has it and for how long; of its waiting nothing is left."""
    async with locks.hold("n", ttl=5):
        with pytest.raises(LockBusy, match=r"held by me, \d+ ms left unless renewed; waited 0\.\d s") as busy:
            async with other.hold("n", wait=0.2):
                pytest.fail("it was not free")
        assert (busy.value.lock, busy.value.holder) == ("n", "me")
        assert 0 < busy.value.left_ms <= 5000
        assert left(redis_client, prefix) == {"lock:n", "locks"}


async def test_waiters_are_served_in_order(locks: Locks, settings: Settings) -> None:
    """Whoever came first gets it first, whichever process it is in; the fences rise with them."""
    served: list[tuple[int, int]] = []
    async with AsyncExitStack() as opened, anyio.create_task_group() as group:
        clients = [await opened.enter_async_context(Orchestrator(settings=settings)) for _ in range(2)]

        async def wait_in_line(number: int) -> None:
            async with clients[number % 2].locks(SCOPE).hold("n", wait=10) as lease:
                served.append((number, lease.fence))

        async with locks.hold("n"):
            for number in range(8):
                group.start_soon(wait_in_line, number)

                async def in_line(expected: int = number + 1) -> bool:
                    seen = await locks.peek("n")
                    return seen is not None and seen.waiting == expected

                await wait_for(in_line, "it waits in line")
        await wait_for(lambda: len(served) == 8, "all were served")
    assert [number for number, _ in served] == list(range(8))
    assert served == sorted(served, key=lambda pair: pair[1])


async def test_contention_costs_four_round_trips(locks: Locks, redis_client: redis.Redis) -> None:
    """A contended acquisition and its release are four commands; nobody polls."""

    async def work() -> None:
        for _ in range(5):
            async with locks.hold("n", wait=20):
                await anyio.sleep(0.002)

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(work)
    counter = CommandCounter(redis_client)
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(work)
    calls = counter.calls()
    assert calls["evalsha"] <= 4 * 50


async def test_crashed_holder(locks: Locks, orc: Orchestrator) -> None:
    """A holder that died is waited for until its lock lapses, and not longer."""
    keys = ScopeKeys(orc.services.keys.prefix, "session", "s 1")
    await orc.services.store.call(
        scripts.take(keys, lock=keys.lock("n"), nonce=new_nonce(), owner="it", ttl_ms=300, wait_ms=0)
    )
    began_s = time.monotonic()
    async with locks.hold("n", wait=5):
        assert 0.2 < time.monotonic() - began_s < 0.9


async def test_cancelled_waiter_leaves_nothing(
    locks: Locks, other: Locks, redis_client: redis.Redis, prefix: str
) -> None:
    """Who is cancelled while it waits is forgotten at once: the lock is free when its holder has gone."""
    async with locks.hold("n"):
        for delay_s in (0.0, 0.001, 0.05):
            with anyio.move_on_after(delay_s):
                async with other.hold("n", wait=10):
                    pytest.fail("it was not free")
        assert left(redis_client, prefix) == {"lock:n", "locks"}
    assert await locks.peek("n") is None


async def test_cancelled_at_every_moment(locks: Locks, redis_client: redis.Redis, prefix: str) -> None:
    """A block that is cancelled anywhere, also while it gets or gives back the lock, leaves it free."""
    for step in range(40):
        with anyio.move_on_after(step * 0.0002):
            async with locks.hold("n"):
                await anyio.sleep(0.002)
        assert await locks.peek("n") is None
    assert left(redis_client, prefix) == set()


async def test_cancelled_block_releases(locks: Locks, other: Locks) -> None:
    """A cancellation ends the block and releases the lock, though everything around it is cancelled."""
    with anyio.CancelScope() as scope:
        async with locks.hold("n", ttl=30):
            scope.cancel()
            await anyio.sleep_forever()
    assert await other.peek("n") is None


async def test_failed_block_releases(locks: Locks) -> None:
    """An exception of the block passes, and the lock is released."""
    with pytest.raises(ZeroDivisionError):
        async with locks.hold("n"):
            raise ZeroDivisionError
    assert await locks.peek("n") is None


async def test_failed_release_is_a_warning(
    redis_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis is away when a block ends: it ends all the same, soon, and the log says that the lock stays a while."""
    async with (
        FaultProxy(redis_server.url) as proxy,
        Orchestrator(settings=local_settings(proxy.url, prefix, redis__command_timeout_s=0.2)) as orc,
    ):
        async with orc.locks(SCOPE).hold("n", ttl=5):
            proxy.refuse()
            proxy.cut()
            ended_s = time.monotonic()
        assert time.monotonic() - ended_s < 3
        assert "lock_release_failed" in caplog.text


async def test_lost_lock_ends_its_block(locks: Locks, other: Locks) -> None:
    """A lock that is taken away: the block is cancelled at the next renewal, and says so."""
    leases: list[Lease] = []

    async def work() -> None:
        async with locks.hold("n", ttl=0.6) as lease:
            leases.append(lease)
            seen = await other.peek("n")
            assert seen is not None
            assert await other.take_away(seen)
            assert not await other.take_away(seen)
            await anyio.sleep(5)

    with pytest.raises(LockLost, match="was lost before its block ended: it had lapsed"):
        await work()
    assert not leases[0].held
    with pytest.raises(NotHeld):
        await leases[0].extend()


async def test_overtaken_lock_names_the_new_owner(locks: Locks, other: Locks) -> None:
    """The same when somebody else has it by then: the message names it, and it is not disturbed."""
    theirs: list[Lease | None] = []

    async def work() -> None:
        async with locks.hold("n", ttl=0.6):
            seen = await other.peek("n")
            assert seen is not None
            await other.take_away(seen)
            theirs.append(await other.try_acquire("n"))
            await anyio.sleep(5)

    with pytest.raises(LockLost, match="somebody else has it now"):
        await work()
    assert theirs[0] is not None
    await theirs[0].release()


async def test_block_ends_before_the_lock_lapses(redis_server: RedisServer, prefix: str) -> None:
    """Without answers from Redis the block is cancelled while the lock is still its own."""
    async with (
        FaultProxy(redis_server.url) as proxy,
        Orchestrator(settings=local_settings(proxy.url, prefix)) as orc,
        Orchestrator(redis_server.url, prefix=prefix) as watcher,
    ):
        ended: list[tuple[Lease, float]] = []

        async def work() -> None:
            async with orc.locks(SCOPE).hold("n", ttl=1) as lease:
                proxy.blackhole()
                try:
                    await anyio.sleep(5)
                finally:
                    ended.append((lease, time.monotonic()))

        with pytest.raises(LockLost, match="could not be renewed in time"):
            await work()
        ((lease, ended_s),) = ended
        assert await watcher.locks(SCOPE).peek("n") is not None
        assert lease.deadline - 0.5 < ended_s < lease.deadline
        proxy.heal()


async def test_scopes_never_meet(orc: Orchestrator) -> None:
    """The same name in a session, another one, an agent and the pool: four locks."""
    async with AsyncExitStack() as held:
        names = [
            (await held.enter_async_context(orc.locks(scope).hold("n", wait=0))).scope
            for scope in ("session:a", "session:b", "agent:a", "pool")
        ]
        assert names == ["session:a", "session:b", "agent:a", "pool"]
        assert await orc.locks("pool").within("session:a").try_acquire("n") is None
        assert await orc.locks().try_acquire("n") is None


async def test_list(locks: Locks) -> None:
    """The lock that lapses first is listed first, and no more than asked for."""
    async with locks.hold("long", ttl=60), locks.hold("short", ttl=20), locks.hold("longer", ttl=80):
        assert [lock.name for lock in await locks.list()] == ["short", "long", "longer"]
        assert [lock.name for lock in await locks.list(2)] == ["short", "long"]


@pytest.mark.parametrize("name", ["a:b", "{x}", "}:{session:q}", "ä b", "*", "wake", "n:waiters", "\x00", "a" * 256])
async def test_any_name(locks: Locks, name: str) -> None:
    """Any text names a lock, and comes back as it was given."""
    async with locks.hold(name, wait=0):
        assert [lock.name for lock in await locks.list()] == [name]


async def test_refused_by_validation(orc: Orchestrator, locks: Locks) -> None:
    """Names, times, profiles and scopes that cannot be are refused before anything is sent."""
    for name, options in [
        ("", {}),
        ("a" * 257, {}),
        ("n", {"ttl": 0}),
        ("n", {"ttl": 90_000}),
        ("n", {"wait": -1}),
        ("n", {"profile": "none"}),
    ]:
        with pytest.raises(InvalidInput):
            async with locks.hold(name, **options):  # type: ignore[arg-type]
                pytest.fail("it was refused")
    for scope in ("", "session", "session:", "pool:x", "elsewhere:x"):
        with pytest.raises(InvalidInput):
            orc.locks(scope)


GUIDE = (Path(__file__).parents[2] / "docs/guides/locks.md").read_text(encoding="utf-8")


async def test_profiles(locks: Locks, other: Locks, redis_client: redis.Redis, prefix: str) -> None:
    """Each profile has the lifetime and the wait of the guide's table, without a name the default one."""
    table = re.findall(r"^\| `(\w+)`( \(the default\))? \| (\d+) s \| (\d+) s \|", GUIDE, re.MULTILINE)
    assert {name for name, *_ in table} == set(PROFILES)
    waiters = ScopeKeys(prefix, "session", "s 1").key("lock:n:waiters")

    async def wait_behind(hold: Callable[[], AbstractAsyncContextManager[Lease]]) -> float:
        """Wait for the lock, and return the seconds after which the waiter gives up."""
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                async with hold():
                    pytest.fail("it was not free")

            group.start_soon(wait)
            await wait_for(lambda: redis_client.zcard(waiters) == 1, "it waits")
            (waiter,) = redis_client.zrange(waiters, 0, -1, withscores=True)
            seconds, micros = redis_client.time()
            group.cancel_scope.cancel()
        return float(waiter[1]) / 1000 - seconds - micros / 1_000_000

    for name, default, ttl, wait in table:
        options = {} if default else {"profile": name}
        async with locks.hold("n", **options) as lease:
            assert int(ttl) - 1 < lease.deadline - time.monotonic() <= int(ttl)
            assert int(wait) - 1 < await wait_behind(partial(other.hold, "n", **options)) <= int(wait)
        tried = await locks.try_acquire("n", **options)
        assert tried is not None
        assert int(ttl) - 1 < tried.deadline - time.monotonic() <= int(ttl)
        await tried.release()
    async with locks.hold("n", ttl=2, profile="execution") as lease:
        assert lease.deadline - time.monotonic() <= 2
        assert 8 < await wait_behind(partial(other.hold, "n", wait=9, profile="execution")) <= 9
