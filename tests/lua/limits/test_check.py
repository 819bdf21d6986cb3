"""The limiter's script: exact over every window, refusals are not counted, the same call counts once."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.limits import scripts
from orchestrator.store.keys import PoolKeys, ScopeKeys
from orchestrator.store.store import Endpoint, SyncStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.both_servers
START_US = 1_800_000_000_000_000
_NUMBERS = count()


class Limiter:
    """One limit of 10 in 60 s, and a clock that the test moves."""

    def __init__(self, url: str, prefix: str) -> None:
        self.store = SyncStore(Endpoint(url), PoolKeys(prefix, "p"), name="test")
        self.prefix, self.now_us, self.name = prefix, START_US, "limit"
        self._ops = 0

    @property
    def keys(self) -> ScopeKeys:
        """Of the limit."""
        return ScopeKeys(self.prefix, "limit", self.name)

    def check(
        self, op: str | None = None, *, cost: int = 1, most: int = 10, window_us: int = 60_000_000
    ) -> tuple[Any, ...]:
        """Run the script."""
        self._ops += 1
        call = scripts.check(
            self.keys, op=op or f"o{self._ops}", most=most, window_us=window_us, cost=cost, now_us=str(self.now_us)
        )
        found = self.store.call(call)
        return tuple(found)


@pytest.fixture
def limiter(redis_server: RedisServer, prefix: str) -> Iterator[Limiter]:
    """A limit that nobody has used."""
    limiter = Limiter(redis_server.url, prefix)
    yield limiter
    limiter.store.close()


def test_a_steady_caller_is_not_starved(limiter: Limiter) -> None:
    """Who asks once a second under a limit of 10 a minute gets 10 every minute: refusals take no room."""
    allowed = 0
    for _ in range(600):
        allowed += limiter.check()[0] == "allowed"
        limiter.now_us += 1_000_000
    assert allowed == 100


def test_retry_after(limiter: Limiter) -> None:
    """A refusal says when as much would fit; a microsecond earlier it would not."""
    for _ in range(10):
        limiter.check()
        limiter.now_us += 1_000_000
    status, used, retry_us = limiter.check(cost=3)
    assert (status, used, retry_us) == ("refused", 10, 52_000_000)
    limiter.now_us += retry_us - 1
    assert limiter.check(cost=3)[0] == "refused"
    limiter.now_us += 1
    assert limiter.check(cost=3) == ("allowed", 10, 0)


def test_sent_twice(limiter: Limiter) -> None:
    """The same call counts once while it is in the window; afterwards it is another one."""
    assert limiter.check("mine", cost=4) == ("allowed", 4, 0)
    assert limiter.check("mine", cost=4) == ("duplicate", 4, 0)
    limiter.now_us += 60_000_000
    assert limiter.check("mine", cost=4) == ("allowed", 4, 0)


def test_a_clock_that_steps_back(limiter: Limiter) -> None:
    """A server clock that is set back opens no window a second time."""
    limiter.check(cost=10)
    limiter.now_us -= 120_000_000
    assert limiter.check()[0] == "refused"


def test_two_windows_of_one_name(limiter: Limiter) -> None:
    """A short and a long window of one name count each for themselves: the short one forgets nothing of the other."""
    allowed = 0
    for _ in range(600):
        allowed += limiter.check(window_us=1_000_000)[0] == "allowed" == limiter.check(window_us=3_600_000_000)[0]
        limiter.now_us += 1_000_000
    assert allowed == 10


def test_lifetime(limiter: Limiter) -> None:
    """The key goes a second after its window."""
    limiter.check()
    assert 60_000 < int(limiter.store.execute("PTTL", limiter.keys.key("window:60000"))) <= 61_000


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 30_000_000), st.integers(1, 10)), max_size=40))
def test_every_window(limiter: Limiter, steps: list[tuple[int, int]]) -> None:
    """Whatever comes when, the answers are those of a list of grants, and no window holds more than the limit."""
    limiter.name, grants = f"limit{next(_NUMBERS)}", deque[int]()
    for wait_us, cost in steps:
        limiter.now_us += wait_us
        while grants and grants[0] <= limiter.now_us - 60_000_000:
            grants.popleft()
        fits = len(grants) + cost <= 10
        if fits:
            grants.extend([limiter.now_us] * cost)
        assert limiter.check(cost=cost)[:2] == ("allowed" if fits else "refused", len(grants))
