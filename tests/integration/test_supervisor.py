"""The supervisor: who gets what, in which order, when; and who leads."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.agents import scripts as registry
from orchestrator.core.errors import TaskExpired
from orchestrator.core.formats import FORMAT
from orchestrator.core.wakeups import Wakeup
from orchestrator.supervisor.assigner import Assigner
from orchestrator.supervisor.doorbell import Doorbell
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import MOST_QUEUES, ready_queues
from orchestrator.tasks.submission import Submission
from orchestrator.why.model import Cause
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis
    from redis.client import Monitor

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


def make_agent(name: str, *skills: str, **options: Any) -> tuple[Agent, list[Any]]:
    """An agent whose skills note their label; and the notes."""
    agent, notes = Agent(name, **options), list[Any]()
    for skill in skills:

        @agent.skill(name=skill)
        async def work(ctx: TaskContext, label: Any = None, pause_s: float = 0.0) -> str:
            notes.append(label)
            if pause_s:
                await anyio.sleep(pause_s)
            return ctx.agent

    return agent, notes


# ---------------------------------------------------------------------------------------------------------- addressing


async def test_a_skill_is_served_by_every_agent_that_has_it(team: LocalTeam) -> None:
    """Two agents share the tasks of a skill; a task for one agent goes to that one only."""
    one, _ = make_agent("one", "shared", "own", concurrency=2)
    other, _ = make_agent("other", "shared", concurrency=2)
    await team.work(one, other)
    handles = await team.orc.submit_many([Submission("shared", {"pause_s": 0.02}) for _ in range(40)])
    assert {await handle.result(TIMEOUT_S) for handle in handles} == {"one", "other"}
    handles = await team.orc.submit_many([Submission("shared", agent="other") for _ in range(10)])
    assert {await handle.result(TIMEOUT_S) for handle in handles} == {"other"}
    assert await (await team.orc.submit("own")).result(TIMEOUT_S) == "one"


async def test_an_agent_that_comes_later_takes_what_waits(team: LocalTeam) -> None:
    """Tasks for a skill or an agent that nobody runs yet wait, say why, and run when it registers."""
    by_skill = await team.orc.submit("late")
    by_agent = await team.orc.submit("late", agent="latecomer")
    assert (await by_skill.status()).detail.cause is Cause.NO_AGENT
    assert (await by_agent.status()).detail.cause is Cause.AGENT_UNKNOWN
    agent, _ = make_agent("latecomer", "late")
    await team.work(agent)
    for handle in (by_skill, by_agent):
        assert await handle.result(TIMEOUT_S) == "latecomer"


async def test_a_task_for_an_agent_without_the_skill_waits_for_it(team: LocalTeam) -> None:
    """It does not hold up what comes behind it, and runs when a worker with the skill is alone."""
    old, _ = make_agent("editor", "old")
    worker = await team.work(old)
    ahead = await team.orc.submit("new", agent="editor", priority="critical")
    assert await (await team.orc.submit("old", agent="editor")).result(TIMEOUT_S) == "editor"
    assert (await ahead.status()).detail.cause is Cause.SKILL_MISSING
    newer, _ = make_agent("editor", "old", "new")
    await team.work(newer)
    await team.stop(worker)
    assert await ahead.result(TIMEOUT_S) == "editor"


async def test_during_an_upgrade_only_shared_skills_are_assigned(team: LocalTeam) -> None:
    """While one worker of an agent lacks a skill, its tasks wait; they run when the old worker is gone."""
    old, _ = make_agent("editor", "both")
    newer, notes = make_agent("editor", "both", "new")
    worker = await team.work(old)
    await team.work(newer)
    waiting = await team.orc.submit("new", {"label": "new"})
    for _ in range(20):
        await (await team.orc.submit("both")).result(TIMEOUT_S)
    assert "new" not in notes
    assert (await waiting.status()).state is TaskState.READY
    await team.stop(worker)
    assert await waiting.result(TIMEOUT_S) == "editor"


# --------------------------------------------------------------------------------------------------------------- order


async def _order(team: LocalTeam, submissions: list[Submission]) -> list[Any]:
    """Submit while nobody works, then let one slot work; answer the labels in the order of their starts."""
    handles: list[TaskHandle[Any]] = []
    for submission in submissions:
        handles.append(await team.orc.submit_one(submission))
        await _next_millisecond(team)
    agent, notes = make_agent("single", "work", concurrency=1)
    await team.work(agent)
    for handle in handles:
        await handle.result(TIMEOUT_S)
    return notes


async def _next_millisecond(team: LocalTeam) -> None:
    """Wait until the server's clock shows another millisecond: order is promised between those."""

    async def now_ms() -> int:
        seconds, micros = await team.services.store.execute("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    before = await now_ms()
    while await now_ms() == before:
        pass


async def test_first_in_first_out_within_a_level(team: LocalTeam) -> None:
    """Sixty tasks of one level, submitted one after another, start in that order."""
    assert await _order(team, [Submission("work", {"label": number}) for number in range(60)]) == list(range(60))


async def test_many_at_once_keep_their_order(team: LocalTeam) -> None:
    """The tasks of one `submit_many` start in the order of the list, over all its chunks."""
    handles = await team.orc.submit_many([Submission("work", {"label": number}) for number in range(1100)])
    agent, notes = make_agent("single", "work", concurrency=1)
    await team.work(agent)
    for handle in handles:
        await handle.result(20)
    assert notes == list(range(1100))


async def test_levels_come_before_age(team: LocalTeam) -> None:
    """Critical, high, 2, 9: by level, whatever came first; agent and skill queues are merged."""
    wanted: list[str | int] = ["low", "normal", 9, "high", "critical", 5, 0, "normal"]
    submissions = [
        Submission("work", {"label": index}, priority=level, agent="single" if index % 2 else None)
        for index, level in enumerate(wanted)
    ]
    assert await _order(team, submissions) == [4, 6, 3, 1, 7, 0, 5, 2]


async def test_a_critical_task_passes_those_that_wait(team: LocalTeam) -> None:
    """Submitted last, behind a hundred that wait for the one slot, it is the next to start."""
    agent, notes = make_agent("single", "work", concurrency=1)
    await team.work(agent)
    normal = Submission("work", {"label": "normal", "pause_s": 0.06})
    handles = [await team.orc.submit_one(normal) for _ in range(30)]
    await wait_for(lambda: len(notes) >= 3, "three to have started")
    critical = await team.orc.submit("work", {"label": "critical"}, priority="critical")
    await critical.result(TIMEOUT_S)
    assert notes.index("critical") <= 6
    for handle in handles:
        await handle.cancel()


@pytest.mark.parametrize("settings", [{"queue__aging_s": 0.2}], indirect=True)
async def test_with_ageing_an_old_low_task_overtakes(team: LocalTeam) -> None:
    """One level is worth 0.2 s of waiting: a low task that is older than that runs before a fresh normal one."""
    old = await team.orc.submit("work", {"label": "old low"}, priority="low")
    born_s = time.monotonic()
    await wait_for(lambda: time.monotonic() - born_s > 0.25, "the low task to age")
    assert await _order(
        team,
        [
            Submission("work", {"label": "fresh low"}, priority="low"),
            Submission("work", {"label": "normal"}),
            Submission("work", {"label": "critical"}, priority="critical"),
        ],
    ) == ["critical", "old low", "normal", "fresh low"]
    assert await old.result(TIMEOUT_S) == "single"


# ---------------------------------------------------------------------------------------------------------------- time


async def test_delayed_tasks_start_when_they_are_due(team: LocalTeam) -> None:
    """Not a moment before, and within some ten milliseconds after; also one that is due before those known so far."""
    agent = Agent("punctual")

    @agent.skill
    async def work(due_ms: float) -> float:
        return time.time() * 1000 - due_ms

    await team.work(agent)
    handles: list[TaskHandle[Any]] = []
    for delay_s in (0.9, 0.7, 0.5, 0.3, 0.35, 0.1):
        due_ms = time.time() * 1000 + delay_s * 1000
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        handles.append(await team.orc.submit("work", {"due_ms": due_ms}, at=due))
    late_ms = sorted([await handle.result(TIMEOUT_S) for handle in handles])
    assert late_ms[0] >= -1.0
    assert late_ms[2] < 50
    assert late_ms[-1] < 500  # a busy machine


async def test_tasks_that_did_not_start_in_time_expire(team: LocalTeam) -> None:
    """By `start_by`, whether they wait in a queue or are scheduled later than that; one that starts in time runs on."""
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    waiting = await team.orc.submit("nobody", start_by=soon)
    scheduled = await team.orc.submit("nobody", delay=60, start_by=soon)
    past = await team.orc.submit("nobody", start_by=datetime.now(UTC) - timedelta(seconds=1))
    agent, _ = make_agent("slow", "work")
    await team.work(agent)
    started = await team.orc.submit("work", {"pause_s": 0.5}, start_by=soon)
    for handle in (past, waiting, scheduled):
        with pytest.raises(TaskExpired, match="did not start in time"):
            await handle.result(TIMEOUT_S)
    assert await started.result(TIMEOUT_S) == "slow"
    assert datetime.now(UTC) > soon


# ----------------------------------------------------------------------------------------------------------- leadership


@pytest.fixture
async def leaderless(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A team without a supervisor."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


async def test_another_supervisor_takes_over(leaderless: LocalTeam) -> None:
    """Of two supervisors one leads; when it stops, the other leads at once and assigns what came in between."""
    team = leaderless
    store, keys = team.services.store, team.services.keys
    agent, _ = make_agent("steady", "work")
    await team.work(agent)
    first = await team.start_supervisor()

    async def leader() -> bytes | None:
        found: bytes | None = await store.execute("GET", keys.leader)
        return found

    leads = await wait_for(leader, "a leader")
    await team.start_supervisor()
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == "steady"
    assert await leader() == leads
    first.cancel()
    orphan = await team.orc.submit("work")
    assert await orphan.result(TIMEOUT_S) == "steady"
    assert await leader() not in {None, leads}


async def test_a_supervisor_gives_way_when_its_lease_is_lost(leaderless: LocalTeam) -> None:
    """One whose lease was taken stops working before long, and leads again when the other is gone."""
    team = leaderless
    store, keys = team.services.store, team.services.keys
    await team.start_supervisor()

    async def leads() -> bool:
        return await store.execute("GET", keys.leader) not in {None, b"other"}

    await wait_for(leads, "the lease")
    await wait_for(_assigners, "the loops of the leader")
    await store.execute("ZADD", keys.supervisors, 10**13, f"other {FORMAT} 1.0")
    await store.execute("SET", keys.leader, "other", "PX", 60_000)
    await wait_for(lambda: not _assigners(), "the loops of the leader to end", 2.0)
    agent, notes = make_agent("steady", "work")
    await team.work(agent)
    left = await team.orc.submit("work", {"label": 1})
    with pytest.raises(TimeoutError):
        await left.result(timeout=0.2)
    assert notes == []
    await store.execute("DEL", keys.leader)
    assert await left.result(TIMEOUT_S) == "steady"


def _assigners() -> list[str | None]:
    return [task.name for task in anyio.get_running_tasks() if "assigner" in (task.name or "")]


async def test_nothing_is_lost_between_two_that_both_work(team: LocalTeam) -> None:
    """Two supervisors that both believe to lead do no harm: every task runs exactly once."""
    agent, notes = make_agent("steady", "work", concurrency=20)
    await team.work(agent)
    wakeup = Wakeup()
    async with anyio.create_task_group() as second:
        doorbell, assigner = _doorbell(team, wakeup)
        second.start_soon(doorbell.run)
        second.start_soon(assigner.run)
        handles = await team.orc.submit_many([Submission("work", {"label": number}) for number in range(600)])
        for handle in handles:
            await handle.result(TIMEOUT_S)
        second.cancel_scope.cancel()
    assert sorted(notes) == list(range(600))


def _doorbell(team: LocalTeam, wakeup: Wakeup) -> tuple[Doorbell, Assigner]:
    assigner = Assigner(team.services, wakeup, repair_requested=Wakeup())
    return Doorbell(
        team.services,
        assigner=wakeup,
        promoter=Wakeup(),
        scheduler=Wakeup(),
        registrations=Wakeup(),
        budgets=Wakeup(),
        providers=Wakeup(),
        calls=assigner,
    ), assigner


@pytest.mark.every_server
async def test_the_read_of_the_doorbell_assigns(settings: Settings) -> None:
    """After two reads that name the same queue, the next one assigns its tasks; no loop of an assigner runs."""
    async with run_local_team(settings, supervised=False) as team:
        agent, _ = make_agent("steady", "work")
        await team.work(agent)
        handle = await team.orc.submit("work")
        doorbell, _ = _doorbell(team, Wakeup())

        async def ring() -> None:
            while True:
                await _ring(team, "queue:skill:work")
                await anyio.sleep(0.02)

        async with anyio.create_task_group() as group:
            group.start_soon(doorbell.run)
            group.start_soon(ring)
            assert await handle.result(TIMEOUT_S) == "steady"
            group.cancel_scope.cancel()


async def test_names_of_queues_without_tasks(leaderless: LocalTeam) -> None:
    """Clients write the list of queues: one look covers some of very many, and each of few."""
    store, keys = leaderless.services.store, leaderless.services.keys
    assert await ready_queues(store) == []
    await store.execute("SADD", keys.queues, *[f"skill:s{number}" for number in range(MOST_QUEUES)])
    assert len(await ready_queues(store)) == MOST_QUEUES
    await store.execute("SADD", keys.queues, *[f"skill:t{number}" for number in range(MOST_QUEUES)])
    first, second = await ready_queues(store), await ready_queues(store)
    assert len(first) == len(second) == MOST_QUEUES
    assert first != second
    await store.execute("UNLINK", keys.queues)


@pytest.mark.parametrize("heard", [False, True])
async def test_a_doorbell_that_takes_no_more(settings: Settings, *, heard: bool) -> None:
    """Behind an entry with the highest id no other fits, and no other would be read: the stream begins anew."""
    async with run_local_team(settings, supervised=False) as team:
        wakeup, passed_on = Wakeup(), list[str]()
        doorbell, _ = _doorbell(team, wakeup)
        store, key = team.services.store, team.services.keys.doorbell
        highest = "18446744073709551615-18446744073709551615"

        async def collect() -> None:
            while True:
                passed_on.extend(await wakeup.wait(None))

        if not heard:
            await store.execute("XADD", key, highest, "w", "agents")
        async with anyio.create_task_group() as group:
            group.start_soon(doorbell.run)
            group.start_soon(collect)
            await wait_for(lambda: bool(passed_on), "the first read")
            if heard:
                await store.execute("XADD", key, highest, "w", "agents")

            async def anew() -> bool:
                return not await store.execute("EXISTS", key)

            await wait_for(anew, "the end of the stream")
            await _ring(team, "queue:skill:work")
            await wait_for(lambda: "queue:skill:work" in passed_on, "the next notification")
            group.cancel_scope.cancel()


@pytest.mark.parametrize("refused", [False, True])
async def test_what_the_read_cannot_assign_is_left_to_the_assigner(settings: Settings, *, refused: bool) -> None:
    """A notification whose call was refused is passed on, and one whose queue is empty afterwards is not."""
    name, mark, passed_on = "queue:skill:work", "queue:skill:mark", list[str]()
    async with run_local_team(settings, supervised=False) as team:
        wakeup = Wakeup()
        doorbell, _ = _doorbell(team, wakeup)
        if refused:
            await team.services.store.execute("SET", team.services.keys.queue("skill:work"), "no sorted set")

        async def collect() -> None:
            while True:
                passed_on.extend(await wakeup.wait(None))

        async with anyio.create_task_group() as group:
            group.start_soon(doorbell.run)
            group.start_soon(collect)
            await wait_for(lambda: bool(passed_on), "the first read")
            await _ring(team, name)
            await wait_for(lambda: passed_on.count(name) == 1, "the first notification")
            await _ring(team, name)
            await wait_for(lambda: passed_on.count(name) == 2, "the second notification")
            await _ring(team, name)
            await _ring(team, mark)
            await wait_for(lambda: mark in passed_on, "the end of the reads")
            group.cancel_scope.cancel()
    assert passed_on.count(name) == (3 if refused else 2)


async def _ring(team: LocalTeam, name: str) -> None:
    await team.services.store.execute("XADD", team.services.keys.doorbell, "*", "w", name)


SWEEP_S = 2.5
AT_REST = {"worker__heartbeat_s": 5.0, "supervisor__leader_lease_s": 10.0, "supervisor__sweep_s": SWEEP_S}


@pytest.mark.parametrize("settings", [AT_REST], indirect=True)
async def test_at_rest_redis_is_left_alone(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Supervisor, worker and a waiting client send at most 28 commands from sweep to sweep while nothing happens.

    By default a sweep comes every five seconds, so that these are five to six a second. The first one
    also scans the pool and the scopes, as one every ten minutes does.
    """
    agent, _ = make_agent("idle", "work", concurrency=50)
    await team.work(agent)
    await (await team.orc.submit("work")).result(TIMEOUT_S)
    waits = await team.orc.submit("work", delay=60)

    async def give_up() -> None:
        with anyio.move_on_after(10):
            await waits.result()

    async with anyio.create_task_group() as group:
        group.start_soon(give_up)
        await anyio.wait_all_tasks_blocked()
        with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
            redis_client.echo("begin")
            _until(monitor, "ECHO begin")  # our own connection is made by then
            await anyio.sleep(1.4 * SWEEP_S)
            redis_client.echo("first")
            first = _until(monitor, "ECHO first")
            await anyio.sleep(0.9 * SWEEP_S)
            redis_client.echo("enough")
            sent = _until(monitor, "ECHO enough")
        group.cancel_scope.cancel()
    assert 1 <= len(sent) <= 28, "\n".join(sent)
    assert len(first) <= 28 + 12, "\n".join(first)


def _until(monitor: Monitor, end: str) -> list[str]:
    """What clients sent until then, without what scripts called."""
    sent: list[str] = []
    while (seen := monitor.next_command())["command"] != end:  # type: ignore[no-untyped-call]
        if seen["client_type"] != "lua":
            sent.append(seen["command"][:60])
    return sent


@pytest.mark.parametrize("settings", [{"supervisor__sweep_s": 0.2}], indirect=True)
async def test_a_silent_worker_is_forgotten(team: LocalTeam) -> None:
    """A worker without a heartbeat leaves the registry at the next sweep, and its agent's tasks say what they miss."""
    await team.services.store.call(
        registry.register(
            team.services.keys,
            worker="ghost",
            spec=make_agent("haunted", "work")[0].spec({}),
            slots=5,
            backlog=0,
            about={},
            alive_s=1,
        )
    )
    keys, store = team.services.keys, team.services.store
    await store.execute("ZADD", keys.workers, 1, "ghost")  # its last heartbeat was in 1970
    await wait_for(lambda: _forgotten(team, "ghost"), "the next sweep", 3.0)
    handle = await team.orc.submit("work", agent="haunted")
    assert (await handle.status()).detail.cause is Cause.AGENT_DOWN


async def _forgotten(team: LocalTeam, worker: str) -> bool:
    return await team.services.store.execute("ZSCORE", team.services.keys.workers, worker) is None
