"""The scripts of locks against a model in plain Python: random owners that crash, repeat themselves, lapse and wait."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.locks import scripts
from orchestrator.locks.model import NEXT, LockProof, TakeReply, new_nonce
from tests.helpers.state_machines import run_until_all_fired
from tests.lua.keyspace import without_lifetime
from tests.lua.scope import FENCED, HELD, TAKEN, Scope, task_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

FEW, EXAMPLES = 12, int(os.environ.get("ORC_TEST_EXAMPLES", "40"))
TASKS = tuple(task_id() for _ in range(3))
NAMED = "lock:n"
LOCKS = (NAMED, "exec", *(f"exec:{task}" for task in TASKS[:1]))
MUST_FIRE = {"taken", "held", "fenced", "waits", "woken", "renewed", "again", "lost", "released", "lapse", "freed"}
fired: Counter[str] = Counter()


@dataclass
class Owner:
    """One try to get a lock, and what came of it. It knows only what it was told."""

    lock: str
    task: str
    generation: int
    nonce: str = field(default_factory=new_nonce)
    value: str = ""


class Machine(RuleBasedStateMachine):
    """Owners that do anything at any time."""

    url: str
    numbers = count()

    def __init__(self) -> None:
        super().__init__()
        self.scope = Scope(self.url, f"m{os.getpid()}n{next(self.numbers)}:lock:t")
        self.owners: list[Owner] = []
        self.holder: dict[str, Owner | str] = {}
        """Who has a lock: an owner, or NEXT."""
        self.waiting: dict[str, set[str]] = {lock: set() for lock in LOCKS}
        self.tokens: Counter[str] = Counter()
        self.highest: dict[str, int] = {}
        """Of each task, by whichever execution lock it had."""
        self.live: dict[str, Owner | None] = {}
        """The last grant of an execution lock, unless it was given up."""
        self.fence = 0
        self.repeat: Callable[[], None] | None = None

    def teardown(self) -> None:
        """Leave nothing."""
        for name in self.scope.names():
            self.scope.store.execute("UNLINK", name)
        self.scope.close()

    # ------------------------------------------------------------------------------------------------- what may happen

    @rule(
        lock=st.sampled_from(LOCKS),
        task=st.sampled_from(TASKS),
        generation=st.integers(1, 4),
        wait=st.sampled_from([True, True, False]),
    )
    def try_to_get(self, lock: str, task: str, generation: int, *, wait: bool) -> None:
        """A new owner tries."""
        owner = Owner(lock, lock.partition(":")[2] if lock.startswith("exec:") else task, generation)
        self.owners.append(owner)
        self.ask(owner, wait=wait, woken=False)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), wait=st.booleans())
    def ask_again(self, data: st.DataObject, *, wait: bool) -> None:
        """One that was heard of before asks: its answer was lost, or it looks after a while."""
        self.ask(data.draw(st.sampled_from(self.owners)), wait=wait, woken=False)

    @precondition(lambda self: any(self.tokens.values()))
    @rule(data=st.data(), dies=st.sampled_from([False, False, True]))
    def wake(self, data: st.DataObject, *, dies: bool) -> None:
        """The token goes to somebody who waits, and maybe dies with it."""
        lock = data.draw(st.sampled_from([lock for lock in LOCKS if self.tokens[lock]]))
        assert self.scope.token(lock)
        self.tokens[lock] = 0
        waiters = [owner for owner in self.owners if owner.nonce in self.waiting[lock]]
        if waiters and not dies:
            fired["woken"] += 1
            self.ask(data.draw(st.sampled_from(waiters)), wait=True, woken=True)

    def ask(self, owner: Owner, *, wait: bool, woken: bool) -> None:
        """Take or claim, and compare with the model."""
        lock, wait_ms = owner.lock, 10**8 if wait else 0

        def call() -> TakeReply:
            if lock == NAMED:
                return self.scope.take(lock, owner.nonce, wait_ms=wait_ms, woken=woken)
            return self.scope.claim(lock, owner.task, str(owner.generation), owner.nonce, wait_ms=wait_ms, woken=woken)

        expected = self.expected(owner, woken=woken)
        answer = call()
        assert answer.status == expected
        fired[answer.status.value] += 1
        if answer.status is TAKEN:
            if self.holder.get(lock) is not owner:
                fence = int(answer.value.split(":")[0])
                assert fence > self.fence
                self.fence, self.holder[lock] = fence, owner
                if lock != NAMED:
                    self.highest[owner.task] = owner.generation
                if lock == "exec":
                    self.live[f"exec:{owner.task}"] = None
                self.live[lock] = owner
                self.waiting[lock].discard(owner.nonce)
                self.tokens[lock] = 0
            owner.value = answer.value
        elif answer.status is HELD and wait:
            fired["waits"] += 1
            self.waiting[lock].add(owner.nonce)

    def expected(self, owner: Owner, *, woken: bool) -> str:
        """What the answer must be."""
        holder = self.holder.get(owner.lock)
        if holder is owner:
            return TAKEN
        if owner.lock != NAMED:
            if self.highest.get(owner.task, 0) > owner.generation:
                return FENCED
            if isinstance(holder, Owner) and holder.task == owner.task:
                return FENCED if holder.generation >= owner.generation else TAKEN
        if holder is None or (holder == NEXT and woken):
            return TAKEN
        return HELD

    @precondition(lambda self: any(owner.value for owner in self.owners))
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """One that believes to have a lock renews it."""
        owner = data.draw(st.sampled_from([owner for owner in self.owners if owner.value]))
        lock, holder = owner.lock, self.holder.get(owner.lock)
        kept, _ = self.scope.renew(lock, owner.value)
        if holder is owner:
            assert kept
            fired["renewed"] += 1
        elif holder is None and lock != NAMED and self.live.get(lock) is owner and self.last_of(owner):
            assert kept
            fired["again"] += 1
            self.holder[lock] = owner
        else:
            assert not kept
            fired["lost"] += 1

    def last_of(self, owner: Owner) -> bool:
        """Whether an owner's value is that of its latest grant."""
        return int(owner.value.split(":")[0]) == max(
            int(other.value.split(":")[0]) for other in self.owners if other.value and other.lock == owner.lock
        )

    @precondition(lambda self: any(isinstance(self.holder.get(lock), Owner) for lock in LOCKS[:2]))
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        """Somebody waits, the holder gives up, the token arrives."""
        lock = data.draw(st.sampled_from([lock for lock in LOCKS[:2] if isinstance(self.holder.get(lock), Owner)]))
        holder = self.holder[lock]
        assert isinstance(holder, Owner)
        owner = Owner(lock, next(task for task in TASKS if task != holder.task), 9)
        self.owners.append(owner)
        self.ask(owner, wait=True, woken=False)
        self.leave(holder)
        if self.tokens[lock] and owner.nonce in self.waiting[lock]:
            assert self.scope.token(lock)
            self.tokens[lock] = 0
            fired["woken"] += 1
            self.ask(owner, wait=True, woken=True)

    @precondition(lambda self: any(isinstance(self.holder.get(lock), Owner) for lock in LOCKS[1:]))
    @rule(data=st.data())
    def outage(self, data: st.DataObject) -> None:
        """An execution lock lapses, and its owner renews it before anybody else comes."""
        held = [lock for lock in LOCKS[1:] if isinstance(self.holder.get(lock), Owner)]
        lock = data.draw(st.sampled_from(held))
        owner = self.holder[lock]
        assert isinstance(owner, Owner)
        self.scope.lapse(lock)
        if self.live[lock] is not owner:
            # A later attempt of its task has had the other lock.
            assert not self.scope.renew(lock, owner.value)[0]
            del self.holder[lock]
            return
        assert self.scope.renew(lock, owner.value) == (True, owner.value)
        fired["again"] += 1

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """Anybody gives up: a holder, a waiter, one that was overtaken; also twice."""
        self.leave(data.draw(st.sampled_from(self.owners)))

    @precondition(lambda self: any(isinstance(holder, Owner) for holder in self.holder.values()))
    @rule(data=st.data())
    def holder_gives_up(self, data: st.DataObject) -> None:
        """One that has a lock gives it up."""
        holders = [holder for holder in self.holder.values() if isinstance(holder, Owner)]
        self.leave(data.draw(st.sampled_from(holders)))

    def leave(self, owner: Owner) -> None:
        """Drop, and compare with the model."""
        lock, holder = owner.lock, self.holder.get(owner.lock)
        released = self.scope.drop(lock, owner.nonce)
        waited = owner.nonce in self.waiting[lock]
        self.waiting[lock].discard(owner.nonce)
        assert released == (holder is owner)
        if released:
            fired["released"] += 1
            self.live[lock] = None
            self.pass_lock(lock)
        elif waited and (holder is None or holder == NEXT):
            self.pass_lock(lock)

    def pass_lock(self, lock: str) -> None:
        """Who has it after a release."""
        if self.waiting[lock]:
            self.holder[lock], self.tokens[lock] = NEXT, 1
        else:
            self.holder.pop(lock, None)
            self.tokens[lock] = 0

    @rule(lock=st.sampled_from(LOCKS))
    def lapse(self, lock: str) -> None:
        """A lock's time is over: its owner crashed, or was too slow."""
        if self.holder.pop(lock, None) is not None:
            fired["lapse"] += 1
        self.scope.lapse(lock)

    @precondition(lambda self: any(owner.value and owner.lock != NAMED for owner in self.owners))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """A host releases the lock of an attempt that died."""
        owners = [owner for owner in self.owners if owner.value and owner.lock != NAMED]
        holding = [owner for owner in owners if self.holder.get(owner.lock) is owner]
        # Most owners have lost their locks, and a draw among all would seldom meet one that has not.
        among_holding = bool(holding) and data.draw(st.booleans())
        owner = data.draw(st.sampled_from(holding if among_holding else owners))
        holder = self.holder.get(owner.lock)
        theirs = isinstance(holder, Owner) and (holder.task, holder.generation) == (owner.task, owner.generation)
        assert self.scope.free(owner.lock, owner.task, str(owner.generation)) == theirs
        if theirs:
            fired["freed"] += 1
            self.live[owner.lock] = None
            self.pass_lock(owner.lock)

    @rule(ms=st.integers(-1000, 5000))
    def time_passes(self, ms: int) -> None:
        """The clock moves, also back."""
        self.scope.sleep(ms)

    @rule()
    def counter_is_lost(self) -> None:
        """The counter of fences goes, as the clock goes on."""
        self.scope.store.execute("DEL", self.scope.keys.key("fence"))
        self.scope.sleep(100_000)

    # --------------------------------------------------------------------------------------------- what must be so

    @invariant()
    def who_has_it(self) -> None:
        """Every lock holds what the model says; only its owner passes the guard of shared state."""
        for lock in LOCKS:
            stored = self.scope.store.execute("GET", self.scope.keys.key(lock))
            holder = self.holder.get(lock)
            said = holder if isinstance(holder, str) else holder.value if holder else None
            assert (stored.decode() if stored else None) == said
        for owner in self.owners[-4:]:
            if owner.value:
                passes = self.scope.call(
                    scripts.await_for(LockProof(self.scope.keys, owner.lock, owner.value), pool="p", tasks=["nobody"])
                )
                assert (passes is not None) == (self.holder.get(owner.lock) is owner)

    @invariant()
    def nothing_stays_for_ever(self) -> None:
        """Every key has a time to live."""
        assert without_lifetime(self.scope.link, self.scope.keys.prefix) == []


@pytest.mark.parametrize("examples", [FEW, pytest.param(EXAMPLES, marks=pytest.mark.slow)], ids=["few", "many"])
def test_locks_follow_the_model(redis_server: RedisServer, examples: int) -> None:
    """Whatever owners do, crash or repeat: one has the lock, fences rise, only the owner may write."""
    fired.clear()

    class Here(Machine):
        url = redis_server.url

    rules = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_until_all_fired(Here, rules, fired, MUST_FIRE if examples != FEW else ())
