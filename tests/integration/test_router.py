"""Links of a process whose slots have several addresses: one server under two addresses, or an address without one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.core.errors import ServerUnavailable
from orchestrator.store import router
from orchestrator.store.failures import Redirected
from orchestrator.store.keys import PoolKeys
from orchestrator.store.locator import Address, FixedLocator, slot_of
from orchestrator.store.router import learn
from orchestrator.store.store import Endpoint, Store, SyncStore
from orchestrator.testing.waiting import wait_for
from tests.faultkit.proxy import ThreadedProxy
from tests.faultkit.servers import free_port

if TYPE_CHECKING:
    import redis

    from tests.faultkit.servers import RedisServer


async def test_a_pipeline_keeps_the_links_that_it_uses(redis_server: RedisServer, prefix: str) -> None:
    """The first link was in use until the second address came, so it is not idle; no connection is left behind."""
    near, far = f"{prefix}:{{a}}", f"{prefix}:{{b}}"
    commands = [("RPUSH", near, "1"), ("RPUSH", far, "1")]
    name, endpoint = f"{prefix}-thread", Endpoint.at(redis_server.url)
    with ThreadedProxy(redis_server.url) as proxy, redis_server.client() as direct:
        store_of_thread = SyncStore(endpoint, PoolKeys(prefix, "p"), name=name)
        store_of_thread.execute("LLEN", near)
        first = ids_of(direct, name)
        endpoint.locator.moved(slot_of(far), Address(proxy.url))
        assert store_of_thread._router.pipeline(commands) == [1, 1]
        assert store_of_thread._router.pipeline(commands) == [2, 2]
        assert first < ids_of(direct, name)
        store_of_thread.close()
        await wait_for(lambda: not ids_of(direct, name), "the end of all connections")

        async with Store(endpoint, PoolKeys(prefix, "p"), name=prefix) as store:
            link = store.blocking_link(1)
            for pushed in (3, 4):
                assert await link.pipeline(commands) == [pushed, pushed]
                await wait_for(lambda: len(ids_of(direct, f"{prefix}:block")) == 1, "only the link in use")
            await link.close()
            await wait_for(lambda: not ids_of(direct, f"{prefix}:block"), "the end of all connections")
        direct.delete(near, far)


async def test_a_link_to_the_only_address_is_not_idle(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in use until a second address came, however long ago it was opened."""
    near, far = f"{prefix}:{{a}}", f"{prefix}:{{b}}"
    monkeypatch.setattr(router, "IDLE_S", 0.2)
    endpoint = Endpoint.at(redis_server.url)
    with ThreadedProxy(redis_server.url) as proxy, redis_server.client() as direct:
        async with Store(endpoint, PoolKeys(prefix, "p"), name=prefix) as store:
            await store.execute("GET", near)
            first = ids_of(direct, prefix)
            await anyio.sleep(0.25)
            await store.execute("GET", near)
            endpoint.locator.moved(slot_of(far), Address(proxy.url))
            await store.execute("GET", far)
            await store.execute("GET", near)
            assert first < ids_of(direct, prefix)


@pytest.mark.parametrize("kind", ["asyncio", "thread"])
async def test_one_of_two_servers_is_gone(redis_server: RedisServer, prefix: str, kind: str) -> None:
    """The commands that ran have their replies; the failure of each other one says whether it may have run."""
    near, far = f"{prefix}:{{a}}", f"{prefix}:{{b}}"
    commands = [("RPUSH", near, "1"), ("RPUSH", far, "1"), ("RPUSH", near, "2")]
    endpoint = Endpoint.at(redis_server.url)
    with ThreadedProxy(redis_server.url) as proxy:
        async with Store(endpoint, PoolKeys(prefix, "p"), name=prefix) as store:
            store_of_thread = SyncStore(endpoint, PoolKeys(prefix, "p"), name=prefix)

            async def send() -> list[Any]:
                if kind == "asyncio":
                    return await store.pipeline(commands)
                return await anyio.to_thread.run_sync(store_of_thread._router.pipeline, commands)

            endpoint.locator.moved(slot_of(far), Address(redis_server.url).at("127.0.0.1", free_port()))
            first, lost, last = await send()
            assert (first, last) == (1, 2)
            assert isinstance(lost, ServerUnavailable)
            assert not lost.outcome_unknown
            assert kind == "thread" or store.last_outage_s > 0
            # The address is forgotten, so the same commands have one address again.
            assert await send() == [3, 1, 4]

            endpoint.locator.moved(slot_of(far), Address(proxy.url))
            cut = proxy.fail_reply("RPUSH")
            first, lost, last = await send()
            assert (first, last, cut.fired) == (5, 6, 1)
            assert isinstance(lost, ServerUnavailable)
            assert lost.outcome_unknown
            assert await send() == [7, 3, 8]
            await store.execute("DEL", near)
            await store.execute("DEL", far)
            store_of_thread.close()


class Interrupted(FixedLocator):
    """Runs `meanwhile` in another thread just before an assignment of `single`, once."""

    meanwhile: Any = None

    def __setattr__(self, name: str, value: object) -> None:
        if name == "single" and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            thread = threading.Thread(target=meanwhile)
            thread.start()
            # With a lock the other thread waits for this one.
            thread.join(0.1)
        super().__setattr__(name, value)


async def test_threads_learn_at_the_same_time() -> None:
    """What one thread learns while another one forgets is kept, and the locator does not tell both."""
    home, other = Address("redis://h:1/0"), Address("redis://n:2/0")
    locator = Interrupted(home)
    locator.moved(5, other)
    locator.meanwhile = lambda: locator.moved(6, other.at("n", 3))
    locator.doubt(other)
    await wait_for(lambda: locator.address(6) != home, "the other thread")
    await wait_for(lambda: locator.single is None, "several addresses")


def test_a_redirect_corrects_a_locator() -> None:
    """A locator that has the address of the slot and still names one for all slots is told again."""
    home, other = Address("redis://h:1/0"), Address("redis://n:2/0")
    locator = FixedLocator(home)
    locator.moved(5, other)
    locator.single = home
    redirect = Redirected("moved", slot=5, host="n", port=2, asking=False)
    redirect.address = other
    learn(locator, redirect)
    assert locator.single is None


def ids_of(direct: redis.Redis, name: str) -> set[str]:
    """The ids of the connections with this name."""
    return {one["id"] for one in direct.client_list() if one["name"] == name}
