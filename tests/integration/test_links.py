"""Connections that end in the very moment in which they are used, under both event loops."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.core.errors import ServerUnavailable
from orchestrator.core.settings import Settings
from orchestrator.services import pool_keys
from orchestrator.store import wire
from orchestrator.store.links import Link, end_connection, transport_of
from orchestrator.store.locator import Address, FixedLocator
from orchestrator.store.long_read import LongRead
from orchestrator.store.store import Endpoint, Store, SyncStore
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

LOOPS = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


def run(work: Callable[[], Awaitable[None]], *, uvloop: bool) -> None:
    """Run in a new loop of one kind."""
    anyio.run(work, backend_options={"use_uvloop": uvloop})


@LOOPS
def test_a_connection_that_has_just_closed_is_opened_again(redis_server: RedisServer, *, uvloop: bool) -> None:
    """The loop has not told of the loss yet; the next command goes over a new connection all the same."""

    async def work() -> None:
        link = Link(Address(redis_server.url), connect_timeout_s=5, read_timeout_s=5, name="test")
        assert await link.execute("PING") == b"PONG"
        assert link._wire is not None
        link._wire._transport.abort()
        assert link._wire.lost is None, "the loss has been told of: this shows nothing"
        assert await link.execute("PING") == b"PONG"
        await link.close()

    run(work, uvloop=uvloop)


@LOOPS
def test_hints_are_subscribed_to_again(redis_server: RedisServer, *, uvloop: bool) -> None:
    """As above; whoever had subscribed over the old connection hears that it is gone, once."""

    async def work() -> None:
        ends: list[str] = []
        store = Store(Endpoint.at(redis_server.url), pool_keys(Settings()))
        hints = store.open_hints(name="test", received=lambda *_: None, ended=lambda: ends.append("ended"))
        await hints.subscribe(["one"])
        (link,) = hints._router._links.values()
        assert link._wire is not None
        link._wire._transport.abort()
        await hints.subscribe(["two"])
        await hints.check()
        assert ends == ["ended"]
        await hints.close()

    run(work, uvloop=uvloop)


@LOOPS
@pytest.mark.parametrize("when", ["after", "during"])
def test_a_connection_that_ends_at_the_login_is_no_answer(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, when: str, *, uvloop: bool
) -> None:
    """It is told as an outage, as every other broken connection, and the next command opens another one."""

    async def work() -> None:
        link = Link(Address(redis_server.url), connect_timeout_s=5, read_timeout_s=5, name="test")
        opened = link._pool.make_connection

        def make_connection() -> Any:
            connection: Any = opened()  # type: ignore[no-untyped-call]
            connect, begin = connection.connect, connection.on_connect_check_health

            async def connect_and_lose() -> None:
                await connect()
                transport_of(connection).abort()
                await anyio.sleep(0.01)

            async def lose_and_begin(**options: Any) -> None:
                transport_of(connection).abort()
                await anyio.sleep(0.01)  # now uvloop raises an error of its own when written to
                await begin(**options)

            if when == "after":
                connection.connect = connect_and_lose
            else:
                connection.on_connect_check_health = lose_and_begin
            return connection

        with monkeypatch.context() as patched:
            patched.setattr(link._pool, "make_connection", make_connection)
            with pytest.raises(ServerUnavailable):
                await link.execute("PING")
        assert await link.execute("PING") == b"PONG"
        await link.close()

    run(work, uvloop=uvloop)


@pytest.fixture
def replica() -> Iterator[RedisServer]:
    """A server without a master, whose clients connected while it was one."""
    with RedisServer() as server:
        yield server


def demote(server: RedisServer) -> None:
    """Make a server a replica of an address where no server listens; its connections stay open."""
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")


async def reader_blocks(server: RedisServer) -> None:
    """Wait until a client waits in a blocking read."""
    with server.client() as client:
        await wait_for(lambda: client.info("clients")["blocked_clients"] == 1, "a blocked reader")


@LOOPS
def test_a_replica_is_left(replica: RedisServer, monkeypatch: pytest.MonkeyPatch, *, uvloop: bool) -> None:
    """The refused write closes the connection after the last reply, and those that only read with it."""
    monkeypatch.setattr(wire, "REPLICA_PAUSE_S", 0.0)

    async def work() -> None:
        store = Store(Endpoint.at(replica.url), pool_keys(Settings()))
        reader, refusals = store.blocking_link(30), []
        first, read_by = await store.execute("CLIENT", "ID"), await reader.execute("CLIENT", "ID")
        demote(replica)
        read = await reader.begin("XREAD", "BLOCK", 0, "STREAMS", "none", "0")

        async def write() -> None:
            with pytest.raises(ServerUnavailable, match="takes no writes") as refusal:
                await store.execute("SET", "key", "value")
            refusals.append(refusal.value.outcome_unknown)

        await reader_blocks(replica)
        assert not read.done()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(write)
        assert refusals == [False, False, False]
        assert await store.execute("CLIENT", "ID") != first
        with pytest.raises(ConnectionError):
            await read
        assert await reader.execute("CLIENT", "ID") != read_by
        await reader.close()
        await store.close()

    run(work, uvloop=uvloop)


async def test_a_new_connection_to_a_replica_stays(replica: RedisServer) -> None:
    """The retries of many callers do not open a connection each while the address still leads to the replica."""
    demote(replica)
    store = Store(Endpoint.at(replica.url), pool_keys(Settings()))
    first = await store.execute("CLIENT", "ID")
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match="takes no writes"):
            await store.execute("SET", "key", "value")
    assert await store.execute("CLIENT", "ID") == first
    await store.close()


def test_a_tls_connection_ends_encrypted() -> None:
    """Another thread that still reads from it gets no encrypted bytes for a reply."""
    near, far = socket.socketpair()
    with (
        far,
        ssl.create_default_context().wrap_socket(
            near, do_handshake_on_connect=False, server_hostname="server"
        ) as connection,
    ):
        far.sendall(b"$8\r\nnot what")
        end_connection(connection)
        with contextlib.suppress(ssl.SSLError):
            assert connection.recv(100) == b""


class MovingLocator(FixedLocator):
    """Names the same server, and tells a read to leave it, right after that has looked who it is."""

    def __init__(self, url: str) -> None:
        super().__init__(Address(url, is_master=True))
        self.looks = 0
        self.at_second: Callable[[], None] = lambda: None

    @property
    def single(self) -> Address | None:
        """The server, which another one replaces at the second look."""
        self.looks += 1
        if self.looks == 2:
            self.at_second()
        return self._home

    @single.setter
    def single(self, address: Address | None) -> None:
        """Ignore it."""


def test_a_long_read_that_begins_while_its_server_is_left(redis_server: RedisServer) -> None:
    """It does not go on at the server that was left."""
    locator = MovingLocator(redis_server.url)
    long_read = LongRead(locator, slot=0, connect_timeout_s=5, name="test", max_bytes=1000)
    locator.at_second = lambda: long_read.leave(locator.address(0))

    def read() -> tuple[Any] | None:
        long_read.begin("PING")
        select.select([long_read], [], [], 5)
        return long_read.take()

    with pytest.raises(ServerUnavailable):
        read()
    assert read() == (b"PONG",)
    long_read.close()


def test_a_thread_leaves_a_replica(replica: RedisServer) -> None:
    """The blocking link does so too, and a long read of the same thread ends."""
    store = SyncStore(Endpoint.at(replica.url), pool_keys(Settings()), name="test")
    first = store.execute("CLIENT", "ID")
    long_read = store.long_read(name="long", connect_timeout_s=5, max_bytes=1000)
    demote(replica)
    long_read.begin("XREAD", "BLOCK", 0, "STREAMS", "none", "0")
    with pytest.raises(ServerUnavailable, match="takes no writes"):
        store.execute("SET", "key", "value")
    assert store.execute("CLIENT", "ID") != first
    with pytest.raises(ServerUnavailable, match="closed the connection"):
        long_read.take()
    long_read.close()
    store.close()
