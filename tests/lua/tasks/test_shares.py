"""Tasks of keys take turns in a queue by the weights of the keys, and no more of a key run than may."""

from __future__ import annotations

import os
import random
from collections import Counter
from heapq import heappop, heappush
from itertools import count as count_from_1
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.control import scripts as control
from orchestrator.control.commands import DeleteShare, SetShare, Start, Stop
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import Envelope, VerdictKind, encode_envelope
from orchestrator.why.facts import ShareFacts
from tests.lua.pool import LEASE_MS, Team, row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.tasks.model import Delivery
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

KEYS = ("a", "b", "c")
ENDED = {"succeeded", "cancelled", "dead"}
VERDICTS = [kind for kind in VerdictKind if kind not in {VerdictKind.ASK, VerdictKind.INVALID}]
OF_SESSION = opaque(encode_envelope(Envelope("sum", b"{}", session="s")))


def share(pool: Pool, key: str, weight: float = 1.0, at_most: int | None = None) -> None:
    """Set the share of a key."""
    pool.append(SetShare(key=key, weight=weight, at_most=at_most))


def submit(pool: Pool, key: str, count: int, **fields: Any) -> list[str]:
    """Submit tasks of a key."""
    return pool.put(*[row(fair=key, **fields) for _ in range(count)])


def keys_of(deliveries: list[Delivery], owners: dict[str, str]) -> list[str]:
    """The keys of attempts, in order."""
    return [owners[delivery.task_id] for delivery in deliveries]


def start(pool: Pool, owners: dict[str, str], count: int) -> list[str]:
    """Start and end tasks one by one; their keys in order."""
    order: list[str] = []
    while len(order) < count and pool.assign().count:
        found = pool.read()
        order += keys_of(found, owners)
        for delivery in found:
            pool.end(delivery)
    return order


def owned(pool: Pool, **counts: int) -> dict[str, str]:
    """Submit tasks of several keys; the key of each task."""
    return {id_: key for key, count in counts.items() for id_ in submit(pool, key, count)}


def assert_empty(pool: Pool) -> None:
    """Nothing of the shares is left, except lines, which expire."""
    left = [name for name in pool.names() if ":share:" in name and ":share:line:" not in name]
    assert left == [], left


def test_weights(pool: Pool) -> None:
    """Of keys with waiting tasks each gets starts in proportion to its weight."""
    pool.register(slots=1)
    share(pool, "a", 3)
    owners = owned(pool, a=120, b=40)
    order = start(pool, owners, 160)
    assert Counter(order[:40]) == {"a": 30, "b": 10}
    assert len(order) == 160
    assert_empty(pool)


def test_one_call(pool: Pool) -> None:
    """A call that moves many tasks takes turns, too, and leaves one task of each key in the queue."""
    pool.register(slots=20)
    owners = owned(pool, a=100, b=100)
    assert pool.assign().count == 20
    assert Counter(keys_of(pool.read(), owners)) == {"a": 10, "b": 10}
    assert len(pool.queue()) == 2


def test_at_most(pool: Pool) -> None:
    """No more tasks of a key run than may; the end of one lets the next start."""
    pool.register(slots=20)
    share(pool, "a", at_most=2)
    owners = owned(pool, a=5, b=3)
    pool.assign()
    first = pool.read()
    assert Counter(keys_of(first, owners)) == {"a": 2, "b": 3}
    assert pool.queue() == []
    pool.end(next(one for one in first if owners[one.task_id] == "a"))
    assert pool.assign().count == 1
    assert keys_of(pool.read(), owners) == ["a"]


def test_a_larger_share_wakes(pool: Pool) -> None:
    """Tasks that rest are looked at when more may run."""
    pool.register(slots=20)
    share(pool, "a", at_most=1)
    submit(pool, "a", 5)
    assert pool.assign().count == 1
    pool.append(DeleteShare(key="a"))
    assert pool.assign().count == 4


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_every_verdict_frees_the_place(pool: Pool, kind: VerdictKind) -> None:
    """However an attempt ends, another task of the key may start."""
    pool.register(slots=20)
    share(pool, "a", at_most=1)
    submit(pool, "a", 2)
    pool.assign()
    (one,) = pool.read()
    fields: dict[str, Any] = {"delay_ms": 1000} if kind in {VerdictKind.RETRY, VerdictKind.SNOOZE} else {}
    if kind is VerdictKind.ASK:
        pool.ask(one)
    else:
        pool.end(one, kind, **fields)
    assert pool.assign().count == 1


def small_waits_ms(pool: Pool, *, big: int, keys: bool = True, slots: int = 20, count: int = 60) -> list[int]:
    """How long ten tasks a second of a small customer wait beside those of a big one, by the clock of the test."""
    dice, begun = random.Random(1), count_from_1()
    ends: list[tuple[int, int, Delivery]] = []
    waits: list[int] = []
    pool.register(slots=slots)
    for first in range(0, big, 500):
        pool.put(*[row(fair="big" if keys else "") for _ in range(min(500, big - first))])
    asked: dict[str, int] = {}
    due = [pool.now_ms + 1000 + 100 * number for number in range(count)]
    while len(waits) < count and (ends or due):
        pool.assign()
        for delivery in pool.read():
            if delivery.task_id in asked:
                waits.append(pool.now_ms - asked[delivery.task_id])
            heappush(ends, (pool.now_ms + dice.randint(250, 750), next(begun), delivery))
        next_ms = min([*due[:1], *[end[0] for end in ends[:1]]])
        pool.sleep(max(0, next_ms - pool.now_ms))
        if due and due[0] <= pool.now_ms:
            due.pop(0)
            asked[pool.put(row(fair="small" if keys else ""))[0]] = pool.now_ms
        elif ends:
            pool.end(heappop(ends)[2])
    return sorted(waits)


def test_a_small_customer_waits_for_the_next_slot(pool: Pool) -> None:
    """Beside a big customer each task gets the next slot that is free, one of 20 every 25 ms or so."""
    waits = small_waits_ms(pool, big=1500)
    assert len(waits) == 60
    assert waits[-2] <= 150


def test_beside_a_capped_customer_it_waits_for_none(pool: Pool) -> None:
    """Where the big one leaves slots free, the small one starts at once, as if it were alone."""
    share(pool, "big", at_most=10)
    assert small_waits_ms(pool, big=1500)[-1] == 0


def test_without_keys_it_waits_for_all(pool: Pool) -> None:
    """The twin: its tasks start behind all that were there before."""
    assert small_waits_ms(pool, big=500, keys=False)[0] > 5000


# ----------------------------------------------------------------------------------------------- places of tasks


def flows(pool: Pool) -> dict[str, list[str]]:
    """The waiting tasks of each flow."""
    stored = [name.partition(":share:wait:")[2] for name in pool.names() if ":share:wait:" in name]
    listed = {flow.decode() for flow in pool.execute("SMEMBERS", pool.keys.share_flows)}
    assert set(stored) == listed
    return {flow: pool.members(pool.keys.share_flow(flow)) for flow in stored}


def sums(pool: Pool, key: str) -> dict[str, int]:
    """A sorted set of sums."""
    flat = pool.execute("ZRANGE", key, 0, -1, "WITHSCORES")
    return {name.decode(): int(float(count)) for name, count in zip(flat[::2], flat[1::2], strict=True)}


def assert_consistent(pool: Pool, ids: Iterable[str]) -> None:
    """Records, flows, queues and sums agree: nothing that waits is forgotten, and what runs is counted."""
    tasks = {id_: pool.task(id_) for id_ in ids}
    waiting, taken = flows(pool), {key: pool.taken(key) for key in KEYS}
    behind: Counter[str] = Counter()
    of_key: Counter[str] = Counter()
    for flow, members in waiting.items():
        line, _, key = flow.rpartition(":")
        queue = line.rpartition(":")[0]
        standing = set(members) & set(pool.queue(queue))
        behind[queue] += len(members) - len(standing)
        of_key[key] += len(members)
        rests = pool.execute("SISMEMBER", f"{pool.keys.root}:share:rest:{key}", flow)
        assert standing or rests, f"nothing of {flow} stands in its queue"
        in_line = pool.execute("ZSCORE", f"{pool.keys.root}:share:line:{line}", key)
        assert in_line is not None or rests, f"{flow} gets no turn"
        assert all(tasks[id_]["state"] == "ready" and tasks[id_]["fair"] == key for id_ in members)
    for key, members in taken.items():
        of_key[key] += len(members)
        assert all(tasks[id_]["state"] == "assigned" for id_ in members)
    in_flows = {id_ for members in waiting.values() for id_ in members}
    for id_, task in tasks.items():
        if task.get("state") == "assigned" and "awaits" not in task:
            assert id_ in taken[task["fair"]]
        elif task.get("state") == "ready":
            others = [name for name in pool.names() if ":held:" in name or ":parked:" in name or ":suspects:" in name]
            assert id_ in in_flows or any(id_ in pool.members(name) for name in others)
    assert sums(pool, pool.keys.share_queues) == {queue: count for queue, count in behind.items() if count}
    assert sums(pool, pool.keys.share_keys) == {key: count for key, count in of_key.items() if count}


def test_ways_out_of_a_queue(pool: Pool) -> None:
    """A cancel, a deadline and a stop take a task out of its flow, and the next of the key stands in the queue."""
    pool.register(slots=1)
    first, second, third, fourth = submit(pool, "a", 4, start_by_ms=pool.now_ms + 60_000)
    assert pool.queue() == [first]
    pool.cancel(second)
    assert_consistent(pool, [first, third, fourth])
    pool.cancel(first)
    assert pool.queue() == [third]
    assert_consistent(pool, [third, fourth])
    pool.append(Stop(skill="sum"))
    assert pool.assign().count == 0
    pool.sleep(61_000)
    pool.promote()
    assert {pool.state(third), pool.state(fourth)} == {"expired"}
    assert_empty(pool)


def test_a_task_that_goes_back_keeps_its_place(pool: Pool) -> None:
    """A task of a dead worker is the first of its key again."""
    pool.register(slots=1)
    first, *_ = ids = submit(pool, "a", 3)
    pool.deliver()
    pool.abandon("w1")
    assert_consistent(pool, ids)
    assert pool.deliver()[0].task_id == first


def test_an_adopted_attempt_keeps_its_place(pool: Pool) -> None:
    """An attempt that another worker goes on with counts for its key."""
    pool.register(slots=2)
    share(pool, "a", at_most=1)
    ids = submit(pool, "a", 2)
    pool.deliver()
    pool.age(10 * LEASE_MS)
    pool.look()
    pool.age(10 * LEASE_MS)
    assert len(pool.adopt("w2")) == 1
    assert_consistent(pool, ids)
    assert pool.assign().count == 0


def test_of_a_lane(pool: Pool) -> None:
    """A task that gets the turn of its lane waits for its share."""
    pool.register(slots=5)
    share(pool, "a", at_most=1)
    ids = submit(pool, "a", 2, lane="l") + submit(pool, "a", 1)
    one = pool.one()
    assert pool.state(ids[1]) == "waiting"
    pool.end(one)
    assert_consistent(pool, ids)
    assert len(pool.deliver()) == 1


def test_a_parent_lends_its_place_to_its_children(pool: Pool) -> None:
    """With one place for the key, a child with the key of its parent runs while the parent awaits it."""
    pool.register(slots=1)
    share(pool, "a", at_most=1)
    submit(pool, "a", 3)
    parent = pool.one()
    (child,) = submit(pool, "a", 1, parent=parent.task_id, parent_generation=parent.generation, depth=1)
    assert pool.deliver() == []
    pool.lend("w1", (parent, child), ed="0=1")
    assert [one.task_id for one in pool.deliver()] == [child]
    assert pool.taken("a") == [child]


def test_priorities(pool: Pool) -> None:
    """A higher priority comes first; keys take turns within each."""
    pool.register(slots=1)
    owners = dict.fromkeys(submit(pool, "a", 2, priority=3), "low a")
    owners |= dict.fromkeys(submit(pool, "b", 2, priority=3), "low b")
    owners |= dict.fromkeys(submit(pool, "b", 2, priority=1), "high b")
    assert start(pool, owners, 6) == ["high b", "high b", "low a", "low b", "low a", "low b"]


def test_beside_tasks_without_a_key(pool: Pool) -> None:
    """Tasks without a key keep their order by time, and tasks of keys hold none of them up for ever."""
    pool.register(slots=1)
    owners = owned(pool, a=3)
    pool.sleep(10)
    owners |= dict.fromkeys(pool.put(row(), row()), "-")
    pool.sleep(10)
    owners |= owned(pool, b=2)
    order = start(pool, owners, 7)
    # Before them a and b took turns, at the time of the oldest task of a.
    assert order == ["a", "b", "a", "b", "a", "-", "-"]


def test_dispatch(pool: Pool) -> None:
    """Several agents of a skill get their parts of all waiting tasks in one call."""
    for name in ("ed", "ann"):
        pool.register(f"w-{name}", Team(name), slots=10)
    owned(pool, a=50, b=50)
    assert pool.dispatch().count == 20


def test_the_queue_is_full(pool: Pool) -> None:
    """Tasks that wait behind others of their key count for the cap of the queue."""
    pool.register(slots=1)
    assert [status for status, _ in pool.submit(*[row(fair="a") for _ in range(4)], max_tasks=3)] == [
        *["created"] * 3,
        "full",
    ]
    assert pool.submit(row(fair="b"), max_tasks=3)[0][0] == "full"


def test_why(pool: Pool) -> None:
    """`why` names the key, how many of it run and how many may."""
    pool.register(slots=9)
    share(pool, "acme corp", at_most=2)
    ids = pool.put(*[row(fair="acme%20corp") for _ in range(4)])
    pool.deliver()
    found = pool.why(ids[3])
    assert found is not None
    assert found.share == ShareFacts("acme corp", 1, 2, 2)
    assert found.rank is None


# ------------------------------------------------------------------------------------------------------------ repair


def test_repair_finds_what_lost_its_place(pool: Pool) -> None:
    """A lost list, stand and place are found from the records; each is repaired once."""
    pool.register(slots=1)
    share(pool, "a", at_most=2)
    ids = submit(pool, "a", 3)
    one = pool.one()
    (flow,) = flows(pool)
    pool.execute("DEL", pool.keys.share_taken("a"))
    assert pool.repair(one.task_id) == [(one.task_id, "lost-place")]
    assert pool.taken("a") == [one.task_id]
    pool.execute("ZREM", pool.keys.queue("skill:sum"), ids[1])
    assert pool.repair(("", f"share:wait:{flow}")) == [(f"share:wait:{flow}", "lost-stand")]
    assert pool.queue() == [ids[1]]
    pool.execute("DEL", pool.keys.share_flow(flow))
    assert pool.repair(ids[2]) == [(ids[2], "lost-ready")]
    pool.execute("SADD", pool.keys.share_taken("a"), ids[2])
    assert pool.repair((ids[2], "share:taken:a")) == [(ids[2], "misplaced")]
    pool.execute("HSET", pool.keys.task(ids[2]), "state", "cancelled")
    assert pool.repair((ids[2], f"share:wait:{flow}")) == [(ids[2], "misplaced")]
    assert pool.repair(*ids[:2], ("", f"share:wait:{flow}")) == []


def test_a_lost_line_begins_anew(pool: Pool) -> None:
    """Without the line all keys have turns."""
    pool.register(slots=1)
    owners = owned(pool, a=4, b=4)
    start(pool, owners, 2)
    for name in pool.names():
        if ":share:line:" in name:
            pool.execute("DEL", name)
    assert Counter(start(pool, owners, 6)) == {"a": 3, "b": 3}
    assert_empty(pool)


def lines(pool: Pool) -> list[str]:
    """The lines of all queues."""
    return [name for name in pool.names() if ":share:line:" in name]


def test_repair_finds_flows_that_lost_their_line(pool: Pool) -> None:
    """Each gets turns again, also behind older tasks of another key; a line with waiting tasks does not expire."""
    pool.register(slots=1)
    owners = owned(pool, a=6)
    pool.sleep(5)
    owners |= owned(pool, b=2)
    (line,) = lines(pool)
    pool.execute("DEL", line)
    places = [f"share:wait:{flow}" for flow in sorted(flows(pool))]
    assert pool.repair(*[("", place) for place in places]) == [(place, "lost-stand") for place in places]
    pool.execute("EXPIRE", line, 100)
    assert pool.repair(*[("", place) for place in places]) == []
    assert pool.execute("TTL", line) > 100
    assert start(pool, owners, 4) == ["a", "b", "a", "b"]


def test_repair_of_a_name_that_is_none_of_a_flow(pool: Pool) -> None:
    """What others wrote beside the flows fails no repair."""
    (id_,) = submit(pool, "a", 1)
    for wrong in ("x", "x:y", ":"):
        pool.execute("ZADD", f"{pool.keys.root}:share:wait:{wrong}", 1, id_)
        assert pool.repair((id_, f"share:wait:{wrong}"), ("", f"share:wait:{wrong}")) == [(id_, "misplaced")]
        assert not pool.execute("EXISTS", f"{pool.keys.root}:share:wait:{wrong}")


def test_one_call_passes_over_a_part_of_the_keys(pool: Pool) -> None:
    """Many keys without tasks cost no call more than some hundred looks, and keep no task waiting."""
    pool.register(slots=500)
    pool.put(*[row(fair=f"k{index}") for index in range(400)])
    pool.assign()
    for one in pool.read(limit=400):
        pool.end(one)
    (line,) = lines(pool)
    before = pool.execute("ZCARD", line)
    ids = pool.put(*[row(fair=f"z{index}") for index in range(50)])
    pool.assign()
    assert {pool.state(id_) for id_ in ids} == {"assigned"}
    assert 0 < before + 50 - pool.execute("ZCARD", line) <= 300


# -------------------------------------------------------------------------------------------------------------- walk


class Walk:
    """Does anything that happens to tasks of three keys, one step after another."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool, self.chosen = pool, random.Random(seed)
        self.ids: list[str] = []
        self.held: list[Delivery] = []
        self.most: dict[str, int] = {}
        self.steps = [self.submit, self.assign, self.finish, self.finish, self.cancel, self.other]
        self.others = [self.crash, self.set_share, self.delete_share, self.retry, self.stop_and_start, self.wake]

    @property
    def key(self) -> str:
        """Any key."""
        return self.chosen.choice(KEYS)

    def submit(self) -> None:
        """Submit some: some late, some in a lane, some of a session, of two priorities."""
        fields: dict[str, Any] = {"priority": self.chosen.choice((1, 2, 2, 2))}
        if self.chosen.random() < 0.2:
            fields["delay_ms"] = 500
        if self.chosen.random() < 0.2:
            fields["lane"] = "l"
        if self.chosen.random() < 0.3:
            fields |= {"envelope": OF_SESSION, "session": "s"}
        self.ids += submit(self.pool, self.key, self.chosen.randint(1, 4), **fields)

    def assign(self) -> None:
        """Assign, and let a worker read."""
        before = {key: len(self.pool.taken(key)) for key in KEYS}
        if self.chosen.random() < 0.5:
            self.pool.assign()
        else:
            self.pool.dispatch_all()
        for key in KEYS:
            assert len(self.pool.taken(key)) <= max(before[key], self.most.get(key, 1000))
        if self.chosen.random() < 0.7:
            self.held += self.pool.deliver()

    def finish(self) -> None:
        """End an attempt in any way."""
        if not self.held:
            return
        kind = self.chosen.choice(VERDICTS)
        delay_ms = 300 if kind in {VerdictKind.RETRY, VerdictKind.SNOOZE, VerdictKind.AWAIT_LOCK} else 0
        self.pool.end(self.held.pop(self.chosen.randrange(len(self.held))), kind, delay_ms=delay_ms)

    def cancel(self) -> None:
        """Cancel a task in any state."""
        if self.ids:
            self.pool.cancel(self.chosen.choice(self.ids))

    def other(self) -> None:
        """Do something rare."""
        self.chosen.choice(self.others)()

    def crash(self) -> None:
        """The worker dies."""
        self.pool.abandon("w1")
        self.held.clear()

    def set_share(self) -> None:
        """A key gets another share."""
        key = self.key
        self.most[key] = self.chosen.randint(1, 3)
        share(self.pool, key, self.chosen.choice((0.5, 1, 3)), self.most[key])

    def delete_share(self) -> None:
        """A key loses its share."""
        key = self.key
        self.most.pop(key, None)
        self.pool.append(DeleteShare(key=key))

    def retry(self) -> None:
        """An operator retries a task."""
        ended = [id_ for id_ in self.ids if self.pool.state(id_) in {"cancelled", "dead"}]
        if ended:
            self.pool.retry(self.chosen.choice(ended), token=str(len(self.ids)))

    def wake(self) -> None:
        """A lock is free for a task, if it waits for one."""
        late = [id_ for id_ in self.ids if self.pool.state(id_) == "scheduled"]
        if late:
            self.pool.wake(self.chosen.choice(late))

    def stop_and_start(self) -> None:
        """The session is stopped for a while."""
        self.pool.append(Stop(session="s"))
        self.pool.assign()
        assert_consistent(self.pool, self.ids)
        self.pool.append(Start(session="s"))
        release = control.release(self.pool.keys, scope="session:s", slot="stop:session:s", limit=2)
        while self.pool.call(release)[1]:
            pass

    def end_all(self) -> None:
        """Let everything run to its end."""
        for key in KEYS:
            self.pool.append(DeleteShare(key=key))
        self.crash()
        while any(self.pool.state(id_) not in ENDED for id_ in self.ids):
            self.pool.sleep(400_000)
            self.pool.promote()
            for one in self.pool.deliver():
                self.pool.end(one)


@pytest.mark.parametrize("seed", range(int(os.environ.get("ORC_TEST_WALKS", "2"))))
def test_a_random_walk(pool: Pool, seed: int) -> None:
    """After each step all places agree; a key never has more running than it may; in the end every task has run."""
    pool.register(slots=6, backlog=1)
    walk = Walk(pool, seed)
    for _ in range(80):
        walk.chosen.choice(walk.steps)()
        pool.sleep(100)
        pool.promote()
        assert_consistent(pool, walk.ids)
    walk.end_all()
    assert_empty(pool)
