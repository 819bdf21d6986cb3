"""The table of a task's steps against the scripts: each step in it can be taken, and no script writes another state."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator.agents.model import SkillTerms
from orchestrator.core.rates import Rate
from orchestrator.store.script_files import all_scripts
from orchestrator.tasks.model import WAITING, StoredState, TaskState, VerdictKind
from orchestrator.tasks.states import STEPS, Step
from tests.helpers.cases import each_case
from tests.lua.pool import LEASE_MS, Pool, Team, row
from tests.lua.watched_pool import WatchedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faultkit.servers import RedisServer
    from tests.lua.pool import Row

_WRITES: Final = re.compile(
    r"'HSET', [^\n]*'state', '(\w+)'|\bend_task\([^'\n]*'(\w+)'|\b(?:next_)?state[\w, ]* = '(\w+)'"
)
NEVER_REACHED: Final[dict[str, set[Any]]] = {
    # It takes nothing from a worker that died, so the deaths of a task are never counted there.
    "return_unseen": {TaskState.DEAD},
    # A task that a worker read has started in time, so it does not expire when the worker dies.
    "abandon": {TaskState.EXPIRED},
    # It ends no task.
    "take_suspects": {TaskState.READY, WAITING, TaskState.SCHEDULED, TaskState.CANCELLED},
}
OVERDUE_MS: Final = LEASE_MS + 10_000
HOUR_US: Final = 3_600_000_000


def deliver(pool: Pool) -> str:
    """A task in the hands of w1."""
    pool.register()
    (id_,) = pool.put()
    pool.deliver()
    return id_


def finish(kind: VerdictKind, **fields: int) -> Callable[[Pool], None]:
    """An attempt ends."""

    def take(pool: Pool) -> None:
        pool.register()
        pool.put()
        pool.end(pool.one(), kind, **fields)

    return take


def wake_in_line(pool: Pool) -> None:
    """A task waits for a lock, and gets it."""
    pool.register()
    (id_,) = pool.put()
    pool.end(pool.one(), VerdictKind.AWAIT_LOCK, delay_ms=1000)
    pool.wake(id_)


def asking(pool: Pool) -> str:
    """A task that waits for a person, for a second at most."""
    pool.register()
    (id_,) = pool.put()
    pool.ask(pool.one(), delay_ms=1000)
    return id_


def joining(pool: Pool, **fields: Any) -> str:
    """A task that waits for another one, which is not due."""
    pool.register()
    (id_,) = pool.put(row(**fields))
    held = pool.one()
    pool.join(held, pool.put(row(delay_ms=10**6)))
    pool.begin_to_join(held)
    return id_


def joined(take: Callable[[Pool], object]) -> Callable[[Pool], None]:
    """A task joins all that come, and goes on when the first of them ends."""

    def run(pool: Pool) -> None:
        parent, put = joining(pool), pool.put
        pool.execute("HSET", pool.keys.task(parent), "join", "1 1 1000 0 1000")

        def put_joined(*rows: Row, **options: Any) -> list[str]:
            ids = put(*rows, **options)
            for id_ in ids:
                if pool.state(id_) != "cancelled":
                    pool.execute("HSET", pool.keys.task(id_), "joined", parent)
                    pool.execute("ZADD", pool.keys.joins(parent), 1, id_)
                    pool.execute("EXPIRE", pool.keys.joins(parent), 100)
            return ids

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "put", put_joined)
            take(pool)

    return run


def flow_of_two(pool: Pool, **fields: Any) -> tuple[str, str]:
    """A task of another skill, and one that runs after it."""
    first, behind = pool.put(row(queue="skill:other", after=()), row(after=(1,), **fields))
    return first, behind


def followed(take: Callable[[Pool], object], *, score: int = 1, **fields: Any) -> Callable[[Pool], None]:
    """A task runs after each one that comes."""

    def run(pool: Pool) -> None:
        put = pool.put

        def put_followed(*rows: Row, **options: Any) -> list[str]:
            ids = put(*rows, **options)
            for id_ in ids:
                if pool.state(id_) != "cancelled":
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(pool, "put", put)
                        first, behind = flow_of_two(pool, **fields)
                    pool.execute("HSET", pool.keys.task(id_), "followers", behind, "joined", "+1000")
                    pool.execute("ZADD", pool.keys.after(behind), score, id_)
                    pool.execute("ZREM", pool.keys.after(behind), first)
            return ids

        if "lane" in fields:
            pool.put(row(queue="skill:other", **fields))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "put", put_followed)
            take(pool)

    return run


ENDING: dict[str, Callable[[Any], object]] = {}
"""By script, how a task ends in it without a result; filled below."""


def retry_behind(end: Callable[[Pool, str], object]) -> Callable[[Pool], None]:
    """A task of a flow is retried while the one before it has not ended."""

    def run(pool: Pool) -> None:
        _, behind = flow_of_two(pool, start_by_ms=pool.now_ms + 10)
        end(pool, behind)
        assert pool.state(behind) in {"dead", "cancelled", "expired"}
        pool.retry(behind)

    return run


def expire_behind(pool: Pool, _behind: str) -> None:
    """It does not start in time."""
    pool.sleep(20)
    pool.promote()


def late_in_flow(pool: Pool) -> None:
    """A task of a flow does not start in time."""
    expire_behind(pool, flow_of_two(pool, start_by_ms=pool.now_ms + 10)[1])


def damage_behind(pool: Pool, behind: str) -> None:
    """Its record is damaged, and then it is sound again."""
    pool.execute("HSET", pool.keys.task(behind), "gen", "?")
    pool.repair(behind)
    pool.execute("HSET", pool.keys.task(behind), "gen", "1")


def promote_unanswered(pool: Pool) -> None:
    """Nobody answers in time."""
    asking(pool)
    pool.sleep(1000)
    pool.promote()


def finish_cancelled(pool: Pool) -> None:
    """A running task is cancelled, and its worker says that it stopped."""
    pool.register()
    (id_,) = pool.put()
    delivery = pool.one()
    pool.cancel(id_)
    pool.end(delivery, VerdictKind.CANCELLED)


def scheduled(pool: Pool) -> str:
    """A task that is due in a second and has to start within two."""
    (id_,) = pool.put(row(delay_ms=1000, start_by_ms=pool.now_ms + 900))
    return id_


def promote_due(pool: Pool) -> None:
    """A scheduled task is due."""
    pool.put(row(delay_ms=1000))
    pool.sleep(1000)
    pool.promote()


def promote_late(pool: Pool) -> None:
    """A scheduled task is too late."""
    scheduled(pool)
    pool.sleep(950)
    pool.promote()


def promote_late_ready(pool: Pool) -> None:
    """A ready task is too late."""
    pool.put(row(start_by_ms=pool.now_ms + 100))
    pool.sleep(200)
    pool.promote()


def assign_late(pool: Pool) -> None:
    """A ready task is too late when its agent has room."""
    pool.register()
    pool.put(row(start_by_ms=pool.now_ms + 100))
    pool.sleep(200)
    pool.assign()


def dispatch(pool: Pool) -> None:
    """A ready task is handed to an agent of its skill."""
    pool.register()
    pool.put()
    pool.dispatch()


def dispatch_late(pool: Pool) -> None:
    """A ready task is too late when its skill is dispatched."""
    pool.register()
    pool.put(row(start_by_ms=pool.now_ms + 100))
    pool.sleep(200)
    pool.dispatch()


def assigned(pool: Pool) -> str:
    """An assigned task that no worker has read."""
    pool.register()
    (id_,) = pool.put()
    pool.assign()
    return id_


def from_above(make: Callable[[Pool], str]) -> Callable[[Pool], None]:
    """A task above this one is cancelled."""

    def take(pool: Pool) -> None:
        children_key = pool.keys.children("above")
        pool.execute("RPUSH", children_key, make(pool))
        pool.execute("EXPIRE", children_key, 100)
        pool.cancel("above")
        pool.cancel_children()

    return take


def delete_after(end: Callable[[Pool], None]) -> Callable[[WatchedPool], None]:
    """An ended task is deleted."""

    def take(pool: WatchedPool) -> None:
        end(pool)
        pool.delete(*pool.known)

    return take


def retry_after(end: Callable[[Pool], None]) -> Callable[[WatchedPool], None]:
    """An ended task is requeued."""

    def take(pool: WatchedPool) -> None:
        end(pool)
        pool.retry(*pool.known)

    return take


def taken(
    how: str, *, deaths: int = 0, allowed: int = 5, cancelled: bool = False, lane: str = ""
) -> Callable[[Pool], None]:
    """A worker that holds a task dies, after `deaths` others did, the first of them with its host."""

    def take(pool: Pool) -> None:
        pool.register(team=Team(terms=(("sum", SkillTerms(3, allowed)),)))
        id_, *_ = pool.put(row(lane=lane), *[row(lane=lane)] * bool(lane))
        if deaths:
            evidence = (f"death:{deaths}", "1 d1 lease ran out")
            pool.execute("HSET", pool.keys.task(id_), "deaths", deaths, "blamed", deaths - 1, *evidence)
        pool.deliver()
        if cancelled:
            pool.cancel(id_)
        if how == "abandon":
            pool.abandon("w1", max_deaths={"sum": allowed})
            return
        if how == "adopt":
            pool.look("w2")
            pool.age(LEASE_MS + 1)
            pool.adopt("w2", max_deaths={"sum": allowed})
            return
        for _ in range(6):
            pool.recover()
            pool.sleep(5000)
        pool.age(OVERDUE_MS + 1)
        pool.recover()

    return take


def take_suspect(pool: Pool) -> None:
    """Two tasks die together, and another worker takes one of them."""
    pool.register()
    pool.put(row(), row())
    pool.deliver("d1")
    pool.abandon("d1")
    pool.deliver()


def late_before_it_began(how: str) -> Callable[[Pool], None]:
    """The reply of a read is lost, or all workers leave before one reads; then it is too late to start."""

    def take(pool: Pool) -> None:
        pool.register()
        pool.put(row(start_by_ms=pool.now_ms + 1000))
        pool.assign()
        pool.sleep(2000)
        if how == "adopt":
            pool.read()
            pool.adopt(own=True)
        else:
            pool.deregister()
            pool.recover()

    return take


def unseen(*, cancelled: bool = False, late: bool = False) -> Callable[[Pool], None]:
    """A worker does not see what Redis delivered to it."""

    def take(pool: Pool) -> None:
        pool.register()
        (id_,) = pool.put(row(start_by_ms=pool.now_ms + 1000 if late else 0))
        pool.deliver()
        if cancelled:
            pool.cancel(id_)
        pool.sleep(2000)
        pool.return_unseen("w1")

    return take


def lost_entry(*, cancelled: bool = False, late: bool = False) -> Callable[[Pool], None]:
    """The inbox loses an entry, and the table of what is where finds out."""

    def take(pool: Pool) -> None:
        pool.register()
        (id_,) = pool.put(row(start_by_ms=pool.now_ms + 1000)) if late else pool.put()
        pool.deliver()
        if cancelled:
            pool.cancel(id_)
        if late:
            pool.sleep(2000)
        pool.execute("DEL", pool.keys.inbox("ed"))
        pool.repair(id_)

    return take


def damaged(make: Callable[[Pool], str]) -> Callable[[Pool], None]:
    """The record of a task is damaged."""

    def take(pool: Pool) -> None:
        id_ = make(pool)
        pool.execute("HSET", pool.keys.task(id_), "env", "no envelope")
        pool.repair(id_)

    return take


def adopt_limited(pool: Pool) -> None:
    """A task of a limited agent is taken over while its window is full."""
    pool.register(team=Team(rate=Rate(1, HOUR_US)))
    pool.put()
    pool.deliver()
    pool.look("w2")
    pool.age(LEASE_MS + 1)
    pool.adopt("w2")


def lane_of_two(pool: Pool) -> list[str]:
    """A task and one behind it."""
    pool.register()
    return pool.put(row(lane="x"), row(lane="x"))


def too_late(place: int, step: Callable[[Pool], object]) -> Callable[[Pool], None]:
    """One of two tasks of a lane did not start in time."""

    def take(pool: Pool) -> None:
        pool.register()
        pool.put(*[row(lane="x", start_by_ms=pool.now_ms + 10 if n == place else 0) for n in range(2)])
        pool.sleep(10)
        step(pool)

    return take


def taken_in_lane(how: str) -> Callable[[Pool], None]:
    """A worker dies with a task that may not die, and another one is behind it."""

    def take(pool: Pool) -> None:
        taken(how, deaths=1, allowed=1, lane="x")(pool)

    return take


def into_busy_lane(pool: Pool) -> None:
    """A delayed task is due while its lane is busy."""
    pool.put(row(lane="x", delay_ms=10), row(lane="x"))
    pool.sleep(10)
    pool.promote()


def lose_turn(pool: Pool) -> None:
    """A task got the turn of a lane that was lost."""
    first, _ = lane_of_two(pool)
    pool.execute("DEL", pool.keys.lane("x"))
    pool.repair(first, *pool.put(row(lane="x")), first)


def no_turn(pool: Pool) -> None:
    """A lane has lost its first member."""
    first, _ = lane_of_two(pool)
    pool.execute("ZREM", pool.keys.lane("x"), first)
    pool.repair(("", "lane:x"))


def retry_into_lane(end: Callable[[Pool], object]) -> Callable[[Pool], None]:
    """A task that ended comes back while another one of its lane has the turn."""

    def take(pool: Pool) -> None:
        first, _ = lane_of_two(pool)
        end(pool)
        pool.retry(first)

    return take


def busy(on_busy: str, make: Callable[[Pool], object]) -> Callable[[Pool], None]:
    """A new task meets a busy lane."""

    def take(pool: Pool) -> None:
        make(pool)
        pool.put(row(lane="x", on_busy=on_busy))

    return take


def retrying(pool: Pool) -> None:
    """The only task of a lane waits for its next attempt."""
    pool.register()
    pool.put(row(lane="x"))
    pool.end(pool.one(), VerdictKind.RETRY, delay_ms=1000)


def asks_in_lane(pool: Pool) -> None:
    """The only task of a lane waits for a person."""
    pool.register()
    pool.put(row(lane="x"))
    pool.ask(pool.one())


def unread(pool: Pool) -> None:
    """Of two tasks of a lane the first lies in an inbox."""
    lane_of_two(pool)
    pool.assign()


def expire_first(pool: Pool) -> None:
    """The first task of a lane does not start in time."""
    pool.execute("HSET", pool.keys.task(pool.members(pool.keys.lane("x"))[0]), "by", pool.now_ms - 1)
    pool.assign()


ENDING.update({
    "finish": finish(VerdictKind.DEAD),
    "cancel": lambda pool: pool.cancel(*pool.put()),
    "cancel_children": from_above(lambda pool: pool.put()[0]),
    "promote": promote_late_ready,
    "assign": assign_late,
    "dispatch": dispatch_late,
    **{how: taken(how, deaths=1, allowed=1) for how in ("adopt", "abandon", "recover")},
    "return_unseen": unseen(cancelled=True),
    "submit": busy("replace", lane_of_two),
    "repair": damaged(lambda pool: pool.put()[0]),
})  # fmt: skip
S = TaskState
SCENARIOS: dict[tuple[StoredState | None, str, StoredState | None], Callable[[WatchedPool], object]] = {
    (None, "submit", S.READY): lambda pool: pool.put(),
    (None, "submit", S.SCHEDULED): scheduled,
    (None, "submit", WAITING): lane_of_two,
    (None, "submit", S.CANCELLED): lambda pool: pool.put(row(lane="x"), row(lane="x", on_busy="interrupt")),
    (WAITING, "finish", S.READY): lambda pool: (lane_of_two(pool), pool.end(pool.one())),
    (WAITING, "cancel", S.READY): lambda pool: pool.cancel(lane_of_two(pool)[0]),
    (WAITING, "cancel_children", S.READY): from_above(lambda pool: lane_of_two(pool)[0]),
    (WAITING, "promote", S.READY): too_late(0, lambda pool: pool.promote()),
    (WAITING, "assign", S.READY): too_late(0, lambda pool: pool.assign()),
    (WAITING, "dispatch", S.READY): too_late(0, lambda pool: pool.dispatch()),
    **{(WAITING, how, S.READY): taken_in_lane(how) for how in ("adopt", "abandon", "recover")},
    (WAITING, "repair", S.READY): no_turn,
    (WAITING, "promote", S.EXPIRED): too_late(1, lambda pool: pool.promote()),
    (WAITING, "cancel", S.CANCELLED): lambda pool: pool.cancel(lane_of_two(pool)[1]),
    (WAITING, "cancel_children", S.CANCELLED): from_above(lambda pool: lane_of_two(pool)[1]),
    (WAITING, "submit", S.CANCELLED): busy("replace", unread),
    (WAITING, "repair", S.DEAD): damaged(lambda pool: lane_of_two(pool)[1]),
    (S.SCHEDULED, "promote", WAITING): into_busy_lane,
    (S.SCHEDULED, "submit", S.CANCELLED): busy("interrupt", retrying),
    (S.READY, "submit", S.CANCELLED): busy("replace", lane_of_two),
    (S.READY, "repair", WAITING): lose_turn,
    (S.AWAITING_INPUT, "submit", S.CANCELLED): busy("interrupt", asks_in_lane),
    (S.ASSIGNED, "submit", S.CANCELLED): busy("interrupt", unread),
    (S.DEAD, "retry", WAITING): retry_into_lane(lambda pool: pool.end(pool.one(), VerdictKind.DEAD)),
    (S.CANCELLED, "retry", WAITING): retry_into_lane(lambda pool: pool.cancel(pool.members(pool.keys.lane("x"))[0])),
    (S.EXPIRED, "retry", WAITING): retry_into_lane(expire_first),
    (S.SCHEDULED, "promote", S.READY): promote_due,
    (S.SCHEDULED, "promote", S.EXPIRED): promote_late,
    (S.SCHEDULED, "cancel", S.CANCELLED): lambda pool: pool.cancel(scheduled(pool)),
    (S.SCHEDULED, "cancel_children", S.CANCELLED): from_above(scheduled),
    (S.READY, "assign", S.ASSIGNED): deliver,
    (S.READY, "dispatch", S.ASSIGNED): dispatch,
    (S.READY, "dispatch", S.EXPIRED): dispatch_late,
    (S.READY, "take_suspects", S.ASSIGNED): take_suspect,
    (S.READY, "assign", S.EXPIRED): assign_late,
    (S.READY, "promote", S.EXPIRED): promote_late_ready,
    (S.READY, "cancel", S.CANCELLED): lambda pool: pool.cancel(*pool.put()),
    (S.READY, "cancel_children", S.CANCELLED): from_above(lambda pool: pool.put()[0]),
    (S.ASSIGNED, "finish", S.SUCCEEDED): finish(VerdictKind.SUCCEEDED),
    (S.ASSIGNED, "finish", S.DEAD): finish(VerdictKind.DEAD),
    (S.ASSIGNED, "finish", S.CANCELLED): finish_cancelled,
    (S.ASSIGNED, "finish", S.READY): finish(VerdictKind.REQUEUE),
    (S.ASSIGNED, "finish", S.SCHEDULED): finish(VerdictKind.RETRY, delay_ms=1000),
    (S.ASSIGNED, "finish", S.AWAITING_INPUT): asking,
    (S.SCHEDULED, "wake", S.READY): wake_in_line,
    (S.AWAITING_INPUT, "answer", S.READY): lambda pool: pool.answer(asking(pool)),
    (S.AWAITING_INPUT, "promote", S.READY): promote_unanswered,
    (S.AWAITING_INPUT, "cancel", S.CANCELLED): lambda pool: pool.cancel(asking(pool)),
    (S.AWAITING_INPUT, "cancel_children", S.CANCELLED): from_above(asking),
    (S.AWAITING_INPUT, "repair", S.DEAD): damaged(asking),
    (S.ASSIGNED, "finish", S.JOINING): joining,
    (S.JOINING, "finish", S.READY): joined(finish(VerdictKind.SUCCEEDED)),
    (S.JOINING, "cancel", S.READY): joined(lambda pool: pool.cancel(*pool.put())),
    (S.JOINING, "cancel_children", S.READY): joined(from_above(lambda pool: pool.put()[0])),
    (S.JOINING, "promote", S.READY): joined(promote_late_ready),
    (S.JOINING, "assign", S.READY): joined(assign_late),
    (S.JOINING, "dispatch", S.READY): joined(dispatch_late),
    **{(S.JOINING, how, S.READY): joined(taken(how, deaths=1, allowed=1)) for how in ("adopt", "abandon", "recover")},
    (S.JOINING, "return_unseen", S.READY): joined(unseen(cancelled=True)),
    (S.JOINING, "submit", S.READY): joined(busy("replace", lane_of_two)),
    (S.JOINING, "repair", S.READY): joined(damaged(lambda pool: pool.put()[0])),
    (S.JOINING, "cancel", S.CANCELLED): lambda pool: pool.cancel(joining(pool)),
    (S.JOINING, "cancel_children", S.CANCELLED): from_above(joining),
    (S.JOINING, "submit", S.CANCELLED): busy("interrupt", partial(joining, lane="x")),
    (S.JOINING, "repair", S.DEAD): damaged(joining),
    (None, "submit", S.AWAITING_TASKS): flow_of_two,
    **{(S.AWAITING_TASKS, how, S.READY): followed(end) for how, end in ENDING.items()},
    **{(S.AWAITING_TASKS, how, WAITING): followed(end, lane="busy") for how, end in ENDING.items()},
    **{(S.AWAITING_TASKS, how, S.SCHEDULED): followed(end, delay_ms=10**6) for how, end in ENDING.items()},
    **{(S.AWAITING_TASKS, how, S.CANCELLED): followed(end, score=0) for how, end in ENDING.items()},
    (S.AWAITING_TASKS, "promote", S.EXPIRED): late_in_flow,
    (S.AWAITING_TASKS, "repair", S.DEAD): damaged(lambda pool: flow_of_two(pool)[1]),
    (S.DEAD, "retry", S.AWAITING_TASKS): retry_behind(damage_behind),
    (S.CANCELLED, "retry", S.AWAITING_TASKS): retry_behind(lambda pool, behind: pool.cancel(behind)),
    (S.EXPIRED, "retry", S.AWAITING_TASKS): retry_behind(expire_behind),
    (S.ASSIGNED, "cancel", S.CANCELLED): lambda pool: pool.cancel(assigned(pool)),
    (S.ASSIGNED, "cancel_children", S.CANCELLED): from_above(assigned),
    (S.ASSIGNED, "adopt", S.ASSIGNED): taken("adopt"),
    (S.ASSIGNED, "adopt", S.READY): adopt_limited,
    (S.ASSIGNED, "repair", S.READY): lost_entry(),
    (S.ASSIGNED, "repair", S.CANCELLED): lost_entry(cancelled=True),
    (S.ASSIGNED, "repair", S.EXPIRED): lost_entry(late=True),
    (S.READY, "repair", S.DEAD): damaged(lambda pool: pool.put()[0]),
    (S.SCHEDULED, "repair", S.DEAD): damaged(scheduled),
    (S.ASSIGNED, "repair", S.DEAD): damaged(deliver),
    (S.DEAD, "retry", S.READY): retry_after(finish(VerdictKind.DEAD)),
    (S.CANCELLED, "retry", S.READY): retry_after(finish_cancelled),
    (S.EXPIRED, "retry", S.READY): retry_after(assign_late),
    (S.SUCCEEDED, "delete", None): delete_after(finish(VerdictKind.SUCCEEDED)),
    (S.DEAD, "delete", None): delete_after(finish(VerdictKind.DEAD)),
    (S.CANCELLED, "delete", None): delete_after(finish_cancelled),
    (S.EXPIRED, "delete", None): delete_after(assign_late),
    **{(S.ASSIGNED, how, S.READY): taken(how) for how in ("abandon", "recover")},
    **{(S.ASSIGNED, how, S.SCHEDULED): taken(how, deaths=2) for how in ("adopt", "abandon", "recover")},
    **{(S.ASSIGNED, how, S.DEAD): taken(how, deaths=1, allowed=1) for how in ("adopt", "abandon", "recover")},
    **{(S.ASSIGNED, how, S.CANCELLED): taken(how, cancelled=True) for how in ("adopt", "abandon", "recover")},
    (S.ASSIGNED, "return_unseen", S.READY): unseen(),
    (S.ASSIGNED, "return_unseen", S.CANCELLED): unseen(cancelled=True),
    (S.ASSIGNED, "return_unseen", S.EXPIRED): unseen(late=True),
    (S.ASSIGNED, "adopt", S.EXPIRED): late_before_it_began("adopt"),
    (S.ASSIGNED, "recover", S.EXPIRED): late_before_it_began("recover"),
}


@pytest.fixture
def pool(redis_server: RedisServer, prefix: str) -> Iterator[WatchedPool]:
    """An empty pool whose tasks are watched."""
    pool = WatchedPool(redis_server.url, prefix)
    yield pool
    pool.close()


@each_case("step", STEPS, fresh="pool")
def test_each_step_is_taken(pool: WatchedPool, step: Step) -> None:
    """What the table says of a step, a script really does."""
    SCENARIOS[step.before, step.script, step.after](pool)
    assert (step.before, step.script, step.after) in pool.steps
    assert pool.steps <= {(known.before, known.script, known.after) for known in STEPS}


@each_case("script", sorted({step.script for step in STEPS} - {"delete"}))
def test_no_script_writes_another_state(script: str) -> None:
    """The states that a script's text can write are those that the table has for it."""
    states = {next(filter(None, found)) for found in _WRITES.findall(all_scripts()[f"tasks/{script}"].text)}
    steps = {step.after for step in STEPS if step.script == script and step.before is not step.after}
    assert states - NEVER_REACHED.get(script, set()) == steps


def test_only_these_scripts_write_states() -> None:
    """A script that writes a state stands in the table, unless it writes what a backup has."""
    writing = {name for name, script in all_scripts().items() if _WRITES.search(script.text)} - {"backup/restore_tasks"}
    assert writing == {f"tasks/{step.script}" for step in STEPS if step.script != "delete"}


def test_what_has_ended_has_ended() -> None:
    """A final state is left only by a delete or, unless it is success, a retry; others are left; no row is twice."""
    for state in TaskState:
        steps = {(step.script, step.after) for step in STEPS if step.before is state and step.after is not state}
        if state in {TaskState.RUNNING, TaskState.CANCELLING}:
            assert not steps, "these are not stored: they are what an assigned task is that a worker has read"
        elif state.final:
            again = {("retry", TaskState.READY), ("retry", WAITING), ("retry", TaskState.AWAITING_TASKS)}
            requeued = set() if state is TaskState.SUCCEEDED else again
            assert steps == {("delete", None)} | requeued
        else:
            assert steps
            assert None not in {after for _, after in steps}
    rows = [(step.before, step.script, step.after) for step in STEPS]
    assert len(rows) == len(set(rows))
