"""Many waits for locks in one process: they share a connection, keep their order, and survive the loss of hints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from orchestrator import LockBusy, Orchestrator
from orchestrator.locks import waiter
from orchestrator.store.shared_hints import SharedHints
from tests.helpers.connections import connection_names
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.locks.named import Lease, Locks

WAITS = 1_000


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client."""
    async with Orchestrator(settings=settings) as client:
        yield client


def clients(redis_client: redis.Redis) -> list[str]:
    """The connections of clients."""
    return [name for name in connection_names(redis_client) if name.startswith("client")]


def listeners(redis_client: redis.Redis, prefix: str) -> int:
    """Waiters that listen."""
    return len(redis_client.pubsub_shardchannels(f"{prefix}:*:wake:*"))


def acl(client: Any, *words: str) -> None:
    """Change the users of the server."""
    client.execute_command("ACL", *words)


async def take(locks: Locks, name: str) -> Lease:
    """Take a free lock for the whole test."""
    lease = await locks.try_acquire(name, ttl=60)
    assert lease is not None
    return lease


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("names", [1, WAITS], ids=["one lock", "a lock each"])
async def test_a_thousand_waits_share_a_connection(
    settings: Settings, orc: Orchestrator, redis_client: redis.Redis, prefix: str, names: int
) -> None:
    """A thousand waiters in one process need one connection for hints, and are served in order of arrival."""
    served: list[str] = []
    async with Orchestrator(settings=settings) as other:
        holders, locks = other.locks("session:s"), orc.locks("session:s")

        async def wait_in_line(number: int) -> None:
            async with locks.hold(f"n{number % names}", wait=60) as lease:
                served.append(lease.token)

        async with anyio.create_task_group() as group:
            held = [await take(holders, f"n{number}") for number in range(names)]
            before = clients(redis_client)
            for number in range(WAITS):
                group.start_soon(wait_in_line, number)
                await anyio.lowlevel.checkpoint()
            await wait_for(lambda: listeners(redis_client, prefix) == WAITS, "all to listen", 60)

            async def all_wait() -> bool:
                found = [await holders.peek(f"n{number}") for number in range(min(names, 3))]
                return [seen.waiting for seen in found if seen] == [WAITS // names] * len(found)

            await wait_for(all_wait, "all to wait", 60)
            assert sorted(clients(redis_client)) == sorted([*before, "client:hints"])
            key = f"{prefix}:{{session:s}}:lock:n0:order"
            order = [token.decode() for token in await orc.services.store.execute("ZRANGE", key, 0, -1)]
            for lease in held:
                await lease.release()
    assert len(set(served)) == WAITS
    # A turn that a stalled process did not use within half a second costs it its place.
    places = {token: place for place, token in enumerate(order)}
    displaced = [abs(place - places[token]) for place, token in enumerate(served) if token in places]
    assert sum(displaced) <= WAITS, "by more than one place on average"


async def test_waits_of_two_processes_take_turns(settings: Settings, orc: Orchestrator) -> None:
    """The order is that of arrival at the server, whichever process waits, and however many others wait in it."""
    served: list[int] = []
    async with Orchestrator(settings=settings) as other:
        locks = [client.locks("session:s") for client in (orc, other)]

        async def wait_in_line(number: int) -> None:
            async with locks[number >= 5].hold("n", wait=30):
                served.append(number)

        async with anyio.create_task_group() as group, locks[1].hold("n"):
            for number in range(6):
                group.start_soon(wait_in_line, number)

                async def in_line(expected: int = number + 1) -> bool:
                    key = f"{orc.services.keys.prefix}:{{session:s}}:lock:n:order"
                    return int(await orc.services.store.execute("ZCARD", key)) == expected

                await wait_for(in_line, "it waits in line")
    assert served == list(range(6))


async def test_only_the_first_polls(orc: Orchestrator, redis_client: redis.Redis, prefix: str) -> None:
    """Many waiters of a lock cost no more commands than one while nothing happens."""
    locks = orc.locks("session:s")

    async def wait_in_line() -> None:
        async with locks.hold("n", wait=60):
            pass

    def asked() -> int:
        return int(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"])

    async with anyio.create_task_group() as group, locks.hold("n", ttl=60):
        for _ in range(50):
            group.start_soon(wait_in_line)
        await wait_for(lambda: listeners(redis_client, prefix) == 50, "all to listen")
        await anyio.sleep(0.5)
        before = asked()
        await anyio.sleep(2.5 * waiter.POLL_EVERY_S)
        assert asked() - before <= 6


async def test_lost_hint(orc: Orchestrator, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint that was lost on its way: the lock is kept for half a second, and then found."""
    async with Orchestrator(settings=settings) as other:
        lease, got = await take(orc.locks("session:s"), "n"), anyio.Event()

        async def wait_in_line() -> None:
            async with other.locks("session:s").hold("n", wait=30):
                got.set()

        async with anyio.create_task_group() as group:
            lost: list[str] = []
            monkeypatch.setattr(waiter._Wait, "received", lambda _, channel, __: lost.append(channel))
            group.start_soon(wait_in_line)
            key = f"{orc.services.keys.prefix}:{{session:s}}:lock:n:order"

            async def listens() -> bool:
                return bool(await orc.services.store.execute("EXISTS", key))

            await wait_for(listens, "it waits in line")
            began_s = time.monotonic()
            await lease.release()
            with anyio.fail_after(waiter.OTHERS_POLL_EVERY_S):
                await got.wait()
            assert lost
            assert 0.3 < time.monotonic() - began_s < waiter.OTHERS_POLL_EVERY_S


async def test_broken_connection(orc: Orchestrator, settings: Settings, redis_client: redis.Redis, prefix: str) -> None:
    """Waiters whose connection breaks listen again at once, and get their turns without a wait for a poll."""
    locks, served = orc.locks("session:s"), []
    async with Orchestrator(settings=settings) as other:

        async def wait_in_line(number: int) -> None:
            async with locks.hold("n", wait=30):
                served.append(number)

        async with anyio.create_task_group() as group:
            lease = await take(other.locks("session:s"), "n")
            for number in range(20):
                group.start_soon(wait_in_line, number)
            await wait_for(lambda: listeners(redis_client, prefix) == 20, "all to listen")
            (broken,) = [each["id"] for each in redis_client.client_list() if ":hints" in each["name"]]
            redis_client.client_kill_filter(_id=broken)
            await wait_for(lambda: listeners(redis_client, prefix) == 20, "all to listen again")

            async def all_wait() -> bool:
                key = f"{orc.services.keys.prefix}:{{session:s}}:lock:n:order"
                return int(await orc.services.store.execute("ZCARD", key)) == 20

            await wait_for(all_wait, "all to be in order")
            began_s = time.monotonic()
            await lease.release()
        assert sorted(served) == list(range(20))
        assert time.monotonic() - began_s < 2 * waiter.OTHERS_POLL_EVERY_S


async def test_no_answer_to_a_subscription(orc: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that gets no connection for hints, as behind others that wait for it too, gives up in time."""

    async def hang(*_: object) -> None:
        await anyio.sleep_forever()

    locks = orc.locks("session:s")
    monkeypatch.setattr(SharedHints, "subscribe", hang)
    async with locks.hold("n", ttl=60):
        with anyio.fail_after(10), pytest.raises(LockBusy):
            async with locks.hold("n", wait=0.3):
                pass


async def test_user_that_may_not_listen(settings: Settings, redis_client: redis.Redis, prefix: str) -> None:
    """Without the right to subscribe the waiters poll, in order within their process."""
    user, url = "deaf", settings.redis.url
    assert url is not None
    acl(redis_client, "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", "-ssubscribe")
    try:
        changed = settings.redis.model_copy(
            update={"url": type(url)(url.get_secret_value().replace("://", f"://{user}:pw@"))}
        )
        async with Orchestrator(settings=settings.model_copy(update={"redis": changed})) as deaf:
            locks, served = deaf.locks("session:s"), []

            async def wait_in_line(number: int) -> None:
                async with locks.hold("n", wait=30):
                    served.append(number)

            async with anyio.create_task_group() as group, locks.hold("n"):
                for number in range(5):
                    group.start_soon(wait_in_line, number)

                    async def in_line(expected: int = number + 1) -> bool:
                        seen = await locks.peek("n")
                        return seen is not None and seen.waiting == expected

                    await wait_for(in_line, "it waits in line")
                    assert listeners(redis_client, prefix) == 0
            assert served == list(range(5))
    finally:
        acl(redis_client, "DELUSER", user)
