"""lua/tasks/watch.lua and its events: a follower receives each step and the end of a task, and hints of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.errors import ServerRefused
from orchestrator.core.rates import Rate
from orchestrator.tasks.model import VerdictKind, WatchStatus
from tests.helpers.cases import each_case
from tests.lua.pool import DEAD_TTL_S, LEASE_MS, Team, chunk, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

LIVE, ENDED, SILENT, UNKNOWN = WatchStatus
ENDS = {VerdictKind.SUCCEEDED: "", VerdictKind.DEAD: "why", VerdictKind.CANCELLED: "why"}
BACK = {
    VerdictKind.RETRY: "retried",
    VerdictKind.SNOOZE: "snoozed",
    VerdictKind.REQUEUE: "given_back",
    VerdictKind.RELEASED: "given_back",
}


def steps(pool: Pool, task_id: str) -> list[tuple[str, int, str]]:
    """What a stream tells, as (kind, attempt, text)."""
    return [(kind, attempt, text) for kind, _, attempt, text in pool.out(task_id)]


@pytest.mark.parametrize(("fields", "state"), [({}, "ready"), ({"delay_ms": 50}, "scheduled")])
def test_waiting(pool: Pool, fields: dict[str, Any], state: str) -> None:
    """A stream is made that begins with the present state and lives as long as the task."""
    (task,) = pool.put(row(**fields))
    ((status, last),) = pool.watch(task)
    assert (status, steps(pool, task)) == (LIVE, [(state, 1, "")])
    assert last == pool.entries(pool.keys.out(task))[0][0]
    assert pool.ttl_s(pool.keys.out(task)) == pool.ttl_s(pool.keys.task(task)) > 0


def test_assigned(pool: Pool) -> None:
    """Of a task that somebody has, the first entry tells who."""
    pool.register()
    pool.put()
    mine = pool.one()
    assert pool.watch(mine.task_id)[0][0] == LIVE
    assert pool.out(mine.task_id) == [("assigned", mine.generation, 1, "ed")]


def test_repeat(pool: Pool) -> None:
    """Following again, or what has emitted already, changes nothing and tells the last entry."""
    pool.register()
    pool.put(row(), row())
    watched, talking = pool.deliver()
    first = pool.watch(watched.task_id)
    pool.emit(chunk(talking, 1))
    with pool.unchanged():
        assert pool.watch(watched.task_id) == first
        assert pool.watch(talking.task_id) == [(LIVE, pool.entries(pool.keys.out(talking.task_id))[-1][0])]


def test_ended_and_unknown(pool: Pool) -> None:
    """A task that has ended is not touched: it is `silent` if nobody ever followed it, else its last entry is told."""
    pool.register()
    pool.put(row(), row())
    followed, other = pool.deliver()
    pool.watch(followed.task_id)
    for each in (followed, other):
        pool.end(each)
    with pool.unchanged():
        answers = pool.watch(followed.task_id, other.task_id, "gone")
    assert answers == [(ENDED, pool.entries(pool.keys.out(followed.task_id))[-1][0]), (SILENT, ""), (UNKNOWN, "")]


def test_a_lost_stream_is_made_again(pool: Pool) -> None:
    """The stream of a live task that data loss took comes back with the present state, and then tells the end."""
    pool.register()
    pool.put()
    mine = pool.one()
    pool.emit(chunk(mine, 1))
    pool.execute("DEL", pool.keys.out(mine.task_id))
    assert pool.watch(mine.task_id)[0][0] == LIVE
    pool.end(mine)
    assert [kind for kind, _, _ in steps(pool, mine.task_id)] == ["assigned", "succeeded"]
    assert pool.ttl_s(pool.keys.out(mine.task_id)) == 7200


def test_nothing_is_told_of_tasks_that_nobody_follows(pool: Pool) -> None:
    """A task that does not emit and is not followed has neither stream nor field."""
    pool.register()
    (task,) = pool.put()
    pool.end(pool.one(), VerdictKind.RETRY)
    pool.end(pool.one())
    assert "out" not in pool.task(task)
    assert pool.keys.out(task) not in pool.names()


@each_case("kind", list(BACK), fresh="pool")
def test_leaving_an_attempt(pool: Pool, kind: VerdictKind) -> None:
    """How an attempt left its task, with its generation and number; then who gets it next."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    first = pool.one()
    pool.end(first, kind, reason="why")
    second = pool.one()
    attempt = 2 if kind is VerdictKind.RETRY else 1
    assert pool.out(task)[1:] == [
        ("assigned", first.generation, 1, "ed"),
        (BACK[kind], first.generation, 1, "why"),
        ("assigned", second.generation, attempt, "ed"),
    ]


@each_case("kind", list(ENDS), fresh="pool")
def test_verdict_ends(pool: Pool, kind: VerdictKind) -> None:
    """The end is the last entry, in the call that ends the task, with its reason; the stream lives as the record."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    pool.end(pool.one(), VerdictKind.RETRY)
    mine = pool.one()
    pool.end(mine, kind, reason="why", payload=b"1")
    assert pool.out(task)[-1] == (pool.state(task), mine.generation, 2, ENDS[kind])
    expected = DEAD_TTL_S if kind is VerdictKind.DEAD else 7200
    assert pool.ttl_s(pool.keys.out(task)) == pool.ttl_s(pool.keys.task(task)) == expected


@pytest.mark.parametrize("where", ["ready", "scheduled", "unread"])
def test_cancelled_while_it_waits(pool: Pool, where: str) -> None:
    """A cancelled task tells so wherever it waited."""
    pool.register()
    (task,) = pool.put(row(delay_ms=50 if where == "scheduled" else 0))
    pool.watch(task)
    if where == "unread":
        pool.assign()
    pool.cancel(task, reason="not needed")
    assert steps(pool, task)[-1] == ("cancelled", 1, "not needed")


@pytest.mark.parametrize("by", ["promote", "assign"])
def test_expired(pool: Pool, by: str) -> None:
    """A task that did not start in time tells so, whoever finds it."""
    pool.register()
    (task,) = pool.put(row(start_by_ms=pool.now_ms + 5))
    pool.watch(task)
    pool.sleep(10)
    pool.promote() if by == "promote" else pool.assign()
    assert steps(pool, task) == [("ready", 1, ""), ("expired", 1, "did not start in time")]


def adopted(pool: Pool, worker: str = "w1") -> None:
    """Another worker takes what has an expired lease."""
    pool.look("w2")
    pool.age(LEASE_MS + 1)
    pool.adopt(f"heir of {worker}")


def abandoned(pool: Pool, worker: str = "w1") -> None:
    """The host saw the worker die."""
    pool.abandon(worker)


@pytest.mark.parametrize(("take", "how"), [(adopted, "lease ran out"), (abandoned, "killed")])
def test_taken_back(pool: Pool, take: Callable[[Pool], None], how: str) -> None:
    """A death is told with its attempt, then who has the task next."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    first = pool.one()
    take(pool)
    pool.deliver("w2")
    told = pool.out(task)[2:]
    assert told[0] == ("taken_back", first.generation, 1, f"w1 {how}")
    assert told[1:] == [("assigned", pool.task(task)["gen"], 2, "ed")]


@pytest.mark.parametrize(("take", "deaths"), [(adopted, 4), (abandoned, 3)])
def test_poison(pool: Pool, take: Callable[[Pool, str], None], deaths: int) -> None:
    """A task that dies too often tells of each death and ends as dead; the last death is its last attempt."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    for worker in ("d1", "d2", "d3", "d4"):
        pool.deliver(worker)
        take(pool, worker)
        pool.sleep(1000)
        pool.promote()
    # The first lost host counts for nothing.
    assert [step[:2] for step in steps(pool, task) if step[0] != "assigned"] == [
        ("ready", 1),
        *[("taken_back", number) for number in range(1, deaths)],
        ("dead", deaths),
    ]
    assert steps(pool, task)[-1] == ("dead", deaths, "deaths")


def test_cancelled_when_taken_back(pool: Pool) -> None:
    """A task that was to be cancelled when its worker died tells its end and nothing of going back."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    pool.one()
    pool.cancel(task, reason="stop")
    pool.abandon("w1")
    assert steps(pool, task)[-2:] == [("assigned", 1, "ed"), ("cancelled", 1, "stop")]


def test_own_lost_entry_tells_nothing(pool: Pool) -> None:
    """A delivery that was lost on the way and comes again is no step for anybody; without a slot it goes back."""
    pool.register(team=Team(rate=Rate(1, 60_000_000)))
    (task,) = pool.put()
    pool.watch(task)
    pool.one()
    pool.adopt("w1", own=True)
    assert [step[0] for step in steps(pool, task)] == ["ready", "assigned"]
    pool.put()
    pool.execute("ZADD", pool.keys.limit("@ed"), pool.now_ms * 1000, "somebody:1")
    pool.adopt("w1", own=True)
    assert steps(pool, task)[-1] == ("given_back", 1, "waits for a rate limit")


def test_recovered(pool: Pool) -> None:
    """A task that goes back because its agent has no worker any more tells so."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    pool.assign()
    pool.deregister()
    assert pool.recover() == (1, False)
    assert steps(pool, task) == [("ready", 1, ""), ("assigned", 1, "ed"), ("given_back", 1, "no worker had read it")]


def test_hints(pool: Pool, redis_client: redis.Redis) -> None:
    """Each call that adds to a stream hints at its newest entry, once per task."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    listener: Any = redis_client.pubsub()  # type: ignore[no-untyped-call]
    listener.ssubscribe(pool.keys.out(task))
    mine = pool.one()
    pool.emit(chunk(mine, 1), chunk(mine, 2))
    pool.end(mine)
    entries = [entry for entry, _ in pool.entries(pool.keys.out(task))]
    heard: list[str] = []
    while len(heard) < 3:
        message = listener.get_sharded_message(timeout=5)
        assert message is not None
        if message["type"] == "smessage":
            heard.append(message["data"].decode())
    listener.close()
    assert heard == [entries[1], entries[3], entries[4]]


@pytest.fixture
def mute(redis_client: redis.Redis) -> Iterator[str]:
    """A user of the server who may do anything but publish."""
    acl: Callable[..., Any] = redis_client.execute_command
    acl("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "resetchannels")
    yield "mute"
    acl("ACL", "DELUSER", "mute")


@pytest.mark.every_server(alone=True)
def test_a_user_who_may_not_publish_still_ends_tasks(pool: Pool, mute: str) -> None:
    """Hints are optional: a server user without rights to the channels runs every script to its end."""
    pool.register()
    (task,) = pool.put()
    pool.watch(task)
    pool.execute("AUTH", mute, "x")
    with pytest.raises(ServerRefused, match=r"(?i)no permissions"):
        pool.execute("SPUBLISH", pool.keys.out(task), "x")
    mine = pool.one()
    pool.emit(chunk(mine, 1))
    pool.end(mine)
    assert [step[0] for step in steps(pool, task)] == ["ready", "assigned", "output", "succeeded"]


def test_batch_of_500(pool: Pool) -> None:
    """A full batch fits into one call."""
    ids = pool.put(*[row() for _ in range(500)])
    assert [status for status, _ in pool.watch(*ids)] == [LIVE] * 500
    with pool.unchanged():
        pool.watch(*ids)


def test_cost_does_not_grow(pool: Pool) -> None:
    """Following one task costs the same on a long stream among many tasks."""

    def cost() -> int:
        before = pool.commands()
        pool.watch(mine.task_id)
        return pool.commands() - before

    pool.register()
    pool.put()
    mine = pool.one()
    pool.watch(mine.task_id)
    first = cost()
    pool.emit(*[chunk(mine, seq) for seq in range(1, 400)])
    pool.put(*[row() for _ in range(300)])
    assert cost() <= first
