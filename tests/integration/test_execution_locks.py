"""Execution locks in a team: what is serialised, who is shut out, what happens to an attempt that loses its lock."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Cause, Fenced, LockLost, Retry, TaskContext, TaskFailed, TaskState
from orchestrator.locks import scripts
from orchestrator.locks.execution import ExecutionLocks, LockOwner
from orchestrator.locks.model import new_nonce
from orchestrator.locks.renewal import LockRenewer
from orchestrator.locks.waiter import LockWaiter
from orchestrator.services import SyncStore
from orchestrator.store.keys import ScopeKeys
from orchestrator.tasks.scripts import wake
from orchestrator.workers.runtime.dead_worker import abandon_entries
from tests.helpers.guards import keys_of
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import redis

    from orchestrator.locks.execution import LockMode
    from orchestrator.locks.model import LockProof
    from tests.helpers.local_team import LocalTeam


class Busy:
    """How many handlers run at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.fences: list[int | None] = []

    async def work(self, ctx: TaskContext) -> None:
        """Run for a moment."""
        self.now += 1
        self.most = max(self.most, self.now)
        self.fences.append(ctx.fence)
        await anyio.sleep(0.03)
        self.now -= 1


def make_agent(busy: Busy, lock: LockMode, **options: Any) -> Agent:
    """An agent whose skill `work` is busy."""
    agent = Agent("ed", concurrency=8, **options)

    @agent.skill(lock=lock)
    async def work(ctx: TaskContext) -> None:
        await busy.work(ctx)

    return agent


def session(team: LocalTeam, id_: str = "s") -> ScopeKeys:
    """The keys of a session."""
    return ScopeKeys(team.services.keys.prefix, "session", id_)


async def run_all(team: LocalTeam, sessions: list[str | None]) -> None:
    """Submit a task for each session, and wait for all."""
    handles = [await team.orc.submit("work", session=name) for name in sessions]
    for handle in handles:
        await handle.result(3 * TIMEOUT_S)


async def test_one_task_of_a_session_at_a_time(team: LocalTeam) -> None:
    """lock="session": tasks of one session do not overlap, on two workers; the lock's number rises with each."""
    busy = Busy()
    await team.work(make_agent(busy, "session"))
    await team.work(make_agent(busy, "session"))
    await run_all(team, ["s"] * 8)
    assert busy.most == 1
    assert len(set(busy.fences)) == 8
    assert busy.fences == sorted(busy.fences, key=lambda fence: fence or 0)


@pytest.mark.parametrize(
    ("lock", "sessions"), [("session", ["a", "b", "c", "d"]), ("session", [None] * 4), ("task", ["s"] * 4)]
)
async def test_the_rest_runs_at_once(team: LocalTeam, lock: LockMode, sessions: list[str | None]) -> None:
    """Twin: other sessions, tasks without one, and lock="task" are not held up."""
    busy = Busy()
    await team.work(make_agent(busy, lock))
    await run_all(team, sessions)
    assert busy.most > 1


async def test_one_execution_of_an_agent_at_a_time(team: LocalTeam) -> None:
    """lock="agent": one of its executions at a time, on two workers, whatever the session."""
    busy = Busy()
    await team.work(make_agent(busy, "agent"))
    await team.work(make_agent(busy, "agent"))
    await run_all(team, ["a", "b", None, "a", None, "c"])
    assert busy.most == 1
    assert None not in busy.fences


async def test_what_shares_nothing_locks_nothing(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A task of a session that uses no state takes no lock: no key, no fence."""
    busy = Busy()
    await team.work(make_agent(busy, "task"))
    await run_all(team, ["s"])
    assert busy.fences == [None]
    assert [name for name in keys_of(redis_client, team.settings.prefix) if "{session:" in name] == []


async def test_first_use_takes_the_lock(team: LocalTeam) -> None:
    """State is used: the attempt has its lock from then on, the same one again, and nobody after its end."""
    agent = Agent("ed")
    proofs: list[LockProof] = []

    @agent.skill
    async def work(ctx: TaskContext) -> int | None:
        right = ctx._resources.locks.execution.session
        proofs.extend([await right.proof(), await right.proof()])
        return ctx.fence

    await team.work(agent)
    handle = await team.orc.submit("work", session="s")
    assert await handle.result(TIMEOUT_S) == proofs[0].fence
    assert proofs[0] == proofs[1]
    assert proofs[0].lock == f"exec:{handle.id}"
    assert await team.orc.locks("session:s").list() == []


async def test_second_attempt_shuts_out_the_first_before_it_begins(team: LocalTeam) -> None:
    """A later attempt of a task with a session has its lock before its handler starts, with a higher number."""
    agent = Agent("ed")
    fences: list[int | None] = []

    @agent.skill(backoff=0)
    async def work(ctx: TaskContext) -> None:
        fences.append(ctx.fence)
        if ctx.attempt == 1:
            raise Retry(delay=0)

    await team.work(agent)
    await (await team.orc.submit("work", session="s")).result(TIMEOUT_S)
    assert fences[0] is None
    assert fences[1] is not None


async def test_busy_session_puts_off(team: LocalTeam) -> None:
    """Who does not get the session's lock leaves its slot; no attempt counts, and `why` names the holder."""
    agent = Agent("ed", concurrency=4)
    attempts: list[int] = []
    go_on = anyio.Event()

    @agent.skill(lock="session")
    async def work(ctx: TaskContext, *, hold: bool = False) -> None:
        attempts.append(ctx.attempt)
        if hold:
            await go_on.wait()

    await team.work(agent)
    first = await team.orc.submit("work", {"hold": True}, session="s")
    await wait_for(lambda: attempts == [1], "the first one runs")
    second = await team.orc.submit("work", session="s")

    async def put_off() -> bool:
        return (await second.status()).state is TaskState.SCHEDULED

    await wait_for(put_off, "it is put off")
    status = await second.status()
    assert status.detail.cause is Cause.LOCKED
    assert f"session 's' is locked by task {first.id}" in status.why
    go_on.set()
    await first.result(TIMEOUT_S)
    await second.result(2 * TIMEOUT_S)
    assert attempts == [1, 1]


async def test_awaited_child_is_refused(team: LocalTeam) -> None:
    """A child that its parent waits for, and that wants what its parent has, fails at once and says why."""
    agent = Agent("ed", concurrency=4)

    @agent.skill(lock="session")
    async def child() -> str:
        return "ran"

    @agent.skill(lock="session")
    async def parent(ctx: TaskContext, *, waits: bool) -> str:
        handle = await ctx.submit(child)
        if not waits:
            return handle.id
        try:
            return await handle.result(TIMEOUT_S)
        except TaskFailed as failed:
            return failed.reason

    await team.work(agent)
    said = await (await team.orc.submit(parent, {"waits": True}, session="s")).result(2 * TIMEOUT_S)
    assert "a deadlock" in said
    left = await (await team.orc.submit(parent, {"waits": False}, session="t")).result(2 * TIMEOUT_S)
    assert await team.orc.task(left).result(2 * TIMEOUT_S) == "ran"


async def test_awaited_grandchild_is_refused(team: LocalTeam) -> None:
    """A task between them awaits a child that wants what the parent has: the child fails and says why."""
    agent = Agent("ed", concurrency=4)

    @agent.skill(lock="session")
    async def child() -> str:
        return "ran"

    @agent.skill
    async def between(ctx: TaskContext) -> str:
        try:
            return await (await ctx.submit(child)).result()
        except TaskFailed as failed:
            return failed.reason

    @agent.skill(lock="session")
    async def parent(ctx: TaskContext) -> str:
        return await (await ctx.submit(between)).result()

    await team.work(agent)
    assert "a deadlock" in await (await team.orc.submit(parent, session="s")).result(2 * TIMEOUT_S)


async def test_overtaken_attempt_is_told_by_whom(team: LocalTeam) -> None:
    """A higher generation took over: the old attempt's next change is refused, for good, and names the owner."""
    agent = Agent("ed")
    seen: list[Fenced] = []

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        right = ctx._resources.locks.execution.session
        proof = await right.proof()
        taken = await team.services.store.call(
            scripts.claim(
                proof.keys, lock=proof.lock, task=ctx.task_id, generation=str(10**15), nonce=new_nonce(), ttl_ms=2000
            )
        )
        for _ in range(2):
            with pytest.raises(Fenced) as refused:
                await right.reacquire(proof, taken.value)
            seen.append(refused.value)
            with pytest.raises(Fenced):
                await right.proof()

    await team.work(agent)
    handle = await team.orc.submit("work", session="s")
    await handle.result(TIMEOUT_S)
    assert {fenced.owner for fenced in seen} == {f"task {handle.id}, generation {10**15}"}
    assert f"the current owner is task {handle.id}" in str(seen[0])


async def test_lapsed_lock_that_nobody_had_goes_on(team: LocalTeam, redis_client: redis.Redis) -> None:
    """The lock is gone, as after an outage: the attempt gets the same one back, unless somebody has had it."""
    agent = Agent("ed")

    @agent.skill
    async def work(ctx: TaskContext, *, others: bool) -> bool:
        right = ctx._resources.locks.execution.session
        proof = await right.proof()
        redis_client.delete(proof.keys.key(proof.lock))
        if others:
            redis_client.hset(proof.keys.key("exec:fence"), ctx.task_id, "7 7")
            with pytest.raises(Fenced):
                await right.reacquire(proof, "")
            return False
        return await right.reacquire(proof, "") == proof

    await team.work(agent)
    assert await (await team.orc.submit("work", {"others": False}, session="s")).result(TIMEOUT_S)
    assert not await (await team.orc.submit("work", {"others": True}, session="s")).result(TIMEOUT_S)


async def test_an_attempt_without_its_task_gets_no_lock(team: LocalTeam) -> None:
    """After it takes the lock the attempt asks whether it owns its task; if not, it is fenced and the lock is free."""
    store, renewer = team.services.store, LockRenewer()

    async def owns() -> bool:
        return False

    owner = LockOwner(
        task=(await team.orc.submit("work")).id, generation="7", pool="p", agent="ed", session="s", lease_ms=5000,
        owns=owns, on_lost=lambda _: None, may_renew=lambda: True,
    )  # fmt: skip
    locks = ExecutionLocks(
        owner,
        mode="task",
        prefix=team.services.keys.prefix,
        store=store,
        waiter=LockWaiter(store, wake),
        renewer=renewer,
    )
    with pytest.raises(Fenced):
        await locks.session.proof()
    assert locks.lost
    assert await store.call(scripts.peek(session(team))) == []
    assert renewer.due_in_s() is None


@pytest.mark.parametrize("owned", [True, False])
async def test_lapsed_lock_is_renewed_for_an_owner_only(team: LocalTeam, *, owned: bool) -> None:
    """A lock whose time is over is taken again behind the leases, for the owner of the task; who lost it stays out."""
    store, renewer, lost = team.services.store, LockRenewer(), list[str]()

    async def owns() -> bool:
        return True

    owner = LockOwner(
        task=(await team.orc.submit("work")).id, generation="7", pool="p", agent="ed", session="s", lease_ms=100,
        owns=owns, on_lost=lost.append, may_renew=lambda: owned,
    )  # fmt: skip
    locks = ExecutionLocks(
        owner,
        mode="task",
        prefix=team.services.keys.prefix,
        store=store,
        waiter=LockWaiter(store, wake),
        renewer=renewer,
    )
    proof = await locks.session.proof()

    async def gone() -> bool:
        return bool(await store.execute("EXISTS", proof.keys.key(proof.lock)) == 0)

    await wait_for(gone, "the lock has lapsed", TIMEOUT_S)
    assert renewer.batches(early_s=math.inf) == []
    assert renewer.due_in_s() is None
    behind = renewer.batches(lapsed=True)
    assert [len(group) for _, group in behind] == ([1] if owned else [])
    for call, group in behind:
        answers = await store.call(call)
        renewer.settle(group, answers, time.monotonic())
    assert await gone() is not owned
    assert lost == []


async def test_lost_lock_stops_the_handler(team: LocalTeam) -> None:
    """The lock is taken away: the handler is cancelled within a heartbeat, its task goes back, no attempt counts."""
    agent = Agent("ed", lease=1)
    attempts: list[int] = []
    cancelled = anyio.Event()

    @agent.skill(lock="session")
    async def work(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()

    await team.work(agent)
    handle = await team.orc.submit("work", session="s")
    await wait_for(lambda: len(attempts) == 1, "it runs")
    locks = team.orc.locks("session:s")
    (lock,) = await locks.list()
    assert lock.task == handle.id
    assert await locks.take_away(lock)
    with anyio.fail_after(TIMEOUT_S):
        await cancelled.wait()
    await handle.result(TIMEOUT_S)
    assert attempts == [1, 1]


@pytest.mark.blocks_loop
@pytest.mark.parametrize("lease_s", [1, 60])
async def test_blocked_loop_keeps_its_locks(team: LocalTeam, lease_s: int) -> None:
    """A handler that blocks the loop for longer than its locks last loses none: the heartbeat renews them."""
    agent = Agent("ed", lease=lease_s)
    held: list[tuple[bool, bool]] = []

    @agent.skill(lock="session", max_attempts=1)
    async def work(ctx: TaskContext) -> None:
        async with ctx.locks.hold("n", ttl=0.8) as lease:
            time.sleep(1.6)  # noqa: ASYNC251 - that is the fault
            names = {lock.name for lock in await ctx.locks.list()}
            held.append((lease.held, names == {"n", "exec"}))

    await team.work(agent)
    await (await team.orc.submit("work", session="s")).result(2 * TIMEOUT_S)
    assert held == [(True, True)]


@pytest.mark.blocks_loop
async def test_blocked_loop_without_a_heartbeat(team: LocalTeam) -> None:
    """Twin: a client's loop that is blocked cannot renew; the lock lapses, and its holder hears so."""

    async def work() -> None:
        async with team.orc.locks("session:s").hold("n", ttl=0.5, wait=0) as lease:
            time.sleep(0.8)  # noqa: ASYNC251 - that is the fault
            assert not lease.held

    with pytest.raises(LockLost, match="it had lapsed before its block ended"):
        await work()


async def test_dead_worker_holds_nobody_up(team: LocalTeam) -> None:
    """The host gives back the entries of a worker that died: the locks of its attempts are free."""
    keys = session(team)
    agent = Agent("ed")
    running = anyio.Event()

    @agent.skill(lock="session")
    async def work() -> None:
        running.set()
        await anyio.sleep_forever()

    worker = await team.work(agent)
    await team.orc.submit("work", session="s")
    await running.wait()
    assert len(await team.orc.locks("session:s").list()) == 1
    await team.orc.admin.stop(reason="so that the task does not take its lock again")
    store = SyncStore(team.services.endpoint, team.services.keys, name="host")
    give = partial(abandon_entries, store, agents=[agent], worker=worker.id, how="killed", dead_ttl_s=60)
    assert await anyio.to_thread.run_sync(give) == 1
    store.close()
    assert await team.services.store.call(scripts.peek(keys)) == []
