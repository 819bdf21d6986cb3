"""Connections that end in the very moment in which they are used, under both event loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.core.errors import ServerUnavailable
from orchestrator.store.links import Hints, Link, transport_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faultkit.servers import RedisServer

LOOPS = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


def run(work: Callable[[], Awaitable[None]], *, uvloop: bool) -> None:
    """Run in a new loop of one kind."""
    anyio.run(work, backend_options={"use_uvloop": uvloop})


@LOOPS
def test_a_connection_that_has_just_closed_is_opened_again(redis_server: RedisServer, *, uvloop: bool) -> None:
    """The loop has not told of the loss yet; the next command goes over a new connection all the same."""

    async def work() -> None:
        link = Link(redis_server.url, connect_timeout_s=5, read_timeout_s=5, name="test")
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
        hints = Hints(
            redis_server.url, connect_timeout_s=5, reply_timeout_s=5, name="test",
            received=lambda *_: None, ended=lambda: ends.append("ended"),
        )  # fmt: skip
        await hints.subscribe(["one"])
        assert hints._link._wire is not None
        hints._link._wire._transport.abort()
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
        link = Link(redis_server.url, connect_timeout_s=5, read_timeout_s=5, name="test")
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
