"""lua/tasks/take_suspects.lua: workers take suspects that have room beside those that their process runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import (
    PauseAgent,
    PauseQueue,
    ResumeAgent,
    ResumeQueue,
    Start,
    Stop,
)
from orchestrator.core.rates import Rate
from orchestrator.core.wakeups import REGISTRY, changed_queue
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import Envelope, FinishStatus, VerdictKind, encode_envelope
from tests.helpers.cases import each_case
from tests.lua.pool import Team, row

if TYPE_CHECKING:
    from orchestrator.control.commands import Command
    from tests.lua.pool import Pool, Row

pytestmark = pytest.mark.every_server

SUM = "skill:sum"
PATIENCE_MS = 60_000


def suspect(pool: Pool, *rows: Row, groups: tuple[int, ...], blamed: tuple[int, ...] = ()) -> list[str]:
    """Put tasks that died among the suspects of their queues; their ids."""
    ids = pool.put(*rows)
    for id_, group, times in zip(ids, groups, blamed or (0,) * len(ids), strict=True):
        pool.execute("HSET", pool.keys.task(id_), "deaths", 2, "group", group)
        if times:
            pool.execute("HSET", pool.keys.task(id_), "blamed", times)
    while pool.assign().left:
        pass
    assert {pool.task(id_)["state"] for id_ in ids} == {"ready"}
    return ids


def suspects(pool: Pool, *groups: int) -> list[str]:
    """Put plain tasks among the suspects of their queue, in this order of their scores."""
    return suspect(pool, *[row() for _ in groups], groups=groups)


def is_left(pool: Pool, *running: tuple[int, int], limit: int = 0) -> bool:
    """Whether the reply tells that suspects wait."""
    call = task_scripts.take_suspects(pool.keys, worker="w1", agent="ed", limit=limit, running=running, idle=False)
    return pool.call(call).left


def test_no_suspects(pool: Pool) -> None:
    """Without suspects nothing is taken and nothing changes."""
    with pool.unchanged():
        assert not is_left(pool, limit=9)
    pool.register()
    pool.put()
    with pool.unchanged():
        assert pool.take_suspects(idle=True) == []
        assert not is_left(pool, limit=9)


def test_depth_of_a_traced_task(pool: Pool) -> None:
    """The trace context behind the depth does not hide it."""
    pool.register()
    packed = encode_envelope(Envelope("sum", b"{}", session="s", depth=3, trace=f"00-{1:032x}-{1:016x}-01 a=1"))
    suspect(pool, row(envelope=opaque(packed)), groups=(2,))
    (taken,) = pool.take_suspects("w7")
    assert (taken.depth, taken.envelope) == (3, packed)


def test_takes(pool: Pool) -> None:
    """The worker gets the attempt as if it had read it from the inbox, with its group and its depth."""
    pool.register()
    (id_,) = suspect(pool, row(depth=3, reply="c1"), groups=(2,))
    assert (pool.queue(), pool.members(pool.keys.suspects(SUM))) == ([], [id_])
    pool.watch(id_)
    score = pool.score(pool.keys.suspects(SUM), id_)
    (taken,) = pool.take_suspects("w7")
    task = pool.task(id_)
    assert (taken.agent, taken.task_id, taken.generation) == ("ed", id_, task["gen"])
    assert (taken.attempt, taken.deaths, taken.group, taken.depth) == (3, 2, 2, 3)
    assert taken.envelope == encode_envelope(Envelope("sum", b"{}", depth=3))
    assert (task["state"], task["at"]) == ("assigned", f"ed {taken.entry} {score}")
    assert pool.pending() == [(taken.entry, "w7")]
    assert pool.execute("EXISTS", pool.keys.suspects(SUM), pool.keys.suspected_queues) == 0
    assert pool.stats()["assigned"] == 1
    assert pool.out(id_)[-1][:3] == ("assigned", taken.generation, 3)
    assert pool.end(taken) is FinishStatus.OK
    assert pool.repair(id_) == []


def test_forgiven_failures_and_large_envelopes(pool: Pool) -> None:
    """The entry is that of `assign`: with the failures from before a retry, and without an envelope above 16 KiB."""
    pool.register()
    (id_,) = pool.put(row(envelope=opaque(encode_envelope(Envelope("sum", b"x" * 20_000)))))
    pool.end(pool.one(), VerdictKind.DEAD)
    pool.retry(id_)
    pool.execute("HSET", pool.keys.task(id_), "deaths", 2, "group", 1)
    pool.assign()
    (taken,) = pool.take_suspects()
    assert (taken.attempt, taken.forgiven_failures, taken.envelope) == (4, 1, b"")


@each_case(
    ("groups", "running", "taken"),
    [
        ((1, 1, 1), [], [0]),
        ((2, 2, 2), [], [0, 1]),
        ((3, 3, 3), [], [0, 1, 2]),
        ((1, 3, 3), [], [1, 2]),  # larger groups first; then the small one finds no room
        ((2, 2, 2), [(0, 2)], [0]),
        ((9, 9, 9), [(0, 2)], [0]),  # what runs may share its process with one
        ((9, 9, 9), [(0, 1)], []),
        ((1,), [(0, 9)], []),
        ((2,), [(0, 9)], [0]),
        ((9,), [(0, 0)], []),  # beside a task that runs alone
    ],
    fresh="pool",
)
def test_room_by_group(pool: Pool, groups: tuple[int, ...], running: list[tuple[int, int]], taken: list[int]) -> None:
    """No suspect shares a process with more suspects than its group says, nor do those that run."""
    pool.register(slots=20)
    ids = suspects(pool, *groups)
    assert [one.task_id for one in pool.take_suspects("w1", *running)] == [ids[i] for i in taken]
    assert pool.members(pool.keys.suspects(SUM)) == [id_ for i, id_ in enumerate(ids) if i not in taken]


@each_case(
    ("depths", "running", "taken"),
    [
        ((1,), [(0, 1)], [0]),
        ((0,), [(1, 1)], []),
        ((1,), [(1, 1)], []),
        ((2,), [(0, 1), (1, 1)], [0]),
        ((0, 1, 2), [], [0, 1, 2]),
        ((2, 1, 0), [], [0]),
        ((1, 1), [(0, 1)], [0]),
    ],
    fresh="pool",
)
def test_room_by_depth(pool: Pool, depths: tuple[int, ...], running: list[tuple[int, int]], taken: list[int]) -> None:
    """Parents of others take no room from their children, which they may wait for; deeper ones do."""
    pool.register(slots=20)
    ids = suspect(pool, *[row(depth=depth) for depth in depths], groups=(1,) * len(depths))
    found = pool.take_suspects("w1", *running)
    assert [(one.task_id, one.depth) for one in found] == [(ids[i], depths[i]) for i in taken]


def test_order(pool: Pool) -> None:
    """Larger groups come first; of one group those that died alone come last, else the order of the queue decides."""
    pool.register(slots=30)
    rows = [row(priority=priority) for priority in (3, 2, 1, 2, 2, 0)]
    ids = suspect(pool, *rows, groups=(20, 20, 20, 30, 20, 20), blamed=(0, 0, 1, 0, 0, 2))
    assert [one.task_id for one in pool.take_suspects()] == [ids[i] for i in (3, 1, 4, 0, 2, 5)]


class TestAlone:
    """Before the death that would end it, a task runs alone."""

    def test_in_an_idle_process(self, pool: Pool) -> None:
        """A process that runs nothing takes one of them, and nothing beside it."""
        pool.register()
        first, second = suspects(pool, 0, 0)
        (taken,) = pool.take_suspects(idle=True)
        assert (taken.task_id, taken.group) == (first, 0)
        assert pool.members(pool.keys.suspects(SUM)) == [second]

    def test_no_child_beside_it(self, pool: Pool) -> None:
        """A deeper task that has waited for a minute is not taken in the same call."""
        pool.register()
        ids = suspect(pool, row(priority=1), row(depth=1), groups=(0, 0))
        pool.sleep(PATIENCE_MS)
        assert [one.task_id for one in pool.take_suspects(idle=True)] == ids[:1]

    def test_in_no_other(self, pool: Pool) -> None:
        """A process that runs something, suspects or not, takes none."""
        pool.register()
        suspects(pool, 0)
        assert pool.take_suspects(idle=False) == []
        assert pool.take_suspects("w1", (0, 9), idle=True) == []

    def test_after_others(self, pool: Pool) -> None:
        """A call that takes another suspect leaves it; the worker asks again when it is idle."""
        pool.register()
        alone, other = suspects(pool, 0, 1)
        assert [one.task_id for one in pool.take_suspects(idle=True)] == [other]
        assert pool.members(pool.keys.suspects(SUM)) == [alone]

    def test_patience(self, pool: Pool) -> None:
        """After a minute without an idle process it shares one with tasks that are no suspects."""
        pool.register()
        (id_,) = suspects(pool, 0)
        assert pool.task(id_)["alone"] == str(pool.now_ms)
        pool.sleep(PATIENCE_MS - 1)
        assert pool.take_suspects() == []
        pool.sleep(1)
        assert pool.take_suspects("w1", (0, 9)) == []
        (taken,) = pool.take_suspects()
        assert (taken.task_id, taken.group) == (id_, 1)

    def test_an_idle_process_is_still_better(self, pool: Pool) -> None:
        """After the minute, an idle process still runs it alone."""
        pool.register()
        suspects(pool, 0)
        pool.sleep(PATIENCE_MS)
        (taken,) = pool.take_suspects(idle=True)
        assert taken.group == 0

    def test_waiting_counts_from_its_last_death(self, pool: Pool) -> None:
        """The minute goes on while the task returns to its queue and back; after another death it begins anew."""
        pool.register()
        (id_,) = suspect(pool, row(), groups=(0,), blamed=(1,))
        since = pool.now_ms
        pool.sleep(PATIENCE_MS - 10)
        pool.execute("ZREM", pool.keys.suspects(SUM), id_)
        pool.repair(id_)
        pool.assign()
        assert pool.members(pool.keys.suspects(SUM)) == [id_]
        assert pool.task(id_)["alone"] == str(since)
        pool.sleep(10)
        assert len(pool.take_suspects("w9")) == 1
        pool.abandon("w9")
        assert "alone" not in pool.task(id_)
        pool.sleep(1000)
        pool.promote()
        pool.assign()
        assert pool.take_suspects() == []
        assert pool.task(id_).items() >= {"group": "0", "alone": str(pool.now_ms)}.items()


def test_unread_entries_come_first(pool: Pool) -> None:
    """While the inbox has an entry that no worker has read, none is taken: the worker would not get its own."""
    pool.register()
    suspects(pool, 1)
    (plain,) = pool.put()
    pool.assign()
    with pool.unchanged():
        assert pool.take_suspects(idle=True) == []
        assert is_left(pool, limit=9)
    assert [one.task_id for one in pool.read("w2")] == [plain]
    assert len(pool.take_suspects()) == 1


@each_case(
    ("begin", "end"),
    [
        (Stop(), Start()),
        (Stop(agent="ed"), Start(agent="ed")),
        (Stop(skill="sum"), Start(skill="sum")),
        (PauseAgent(agent="ed"), ResumeAgent(agent="ed")),
        (PauseQueue(queue=SUM), ResumeQueue(queue=SUM)),
    ],
    fresh="pool",
)
def test_nothing_is_taken(pool: Pool, begin: Command, end: Command) -> None:
    """While a stop or a pause is active nothing is taken; after it the suspects are there."""
    pool.register()
    ids = suspects(pool, 1)
    pool.append(begin)
    with pool.unchanged():
        assert pool.take_suspects(idle=True) == []
        assert is_left(pool, limit=9)
    pool.append(end)
    assert [one.task_id for one in pool.take_suspects()] == ids


def test_a_pause_holds_one_queue(pool: Pool) -> None:
    """Suspects of the agent's other queues are taken."""
    pool.register()
    _, other = suspect(pool, row(), row(queue="agent:ed", skill="sum"), groups=(1, 1))
    pool.append(PauseQueue(queue=SUM))
    assert [one.task_id for one in pool.take_suspects()] == [other]


def test_a_stopped_session(pool: Pool) -> None:
    """A suspect of a stopped session goes back to its queue, whence `assign` moves it to those that the stop holds."""
    pool.register()
    of_session = row(envelope=opaque(encode_envelope(Envelope("sum", b"{}", session="s"))))
    stopped, other = suspect(pool, of_session, row(), groups=(2, 1))
    score = pool.score(pool.keys.suspects(SUM), stopped)
    pool.append(Stop(session="s"))
    pool.notifications()
    assert [one.task_id for one in pool.take_suspects()] == [other]
    assert (pool.queue(), pool.score(pool.keys.queue(SUM), stopped)) == ([stopped], score)
    assert pool.notifications() == [f"queue:{SUM}"]
    assert pool.execute("EXISTS", pool.keys.suspects(SUM), pool.keys.suspected_queues) == 0
    pool.assign()
    assert pool.members(pool.keys.held("session:s")) == [stopped]


def test_a_stopped_skill_of_an_addressed_task(pool: Pool) -> None:
    """The stop of a skill holds back tasks of that skill that are addressed to the agent."""
    pool.register()
    (stopped,) = suspect(pool, row(queue="agent:ed", skill="sum"), groups=(1,))
    pool.append(Stop(skill="sum"))
    assert pool.take_suspects() == []
    pool.assign()
    assert pool.members(pool.keys.held("skill:sum")) == [stopped]


def test_a_missing_skill(pool: Pool) -> None:
    """A suspect whose agent has lost the skill goes back to its queue, whence `assign` parks it."""
    pool.register()
    (id_,) = suspect(pool, row(queue="agent:ed", skill="sum"), groups=(1,))
    pool.deregister()
    pool.register(team=Team(skills=frozenset({"other"})))
    assert pool.take_suspects() == []
    assert pool.queue("agent:ed") == [id_]
    pool.assign()
    assert pool.members(pool.keys.parked("ed")) == [id_]


def test_one_that_is_no_suspect_any_more(pool: Pool) -> None:
    """A task without a group goes back to its queue."""
    pool.register()
    (id_,) = suspects(pool, 1)
    pool.execute("HDEL", pool.keys.task(id_), "group")
    assert pool.take_suspects() == []
    assert pool.queue() == [id_]
    assert [one.task_id for one in pool.deliver()] == [id_]


def test_leftovers(pool: Pool) -> None:
    """An index entry that an interrupted script left behind is removed, and its task is left as it is."""
    pool.register()
    ended, gone = suspects(pool, 1, 1)
    pool.execute("HSET", pool.keys.task(ended), "state", "succeeded")
    pool.execute("DEL", pool.keys.task(gone))
    task = pool.task(ended)
    assert pool.take_suspects() == []
    assert (pool.task(ended), pool.inbox_length()) == (task, 0)
    assert pool.execute("EXISTS", pool.keys.suspects(SUM), pool.keys.suspected_queues) == 0
    assert not is_left(pool)


def test_left(pool: Pool) -> None:
    """The reply tells whether suspects of the agent wait, those of other agents do not count."""
    pool.register()
    pool.register("w2", Team("fay", frozenset({"other"})))
    first, _ = suspects(pool, 1, 1)
    call = task_scripts.take_suspects(pool.keys, worker="w2", agent="fay", limit=9, running=[], idle=True)
    assert pool.call(call) == (False, [])
    assert is_left(pool)
    assert [one.task_id for one in pool.take_suspects()] == [first]
    assert is_left(pool, (0, 1), limit=9)
    pool.take_suspects()
    assert not is_left(pool)


def test_room_of_the_caller(pool: Pool) -> None:
    """A call takes at most `limit`; for an agent without slots, or without an inbox, none."""
    pool.register()
    ids = suspect(pool, row(), row(), row(queue="agent:ed", skill="sum", priority=3), groups=(9, 9, 9))
    with pool.unchanged():
        assert pool.take_suspects(limit=0) == []
    assert [one.task_id for one in pool.take_suspects(limit=2)] == ids[:2]
    pool.register(slots=0)
    with pool.unchanged():
        assert pool.take_suspects() == []
    pool.register()
    pool.execute("DEL", pool.keys.inbox("ed"))
    with pool.unchanged():
        assert pool.take_suspects() == []
    pool.execute("XADD", pool.keys.inbox("ed"), "1-1", "t", "x")
    with pool.unchanged():
        assert pool.take_suspects() == []


def test_limits(pool: Pool) -> None:
    """A start takes a slot of every limit; without one nothing is taken."""
    pool.register(team=Team(rate=Rate(2, 600_000_000)))
    ids = suspects(pool, 9, 9, 9)
    taken = pool.take_suspects()
    assert [one.task_id for one in taken] == ids[:2]
    assert set(pool.members(pool.keys.limit("@ed"))) == {f"{one.task_id}:{one.generation}" for one in taken}
    with pool.unchanged():
        assert pool.take_suspects() == []
        assert is_left(pool, limit=9)


def test_bounded_in_bytes(pool: Pool) -> None:
    """One call hands over at most about 1 MiB (protocol rule 17); the rest follows with the next call."""
    pool.register(slots=200)
    suspect(pool, *[row(envelope=opaque(b"x" * 16_000)) for _ in range(100)], groups=(200,) * 100)
    assert [len(pool.take_suspects(limit=200)) for _ in range(3)] == [66, 34, 0]


def test_repeat(pool: Pool) -> None:
    """When the answer is lost, the call takes further suspects; the first ones are the worker's own lost entries."""
    pool.register()
    first, second = suspects(pool, 2, 2)
    (lost,) = pool.take_suspects(limit=1, begin=False)
    assert lost.task_id == first
    (other,) = pool.take_suspects("w1", limit=1)
    assert other.task_id == second
    (again,) = pool.adopt("w1", held=[other.entry], own=True)
    assert (again.task_id, again.group, again.deaths) == (first, 2, 2)
    assert pool.end(lost) is FinishStatus.STALE


class TestAssign:
    """`assign` moves suspects out of the queue and keeps room for them."""

    def test_keeps_a_slot_for_each_worker_that_may_take_one(self, pool: Pool) -> None:
        """With suspects an agent has no backlog, and as many slots stay free as workers or suspects."""
        pool.register("w1", slots=4, backlog=1)
        pool.register("w2", slots=4, backlog=1)
        suspects(pool, 1, 1, 1)
        pool.put(*[row() for _ in range(20)])
        while pool.assign().left:
            pass
        assert pool.inbox_length() == 8 - 2
        pool.read()
        while pool.take_suspects():
            pass
        while pool.assign().left:
            pass
        assert pool.inbox_length() == 16

    def test_keeps_no_more_slots_than_suspects(self, pool: Pool) -> None:
        """One suspect takes one slot, of any number of workers."""
        for worker in ("w1", "w2", "w3"):
            pool.register(worker, slots=2)
        suspects(pool, 1)
        pool.put(*[row() for _ in range(20)])
        pool.assign()
        assert pool.inbox_length() == 6 - 1

    @pytest.mark.parametrize("held", [PauseQueue(queue=SUM), Stop(skill="sum")], ids=["paused", "stopped"])
    def test_suspects_that_no_worker_may_take_keep_no_slot(self, pool: Pool, held: Command) -> None:
        """While their queue is stopped or paused, the agent's other queues have all its room."""
        pool.register(team=Team(skills=frozenset({"sum", "other"})), slots=1, backlog=1)
        suspects(pool, 1)
        pool.append(held)
        pool.put(*[row(queue="agent:ed", skill="other") for _ in range(3)])
        while pool.assign().left:
            pass
        assert pool.inbox_length() == 2

    def test_suspects_of_others_take_no_room(self, pool: Pool) -> None:
        """Suspects of queues that the agent does not serve change nothing for it."""
        pool.register(slots=2, backlog=1)
        suspects(pool, 1)
        pool.register("w2", Team("fay", frozenset({"other"})), slots=2, backlog=1)
        pool.put(*[row(queue="skill:other") for _ in range(9)])
        while pool.assign("fay").left:
            pass
        assert pool.inbox_length("fay") == 4

    def test_tells_the_workers(self, pool: Pool) -> None:
        """Each worker of the agent gets a note, so that one with room takes the suspect at once."""
        pool.register("w1")
        pool.register("w2")
        pool.register("w3", Team("fay", frozenset({"other"})))
        suspects(pool, 1)
        notes = {worker: pool.entries(pool.keys.notes(worker)) for worker in ("w1", "w2", "w3")}
        assert [[fields[1] for _, fields in notes[worker]] for worker in notes] == [["suspects"], ["suspects"], []]

    def test_suspects_count_against_the_cap_of_the_queue(self, pool: Pool) -> None:
        """A queue is as full with suspects as without."""
        pool.register()
        suspects(pool, 1, 1)
        assert pool.submit(row(), max_tasks=2) == [("full", SUM)]
        assert pool.submit(row(), max_tasks=3)[0][0] == "created"

    def test_a_cancelled_suspect_leaves(self, pool: Pool) -> None:
        """A suspect is cancelled as any ready task."""
        pool.register()
        ids = suspects(pool, 1, 1)
        pool.cancel(*ids)
        assert {pool.state(id_) for id_ in ids} == {"cancelled"}
        assert pool.execute("EXISTS", pool.keys.suspects(SUM), pool.keys.suspected_queues) == 0


def test_cost_is_bounded(pool: Pool) -> None:
    """A call looks at the first 200 suspects of a queue, however many there are."""

    def cost() -> int:
        before = pool.commands()
        assert len(pool.take_suspects(limit=1)) == 1
        return pool.commands() - before

    pool.register(slots=1000)
    suspects(pool, *(9,) * 200)
    cost()  # now the server knows the script
    suspects(pool, 9)
    first = cost()
    suspects(pool, *(9,) * 200)
    for i in range(30):
        pool.register(f"w{i}", Team(agent=f"a{i}"))
    assert cost() == first


class TestKeptSlots:
    """A suspect that leaves wakes the supervisor for agents that kept a slot free for it, if tasks wait for these."""

    @pytest.fixture
    def kept(self, pool: Pool) -> tuple[str, str]:
        """A suspect for which `ed` keeps its only slot free, and a task of another skill that waits for the slot."""
        pool.register(team=Team(skills=frozenset({"sum", "other"})), slots=1)
        pool.register("w2", Team("bob"), slots=1)
        of_session = row(envelope=opaque(encode_envelope(Envelope("sum", b"{}", session="s"))))
        (suspected,) = suspect(pool, of_session, groups=(2,))
        (waits,) = pool.put(row(queue="skill:other", envelope=opaque(encode_envelope(Envelope("other", b"{}")))))
        wake(pool)
        assert (pool.state(waits), pool.inbox_length()) == ("ready", 0)
        return suspected, waits

    def test_taken_by_another_agent(self, pool: Pool, kept: tuple[str, str]) -> None:
        """Another agent takes the suspect."""
        (taken,) = pool.take_suspects("w2", agent="bob")
        assert taken.task_id == kept[0]
        wake(pool)
        assert [one.task_id for one in pool.read()] == [kept[1]]

    def test_cancelled(self, pool: Pool, kept: tuple[str, str]) -> None:
        """The cancel of the suspect does so too."""
        pool.cancel(kept[0])
        wake(pool)
        assert [one.task_id for one in pool.read()] == [kept[1]]

    def test_cancelled_with_many_agents(self, pool: Pool, kept: tuple[str, str]) -> None:
        """Of more than 100 agents with the skill, the supervisor checks all."""
        for i in range(99):
            pool.register(f"v{i}", Team(f"a{i}"))
        wake(pool)
        assert pool.state(kept[1]) == "ready"
        pool.cancel(kept[0])
        assert pool.notifications() == ["agents"]
        assert pool.relist("ed") == []
        assert pool.dispatch("other").count == 1

    def test_taken_by_the_agent_itself(self, pool: Pool, kept: tuple[str, str]) -> None:
        """The suspect is in the slot, so the other task waits on."""
        (taken,) = pool.take_suspects()
        wake(pool)
        assert pool.state(kept[1]) == "ready"
        pool.end(taken)
        wake(pool)
        assert [one.task_id for one in pool.read()] == [kept[1]]

    def test_a_stopped_one(self, pool: Pool, kept: tuple[str, str]) -> None:
        """A suspect that a stop of its session holds returns to its queue, and keeps no slot."""
        pool.append(Stop(session="s"))
        wake(pool)
        assert pool.state(kept[1]) == "ready"
        assert pool.take_suspects("w2", agent="bob") == []
        wake(pool)
        assert [one.task_id for one in pool.read()] == [kept[1]]
        assert pool.members(pool.keys.held("session:s")) == [kept[0]]

    def test_once_in_a_call(self, pool: Pool) -> None:
        """A call that cancels many suspects looks at their agents once, and no task waits means no notification."""
        pool.register(slots=4)
        ids = suspects(pool, *(1,) * 20)
        pool.notifications()
        pool.cancel(*ids[:10])
        assert pool.notifications() == []
        pool.put(*[row() for _ in range(9)])
        wake(pool)
        pool.cancel(*ids[10:])
        assert pool.notifications() == ["agent:ed"]


def wake(pool: Pool) -> None:
    """Do what the supervisor does with the notifications about queues and agents, until none is left."""
    while names := set(pool.notifications()) - {REGISTRY, "scheduled"}:
        for queue in map(changed_queue, sorted(names)):
            if queue.agent is None:
                pool.dispatch_all(queue.name)
            else:
                while pool.assign(queue.agent).left:
                    pass


def test_a_damaged_group_stops_no_other_suspect(pool: Pool) -> None:
    """A group that is no number counts as the smallest one, until the repair finds it."""
    pool.register()
    damaged, sound = suspects(pool, 2, 2)
    pool.execute("HSET", pool.keys.task(damaged), "group", "x")
    assert [one.task_id for one in pool.take_suspects("w1", limit=1)] == [sound]
