"""Rolling upgrades of handlers: tasks wait for workers whose version of the skill takes their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, InvalidInput, KeyConflict, TaskFailed
from orchestrator.agents import presence
from orchestrator.agents import queries as registry
from orchestrator.client import skill_versions
from orchestrator.tasks import queries
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.submission import NamedArguments, Submission
from orchestrator.why.lookup import heads
from orchestrator.why.model import Cause
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.process_handlers import greet_in_process, greet_politely_in_process
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.agents.model import KnownVersion
    from orchestrator.client.handle import TaskHandle
    from orchestrator.store.store import Store
    from orchestrator.workers.skill import Skill
    from tests.helpers.local_team import LocalTeam


def first_version(name: str = "greeter") -> Agent:
    """The agent before the upgrade."""
    agent = Agent(name, concurrency=4)

    @agent.skill
    async def greet(name: str) -> str:
        return f"hi {name}"

    return agent


def second_version(name: str = "greeter") -> Agent:
    """The agent after it: its skill has one optional argument more."""
    agent = Agent(name, concurrency=4)

    @agent.skill
    async def greet(name: str, polite: str = "") -> str:
        return f"{'good day' if polite else 'hi'} {name}"

    return agent


def polite(number: int = 0, **options: Any) -> Submission:
    """A task that only the second version takes."""
    return Submission("greet", {"name": str(number), "polite": "very"}, **options)


async def wait_outdated(handle: TaskHandle[Any]) -> str:
    """Wait until a task waits for another version, and return its `why`."""

    async def outdated() -> str:
        status = await handle.status()
        return status.why if status.detail.cause is Cause.SKILL_OUTDATED else ""

    return await wait_for(outdated, "the task to wait for another version")


async def submit_refused(team: LocalTeam, *tasks: Submission) -> list[TaskHandle[Any]]:
    """Submit tasks that the one worker refuses, while the registry knows a version that takes them."""
    handles = [await team.orc.submit_one(task) for task in tasks]
    for handle in handles:
        await wait_outdated(handle)
    return handles


async def leave_a_second_version(team: LocalTeam) -> None:
    """Register the first version, then the second one, whose worker leaves at once: a rollback."""
    old = await team.work(first_version())
    await team.stop(await team.work(second_version()))
    assert old.id


async def test_a_new_argument_waits_until_the_old_workers_are_gone(team: LocalTeam) -> None:
    """Of 210 tasks none becomes a dead letter, and all have run when the last old worker was replaced."""
    old = [await team.work(first_version()) for _ in range(2)]
    await team.work(second_version())
    handles = await team.orc.submit_many([polite(number) for number in range(210)])

    async def refused() -> bool:
        return (await queries.counters(team.services.store)).get("given_back", 0) > 0

    await wait_for(refused, "an old worker to refuse a task")
    for worker in old:
        await team.stop(worker)
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [f"good day {number}" for number in range(210)]
    assert {(await handle.info()).attempts for handle in handles[:20]} == {1}


@pytest.mark.parametrize("known", [True, False])
async def test_tasks_for_many_agents_read_the_registry_once(
    team: LocalTeam, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """The versions of all agents are not read again for each agent; of those without a live worker it is told."""
    names = [f"greeter{number}" for number in range(12)]
    if known:
        for name in names[:3]:
            await team.work(first_version(name))
    versions, absence = registry.versions, presence.find_absence
    reads, looked_for = list[str](), list[str | None]()

    async def counted(store: Store, skill: str) -> list[KnownVersion]:
        reads.append(skill)
        return await versions(store, skill)

    async def looked(store: Store, skill: str, agent: str | None = None) -> str | None:
        looked_for.append(agent)
        return await absence(store, skill, agent)

    monkeypatch.setattr(registry, "versions", counted)
    monkeypatch.setattr(skill_versions, "find_absence", looked)
    monkeypatch.setattr(skill_versions, "_warned", set())
    told = list[str]()
    checked = skill_versions.SkillVersions(team.services, told.append)
    for name in names * 2:
        await checked.check(NamedArguments("greet", ["name"], name, None))
    assert reads == ["greet"]
    assert looked_for == (names[:1] + names[3:] if known else names)
    assert len(told) == (9 if known else 12)


async def test_what_waits_is_seen(team: LocalTeam) -> None:
    """`why` names the worker and what it refused; lists and counters of queues show the tasks."""
    await leave_a_second_version(team)
    first, second = await submit_refused(team, polite(1), polite(2))
    why = (await first.status()).why
    assert why.startswith(
        "arguments do not fit 'greet': polite: Extra inputs are not permitted; this is the version of "
    )
    assert why.endswith(", it starts when workers with another version have replaced these")
    store = team.services.store
    assert (await queries.queue_lengths(store))["skill:greet"] == 2
    assert (await heads(store, ["skill:greet"]))["skill:greet"][0] == first.id
    listed = await queries.listing(store, states=[TaskState.READY], limit=10)
    assert {task.id for task in listed} == {first.id, second.id}


async def test_it_waits_without_work(team: LocalTeam) -> None:
    """A task is refused once by each version; then nothing happens until the registry changes."""
    await leave_a_second_version(team)
    (handle,) = await submit_refused(team, polite())
    counted = await queries.counters(team.services.store)
    assert (counted["assigned"], counted["given_back"]) == (1, 1)
    # Another task passes it.
    assert await (await team.orc.submit("greet", {"name": "x"})).result(TIMEOUT_S) == "hi x"
    counted = await queries.counters(team.services.store)
    assert (counted["assigned"], counted["given_back"]) == (2, 1)
    await team.stop_workers()
    await team.work(second_version())
    assert await handle.result(TIMEOUT_S) == "good day 0"


async def test_a_lane_keeps_its_order(team: LocalTeam) -> None:
    """A task that waits for another version keeps the turn of its lane."""
    await leave_a_second_version(team)
    (first,) = await submit_refused(team, polite(1, lane="l"))
    second = await team.orc.submit("greet", {"name": "2"}, lane="l")
    assert (await second.status()).detail.cause is Cause.LANE
    await team.stop_workers()
    await team.work(second_version())
    assert await second.result(TIMEOUT_S) == "hi 2"
    assert (await first.status()).state is TaskState.SUCCEEDED


async def test_another_agent_takes_it(team: LocalTeam) -> None:
    """Two agents with one skill in two versions: each task ends where it fits, without a dead letter."""
    await team.work(first_version("one"))
    await team.work(second_version("two"))
    handles = await team.orc.submit_many([polite(number) for number in range(50)])
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [f"good day {number}" for number in range(50)]


async def test_another_type_waits_too(team: LocalTeam) -> None:
    """A worker decides by the values; the version is another one when a type is."""
    agents = []
    for annotation in (int, str):
        agent = Agent("typed")

        async def count(size: Any) -> str:
            return str(size)

        count.__annotations__["size"] = annotation
        agent.skill(count)
        agents.append(agent)
    await team.work(agents[0])
    await team.stop(await team.work(agents[1]))
    (handle,) = await submit_refused(team, Submission("count", {"size": "many"}))
    await team.stop_workers()
    await team.work(agents[1])
    assert await handle.result(TIMEOUT_S) == "many"


@pytest.mark.slow
async def test_a_handler_in_a_process(team: LocalTeam) -> None:
    """Its process refuses the arguments, and the task waits as well."""
    agents = []
    for handler in (greet_in_process, greet_politely_in_process):
        agent = Agent("apart")
        agent.skill(name="greet", process=True)(handler)
        agents.append(agent)
    await team.work(agents[0])
    await team.stop(await team.work(agents[1]))
    (handle,) = await submit_refused(team, polite())
    await team.stop_workers()
    await team.work(agents[1])
    assert await handle.result(TIMEOUT_S) == "good day 0"


async def test_what_the_newest_version_refuses_has_ended(team: LocalTeam) -> None:
    """After an upgrade nothing waits for the old version: a value that does not fit is a dead letter at once."""
    await team.stop(await team.work(first_version()))
    await team.work(second_version())
    handle = await team.orc.submit("greet", {"name": 1})
    with pytest.raises(TaskFailed, match="arguments do not fit 'greet': name: Input should be a valid string"):
        await handle.result(TIMEOUT_S)


class TestSubmit:
    """A submit whose arguments no version takes is refused."""

    async def test_names(self, team: LocalTeam) -> None:
        """Unknown and missing names, of one task and of many; nothing is stored."""
        await team.work(first_version())
        expected = r"fit no version of 'greet' that workers have \(polite: not an argument; name: missing\)"
        with pytest.raises(InvalidInput, match=expected):
            await team.orc.submit("greet", {"polite": "very"})
        with pytest.raises(InvalidInput, match="polite: not an argument"):
            await team.orc.submit_many([Submission("greet", {"name": "x"}), polite()])
        assert "submitted" not in await queries.counters(team.services.store)

    async def test_a_version_that_comes_is_known_at_once(self, team: LocalTeam) -> None:
        """Before a submit is refused, the registry is read again."""
        await team.work(first_version())
        assert await (await team.orc.submit("greet", {"name": "x"})).result(TIMEOUT_S) == "hi x"
        with pytest.raises(InvalidInput):
            await team.orc.submit_one(polite())
        await team.work(second_version())
        await team.orc.submit_one(polite())

    async def test_a_version_that_was_replaced(self, team: LocalTeam) -> None:
        """Arguments that only an older version took are refused; while it is live, they are sent."""
        await team.work(second_version())
        agent = Agent("greeter")

        @agent.skill
        async def greet(name: str, tone: str = "") -> str:
            return f"{tone} {name}"

        await team.work(agent)
        await team.orc.submit_one(polite())
        await team.stop_workers()
        await team.work(agent)
        other = await team.client()
        with pytest.raises(InvalidInput, match="polite: not an argument"):
            await other.submit_one(polite())

    async def test_an_unknown_skill_is_sent(self, team: LocalTeam) -> None:
        """Before the first worker, and for an agent that is not known, nothing can be checked."""
        await team.orc.submit("greet", {"whatever": 1})
        await team.work(first_version())
        await (await team.client()).submit_one(polite(agent="another"))

    async def test_a_known_key_is_a_repeat(self, team: LocalTeam) -> None:
        """The server judges a submit whose idempotency key is taken (protocol rule 22)."""
        first = await team.orc.submit_one(polite(key="k"))
        await team.work(first_version())
        other = await team.client()
        assert (await other.submit_one(polite(key="k"))).id == first.id
        with pytest.raises(KeyConflict):
            await other.submit_one(polite(2, key="k"))
        with pytest.raises(InvalidInput):
            await other.submit_one(polite(key="k2"))

    async def test_one_read_for_many_submits(self, team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
        """The registry is read once for all submits of a skill."""
        await team.work(first_version())
        reads = 0
        store = team.orc.services.store
        execute = store.execute

        async def counted(*command: Any) -> Any:
            nonlocal reads
            reads += command[0] == "HGETALL"
            return await execute(*command)

        monkeypatch.setattr(store, "execute", counted)
        await team.orc.submit_many([Submission("greet", {"name": "x"}) for _ in range(100)])
        for _ in range(10):
            await team.orc.submit("greet", {"name": "x"})
        assert reads == 1


class TestDigest:
    """Versions differ when other arguments are valid."""

    @pytest.mark.parametrize("same", [True, False])
    def test_digest(self, *, same: bool) -> None:
        """Neither texts, code nor values of defaults count; names, types, constraints and the skill do."""

        def one(a: int, b: str = "x") -> None:
            """Do one thing."""

        def texts(a: int, b: str = "y") -> int:
            """Do another thing."""
            return 1

        def type_of(a: float, b: str = "x") -> None: ...

        def required(a: int, b: str) -> None: ...

        def renamed(a: int, c: str = "x") -> None: ...

        def digest(handler: Callable[..., object], name: str = "s") -> str:
            made: Skill[..., object] = Agent("a").skill(name=name)(handler)
            return made.version.digest

        if same:
            assert digest(one) == digest(texts)
        else:
            digests = [digest(handler) for handler in (one, type_of, required, renamed)]
            assert len({*digests, digest(one, "t")}) == 5

    def test_types_without_a_schema(self) -> None:
        """A type that has no JSON schema leaves the others in the digest."""

        def one(a: int, call: type = int) -> None: ...

        def other(a: str, call: type = int) -> None: ...

        first, second = (Agent("a").skill(name="s")(handler) for handler in (one, other))
        assert first.version.digest != second.version.digest
        assert (first.version.required, first.version.optional) == (("a",), ("call",))
