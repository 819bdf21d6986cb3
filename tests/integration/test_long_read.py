"""A read that takes long on a connection of its own: nobody waits for it, and it is bounded."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.errors import ServerRefused, ServerUnavailable
from orchestrator.store.failures import ReplyTooLarge
from orchestrator.store.locating import locate
from orchestrator.store.long_read import TURN_BYTES, LongRead
from tests.faultkit.proxy import ThreadedProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.faultkit.servers import RedisServer

MAX_BYTES = 4 * TURN_BYTES


@pytest.fixture
def link(redis_server: RedisServer) -> Iterator[LongRead]:
    """A link that keeps up to 4 MiB."""
    opened = LongRead(locate(redis_server.url), slot=0, connect_timeout_s=5, name="test", max_bytes=MAX_BYTES)
    yield opened
    opened.close()


def reply_of(link: LongRead, timeout_s: float = 5.0) -> tuple[Any, int]:
    """The reply, and how often something had to be taken until it was there."""
    end_s, takes = time.monotonic() + timeout_s, 0
    while time.monotonic() < end_s:
        if link.more or select.select([link], [], [], 0.1)[0]:
            takes += 1
            if (taken := link.take()) is not None:
                return taken[0], takes
    raise TimeoutError("no reply")


def test_nothing_waits_for_the_reply(link: LongRead, redis_client: redis.Redis, prefix: str) -> None:
    """As long as nothing has come there is nothing to take; then it is all there, and the next read may begin."""
    for value in (b"one", b"two"):
        link.begin("BLPOP", f"{prefix}:list", 30)
        assert link.under_way
        assert link.take() is None
        assert select.select([link], [], [], 0.05)[0] == []
        redis_client.rpush(f"{prefix}:list", value)
        assert reply_of(link)[0] == [f"{prefix}:list".encode(), value]
        assert not link.under_way


def test_a_large_reply_comes_in_turns(link: LongRead, redis_client: redis.Redis, prefix: str) -> None:
    """Nobody who takes is kept for longer than a turn's worth of bytes."""
    value = b"x" * (MAX_BYTES - 100)
    redis_client.set(f"{prefix}:large", value, ex=60)
    link.begin("GET", f"{prefix}:large")
    reply, takes = reply_of(link)
    assert reply == value
    assert takes >= 4


def test_a_reply_that_is_too_large_is_given_up(link: LongRead, redis_client: redis.Redis, prefix: str) -> None:
    """It is refused before all of it is here; the next read goes over a new connection."""
    redis_client.set(f"{prefix}:large", b"x" * (MAX_BYTES + 2 * TURN_BYTES), ex=60)
    link.begin("GET", f"{prefix}:large")
    with pytest.raises(ReplyTooLarge):
        reply_of(link)
    link.begin("PING")
    assert reply_of(link)[0] == b"PONG"


def test_a_refusal_leaves_the_connection(link: LongRead, redis_client: redis.Redis, prefix: str) -> None:
    """What Redis refuses is an error of this read alone."""
    redis_client.set(f"{prefix}:text", "x", ex=60)
    link.begin("XREAD", "STREAMS", f"{prefix}:text", "0")
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        reply_of(link)
    link.begin("PING")
    assert reply_of(link)[0] == b"PONG"


def test_a_lost_connection_is_told(redis_server: RedisServer) -> None:
    """Whoever waits learns that the connection has ended; nothing connects to a port that refuses."""
    with ThreadedProxy(redis_server.url) as proxy:
        link = LongRead(locate(proxy.url), slot=0, connect_timeout_s=1, name="test", max_bytes=MAX_BYTES)
        link.begin("BLPOP", "nothing", 30)
        proxy.cut()
        with pytest.raises(ServerUnavailable) as lost:
            reply_of(link)
        assert lost.value.outcome_unknown
        proxy.refuse()
        with pytest.raises(ServerUnavailable):
            link.begin("PING")
        proxy.heal()
        link.begin("PING")
        assert reply_of(link)[0] == b"PONG"
        link.close()
