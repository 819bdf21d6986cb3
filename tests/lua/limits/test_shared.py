"""Providers that pools share: the scope counts the calls of all, and each pool has a copy of what keeps them back."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.control.commands import ClearLimit
from orchestrator.core.errors import ServerRefused
from orchestrator.core.rates import ANY_STARTS
from orchestrator.limits import scripts
from orchestrator.limits.providers import ProviderLimit, pack_told
from orchestrator.limits.scripts import CallReply, CallSettled, CallStatus, SettleStatus
from orchestrator.limits.shared import COPIED, differs, scope_of
from orchestrator.store.calls import opaque
from orchestrator.store.keys import PoolKeys
from tests.lua.keyspace import snapshot
from tests.lua.pool import Pool, Team, row

pytestmark = pytest.mark.every_server

GPT = "model:gpt"
MIN_US = 60_000_000
LEASE_MS = 30_000
POOLS = ("p", "q", "r")
LIMIT = ProviderLimit(100, MIN_US, 20_000, MIN_US, 10, shared=True)
_examples = count(1)


class Shared:
    """Callers of three pools that share a provider."""

    def __init__(self, pool: Pool, limit: ProviderLimit = LIMIT, name: str = GPT) -> None:
        self.pool, self.limit, self.name, self._calls = pool, limit, name, count(1)
        self.pools = {name: PoolKeys(pool.keys.prefix, name) for name in POOLS}

    def take(self, pool: str = "p", tokens: int = 0, call: str | None = None) -> CallReply:
        """Begin a call in a pool."""
        self.last = call or f"{pool}{next(self._calls)}"
        taken = scripts.take(
            scope_of(self.pools[pool], self.name),
            name=self.name,
            call=self.last,
            tokens=tokens,
            definition=self.limit,
            lease_ms=LEASE_MS,
            by=f"pool {pool}",
        )
        return self.pool.call(taken)

    def settle(self, call: str | None = None, used: int = -1, outcome: str = "ok") -> CallSettled:
        """End a call, the last one by default."""
        settled = scripts.settle(
            scope_of(self.pools["q"], self.name),
            name=self.name,
            call=call or self.last,
            used=used,
            tokens_us=self.limit.tokens_us,
            outcome=outcome,
            told=pack_told("pool q", "HTTP 503"),
            shared=True,
        )
        return self.pool.call(settled)

    def block(self, state: str = "throttled", for_ms: int = 0) -> None:
        """Tell a pause to the scope."""
        scope = scope_of(self.pools["r"], self.name)
        told = pack_told("pool r", "429")
        self.pool.call(scripts.block(scope, name=self.name, state=state, told=told, for_ms=for_ms))

    def states(self, keys: Any) -> list[bytes | None]:
        """The fields that a pool copies, in it or in the scope."""
        return list(self.pool.execute("HMGET", keys.blocked(self.name), *COPIED))

    @property
    def scope(self) -> list[bytes | None]:
        """The fields that the scope has."""
        return self.states(scope_of(self.pool.keys, self.name))

    def copy(self, shown: str = "", cleared: bytes = b"") -> bool:
        """Copy the states of the scope into the pool; return whether it has changed."""
        states = [(name, opaque(value)) for name, value in zip(COPIED, self.scope, strict=True) if value is not None]
        call = scripts.follow(self.pool.keys, name=self.name, states=states, shown=shown, cleared=cleared)
        return self.pool.call(call)

    def clear(self) -> bool:
        """End all states of the scope."""
        return self.pool.call(scripts.clear(scope_of(self.pool.keys, self.name), name=self.name))

    def forget(self) -> None:
        """Remove what the scope has."""
        scope = scope_of(self.pool.keys, self.name)
        keys = (scope.blocked, scope.provider_usage, scope.provider_leases, scope.provider_calls)
        self.pool.execute("UNLINK", *(key(self.name) for key in keys))


@pytest.fixture
def shared(pool: Pool) -> Shared:
    """A provider that no call has reached."""
    return Shared(pool)


def simulate(shared: Shared, busy: tuple[str, ...], minutes: int, seed: int) -> tuple[int, int, dict[str, int]]:
    """Make calls in busy pools for some minutes; return the tokens used, the calls, and those of each pool.

    Every window is checked. Replies get lost, so that a call is sent twice; callers die, so that none settles.
    """
    chance, limit = Random(seed), shared.limit
    start_us = shared.pool.now_us or 0
    costs: dict[str, tuple[int, int]] = {}
    ends: list[tuple[int, str]] = []
    turn = count()
    while (now_us := shared.pool.now_us or 0) < start_us + minutes * MIN_US:
        for end_us, call in [end for end in ends if end[0] <= now_us]:
            ends.remove((end_us, call))
            at_us, tokens = costs[call]
            used = chance.randrange(tokens // 2, tokens + 1)
            for status in (SettleStatus.SETTLED, SettleStatus.GONE)[: 1 + (chance.random() < 0.1)]:
                assert shared.settle(call, used).status is status
            costs[call] = (at_us, used)
        pool, tokens = busy[next(turn) % len(busy)], chance.randrange(200, 1000) if limit.tokens else 0
        answer = shared.take(pool, tokens)
        if answer.status is CallStatus.TAKEN:
            call = shared.last
            if chance.random() < 0.1:
                assert shared.take(pool, tokens, call).status is CallStatus.TAKEN
            costs[call] = (now_us, tokens)
            if chance.random() < 0.99:
                ends.append((now_us + chance.randrange(500_000, 5_000_000), call))
            inside = [cost for at_us, cost in costs.values() if at_us > now_us - MIN_US]
            assert len(inside) <= (limit.requests or len(inside))
            assert sum(inside) <= limit.tokens
            assert len(ends) <= (limit.at_once or len(ends))
        else:
            assert answer.status is CallStatus.FULL
            next_us = min([end[0] - now_us for end in ends], default=MIN_US)
            shared.pool.sleep(max(1, min(next_us, answer.wait_us or next_us)) / 1000)
    for _, call in ends:
        shared.settle(call)
    counts = {pool: sum(call.startswith(pool) for call in costs) for pool in POOLS}
    return sum(cost for _, cost in costs.values()), len(costs), counts


class TestWindows:
    """Limits of all pools together."""

    @pytest.mark.parametrize("busy", [("p",), POOLS], ids=["one", "three"])
    def test_ten_minutes(self, shared: Shared, busy: tuple[str, ...]) -> None:
        """Pools with demand use nearly all tokens; no window has more than the limit, and no more calls run at once."""
        used, _, counts = simulate(shared, busy, 10, seed=7)
        assert used >= 0.9 * 10 * LIMIT.tokens
        assert set(busy) == {pool for pool, number in counts.items() if number}

    def test_a_small_limit(self, pool: Pool) -> None:
        """Five requests a minute are used by the pools that have demand, without any that lie unused in others."""
        shared = Shared(pool, ProviderLimit(5, MIN_US, shared=True))
        assert simulate(shared, POOLS, 5, seed=1)[1] >= 24
        pool.sleep(60_000)
        assert simulate(shared, ("q",), 5, seed=2)[1] >= 24

    def test_places_of_a_dead_pool(self, pool: Pool) -> None:
        """A pool whose programs died frees its places when their leases end."""
        shared = Shared(pool, ProviderLimit(at_once=3, shared=True))
        for _ in range(3):
            assert shared.take("p").status is CallStatus.TAKEN
        assert shared.take("q").what == "at_once"
        pool.sleep(LEASE_MS)
        assert [shared.take(other).status for other in "qrq"] == [CallStatus.TAKEN] * 3
        assert shared.take("r").what == "at_once"

    def test_a_pause_told_to_one_pool(self, shared: Shared) -> None:
        """No call of any pool begins inside it, from the moment at which it is told."""
        shared.block(for_ms=1000)
        assert {shared.take(pool).status for pool in POOLS} == {CallStatus.BLOCKED}
        shared.pool.sleep(1000)
        assert {shared.take(pool).status for pool in POOLS} == {CallStatus.TAKEN}

    def test_failures_of_several_pools_in_a_row(self, pool: Pool) -> None:
        """They break the provider together, and one call of one pool tries it."""
        shared = Shared(pool, ProviderLimit(at_once=50, shared=True))
        ends = []
        for name in "pqrpq":
            shared.take(name)
            ends.append(shared.settle(outcome="failed").broken_ms)
        assert ends == [0, 0, 0, 0, pool.now_ms + 15_000]
        pool.sleep(15_000)
        assert shared.take("q").status is CallStatus.TAKEN
        assert {shared.take(name).what for name in POOLS} == {"trying"}
        assert shared.settle("q6").status is SettleStatus.REOPENED
        assert shared.take("r").status is CallStatus.TAKEN

    def test_nothing_is_written_but_calls(self, shared: Shared) -> None:
        """A scope has no list of providers, and notifies no supervisor; no key lives for ever."""
        scope = scope_of(shared.pool.keys, GPT)
        for _ in range(5):
            shared.take()
            shared.settle(outcome="failed")
        shared.pool.sleep(15_000)
        shared.take()
        shared.settle()
        shared.take()
        kinds = (scope.provider_calls(GPT), scope.provider_leases(GPT), scope.provider_usage(GPT))
        assert sorted(snapshot(shared.pool.link, scope.root)) == sorted(kinds)
        assert all(shared.pool.execute("PTTL", key) > 0 for key in kinds)


class TestCopy:
    """The copy of a pool, by which its tasks wait."""

    def ready(self, pool: Pool) -> None:
        """An agent with the limit, and tasks."""
        pool.register(team=Team(limits=(GPT,), known_limits=((GPT, ANY_STARTS),)), slots=20)
        pool.put(*[row() for _ in range(12)])

    def test_starts_wait(self, shared: Shared) -> None:
        """Once it is copied no task starts; a copy of what is there writes nothing."""
        self.ready(shared.pool)
        shared.block(for_ms=60_000)
        assert [shared.copy() for _ in range(2)] == [True, False]
        assert shared.states(shared.pool.keys) == shared.scope
        assert 60_000 < shared.pool.execute("PTTL", shared.pool.keys.blocked(GPT)) <= 120_000
        assert shared.pool.assign().count == 0
        shared.pool.sleep(60_000)
        assert shared.pool.assign().count == 10

    def test_what_ended_early_is_removed(self, shared: Shared) -> None:
        """Tasks start again, and the supervisor is notified."""
        self.ready(shared.pool)
        shared.block("quota")
        shared.copy()
        assert shared.pool.assign().count == 0
        assert [shared.clear() for _ in range(2)] == [True, False]
        shared.pool.execute("DEL", shared.pool.keys.doorbell)
        assert [shared.copy() for _ in range(2)] == [True, False]
        assert shared.pool.execute("XLEN", shared.pool.keys.doorbell) == 1
        assert shared.pool.execute("EXISTS", shared.pool.keys.blocked(GPT)) == 0
        assert shared.pool.assign().count == 10

    def test_a_trial(self, pool: Pool) -> None:
        """One task of the pool starts to try; once a call of another pool tries, none does, until that ends."""
        shared = Shared(pool, ProviderLimit(at_once=50, shared=True))
        self.ready(pool)
        for _ in range(5):
            shared.take()
            shared.settle(outcome="failed")
        shared.copy()
        pool.sleep(15_000)
        assert [pool.assign().count for _ in range(2)] == [1, 0]
        # The start that is awaited is the pool's own.
        assert not differs(shared.scope, shared.states(pool.keys))
        assert not shared.copy()
        assert shared.take("q").status is CallStatus.TAKEN
        assert differs(shared.scope, shared.states(pool.keys))
        assert shared.copy()
        pool.sleep(5000)
        assert pool.assign().count == 0
        shared.settle()
        assert shared.copy()
        assert pool.assign().count == 10

    def test_damaged_states(self, shared: Shared) -> None:
        """Values that no program writes are copied, count for nothing, and do not stay for ever."""
        scope, keys, execute = scope_of(shared.pool.keys, GPT), shared.pool.keys, shared.pool.execute
        self.ready(shared.pool)
        for fields in (("trial", "x"), ("trial", "x", "throttled", "soon", "quota", "9" * 40, "broken", "")):
            execute("HSET", scope.blocked(GPT), *fields)
            execute("PEXPIRE", scope.blocked(GPT), 100_000)
            assert [shared.copy() for _ in range(2)] == [True, False]
            assert execute("PTTL", keys.blocked(GPT)) > 0
        assert shared.pool.assign().count == 10

    def test_the_list(self, shared: Shared) -> None:
        """The pool lists the provider and its limits, and says so once."""
        keys, execute = shared.pool.keys, shared.pool.execute
        assert [shared.copy(LIMIT.text) for _ in range(2)] == [True, False]
        assert execute("HGET", keys.providers, GPT) == b"100 60000000 20000 60000000 10 shared"
        assert execute("XLEN", keys.doorbell) == 1
        assert not shared.copy()

    def test_clear(self, shared: Shared) -> None:
        """The command ends the copy at once, and asks the supervisor to end the states of the scope."""
        self.ready(shared.pool)
        keys, execute = shared.pool.keys, shared.pool.execute
        shared.block("quota")
        shared.copy(LIMIT.text)
        shared.pool.append(ClearLimit(limit=GPT))
        (mark,) = execute("HMGET", keys.blocked(GPT), "cleared")
        assert shared.states(keys) == [None] * 4
        assert shared.take().status is CallStatus.BLOCKED
        # A worker that met the provider in between does not end the command.
        assert shared.copy()
        assert execute("HGET", keys.blocked(GPT), "cleared") == mark
        assert shared.clear()
        assert not shared.copy(cleared=b"1") or execute("HGET", keys.blocked(GPT), "cleared") == mark
        shared.copy(cleared=mark)
        assert execute("EXISTS", keys.blocked(GPT)) == 0
        assert shared.take().status is CallStatus.TAKEN
        assert shared.pool.assign().count == 10

    def test_clear_of_another_provider(self, pool: Pool) -> None:
        """One that pools do not share leaves no mark."""
        pool.block(GPT, 5000)
        pool.append(ClearLimit(limit=GPT))
        assert pool.execute("EXISTS", pool.keys.blocked(GPT)) == 0

    @pytest.mark.parametrize("kind", ["providers", "blocked"])
    def test_a_key_of_another_type(self, shared: Shared, kind: str) -> None:
        """A copy that Redis refuses has changed nothing; the command that clears the provider is not refused."""
        shared.block(for_ms=5000)
        keys, execute = shared.pool.keys, shared.pool.execute
        execute("SET", keys.providers if kind == "providers" else keys.blocked(GPT), "x", "EX", 100)
        before = snapshot(shared.pool.link, keys.root)
        with pytest.raises(ServerRefused):
            shared.copy(LIMIT.text)
        assert snapshot(shared.pool.link, keys.root) == before
        shared.pool.append(ClearLimit(limit=GPT))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "die", "repeat", "block", "clear", "copy"]),
        st.sampled_from(POOLS),
        st.integers(0, 20_000),
        st.integers(0, 300),
        st.integers(0, 99),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_model(pool: Pool, steps: list[tuple[str, str, int, int, int]]) -> None:
    """Whatever pools do, windows and calls at once hold, no call begins in a pause, and copies become the same."""
    pool.start_afresh()
    shared = Shared(pool, ProviderLimit(8, 10_000_000, 1000, 10_000_000, 4, shared=True), f"x{next(_examples)}")
    began: dict[str, tuple[int, int]] = {}
    running: dict[str, int] = {}
    paused_us = 0
    for kind, name, ms, tokens, pick in steps:
        pool.sleep(ms if kind == "die" else ms % 3000)
        now = pool.now_us or 0
        running = {call: end for call, end in running.items() if end > now}
        held = sorted(running)
        if kind == "take":
            answer = shared.take(name, tokens)
            assert (answer.status is CallStatus.BLOCKED) == (now < paused_us)
            if answer.status is CallStatus.TAKEN:
                began[shared.last] = (now, tokens)
                running[shared.last] = now + LEASE_MS * 1000
        elif kind == "repeat" and held and now >= paused_us:
            assert shared.take(name, 999, held[pick % len(held)]).status is CallStatus.TAKEN
        elif kind == "settle" and held:
            call = held[pick % len(held)]
            used = min(tokens, began[call][1])
            assert shared.settle(call, used).status is SettleStatus.SETTLED
            began[call] = (began[call][0], used)
            del running[call]
        elif kind == "block":
            shared.block(for_ms=tokens * 10 + 1)
            paused_us = max(paused_us, (pool.now_ms + tokens * 10 + 1) * 1000)
        elif kind == "clear":
            shared.clear()
            paused_us = 0
        elif kind == "copy":
            shared.copy()
            assert not differs(shared.scope, shared.states(pool.keys))
        assert len(running) <= 4
        for start, _ in began.values():
            inside = [one for at, one in began.values() if start <= at < start + 10_000_000]
            assert len(inside) <= 8
            assert sum(inside) <= 1000
    shared.forget()
