"""The scripts of providers: what a call takes and returns, what blocks it, and who may try a broken provider."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.control.commands import ClearLimit, Start
from orchestrator.core.errors import ServerRefused
from orchestrator.core.rates import ANY_STARTS
from orchestrator.limits import scripts
from orchestrator.limits.providers import ProviderLimit, pack_told, read_blocked
from orchestrator.limits.scripts import CallReply, CallSettled, CallStatus, SettleStatus
from orchestrator.store.keys import PoolKeys
from orchestrator.testing.scripts import advance_providers
from tests.lua.keyspace import snapshot
from tests.lua.pool import Pool, Team, row

pytestmark = pytest.mark.every_server

GPT = "model:gpt"
MIN_US = 60_000_000
LEASE_MS = 30_000
TAKEN = CallReply(CallStatus.TAKEN, 0, 0, "", b"")
SETTLED, GONE = CallSettled(SettleStatus.SETTLED, 0), CallSettled(SettleStatus.GONE, 0)
LIMIT = ProviderLimit(10, MIN_US, 1000, MIN_US, 3)


def full(what: str, wait_us: int = 0) -> CallReply:
    """A refusal for want of room."""
    return CallReply(CallStatus.FULL, wait_us, 0, what, b"")


class Provider:
    """A provider of a pool whose clock the test moves."""

    def __init__(self, pool: Pool, limit: ProviderLimit = LIMIT) -> None:
        self.pool, self.limit, self._calls = pool, limit, count(1)

    def take(self, call: str | None = None, tokens: int = 0, **changed: Any) -> CallReply:
        """Begin a call."""
        call = call or f"c{next(self._calls)}"
        limit = replace(self.limit, **changed)
        self.last = call
        return self.pool.call(
            scripts.take(
                self.pool.keys,
                name=GPT,
                call=call,
                tokens=tokens,
                definition=limit,
                lease_ms=LEASE_MS,
                by="agent ed",
            )
        )

    def settle(self, call: str | None = None, used: int = -1, outcome: str = "ok") -> CallSettled:
        """End a call, the last one by default."""
        return self.pool.call(
            scripts.settle(
                self.pool.keys,
                name=GPT,
                call=call or self.last,
                used=used,
                tokens_us=self.limit.tokens_us,
                outcome=outcome,
                told=pack_told("agent ed", "HTTP 503"),
            )
        )

    def renew(self, *calls: str) -> int:
        """Renew leases."""
        rows = [(call, self.limit.at_once) for call in calls]
        return self.pool.call(scripts.renew(self.pool.keys, name=GPT, calls=rows, lease_ms=LEASE_MS))

    def block(self, state: str = "throttled", for_ms: int = 0, until_ms: int = 0, by: str = "agent ed") -> int:
        """Tell a pause."""
        call = scripts.block(
            self.pool.keys,
            name=GPT,
            state=state,
            told=pack_told(by, "429"),
            for_ms=for_ms,
            until_ms=until_ms,
        )
        return self.pool.call(call).until_ms

    def kept(self) -> int:
        """Calls that are kept, with a lease that has expired or not."""
        leases = self.pool.execute("ZCARD", self.pool.keys.provider_leases(GPT))
        assert leases == self.pool.execute("HLEN", self.pool.keys.provider_calls(GPT))
        return int(leases)

    def running(self) -> int:
        """Calls whose lease lasts."""
        after = f"({self.pool.now_us}"
        return int(self.pool.execute("ZCOUNT", self.pool.keys.provider_leases(GPT), after, "+inf"))


@pytest.fixture
def provider(pool: Pool) -> Provider:
    """A provider that no call has reached."""
    return Provider(pool)


class TestTake:
    """Windows, calls at once, leases."""

    def test_requests(self, provider: Provider) -> None:
        """A window of requests is full after as many as it allows, and says when the oldest leaves."""
        for _ in range(10):
            assert provider.take() == TAKEN
            provider.settle()
            provider.pool.sleep(1000)
        wait_us = provider.take().wait_us
        assert 50_000_000 <= wait_us <= 51_000_000
        provider.pool.sleep(wait_us / 1000 - 0.001)
        assert provider.take().status is CallStatus.FULL
        provider.pool.sleep(0.001)
        assert provider.take() == TAKEN

    def test_tokens(self, provider: Provider) -> None:
        """Reserved tokens count; what a call did not use returns, what it used beyond is counted above the limit."""
        assert provider.take("a", 600) == TAKEN
        assert provider.take("b", 600) == full("tokens", MIN_US)
        assert provider.settle("a", used=300) == SETTLED
        assert provider.take("b", 600) == TAKEN
        assert provider.settle("b", used=900) == SETTLED
        assert provider.take("c", 1) == full("tokens", MIN_US)
        provider.pool.sleep(60_000)
        assert provider.take("c", 1000) == TAKEN

    def test_tokens_return_beside_a_step_of_the_test_kit(self, provider: Provider) -> None:
        """Calls that run while a test lets time pass return what they did not use."""
        assert provider.take("a", 900) == TAKEN
        provider.pool.execute(*advance_providers(provider.pool.keys, names=[GPT], by_ms=1000))
        assert provider.settle("a", used=100) == SETTLED
        assert provider.take("b", 900) == TAKEN

    def test_tokens_return_to_their_own_time(self, provider: Provider) -> None:
        """What returns late frees the sub-window in which it was reserved, and nothing once that has left."""
        assert provider.take("a", 600) == TAKEN
        provider.pool.sleep(29_000)
        assert provider.take("b", 400) == TAKEN
        provider.renew("a", "b")
        provider.pool.sleep(29_000)
        assert provider.settle("a", used=100) == SETTLED
        assert provider.take("c", 500) == TAKEN
        provider.renew("b")
        provider.pool.sleep(2000)
        assert provider.take("d", 101) == full("tokens", 29_000_000)
        assert provider.settle("b", used=0) == SETTLED
        assert provider.take("d", 500) == TAKEN

    def test_at_once(self, provider: Provider) -> None:
        """No more calls run at a time, until one ends."""
        for call in "abc":
            assert provider.take(call) == TAKEN
        assert provider.take("d") == full("at_once")
        assert provider.settle("b") == SETTLED
        assert provider.take("d") == TAKEN

    def test_a_dead_worker(self, provider: Provider) -> None:
        """The leases of calls whose worker died end by themselves; what they reserved stays counted."""
        for call in "abc":
            assert provider.take(call, 100) == TAKEN
        provider.pool.sleep(LEASE_MS - 1)
        assert provider.renew("a", "x") == 1
        assert provider.take("d") == full("at_once")
        provider.pool.sleep(1)
        assert provider.take("d") == TAKEN
        assert (provider.running(), provider.kept()) == (2, 4)
        assert provider.take("e", 701).what == "tokens"
        assert provider.take("e", 700) == TAKEN
        provider.pool.sleep(3_600_000)
        assert provider.take("f") == TAKEN
        assert provider.settle("b") == GONE
        assert provider.renew("b", "c") == 0

    def test_a_lease_that_lapsed(self, provider: Provider) -> None:
        """A call that runs on gets its lease back while there is room for it, and none once it has ended."""
        for call in "abc":
            provider.take(call)
        provider.pool.sleep(LEASE_MS)
        assert provider.take("d") == TAKEN
        assert provider.take("e") == TAKEN
        assert provider.renew("a", "b") == 1
        assert provider.take("f") == full("at_once")
        provider.settle("c")
        assert provider.renew("c") == 0
        assert provider.running() == 3

    def test_a_late_end_is_counted_once(self, provider: Provider) -> None:
        """What a call used beyond its reservation counts also if its lease had lapsed, and other calls began."""
        assert provider.take("a", 100) == TAKEN
        provider.pool.sleep(LEASE_MS)
        assert provider.take("b", 100) == TAKEN
        assert [provider.settle("a", used=900) for _ in range(2)] == [SETTLED, GONE]
        assert provider.take("c", 1) == full("tokens", 30_000_000)

    def test_places_after_a_step_back(self, provider: Provider) -> None:
        """Places of dead calls are free a lease later, also if the clock stepped back by an hour."""
        provider = Provider(provider.pool, ProviderLimit(at_once=3))
        for call in "abc":
            provider.take(call)
        provider.pool.sleep(-3_600_000)
        assert provider.take("d") == full("at_once")
        provider.pool.sleep(LEASE_MS)
        assert provider.take("d") == TAKEN
        assert provider.running() == 1

    def test_many_dead_calls(self, pool: Pool) -> None:
        """Dead calls count for nothing; after an hour each call removes at most 100 of them."""
        provider = Provider(pool, ProviderLimit(at_once=350))
        for _ in range(350):
            assert provider.take() == TAKEN
        assert provider.take() == full("at_once")
        pool.sleep(LEASE_MS)
        assert provider.take() == TAKEN
        assert (provider.running(), provider.kept()) == (1, 351)
        pool.sleep(3_600_000)
        assert provider.take() == TAKEN
        assert provider.kept() == 252
        for _ in range(3):
            provider.take()
        assert (provider.running(), provider.kept()) == (4, 5)

    def test_repeat(self, provider: Provider) -> None:
        """A call whose reply was lost begins once, and ends if the provider was blocked meanwhile."""
        assert [provider.take("a", 600) for _ in range(3)] == [TAKEN] * 3
        assert provider.running() == 1
        assert provider.take("b", 400) == TAKEN
        provider.block(for_ms=1000)
        assert provider.take("a", 600).status is CallStatus.BLOCKED
        assert provider.running() == 1
        assert provider.settle("a") == GONE
        provider.pool.sleep(1000)
        assert provider.take("a", 600) == TAKEN
        assert provider.settle("a") == SETTLED
        assert provider.settle("a") == GONE

    def test_a_clock_that_steps_back(self, provider: Provider) -> None:
        """It reopens no window."""
        for _ in range(10):
            provider.take()
            provider.settle()
        provider.pool.sleep(-120_000)
        refused = provider.take()
        assert refused == full("requests", 180_000_000)

    def test_definitions_are_kept_for_display(self, provider: Provider) -> None:
        """The definition of the last call is stored once."""
        provider.take()
        assert provider.pool.execute("HGET", provider.pool.keys.providers, GPT) == b"10 60000000 1000 60000000 3"
        provider.take(requests=20)
        assert provider.pool.execute("HGET", provider.pool.keys.providers, GPT) == b"20 60000000 1000 60000000 3"

    def test_the_list_is_bounded(self, provider: Provider) -> None:
        """A full list loses a provider that nothing blocks."""
        keys, execute = provider.pool.keys, provider.pool.execute
        execute("HSET", keys.providers, *[word for number in range(1000) for word in (f"p{number}", "0 0 0 0 0")])
        provider.take()
        assert execute("HLEN", keys.providers) == 1000
        assert execute("HEXISTS", keys.providers, GPT) == 1

    @pytest.mark.parametrize("kind", ["providers", "provider_usage", "provider_leases", "provider_calls", "blocked"])
    def test_a_key_of_another_type(self, provider: Provider, kind: str) -> None:
        """A call that Redis refuses, and its end, have changed nothing; the command that clears it is not refused."""
        provider.take("a", 10)
        provider.block(for_ms=1)
        provider.pool.sleep(1)
        keys, execute = provider.pool.keys, provider.pool.execute
        name = getattr(keys, kind)
        key = name if isinstance(name, str) else name(GPT)
        execute("SET", key, "x", "EX", 100)
        before = snapshot(provider.pool.link, keys.root)
        with pytest.raises(ServerRefused):
            provider.take("b", 10)
        assert snapshot(provider.pool.link, keys.root) == before
        if kind != "providers":
            with pytest.raises(ServerRefused):
                provider.settle("a", used=5)
            assert snapshot(provider.pool.link, keys.root) == before
        provider.pool.append(ClearLimit(limit=GPT))

    def test_damaged_values(self, provider: Provider) -> None:
        """Values that no program writes count as absent."""
        keys, execute = provider.pool.keys, provider.pool.execute
        provider.take("first")
        provider.settle()
        provider.block(for_ms=1)
        execute("HSET", keys.provider_usage(GPT), f"requests:{MIN_US}", "x", f"tokens:{MIN_US}", "y" * 33)
        execute("HSET", keys.blocked(GPT), "throttled", "soon", "quota", "9" * 40, "broken", "", "trial", "x")
        assert provider.take("a", 10) == TAKEN
        execute("HSET", keys.provider_calls(GPT), "a", "much")
        assert provider.settle("a", used=1) == SETTLED
        assert provider.running() == 0


class TestBlock:
    """Pauses that a provider told."""

    def test_throttled(self, provider: Provider) -> None:
        """No call begins before the end, by the server's clock; a shorter pause shortens nothing."""
        now_ms = provider.pool.now_ms
        assert provider.block(for_ms=60_000, by="agent a") == now_ms + 60_000
        assert provider.block(for_ms=1000, by="agent b") == now_ms + 60_000
        provider.pool.sleep(59_999)
        refused = provider.take()
        assert (refused.status, refused.until_ms, refused.what) == (CallStatus.BLOCKED, now_ms + 60_000, "throttled")
        told = read_blocked((refused.what, refused.told))
        assert (told.until_ms, told.since_ms, told.by, told.reason) == (now_ms + 60_000, now_ms, "agent a", "429")
        provider.pool.sleep(1)
        assert provider.take() == TAKEN

    def test_a_later_end(self, provider: Provider) -> None:
        """A longer pause replaces a shorter one; one that has passed changes nothing; none is longer than 31 days."""
        now_ms = provider.pool.now_ms
        provider.block(for_ms=1000)
        assert provider.block(until_ms=now_ms + 5000) == now_ms + 5000
        assert provider.block(until_ms=now_ms) == -1
        assert provider.block(until_ms=now_ms * 2) == now_ms + 31 * 86_400_000

    def test_quota(self, provider: Provider) -> None:
        """Without a reset an operator ends it; no pause with an end shortens it, and none of its kind."""
        assert provider.block("quota") == 0
        assert provider.block("quota", for_ms=1000) == 0
        provider.block(for_ms=1000)
        assert provider.pool.execute("TTL", provider.pool.keys.blocked(GPT)) > 99 * 365 * 86_400
        provider.pool.sleep(365 * 86_400_000)
        refused = provider.take()
        assert (refused.status, refused.until_ms, refused.what) == (CallStatus.BLOCKED, 0, "quota")
        provider.pool.append(ClearLimit(limit=GPT))
        assert provider.take() == TAKEN

    def test_quota_with_a_reset(self, provider: Provider) -> None:
        """It ends at its reset; a pause that ends later is the one that counts."""
        provider.block("quota", for_ms=1000)
        provider.block(for_ms=2000)
        assert provider.take().what == "throttled"
        assert 0 < provider.pool.execute("TTL", provider.pool.keys.blocked(GPT)) <= 62
        provider.pool.sleep(2000)
        assert provider.take() == TAKEN

    def test_start_clears_it_too(self, provider: Provider) -> None:
        """`orc start --limit` ends what a provider told, as the pause of an operator."""
        provider.block("quota")
        provider.pool.append(Start(limit=GPT))
        assert provider.take() == TAKEN


class TestBreaker:
    """Failures in a row."""

    def fail(self, provider: Provider, times: int) -> list[int]:
        """Begin calls that fail; return the ends of the blocks."""
        ends = []
        for _ in range(times):
            assert provider.take() == TAKEN
            ends.append(provider.settle(outcome="failed").broken_ms)
        return ends

    def test_five_failures_in_a_row(self, pool: Pool) -> None:
        """The fifth breaks it; a success in between counts from 0 again; other exceptions count for nothing."""
        provider = Provider(pool, ProviderLimit(at_once=100))
        assert self.fail(provider, 4) == [0] * 4
        provider.take()
        provider.settle(outcome="unknown")
        provider.take()
        provider.settle(outcome="ok")
        assert self.fail(provider, 5) == [0, 0, 0, 0, pool.now_ms + 15_000]
        refused = provider.take()
        assert (refused.what, refused.until_ms) == ("broken", pool.now_ms + 15_000)
        assert read_blocked(("broken", refused.told)).reason == "HTTP 503"

    def test_one_call_tries(self, pool: Pool) -> None:
        """After the block one call tries; if it fails the next block is twice as long, if it succeeds all may call."""
        provider = Provider(pool, ProviderLimit(at_once=100))
        self.fail(provider, 5)
        for expected_ms in (30_000, 60_000, 120_000, 240_000, 300_000, 300_000):
            pool.sleep(300_000)
            assert provider.take("trial") == TAKEN
            assert provider.take("trial") == TAKEN
            assert provider.take("other").what == "trying"
            assert provider.settle("trial", outcome="failed").broken_ms == pool.now_ms + expected_ms
            assert provider.take("other").what == "broken"
        pool.sleep(300_000)
        assert provider.take("trial") == TAKEN
        assert provider.settle("trial").status is SettleStatus.REOPENED
        assert [provider.take() for _ in range(3)] == [TAKEN] * 3
        assert self.fail(provider, 5)[-1] == pool.now_ms + 15_000

    def test_a_trial_that_dies(self, pool: Pool) -> None:
        """The next call tries when the lease of the first one has ended, which it renews while it runs."""
        provider = Provider(pool, ProviderLimit(at_once=100))
        self.fail(provider, 5)
        pool.sleep(15_000)
        provider.take("a")
        pool.sleep(LEASE_MS - 1)
        provider.renew("a")
        pool.sleep(LEASE_MS - 1)
        assert provider.take("b").what == "trying"
        pool.sleep(1)
        assert provider.take("b") == TAKEN
        assert provider.take("c").what == "trying"

    def test_calls_that_began_before(self, pool: Pool) -> None:
        """Their failures neither lengthen the block nor end a trial, and their successes do not end it."""
        provider = Provider(pool, ProviderLimit(at_once=100))
        for call in "abc":
            provider.take(call)
        self.fail(provider, 5)
        end_ms = pool.now_ms + 15_000
        assert provider.settle("a", outcome="failed") == SETTLED
        assert provider.settle("b", outcome="ok") == SETTLED
        assert (provider.take().what, provider.take().until_ms) == ("broken", end_ms)

    def test_a_trial_that_tells_nothing(self, pool: Pool) -> None:
        """Another call tries next."""
        provider = Provider(pool, ProviderLimit(at_once=100))
        self.fail(provider, 5)
        pool.sleep(15_000)
        provider.take("a")
        provider.settle("a", outcome="unknown")
        assert provider.take("b") == TAKEN
        assert provider.take("c").what == "trying"


class TestStarts:
    """Tasks of agents that have the limit wait in the queue."""

    def ready(self, pool: Pool) -> None:
        """An agent with the limit, and tasks."""
        pool.register(team=Team(limits=(GPT,), known_limits=((GPT, ANY_STARTS),)), slots=20)
        pool.put(*[row() for _ in range(12)])

    def test_no_start_inside_a_pause(self, pool: Pool) -> None:
        """`assign` says when the pause ends, and gives nothing before."""
        provider = Provider(pool)
        self.ready(pool)
        provider.block(for_ms=5000)
        found = pool.assign()
        assert (found.count, found.wait_us) == (0, 5_000_000)
        pool.sleep(4999.999)
        assert pool.assign().count == 0
        pool.sleep(0.001)
        assert pool.assign().count == 10
        assert pool.execute("EXISTS", pool.keys.limit(GPT)) == 0

    def test_no_quota(self, pool: Pool) -> None:
        """Without an end nothing brings the supervisor back but the command that clears it."""
        provider = Provider(pool)
        self.ready(pool)
        provider.block("quota")
        found = pool.assign()
        assert (found.count, found.left, found.wait_us) == (0, False, 0)
        pool.execute("DEL", pool.keys.doorbell)
        pool.append(ClearLimit(limit=GPT))
        assert pool.execute("XLEN", pool.keys.doorbell) == 1
        assert pool.assign().count == 10

    def test_one_start_tries(self, pool: Pool) -> None:
        """Of a broken provider one task starts, and its call is the one that tries."""
        provider = Provider(pool, ProviderLimit(at_once=100))
        self.ready(pool)
        TestBreaker().fail(provider, 5)
        assert pool.assign().count == 0
        pool.sleep(15_000)
        assert pool.assign().count == 1
        assert pool.assign().count == 0
        assert provider.take("a") == TAKEN
        assert provider.take("b").what == "trying"
        assert pool.assign().count == 0
        pool.execute("DEL", pool.keys.doorbell)
        provider.settle("a")
        assert pool.execute("XLEN", pool.keys.doorbell) == 1
        assert pool.assign().count == 10

    def test_a_start_that_calls_nothing(self, pool: Pool) -> None:
        """Another start tries after five seconds."""
        provider = Provider(pool, ProviderLimit(at_once=100))
        self.ready(pool)
        TestBreaker().fail(provider, 5)
        pool.sleep(15_000)
        assert pool.assign().count == 1
        pool.sleep(5000)
        assert pool.assign().count == 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "die", "repeat"]),
        st.integers(0, 20_000),
        st.integers(0, 300),
        st.integers(0, 99),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_windows_hold(pool: Pool, steps: list[tuple[Any, ...]]) -> None:
    """Reserved and settled tokens of any window stay within the limit, as do requests and calls at once."""
    pool.start_afresh()
    provider = Provider(pool, ProviderLimit(8, 10_000_000, 1000, 10_000_000, 4))
    began: dict[str, tuple[int, int]] = {}
    running: dict[str, int] = {}
    for kind, ms, tokens, pick in steps:
        pool.sleep(ms % 3000 if kind != "die" else ms)
        now = pool.now_us
        assert now is not None
        running = {call: end for call, end in running.items() if end > now}
        if kind == "take":
            if provider.take(tokens=tokens) == TAKEN:
                began[provider.last] = (now, tokens)
                running[provider.last] = now + LEASE_MS * 1000
        elif kind == "repeat" and running:
            assert provider.take(sorted(running)[pick % len(running)], 999) == TAKEN
        elif kind == "settle" and running:
            call = sorted(running)[pick % len(running)]
            used = min(tokens, began[call][1])
            assert provider.settle(call, used=used) == SETTLED
            began[call] = (began[call][0], used)
            del running[call]
        assert len(running) <= 4
        for start, _ in began.values():
            inside = [one for at, one in began.values() if start <= at < start + 10_000_000]
            assert len(inside) <= 8
            assert sum(inside) <= 1000


def test_ten_minutes(pool: Pool) -> None:
    """Busy callers use nearly all tokens that windows allow, and no window has more; also those reserved count."""
    provider, chance = Provider(pool, ProviderLimit(100, MIN_US, 20_000, MIN_US, 10)), Random(7)
    start_us = pool.now_us
    assert start_us is not None
    reserved: dict[str, tuple[int, int]] = {}
    ends: list[tuple[int, str]] = []
    while (now_us := pool.now_us or 0) < start_us + 10 * MIN_US:
        for _, call in [end for end in ends if end[0] <= now_us]:
            at_us, tokens = reserved[call]
            used = chance.randrange(tokens // 2, tokens)
            assert provider.settle(call, used=used) == SETTLED
            reserved[call] = (at_us, used)
        ends = [end for end in ends if end[0] > now_us]
        tokens = chance.randrange(200, 1000)
        answer = provider.take(tokens=tokens)
        if answer == TAKEN:
            reserved[provider.last] = (now_us, tokens)
            ends.append((now_us + chance.randrange(500_000, 5_000_000), provider.last))
            sums = [value for at_us, value in reserved.values() if at_us > now_us - MIN_US]
            assert sum(sums) <= 20_000
            assert len(sums) <= 100
            assert len(ends) <= 10
        else:
            next_us = min([end[0] - now_us for end in ends], default=MIN_US)
            pool.sleep(min(next_us, answer.wait_us or next_us) / 1000)
    assert sum(value for _, value in reserved.values()) >= 0.9 * 10 * 20_000


def test_keys() -> None:
    """The keys of a limit are those that a refused assignment looks at."""
    keys = PoolKeys("a:b:c", "p")
    assert [key.removeprefix(keys.root) for key in keys.of_limit("x")] == [
        ":limit:x",
        ":blocked:x",
        ":provider:usage:x",
        ":provider:leases:x",
        ":provider:calls:x",
    ]
