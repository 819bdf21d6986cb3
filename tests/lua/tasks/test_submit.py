"""lua/tasks/submit.lua: what is accepted, what is refused, and that a repeat changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.errors import ServerRefused
from orchestrator.core.ids import new_task_id
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts as task_scripts
from tests.lua.pool import MAX_WAIT_S, USUAL_TTL_S, Team, envelope, rank, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_created(pool: Pool) -> None:
    """An accepted task is stored, queued by rank and time, indexed, announced and counted."""
    task = row(priority=1)
    assert pool.submit(task) == [("created", "")]
    stored = {"state": "ready", "gen": str(pool.now_ms), "rank": str(rank(1)), "ttl": "7200"}
    assert pool.task(task.id).items() >= stored.items()
    assert pool.score(pool.keys.queue("skill:sum"), task.id) == rank(1) + pool.now_ms
    assert pool.execute("SMEMBERS", pool.keys.queues) == [b"skill:sum"]
    assert pool.notifications() == ["queue:skill:sum"]
    assert pool.stats() == {"submitted": 1}
    assert pool.execute("HGET", pool.keys.stats(str(pool.now_ms // 60_000)), "submitted") == b"1"
    assert pool.ttl_s(pool.keys.task(task.id)) in range(MAX_WAIT_S - 5, MAX_WAIT_S + 1)


@pytest.mark.parametrize("length", [1, 31, 32, 128])
def test_a_usual_row_is_id_and_envelope(pool: Pool, length: int) -> None:
    """What the envelope and the usual values say need not be sent: queue, rank and lifetime are put in here."""
    skill = "s" * length
    pool.register(team=Team(skills=frozenset({skill})))
    sent = task_scripts.SubmitRow(new_task_id(), opaque(envelope(skill)))
    assert pool.call(task_scripts.submit(pool.keys, rows=[sent], max_tasks=1, max_wait_s=60)) == [("created", "")]
    assert pool.task(sent.id).keys() == {"env", "gen", "state"}
    assert pool.score(pool.keys.queue(f"skill:{skill}"), sent.id) == rank(2) + pool.now_ms
    pool.end(pool.one())
    assert pool.ttl_s(pool.keys.task(sent.id)) == USUAL_TTL_S


def test_rows_of_all_shapes_travel_together(pool: Pool) -> None:
    """Usual rows, rows of other skills and rows with everything share a call; each is judged by its own columns."""
    usual = [task_scripts.SubmitRow(new_task_id(), opaque(envelope(skill))) for skill in ("a", "b", "a", "sum")]
    keyed = row(idem="k", digest="d", ttl_s=USUAL_TTL_S).sent()
    addressed = row(queue="agent:ed", skill="other", priority=0, delay_ms=5).sent()
    again = row(idem="k", digest="e", ttl_s=USUAL_TTL_S).sent()
    rows = [usual[0], keyed, usual[1], addressed, again, usual[2], usual[3], usual[0]]
    answers = pool.call(task_scripts.submit(pool.keys, rows=rows, max_tasks=10, max_wait_s=60))
    created = ("created", "")
    expected = [
        created,
        created,
        created,
        created,
        ("conflict", keyed.id),
        created,
        created,
        ("duplicate", usual[0].id),
    ]
    assert answers == expected
    assert pool.queue("skill:a") == [usual[0].id, usual[2].id]
    assert pool.queue("skill:b") == [usual[1].id]
    assert pool.queue("skill:sum") == sorted([keyed.id, usual[3].id])
    assert pool.members(pool.keys.scheduled) == [addressed.id]
    assert pool.task(addressed.id).items() >= {"queue": "agent:ed", "skill": "other", "rank": "0"}.items()


def test_rings_only_for_an_empty_queue(pool: Pool) -> None:
    """While a queue holds something, somebody knows of it already; a second task does not ring."""
    pool.put(row(), row())
    pool.notifications()
    pool.put(row())
    assert pool.notifications() == []
    pool.put(row(queue="skill:other"))
    assert pool.notifications() == ["queue:skill:other"]


@pytest.mark.parametrize("several", [False, True])
def test_a_queue_that_is_not_listed(pool: Pool, several: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """What a client writes into an empty queue keeps no later task from being noticed."""
    pool.execute("ZADD", pool.keys.queue("skill:sum"), "-inf", b"\xff")
    pool.put(*(row() for _ in range(1 + several)))
    assert pool.notifications() == ["queue:skill:sum"]
    assert pool.execute("SMEMBERS", pool.keys.queues) == [b"skill:sum"]


def test_duplicate_id(pool: Pool) -> None:
    """The same task sent again, in the same call or a later one, is a duplicate of itself and changes nothing."""
    task = row(delay_ms=5, start_by_ms=pool.now_ms + 9, idem="k", digest="d")
    assert pool.submit(task, task) == [("created", ""), ("duplicate", task.id)]
    pool.sleep(1)
    with pool.unchanged():
        assert pool.submit(task) == [("duplicate", task.id)]


def test_duplicate_id_in_any_state(pool: Pool) -> None:
    """A task without a key is known by its id alone: while it waits, while it runs, when it has ended."""
    pool.register()
    (id_,) = pool.put()
    with pool.unchanged():
        assert pool.submit(row(id_)) == [("duplicate", id_)]
    delivery = pool.one()
    with pool.unchanged():
        assert pool.submit(row(id_)) == [("duplicate", id_)]
    pool.end(delivery)
    with pool.unchanged():
        assert pool.submit(row(id_)) == [("duplicate", id_)]


def test_same_id_twice_in_one_call(pool: Pool) -> None:
    """A row that stands twice in one call is accepted once."""
    task = row()
    assert pool.submit(task, task) == [("created", ""), ("duplicate", task.id)]
    assert pool.stats() == {"submitted": 1}


def test_duplicate_of_an_ended_task(pool: Pool) -> None:
    """A repeat that comes after the end is still answered with the id, and runs nothing."""
    pool.register()
    task = row(idem="k", digest="d")
    pool.put(task)
    pool.end(pool.one())
    with pool.unchanged():
        assert pool.submit(task, row(idem="k", digest="d")) == [("duplicate", task.id)] * 2


def test_key(pool: Pool) -> None:
    """The same key with the same digest is the same task; with another digest a conflict; both name the owner."""
    owner, same, other = (row(idem="k", digest=digest) for digest in ("d", "d", "e"))
    expected = [("duplicate", owner.id), ("conflict", owner.id)]
    assert pool.submit(owner, same, other)[1:] == expected
    with pool.unchanged():
        assert pool.submit(same, other) == expected
    assert pool.queue() == [owner.id]


def test_key_lives_as_long_as_its_task(pool: Pool) -> None:
    """The key lasts while the task waits, delay included, and then as long as the ended task is kept."""
    pool.register()
    task = row(idem="k", digest="d", delay_ms=60_000)
    pool.put(task)
    key, record = f"{pool.keys.root}:idem:k", pool.keys.task(task.id)
    assert pool.ttl_s(key) == pool.ttl_s(record) == MAX_WAIT_S + 60
    pool.sleep(60_000)
    pool.promote()
    pool.end(pool.one())
    assert pool.ttl_s(key) == pool.ttl_s(record) == 7200


def test_full(pool: Pool) -> None:
    """A queue at its cap refuses, also in the middle of a call; other queues and `scheduled` have caps of their own."""
    tasks = [row(), row(), row(), row(queue="skill:b"), row(delay_ms=1), row(delay_ms=1), row(delay_ms=1)]
    statuses = pool.submit(*tasks, max_tasks=2)
    assert [status for status, _ in statuses] == ["created", "created", "full", "created", "created", "created", "full"]
    assert (statuses[2][1], statuses[6][1]) == ("skill:sum", "scheduled")
    assert pool.state(tasks[2].id) == "gone"
    with pool.unchanged():
        assert pool.submit(row(), max_tasks=2) == [("full", "skill:sum")]


def test_full_counts_parked(pool: Pool) -> None:
    """Tasks that were parked for want of a skill still count against the cap of their agent's queue."""
    pool.register()
    pool.put(row(queue="agent:ed", skill="other"), row(queue="agent:ed", skill="other"))
    pool.assign()
    assert pool.submit(row(queue="agent:ed", skill="sum"), max_tasks=2) == [("full", "agent:ed")]


def test_fails_in_the_middle(pool: Pool) -> None:
    """A command that fails after the first write leaves the task, and the error says that this may be."""
    pool.execute("SET", pool.keys.sessions, "not ours", "EX", 60)
    task = row(session="s")
    with pytest.raises(ServerRefused, match="WRONGTYPE") as refused:
        pool.submit(task)
    assert refused.value.outcome_unknown
    assert pool.state(task.id) == "ready"


def test_a_doorbell_that_takes_no_more(pool: Pool) -> None:
    """Behind an entry with the highest id, which a client may add, no other fits: the doorbell begins anew."""
    pool.execute("XADD", pool.keys.doorbell, "18446744073709551615-18446744073709551615", "w", "x")
    assert pool.submit(row())[0][0] == "created"
    assert pool.notifications() == ["queue:skill:sum"]


@pytest.mark.parametrize("damage", [("HSET", "submitted", "nan"), ("SET", "not ours", "EX", 60)])
def test_a_damaged_counter_refuses_no_task(pool: Pool, damage: tuple[str | int, ...]) -> None:
    """One that holds no number begins anew; a key that is no hash is left to the repair."""
    pool.put(row())
    totals = f"{pool.keys.root}:stats:TOTAL"
    pool.execute("DEL", totals)
    pool.execute(damage[0], totals, *damage[1:])
    task = row()
    assert pool.submit(task)[0][0] == "created"
    if damage[0] == "HSET":
        assert pool.execute("HGET", totals, "submitted") == b"1"


@pytest.mark.parametrize("fair", ["a:1:b", "a b", "\n", "", "a" * 769])
def test_a_key_that_no_client_sends(pool: Pool, fair: str) -> None:
    """It would change the name of a flow; nothing is stored."""
    task = row()
    sent = task_scripts.UnusualRow(task.id, task.envelope, fair=fair)
    call = task_scripts.submit(pool.keys, rows=[sent], max_tasks=10, max_wait_s=MAX_WAIT_S)
    with pool.unchanged():
        assert pool.call(call) == [("invalid", "fair")]


def test_known_tasks_pass_a_full_queue(pool: Pool) -> None:
    """Only a new task meets the cap: a repeat for a full queue is a duplicate, not a refusal (protocol rule 22)."""
    task = row(idem="k", digest="d")
    pool.put(task)
    assert pool.submit(task, row(idem="k", digest="d"), max_tasks=1) == [("duplicate", task.id)] * 2


def test_delay_and_at(pool: Pool) -> None:
    """The later of delay and time decides; a time that has passed makes the task ready at once."""
    now = pool.now_ms
    late = [row(delay_ms=10), row(at_ms=now + 20), row(delay_ms=30, at_ms=now + 20), row(at_ms=now - 1), row(at_ms=now)]
    pool.put(*late)
    dues = [pool.score(pool.keys.scheduled, task.id) for task in late]
    assert dues == [now + 10, now + 20, now + 30, None, None]
    assert [pool.state(task.id) for task in late] == ["scheduled"] * 3 + ["ready"] * 2
    assert pool.members(pool.keys.scheduled) == [task.id for task in late[:3]]


def test_scheduled_rings_for_a_new_head(pool: Pool) -> None:
    """The promoter sleeps until the earliest due time, so it is woken only when that moves forward."""
    pool.put(row(delay_ms=100))
    assert pool.notifications() == ["scheduled"]
    pool.put(row(delay_ms=200))
    assert pool.notifications() == []
    pool.put(row(delay_ms=50))
    assert pool.notifications() == ["scheduled"]


def test_start_by(pool: Pool) -> None:
    """A task with `start_by` is also indexed by that time, and the promoter is told."""
    task = row(start_by_ms=pool.now_ms + 70)
    pool.put(task)
    assert pool.score(f"{pool.keys.root}:expiring", task.id) == pool.now_ms + 70
    assert sorted(pool.notifications()) == ["queue:skill:sum", "scheduled"]


def test_stale_parent(pool: Pool) -> None:
    """A child is accepted while its parent's very attempt runs, and refused afterwards (protocol rule 20)."""
    pool.register()
    pool.put()
    parent = pool.one()
    child: dict[str, Any] = {"parent": parent.task_id, "parent_generation": parent.generation}
    assert pool.submit(row(**child))[0][0] == "created"
    with pool.unchanged():
        older = {**child, "parent_generation": str(int(parent.generation) - 1)}
        assert pool.submit(row(**older), row(parent="gone", parent_generation="1")) == [
            ("stale", parent.task_id),
            ("stale", "gone"),
        ]
    pool.end(parent)
    assert pool.submit(row(**child)) == [("stale", parent.task_id)]


def test_batch_of_500_with_everything(pool: Pool) -> None:
    """A full batch with keys, delays, `start_by` and clients fits into one call."""
    tasks = [
        row(
            delay_ms=i % 2,
            start_by_ms=pool.now_ms + 9,
            idem=f"k{i}",
            digest="d",
            reply="c1",
            skill="sum",
            queue="agent:ed",
        )
        for i in range(500)
    ]
    pool.put(*tasks)
    assert len(pool.queue("agent:ed")) == len(pool.members(pool.keys.scheduled)) == 250
    assert {status for status, _ in pool.submit(*tasks)} == {"duplicate"}


def test_large_arguments(pool: Pool) -> None:
    """Arguments of 256 KiB of any bytes are stored as they are, many in one call."""
    payload = bytes(range(256)) * 1024
    tasks = [row(envelope=opaque(payload)) for _ in range(20)]
    pool.put(*tasks)
    assert all(pool.execute("HGET", pool.keys.task(task.id), "env") == payload for task in tasks)


def test_order_of_a_batch(pool: Pool) -> None:
    """Tasks of one call and one priority keep their order; a better priority goes ahead, whatever came first."""
    low, first, second, top = row(priority=9), row(), row(), row(priority=0)
    pool.put(low, first, second)
    pool.sleep(1000)
    pool.put(top)
    assert pool.queue() == [top.id, first.id, second.id, low.id]


def test_cost_does_not_grow(pool: Pool) -> None:
    """A submit runs the same number of commands in an empty pool and in one with many tasks, agents and clients."""

    def cost() -> int:
        before = pool.commands()
        pool.put(row(idem=f"k{before}", digest="d", reply="c"), row(delay_ms=10_000_000))
        return pool.commands() - before

    pool.register()
    pool.put()
    first = cost()
    pool.put(*[row(queue=f"skill:{i % 50}", idem=f"x{i}", digest="d", reply=f"c{i}") for i in range(400)])
    for i in range(30):
        pool.register(f"w{i}", Team(agent=f"a{i}"))
    assert cost() <= first
