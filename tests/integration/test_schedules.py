"""Schedules with a supervisor: they fire, once, whatever overlaps, was missed, or is changed meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.core.errors import InvalidInput, NotFound, QueueFull, ScheduleExists, Stopped
from orchestrator.core.ids import TaskIds
from orchestrator.core.wakeups import Wakeup
from orchestrator.schedules import queries, scheduler
from orchestrator.schedules.model import CatchUp, FireOutcome
from orchestrator.schedules.scheduler import (
    CATCH_UP_MAX,
    COUNTED_MAX,
    PUNCTUAL_MS,
    FireDecision,
    Scheduler,
    decide_fire,
)
from orchestrator.schedules.store import AddStatus
from orchestrator.schedules.timing import Every, check_cron
from orchestrator.testing import scripts as kit
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.pool_scans import scan_pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.schedules.api import Schedules
    from tests.helpers.local_team import LocalTeam

HOUR_S = 3600.0


class ManualSupervisor:
    """A pool without a supervisor, and what one would do: the test lets time pass and fires."""

    def __init__(self, team: LocalTeam) -> None:
        self.team, self.services = team, team.services
        self.schedules: Schedules = team.orc.admin.schedules

    async def wait(self, seconds: float) -> None:
        """Let time pass while nobody fires."""
        await self.services.store.execute(*kit.advance(self.services.keys, by_ms=round(seconds * 1000)))

    async def fire(self) -> float | None:
        """What a supervisor does when it wakes."""
        return await Scheduler(self.services, Wakeup(), repair_requested=Wakeup()).fire_all()

    async def tasks(self) -> list[str]:
        """Ids of all tasks so far, oldest first."""
        keys = await self.services.store.execute("KEYS", self.services.keys.task("*"))
        return sorted(key.decode().rpartition(":")[2] for key in keys)

    async def states(self) -> list[str]:
        """The states of all tasks so far, oldest first."""
        return [(await self.team.orc.task(id_).status()).state.value for id_ in await self.tasks()]

    async def counts(self, name: str = "n") -> dict[str, int]:
        """What became of the fire times."""
        found = await self.schedules.get(name)
        return {
            outcome.value: getattr(found, outcome.value) for outcome in FireOutcome if getattr(found, outcome.value)
        }


@pytest.fixture
async def manual(settings: Settings) -> AsyncIterator[ManualSupervisor]:
    """Nobody leads."""
    async with run_local_team(settings, supervised=False) as team:
        yield ManualSupervisor(team)


async def test_a_supervisor_fires_it(team: LocalTeam) -> None:
    """A schedule that is added while the supervisor sleeps fires in time, with all that its tasks are given."""
    agent, seen = Agent("clerk"), []

    @agent.skill
    async def report(ctx: TaskContext, city: str) -> None:
        seen.append((city, ctx.session, ctx.idempotency_key))

    await team.work(agent)
    schedules = team.orc.admin.schedules
    added = await schedules.add("n", "report", {"city": "Rome"}, every=1, session="s", tags=["t"], priority="high")
    assert added == AddStatus.ADDED
    await wait_for(lambda: len(seen) == 2, "two fires", TIMEOUT_S)
    found = await schedules.get("n")
    assert [city for city, _, _ in seen] == ["Rome", "Rome"]
    assert {session for _, session, _ in seen} == {"s"}
    assert found.last is not None
    assert found.next is not None
    assert found.next - found.last == timedelta(seconds=1)
    assert found.last_task is not None
    info = await team.orc.task(found.last_task).info()
    assert (info.key, info.tags, info.priority) == (f"schedule:n:{round(found.last.timestamp() * 1000)}", ("t",), 1)


async def test_a_calendar(manual: ManualSupervisor) -> None:
    """A cron schedule waits for its time in its zone."""
    await manual.schedules.add("n", "report", cron="30 2 * * *", zone="Europe/Berlin")
    found = await manual.schedules.get("n")
    assert found.next == (await manual.schedules.next_fires("n", 1))[0]
    expected = check_cron("30 2 * * *", "Europe/Berlin").after(await queries.server_ms(manual.services.store))
    assert found.next is not None
    assert round(found.next.timestamp() * 1000) == expected
    assert await manual.fire() == pytest.approx((found.next - datetime.now(UTC)).total_seconds(), abs=2)
    await manual.wait((found.next - datetime.now(UTC)).total_seconds() + 1)
    await manual.fire()
    assert await manual.counts() == {"fired": 1}
    later = await manual.schedules.get("n")
    assert later.next == found.next


async def test_many_at_once(manual: ManualSupervisor) -> None:
    """More than one look finds fire in one go, each once."""
    for number in range(scheduler.LIMIT + 20):
        await manual.schedules.add(f"n{number}", "report", every=60)
    await manual.wait(60)
    await manual.fire()
    assert len(await manual.tasks()) == scheduler.LIMIT + 20
    assert {each.fired for each in await manual.schedules.list()} == {1}


async def test_any_number_of_supervisors(manual: ManualSupervisor) -> None:
    """Ten that fire at the same time fire each time once."""
    for name in ("a", "b", "c"):
        await manual.schedules.add(name, "report", every=60, catch_up="all")
    for _ in range(4):
        await manual.wait(120)
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(manual.fire)
    assert len(await manual.tasks()) == 3 * 8
    for name in ("a", "b", "c"):
        assert await manual.counts(name) == {"fired": 8}


# ----------------------------------------------------------------------------------------------------------- overlap


@pytest.mark.parametrize(
    ("overlap", "states", "counts"),
    [
        ("enqueue", ["ready", "ready"], {"fired": 2}),
        ("skip", ["ready"], {"fired": 1, "skipped": 1}),
        ("replace", ["cancelled", "ready"], {"fired": 2}),
    ],
)
async def test_the_previous_one_has_not_ended(
    manual: ManualSupervisor, overlap: Literal["enqueue", "skip", "replace"], states: list[str], counts: dict[str, int]
) -> None:
    """Enqueue submits all the same, skip leaves the time out, replace cancels the previous one."""
    await manual.schedules.add("n", "nobody", every=60, overlap=overlap)
    for _ in range(2):
        await manual.wait(60)
        await manual.fire()
    assert sorted(await manual.states()) == sorted(states)
    assert await manual.counts() == counts


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_the_previous_one_has_ended(
    manual: ManualSupervisor, overlap: Literal["enqueue", "skip", "replace"]
) -> None:
    """Nothing overlaps with what has ended, or is gone."""
    await manual.schedules.add("n", "nobody", every=60, overlap=overlap)
    await manual.wait(60)
    await manual.fire()
    (first,) = await manual.tasks()
    await manual.team.orc.task(first).cancel("by hand")
    await manual.wait(60)
    await manual.fire()
    assert (await manual.team.orc.task(first).info()).reason == "by hand"
    second = (await manual.schedules.get("n")).last_task
    assert second is not None
    await manual.services.store.execute("DEL", manual.services.keys.task(second))
    await manual.wait(60)
    await manual.fire()
    assert await manual.counts() == {"fired": 3}


async def test_a_running_one_is_replaced(team: LocalTeam) -> None:
    """The previous task is told to stop, and the next one runs."""
    agent, ends = Agent("clerk", concurrency=5), []

    @agent.skill
    async def report() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            ends.append("stopped")
            raise

    await team.work(agent)
    await team.orc.admin.schedules.add("n", "report", every=1, overlap="replace")
    await wait_for(lambda: len(ends) == 2, "two that were replaced", TIMEOUT_S)
    await team.orc.admin.schedules.delete("n")


# ---------------------------------------------------------------------------------------------------------- catch-up


@pytest.mark.parametrize(
    ("catch_up", "counts"),
    [("none", {"missed": 10}), ("one", {"fired": 1, "missed": 9}), ("all", {"fired": 10})],
)
async def test_after_a_downtime(
    manual: ManualSupervisor, catch_up: Literal["none", "one", "all"], counts: dict[str, int]
) -> None:
    """Times that passed while nobody fired are left out, made up for by the newest, or all in order."""
    await manual.schedules.add("n", "nobody", every=600, catch_up=catch_up)
    await manual.wait(6000 + 120)
    before = await manual.schedules.get("n")
    wait_s = await manual.fire()
    assert wait_s == pytest.approx(480, abs=2)
    assert await manual.counts() == counts
    keys = [(await manual.team.orc.task(id_).info()).key for id_ in await manual.tasks()]
    times = [int((key or "").rpartition(":")[2]) for key in keys]
    assert before.next is not None
    first_ms = round(before.next.timestamp() * 1000)
    expected = {"none": [], "one": [first_ms + 9 * 600_000], "all": [first_ms + n * 600_000 for n in range(10)]}
    assert times == expected[catch_up]


async def test_a_little_late_is_not_missed(manual: ManualSupervisor) -> None:
    """A time that has just passed fires also where nothing is made up for."""
    await manual.schedules.add("n", "nobody", every=600, catch_up="none")
    await manual.wait(600 + PUNCTUAL_MS / 1000 - 10)
    await manual.fire()
    assert await manual.counts() == {"fired": 1}


def test_choices() -> None:
    """Which time is fired, which is next, how many were missed, for each policy."""
    every = Every(1000, 0)
    assert decide_fire(every, CatchUp.ONE, 1000, 1000) == FireDecision(1000, 2000, 0)
    assert decide_fire(every, CatchUp.ONE, 1000, 3500) == FireDecision(3000, 4000, 2)
    assert decide_fire(every, CatchUp.ALL, 1000, 3500) == FireDecision(1000, 2000, 0)
    assert decide_fire(every, CatchUp.ALL, 3000, 3500) == FireDecision(3000, 4000, 0)
    assert decide_fire(every, CatchUp.NONE, 1000, 3500) == FireDecision(3000, 4000, 2)
    slow = Every(600_000, 0)
    assert decide_fire(slow, CatchUp.NONE, 600_000, 1_300_000) == FireDecision(None, 1_800_000, 2)


@pytest.mark.parametrize("passed", [150, COUNTED_MAX + 5, 500_000])
def test_choices_are_bounded(passed: int) -> None:
    """Of very many missed times the newest are made up for, in order, and next is the one behind now."""
    every = Every(1000, 0)
    now_ms = passed * 1000 + 10
    fired = decide_fire(every, CatchUp.ALL, 1000, now_ms)
    assert fired[:2] == (1000 * (passed - CATCH_UP_MAX + 1), 1000 * (passed - CATCH_UP_MAX + 2))
    assert fired.missed == min(passed - CATCH_UP_MAX, COUNTED_MAX + 1)
    one = decide_fire(every, CatchUp.ONE, 1000, now_ms)
    assert one[:2] == (1000 * passed, 1000 * (passed + 1))


def test_choices_of_a_sparse_calendar() -> None:
    """The newest missed times are found also where they lie far back."""
    timing = check_cron("* * 1 1 *", "UTC")  # every minute of one day of the year
    due_ms = timing.after(0)
    assert due_ms is not None
    now_ms = round(datetime(1975, 7, 1, tzinfo=UTC).timestamp() * 1000)
    found = decide_fire(timing, CatchUp.ONE, due_ms, now_ms)
    assert found.fired_ms == round(datetime(1975, 1, 1, 23, 59, tzinfo=UTC).timestamp() * 1000)


# ------------------------------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("settings", [{"queue__max_tasks": 1}], indirect=True)
async def test_a_full_queue(manual: ManualSupervisor) -> None:
    """A task that is refused is written down with the reason, and the schedule goes on."""
    await manual.schedules.add("n", "nobody", every=60)
    for _ in range(2):
        await manual.wait(60)
        await manual.fire()
    found = await manual.schedules.get("n")
    assert await manual.counts() == {"fired": 1, "refused": 1}
    assert "queue skill:nobody holds its maximum of 1 tasks" in (found.last_error or "")
    assert found.last_error_at is not None
    with pytest.raises(QueueFull):
        await manual.schedules.trigger("n")


@pytest.mark.parametrize("settings", [{"queue__max_schedules": 2}], indirect=True)
async def test_as_many_schedules_as_a_pool_may_have(manual: ManualSupervisor) -> None:
    """One more is refused with what to do; those that are there can be replaced, and make room when deleted."""
    for name in ("a", "b"):
        await manual.schedules.add(name, "nobody", every=60)
    with pytest.raises(QueueFull, match=r"maximum of 2 schedules; delete some, or raise queue\.max_schedules"):
        await manual.schedules.add("c", "nobody", every=60)
    await manual.schedules.add("a", "nobody", every=120, replace=True)
    await manual.schedules.delete("b")
    await manual.schedules.add("c", "nobody", every=60)


async def test_a_stop_that_refuses(manual: ManualSupervisor) -> None:
    """A stop that refuses new tasks refuses those of schedules; when it ends they come again."""
    await manual.schedules.add("n", "nobody", every=60)
    await manual.team.orc.admin.stop(refuse=True)
    await manual.wait(60)
    await manual.fire()
    found = await manual.schedules.get("n")
    assert (await manual.counts(), await manual.tasks()) == ({"refused": 1}, [])
    assert "stopped" in (found.last_error or "")
    with pytest.raises(Stopped):
        await manual.schedules.trigger("n")
    await manual.team.orc.admin.start()
    await manual.wait(60)
    await manual.fire()
    assert await manual.counts() == {"fired": 1, "refused": 1}


async def test_a_stop_that_accepts(manual: ManualSupervisor) -> None:
    """Under a stop that accepts new tasks those of schedules wait like others."""
    await manual.schedules.add("n", "nobody", every=60)
    await manual.team.orc.admin.stop()
    await manual.wait(60)
    await manual.fire()
    assert await manual.states() == ["ready"]


async def test_one_that_cannot_be_read(manual: ManualSupervisor) -> None:
    """It says why, is tried again later as it was, and keeps nobody else waiting."""
    for name in ("broken", "fine"):
        await manual.schedules.add(name, "nobody", every=60)
    key = manual.services.keys.schedule("broken")
    plan = await manual.services.store.execute("HGET", key, "plan")
    damaged = msgspec.json.encode({**msgspec.json.decode(plan), "invented": 1})
    await manual.services.store.execute("HSET", key, "plan", damaged)
    await manual.wait(60)
    await manual.fire()
    assert await manual.counts("fine") == {"fired": 1}
    error = await manual.services.store.execute("HGET", key, "error")
    assert "invented" in error.decode()
    await manual.services.store.execute("HSET", key, "plan", plan)
    await manual.fire()
    assert await manual.counts("broken") == {"fired": 1}


async def test_one_that_is_none(manual: ManualSupervisor) -> None:
    """Another type in the place of one keeps nobody from seeing the others."""
    for name in ("broken", "fine"):
        await manual.schedules.add(name, "nobody", every=60)
    key = manual.services.keys.schedule("broken")
    await manual.services.store.execute("SET", key, "x", "EX", 60)
    assert [each.name for each in await manual.schedules.list()] == ["fine"]
    with pytest.raises(NotFound):
        await manual.schedules.get("broken")


# -------------------------------------------------------------------------------------------------------- changes


async def test_add(manual: ManualSupervisor) -> None:
    """The same again is nothing new; another definition needs to be meant, and keeps the history."""
    schedules = manual.schedules
    assert await schedules.add("n", "report", {"a": 1, "b": [2]}, every=60) == "added"
    assert await schedules.add("n", "report", {"b": [2], "a": 1}, every=timedelta(minutes=1)) == "same"
    await manual.wait(70)
    await manual.fire()
    before = await schedules.get("n")
    with pytest.raises(ScheduleExists, match="'report', every 1m"):
        await schedules.add("n", "report", {"a": 2}, every=60)
    assert await schedules.add("n", "report", {"a": 2}, every=60, replace=True) == "replaced"
    after = await schedules.get("n")
    assert (after.args, after.fired, after.next) == ({"a": 2}, 1, before.next)
    assert await schedules.add("n", "report", {"a": 2}, every=3600, replace=True) == "replaced"
    assert (await manual.fire() or 0) > 3500


async def test_pause_and_resume(manual: ManualSupervisor) -> None:
    """A paused one does not fire; resumed it goes on with its next time, and makes up for nothing."""
    await manual.schedules.add("n", "nobody", every=60)
    assert await manual.schedules.pause("n")
    assert not await manual.schedules.pause("n")
    await manual.wait(600)
    assert await manual.fire() is None
    found = await manual.schedules.get("n")
    assert (found.paused, found.next) == (True, None)
    assert len(await manual.schedules.next_fires("n", 3)) == 3
    assert await manual.schedules.resume("n")
    assert not await manual.schedules.resume("n")
    assert await manual.fire() == pytest.approx(60, abs=2)
    assert await manual.counts() == {}


async def test_trigger(manual: ManualSupervisor) -> None:
    """A person can fire it at any time, paused or not; the next time stays."""
    await manual.schedules.add("n", "nobody", every=60)
    before = await manual.schedules.get("n")
    id_ = await manual.schedules.trigger("n")
    after = await manual.schedules.get("n")
    assert await manual.tasks() == [id_]
    assert (after.last_task, after.fired, after.next) == (id_, 1, before.next)
    await manual.schedules.pause("n")
    await manual.schedules.trigger("n")
    assert len(await manual.tasks()) == 2


async def test_a_supervisor_hears_of_changes(team: LocalTeam, redis_client: redis.Redis) -> None:
    """One that comes first now wakes a supervisor that sleeps until a later one."""
    schedules = team.orc.admin.schedules
    await schedules.add("later", "nobody", every=HOUR_S)
    await schedules.add("sooner", "nobody", every=1)

    async def fired(count: int) -> bool:
        return (await schedules.get("sooner")).fired >= count

    await wait_for(lambda: fired(1), "the first", TIMEOUT_S)
    await schedules.pause("sooner")
    await schedules.resume("sooner")
    before = (await schedules.get("sooner")).fired
    await wait_for(lambda: fired(before + 1), "one more", TIMEOUT_S)
    await schedules.delete("sooner")
    assert [each.name for each in await schedules.list()] == ["later"]


@pytest.mark.parametrize("call", ["pause", "resume", "trigger", "delete", "get", "next_fires"])
async def test_unknown(manual: ManualSupervisor, call: str) -> None:
    """Of a name that no schedule has nothing can be done, and the known ones are named."""
    await manual.schedules.add("known", "nobody", every=60)
    with pytest.raises(NotFound, match="known are: known"):
        await getattr(manual.schedules, call)("other")
    with pytest.raises(InvalidInput, match="not a valid name"):
        await getattr(manual.schedules, call)("no name")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "either cron or every"),
        ({"cron": "* * * * *", "every": 5}, "either cron or every"),
        ({"every": 0.5}, "shortest interval is 1 s"),
        ({"every": -5}, "must not be negative"),
        ({"every": 10**12}, "hundred years"),
        ({"every": 5, "zone": "Europe/Berlin"}, "has no time zone"),
        ({"cron": "0 0 31 2 *"}, "day-of-month"),
        ({"cron": "0 0 * * *", "zone": "Europe/Berln"}, "did you mean Europe/Berlin"),
        ({"every": 5, "overlap": "drop"}, "enqueue, skip, replace"),
        ({"every": 5, "catch_up": "some"}, "none, one, all"),
        ({"every": 5, "priority": "urgent"}, "priority"),
        ({"every": 5, "agent": "a b"}, "agent"),
        ({"every": 5, "session": ""}, "session"),
        ({"every": 5, "tags": "text"}, "tags"),
        ({"every": 5, "max_attempts": 0}, "max_attempts"),
        ({"every": 5, "timeout": 0}, "timeout"),
        ({"every": 5, "args": {"x": "y" * 300_000}}, "more than the"),
        ({"every": 5, "args": {"x": object()}}, "JSON cannot hold"),
        ({"every": 5, "skill": "no skill"}, "skill"),
    ],
)
async def test_bad_input(manual: ManualSupervisor, wrong: dict[str, Any], said: str) -> None:
    """What cannot be meant is refused by validation, and nothing is stored."""
    values = {"skill": "report", "args": {}, **wrong}
    with pytest.raises(InvalidInput) as refused:
        await manual.schedules.add("n", **values)
    assert said in str(refused.value)
    assert await manual.schedules.list() == []


async def test_a_day_that_never_comes(manual: ManualSupervisor) -> None:
    """An expression that is possible field by field and names no day is refused."""
    with pytest.raises(InvalidInput, match="no day of the next 50 years"):
        await manual.schedules.add("n", "report", cron="0 0 */30 2 MON#5")


async def test_unknown_options(manual: ManualSupervisor) -> None:
    """An option that there is not is an error, not ignored."""
    with pytest.raises(TypeError, match="until"):
        await manual.schedules.add("n", "report", every=5, until=7)  # type: ignore[call-arg]  # the point


async def test_changes_are_recorded(manual: ManualSupervisor) -> None:
    """Each change is kept among the commands, with who and why; what changes nothing is not."""
    schedules = manual.schedules
    await schedules.add("n", "nobody", every=60, reason="new report", actor="ann")
    await schedules.add("n", "nobody", every=60)
    await schedules.add("n", "nobody", every=90, replace=True)
    await schedules.pause("n")
    await schedules.pause("n")
    await schedules.resume("n")
    await schedules.trigger("n")
    await schedules.delete("n")
    given = await manual.services.store.execute("XRANGE", manual.services.keys.action_records, "-", "+")
    text = b" ".join(value for _, fields in given for value in fields).decode("utf-8", "replace")
    assert len(given) == 6
    for word in ("new report", "ann", '"add"', '"replace"', '"pause"', '"resume"', '"trigger"', '"delete"'):
        assert word in text


async def test_lost_places(manual: ManualSupervisor) -> None:
    """A walk lists schedules again whose place was lost."""
    for name in ("a", "b"):
        await manual.schedules.add(name, "nobody", every=60)
    await manual.services.store.execute("DEL", manual.services.keys.schedules)
    await manual.services.store.execute("ZADD", manual.services.keys.schedules, 5, "gone")
    found = await scan_pool(manual.services.store, manual.team.settings)
    assert sorted(finding.code for finding in found) == ["gone-schedule", "lost-schedule", "lost-schedule"]
    await manual.wait(60)
    await manual.fire()
    assert (await manual.counts("a"), await manual.counts("b")) == ({"fired": 1}, {"fired": 1})


def test_ids() -> None:
    """Nobody listens for the ends of tasks that a schedule submits: no reply stream is written for them."""
    assert int(TaskIds(listens=False).node[0], 16) < 8


async def test_in_a_test_of_a_team(team: LocalTeam) -> None:
    """When the kit moves time, what schedules submit by then is submitted when the call returns."""
    agent, seen = Agent("clerk"), []

    @agent.skill
    async def report(ctx: TaskContext) -> None:
        seen.append(ctx.idempotency_key)

    await team.work(agent)
    await team.orc.admin.schedules.add("n", "report", every=HOUR_S)
    for days in range(1, 3):
        await team._pool.advance(24 * 3_600_000)
        assert (await team.orc.admin.schedules.get("n")).fired == days
    await wait_for(lambda: len(seen) == 2, "both", TIMEOUT_S)
