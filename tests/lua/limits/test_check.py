"""The limiter's script: safe over every window, refusals are not counted, the same call counts once."""

from __future__ import annotations

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

pytestmark = pytest.mark.every_server
START_US = 1_800_000_000_000_000
MAX = 2**53
_NUMBERS = count()


class Limiter:
    """One limit of 10 in 60 s, and a clock that the test moves."""

    def __init__(self, url: str, prefix: str, *, sums: bool) -> None:
        self.store = SyncStore(Endpoint.at(url), PoolKeys(prefix, "p"), name="test")
        self.sums = sums
        self.prefix, self.now_us, self.name = prefix, START_US, "limit"
        self._ops = 0

    @property
    def keys(self) -> ScopeKeys:
        """Of the limit."""
        return ScopeKeys(self.prefix, "limit", self.name)

    def check(
        self,
        op: str | None = None,
        *,
        cost: int = 1,
        most: int = 10,
        window_us: int = 60_000_000,
        sums: bool | None = None,
    ) -> tuple[Any, ...]:
        """Run the script."""
        self._ops += 1
        found = self.store.call(
            scripts.check(
                self.keys,
                op=op or f"o{self._ops}",
                most=most,
                window_us=window_us,
                cost=cost,
                sums=self.sums if sums is None else sums,
                now_us=str(self.now_us),
            )
        )
        return tuple(found)

    def bytes(self) -> int:
        """What Redis stores of all limits of this prefix."""
        execute = self.store.execute
        return sum(execute("MEMORY", "USAGE", key, "SAMPLES", 0) for key in execute("KEYS", f"{self.prefix}:*"))

    def commands(self) -> int:
        """Commands that the server has executed, those in scripts included."""
        lines = self.store.execute("INFO", "commandstats").decode().splitlines()
        return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if "calls=" in line)


@pytest.fixture(params=[True, False], ids=["sums", "units"])
def limiter(redis_server: RedisServer, prefix: str, request: pytest.FixtureRequest) -> Iterator[Limiter]:
    """A limit that no call has used, above the version floor and below it."""
    limiter = Limiter(redis_server.url, prefix, sums=request.param)
    yield limiter
    limiter.store.close()


@pytest.fixture
def by_sums(redis_server: RedisServer, prefix: str) -> Iterator[Limiter]:
    """A limit above the version floor."""
    limiter = Limiter(redis_server.url, prefix, sums=True)
    yield limiter
    limiter.store.close()


class Exact:
    """Every allowed call with its cost: what a limit would know without bounds on its memory."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

    def used(self, now_us: int, window_us: float) -> int:
        """The cost inside the window that ends now."""
        return sum(cost for us, cost in self.taken if us > now_us - window_us)


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
    assert limiter.check() == ("refused", 10, 180_000_000)


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
    key = limiter.keys.key("usage:60000" if limiter.sums else "window:60000")
    assert 60_000 < int(limiter.store.execute("PTTL", key)) <= 61_000


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 30_000_000), st.integers(1, 10)), max_size=40))
def test_every_window(limiter: Limiter, steps: list[tuple[int, int]]) -> None:
    """Calls that are a 64th of the window apart, or counted by units, get the answers of an exact limit."""
    limiter.name, exact = f"limit{next(_NUMBERS)}", Exact()
    for wait_us, cost in steps:
        limiter.now_us += wait_us + 937_501 if limiter.sums else wait_us
        used = exact.used(limiter.now_us, 60_000_000)
        fits = used + cost <= 10
        if fits:
            exact.taken.append((limiter.now_us, cost))
        assert limiter.check(cost=cost)[:2] == ("allowed" if fits else "refused", used + cost * fits)


_COSTS = st.one_of(st.integers(1, 20), st.integers(1, 10**9), st.integers(1, MAX))
_STEPS = st.tuples(st.floats(-0.02, 0.1), _COSTS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(window_ms=st.sampled_from([1, 7, 1000, 86_400_000]), most=_COSTS, steps=st.lists(_STEPS, max_size=80))
def test_safe_and_a_64th_too_strict(
    by_sums: Limiter, window_ms: int, most: int, steps: list[tuple[float, int]]
) -> None:
    """No window holds more than the limit; a refused call would be over the limit of a window longer by a 64th."""
    by_sums.name, exact, window_us = f"limit{next(_NUMBERS)}", Exact(), window_ms * 1000
    clock_us = 0
    for pause, wanted in steps:
        by_sums.now_us += int(pause * window_us)
        cost = wanted % most + 1
        status, used, retry_us = by_sums.check(cost=cost, most=most, window_us=window_us)
        # The lifetime of the key passes while the clock of the test stands.
        by_sums.store.execute("PEXPIRE", by_sums.keys.key(f"usage:{window_ms}"), 60_000)
        # The limit's clock does not step back behind its last grant.
        now_us = max(by_sums.now_us, clock_us)
        low, high = exact.used(now_us, window_us), exact.used(now_us, window_us * 65 / 64)
        if status == "allowed":
            clock_us = now_us
            exact.taken.append((now_us, cost))
            assert low + cost <= used <= min(high + cost, most)
        else:
            assert low <= used <= high
            assert high + cost > most
            fits_us = by_sums.now_us + retry_us
            assert exact.used(fits_us, window_us) + cost <= most
            assert exact.used(fits_us - 1 - window_us // 64, window_us) + cost > most


def test_retry_after_of_sums(by_sums: Limiter) -> None:
    """A refusal says when as much fits, also when calls have shared a sub-window."""
    for _ in range(100):
        by_sums.check(cost=10**9, most=10**11)
        by_sums.now_us += 100_000
    status, used, retry_us = by_sums.check(cost=10**9, most=10**11)
    assert (status, used) == ("refused", 10**11)
    # The first sub-window has the calls of the first 0.9 s, and leaves with the last of them.
    assert retry_us == 60_000_000 - 10_000_000 + 900_000
    by_sums.now_us += retry_us - 1
    assert by_sums.check(cost=10**9, most=10**11)[0] == "refused"
    by_sums.now_us += 1
    assert by_sums.check(cost=10**10, most=10**11) == ("allowed", 10**11, 0)
    assert by_sums.check(cost=1, most=10**11)[0] == "refused"


def test_no_rounding(by_sums: Limiter) -> None:
    """The largest limit is kept to the unit, although a larger sum would be rounded."""
    assert by_sums.check(cost=MAX - 1, most=MAX) == ("allowed", MAX - 1, 0)
    assert by_sums.check(cost=2, most=MAX)[:2] == ("refused", MAX - 1)
    assert by_sums.check(cost=MAX, most=MAX)[:2] == ("refused", MAX - 1)
    assert by_sums.check(cost=1, most=MAX) == ("allowed", MAX, 0)
    assert by_sums.check(cost=1, most=MAX)[0] == "refused"


def test_memory_and_work_are_bounded(by_sums: Limiter) -> None:
    """A call costs the same commands whatever it takes; a busy limit takes a few KiB and its op ids."""

    def cost(amount: int) -> int:
        before = by_sums.commands()
        assert by_sums.check(cost=amount, most=MAX)[0] == "allowed"
        return by_sums.commands() - before

    cost(1)
    first = cost(1)
    for _ in range(3_000):
        by_sums.now_us += 100_000
        by_sums.check(cost=500, most=MAX)
    assert [cost(amount) for amount in (1, 500, 10**9)] == [first] * 3
    assert by_sums.store.execute("STRLEN", by_sums.keys.key("usage:60000")) <= 8 + 65 * 24
    assert by_sums.bytes() < 250_000


def test_op_ids_are_bounded(by_sums: Limiter) -> None:
    """A call sent twice counts once while less than 1000 others were allowed in between."""
    by_sums.check("mine", most=MAX)
    for _ in range(999):
        by_sums.check(most=MAX)
    assert by_sums.check("mine", most=MAX) == ("duplicate", 1000, 0)
    for _ in range(1001):
        by_sums.check(most=MAX)
    assert by_sums.check("mine", most=MAX)[0] == "allowed"


class TestSwitch:
    """Programs above and below the version floor share a limit until all have heard of the floor."""

    def test_units_still_count(self, by_sums: Limiter) -> None:
        """What programs have counted by units counts until it leaves the window, and so do their op ids."""
        by_sums.check("mine", cost=6, sums=False)
        by_sums.now_us += 1_000_000
        assert by_sums.check(cost=4) == ("allowed", 10, 0)
        assert by_sums.check("mine", cost=6) == ("duplicate", 10, 0)
        assert by_sums.check(cost=6) == ("refused", 10, 59_000_000)
        assert by_sums.check(cost=7) == ("refused", 10, 60_000_000)
        by_sums.now_us += 59_000_000
        assert by_sums.check(cost=6) == ("allowed", 10, 0)

    def test_the_first_sum_switches(self, by_sums: Limiter) -> None:
        """A program that has not heard of the floor counts by sums as soon as another one does."""
        by_sums.check(cost=8)
        assert by_sums.check(cost=3, sums=False)[:2] == ("refused", 8)
        assert by_sums.check("mine", cost=2, sums=False) == ("allowed", 10, 0)
        assert by_sums.check("mine", cost=2) == ("duplicate", 10, 0)
        assert not by_sums.store.execute("EXISTS", by_sums.keys.key("window:60000"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 9_000_000), st.integers(1, 10), st.booleans()), max_size=60))
def test_switch_in_any_order(by_sums: Limiter, steps: list[tuple[int, int, bool]]) -> None:
    """Whichever program asks next: no window holds more than the limit, and the refusal says when a call fits."""
    by_sums.name, exact = f"limit{next(_NUMBERS)}", Exact()
    for wait_us, cost, sums in steps:
        by_sums.now_us += wait_us
        status, used, retry_us = by_sums.check(cost=cost, sums=sums)
        low, high = (exact.used(by_sums.now_us, window) for window in (60_000_000, 60_937_500))
        if status == "allowed":
            exact.taken.append((by_sums.now_us, cost))
            assert low + cost <= used <= 10
        else:
            assert low <= used <= high
            assert high + cost > 10
            fits_us = by_sums.now_us + retry_us
            assert exact.used(fits_us, 60_000_000) + cost <= 10
            assert exact.used(fits_us - 937_501, 60_000_000) + cost > 10
