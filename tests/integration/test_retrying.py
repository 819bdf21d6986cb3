"""Dead letters run again as the same tasks, one by one and by filter, whatever happens to whoever does it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.client.action_records import ActionRecorder
from orchestrator.client.replies import POLL_EVERY_S
from orchestrator.core.errors import InvalidInput, TaskFailed
from orchestrator.tasks import queries
from orchestrator.tasks.model import RequeueStatus, TaskState
from orchestrator.tasks.selecting import OPEN, TaskFilter, select
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import run_local_team

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.client.admin import Sent
    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store
    from tests.helpers.local_team import LocalTeam


class Flaky:
    """An agent whose tasks fail until they are repaired."""

    def __init__(self) -> None:
        self.broken = True
        self.runs: Counter[str] = Counter()
        self.attempts: list[int] = []
        self.gate = anyio.Event()
        """Holds what is not broken."""
        self.gate.set()
        self.agent = Agent("flaky", concurrency=50)

        @self.agent.skill(max_attempts=2)
        async def work(ctx: TaskContext, number: int = 0) -> int:
            self.runs[ctx.task_id] += 1
            self.attempts.append(ctx.attempt)
            if self.broken:
                raise ValueError(f"number {number} does not fit")
            await self.gate.wait()
            return number


async def done(sent: Sent) -> str:
    """What a job came to."""
    receipts = await sent.receipts(timeout=10)
    (receipt,) = [one for one in receipts.answered if one.sender == "supervisor"]
    assert receipt.word == "done", receipt
    return receipt.detail


async def test_retry_of_a_handle(team: LocalTeam) -> None:
    """The same task runs again: id, key and history stay, attempts are numbered on, and failures count anew."""
    flaky = Flaky()
    await team.work(flaky.agent)
    handle = await team.orc.submit("work", {"number": 1}, key="once")
    with pytest.raises(TaskFailed):
        await handle.result(timeout=5)
    assert await handle.retry("try it") is RequeueStatus.REQUEUED
    with pytest.raises(TaskFailed):
        await handle.result(timeout=5)
    assert flaky.attempts == [1, 2, 3, 4]
    flaky.broken = False
    assert await handle.retry() is RequeueStatus.REQUEUED
    assert await handle.result(timeout=5) == 1
    assert (await team.orc.submit("work", {"number": 1}, key="once")).id == handle.id
    info = await handle.info()
    assert len(info.errors) == 4
    assert [line.split(" ", 1)[1].endswith(": try it") for line in info.requeues] == [True, False]
    assert await handle.retry() is RequeueStatus.REFUSED


async def test_result_waits_again(team: LocalTeam) -> None:
    """A handle that has told of a failure asks again: once the task is requeued, it waits for the new end."""
    flaky = Flaky()
    await team.work(flaky.agent)
    handle = await team.orc.submit("work", {"number": 7})
    with pytest.raises(TaskFailed):
        await handle.result(timeout=5)
    with pytest.raises(TaskFailed):
        await handle.result(timeout=5)
    other = await team.client()
    flaky.broken = False
    await other.task(handle.id).retry()
    assert await handle.result(timeout=5) == 7


@pytest.mark.parametrize("by_handle", [True, False])
async def test_a_reply_that_comes_early(team: LocalTeam, monkeypatch: pytest.MonkeyPatch, by_handle: bool) -> None:  # noqa: FBT001
    """A reply of a requeued task costs no time when it comes while its handle still has the end before.

    It comes before `retry` returns, or while the handle asks whether the task was requeued.
    """
    flaky = Flaky()
    await team.work(flaky.agent)
    handle = await team.orc.submit("work", {"number": 7})
    other = await team.orc.submit("missing")

    async def end_again() -> None:
        flaky.gate.set()
        await wait_for(lambda: _has_succeeded(team, handle.id), "the second end")
        await (await team.orc.submit("work", {"number": 8})).result(timeout=5)  # its reply is behind the other one

    read, record = queries.outcomes, ActionRecorder.record_task

    async def read_slowly(store: Store, ids: Sequence[str]) -> dict[str, Any]:
        found = await read(store, ids)
        if ids == [handle.id] and not found:
            await end_again()
        return found

    async def record_slowly(recorder: ActionRecorder, *args: Any, **said: Any) -> None:
        await record(recorder, *args, **said)
        await end_again()

    async with anyio.create_task_group() as group:
        group.start_soon(other.result)  # so that replies are read
        with pytest.raises(TaskFailed):
            await handle.result(timeout=5)
        flaky.broken, flaky.gate = False, anyio.Event()
        if by_handle:
            monkeypatch.setattr(ActionRecorder, "record_task", record_slowly)
            await handle.retry()
        else:
            await (await team.client()).task(handle.id).retry()
            monkeypatch.setattr(queries, "outcomes", read_slowly)
        assert await handle.result(timeout=POLL_EVERY_S / 2) == 7
        group.cancel_scope.cancel()


async def _has_succeeded(team: LocalTeam, id_: str) -> bool:
    store = team.services.store
    return bool(await store.execute("HGET", store.keys.task(id_), "state") == b"succeeded")


async def test_watching_goes_on(team: LocalTeam) -> None:
    """Who follows a task from its beginning sees its first end, the retry, and then the end that counts."""
    flaky = Flaky()
    await team.work(flaky.agent)
    handle = await team.orc.submit("work", delay=0.1)
    kinds = [event.kind async for event in handle.events()]
    assert kinds[-1] == "dead"
    flaky.broken = False
    await handle.retry("fixed")
    await handle.result(timeout=5)
    events = [event async for event in handle.events()]
    assert [event.kind for event in events][-4:] == ["dead", "requeued", "assigned", "succeeded"]
    assert events[-3].reason.endswith(": fixed")


async def test_by_filter(team: LocalTeam) -> None:
    """A filter means what it says and nothing else; the receipt says how many; the tasks run."""
    flaky = Flaky()
    await team.work(flaky.agent)
    handles = [await team.orc.submit("work", {"number": n}, session=f"s{n % 2}", tags=["t"]) for n in range(20)]
    for handle in handles:
        with pytest.raises(TaskFailed):
            await handle.result(timeout=5)
    flaky.broken = False
    sent = await team.orc.admin.retry(TaskFilter(session="s1", error="number 1"), reason="fixed")
    assert await done(sent) == "6 requeued"
    assert [await handles[n].result(timeout=5) for n in (1, 11, 13, 15, 17, 19)] == [1, 11, 13, 15, 17, 19]
    assert [(await handles[n].status()).state for n in (3, 10)] == [TaskState.DEAD] * 2
    sent = await team.orc.admin.retry(TaskFilter(tag="t", session="s0"), limit=4)
    assert (await done(sent), sent.more) == ("4 requeued", True)
    sent = await team.orc.admin.retry([handles[3].id, handles[1].id, handles[3].id])
    assert (await done(sent), sent.more) == ("1 requeued, 1 refused", False)


async def test_frozen_selection(team: LocalTeam) -> None:
    """Dead letters that arrive after the filter was applied are not touched, although they match it."""
    flaky = Flaky()
    await team.work(flaky.agent)
    first = await team.orc.submit("work")
    with pytest.raises(TaskFailed):
        await first.result(timeout=5)
    sent = await team.orc.admin.retry(TaskFilter(skill="work"))
    second = await team.orc.submit("work")
    with pytest.raises(TaskFailed):
        await second.result(timeout=5)
    assert await done(sent) == "1 requeued"
    assert (await second.info()).requeues == ()


async def test_poison_counts_anew(team: LocalTeam) -> None:
    """A task that killed too many workers may die as often again, and its old evidence stays."""
    agent = Agent("plain")

    @agent.skill(max_deaths=2)
    async def calm() -> int:
        return 1

    handle = await team.orc.submit("calm")
    keys, store = team.services.keys, team.services.store
    # Two deaths, as abandon would note them: really killing processes is what the tests of crashes are for.
    await store.execute("HSET", keys.task(handle.id), "deaths", 2, "death:1", "1 w1 killed", "death:2", "2 w2 killed")
    await handle.cancel()
    await handle.retry()
    await team.work(agent)
    assert await handle.result(timeout=5) == 1
    info = await handle.info()
    assert (info.attempts, len(info.deaths)) == (3, 2)


async def test_cancel_by_filter(team: LocalTeam) -> None:
    """Waiting tasks of a session end; those of another one and those that ended stay."""
    mine = [await team.orc.submit("later", session="s1", delay=n % 2 * 60) for n in range(6)]
    other = await team.orc.submit("later", session="s2")
    sent = await team.orc.admin.cancel(TaskFilter(session="s1"), reason="wrong")
    assert await done(sent) == "6 cancelled"
    assert {(await handle.status()).state for handle in mine} == {TaskState.CANCELLED}
    assert (await mine[0].info()).reason.endswith(": wrong")
    assert (await other.status()).state is TaskState.READY
    assert await done(await team.orc.admin.cancel(TaskFilter(session="s1"))) == "nothing was selected"


async def test_purge(team: LocalTeam) -> None:
    """All that waits in a queue is cancelled, and what waits elsewhere stays."""
    gone = [await team.orc.submit("later", lane="l" if n > 2 else None) for n in range(8)]
    other = await team.orc.submit("another")
    assert await done(await team.orc.admin.purge("skill:later", reason="cleanup")) == "8 cancelled"
    assert {(await handle.status()).state for handle in gone} == {TaskState.CANCELLED}
    assert (await other.status()).state is TaskState.READY
    with pytest.raises(InvalidInput, match=r"skill:NAME"):
        await team.orc.admin.purge("later", reason="cleanup")


async def test_delete_by_filter(team: LocalTeam) -> None:
    """Dead letters of a filter go for good; a filter may ask for other ends, but not for tasks that wait."""
    flaky = Flaky()
    await team.work(flaky.agent)
    dead = await team.orc.submit("work")
    with pytest.raises(TaskFailed):
        await dead.result(timeout=5)
    cancelled = await team.orc.submit("later")
    await cancelled.cancel()
    assert await done(await team.orc.admin.delete(TaskFilter())) == "1 deleted"
    assert await done(await team.orc.admin.delete(TaskFilter(states=["cancelled"]))) == "1 deleted"
    with pytest.raises(InvalidInput, match="ready cannot be meant"):
        await team.orc.admin.delete(TaskFilter(states=["ready"]))


async def test_listing_follows_a_retry(team: LocalTeam) -> None:
    """A requeued task is listed as what it is now, although the stream of ends still tells of its death."""
    flaky = Flaky()
    await team.work(flaky.agent)
    handle = await team.orc.submit("work")
    with pytest.raises(TaskFailed):
        await handle.result(timeout=5)
    await team.stop_workers()
    await handle.retry()
    store = team.services.store
    assert await queries.listing(store, states={TaskState.DEAD}, limit=10) == []
    assert [row.state for row in await queries.listing(store, states=(), limit=10)] == [TaskState.READY]


async def test_many_of_one_moment(team: LocalTeam) -> None:
    """A walk in pages finds each once, however many have one place in their order; a limit says if there are more."""
    at = datetime.now(UTC) + timedelta(hours=1)
    handles = await team.orc.submit_many([Submission("later", at=at) for _ in range(1201)])
    found = await select(team.services.store, TaskFilter(skill="later"), among=OPEN, limit=None)
    assert sorted(found.ids) == sorted(handle.id for handle in handles)
    cut = await select(team.services.store, TaskFilter(skill="later"), among=OPEN, limit=1200)
    assert (len(cut.tasks), cut.more, found.more) == (1200, True, False)


async def test_every_place_is_found(team: LocalTeam) -> None:
    """Tasks that wait, are held, parked, asking or running are found, and those behind them in a lane too."""
    agent = Agent("placed", concurrency=3)
    release = anyio.Event()

    @agent.skill
    async def run() -> None:
        await release.wait()

    @agent.skill
    async def ask(ctx: TaskContext) -> str:
        return str(await ctx.ask("go on?"))

    await team.work(agent)
    made = {
        "running": await team.orc.submit("run"),
        "lane": await team.orc.submit("run", lane="l"),
        "behind": await team.orc.submit("run", lane="l"),
        "awaiting_input": await team.orc.submit("ask"),
        "ready": await team.orc.submit("nobody"),
        "parked": await team.orc.submit("nobody", agent="placed"),
        "scheduled": await team.orc.submit("run", delay=60),
    }
    await team.orc.admin.stop(session="s")
    made["held"] = await team.orc.submit("run", session="s")

    async def found(**wanted: object) -> set[str]:
        selection = await select(team.services.store, TaskFilter(**wanted), among=OPEN)  # type: ignore[arg-type]
        names = {handle.id: name for name, handle in made.items()}
        return {names[id_] for id_ in selection.ids}

    async def all_found() -> bool:
        return await found() == set(made) and await found(states=["awaiting_input"]) == {"awaiting_input"}

    await wait_for(all_found, "all to be in their places")
    assert await found(states=["running"]) == {"running", "lane"}
    assert await found(states=["scheduled"]) == {"scheduled"}
    assert await found(states=["ready"]) == {"behind", "ready", "parked", "held"}
    assert await found(queue="agent:placed") == {"parked"}
    release.set()


@pytest.mark.parametrize("settings", [{"control__secret": "a secret of this test"}], indirect=True)
@pytest.mark.parametrize("change", ["nothing", "add", "swap", "lose"])
async def test_selections_are_signed(settings: Settings, change: str) -> None:
    """The signature of a job covers its tasks: whoever changes what is stored for it makes the supervisor refuse it."""
    async with run_local_team(settings, supervised=False) as team:
        mine, other = await team.orc.submit("later"), await team.orc.submit("later")
        sent = await team.orc.admin.cancel([mine.id])
        store, key = team.services.store, team.services.keys.selection(sent.id)
        if change == "add":
            await store.execute("RPUSH", key, other.id)
        elif change == "swap":
            await store.execute("LSET", key, 0, other.id)
        elif change == "lose":
            await store.execute("DEL", key)
        await team.start_supervisor()
        (receipt,) = (await sent.receipts(timeout=10)).answered
        assert receipt.word == ("done" if change == "nothing" else "refused"), receipt
        cancelled = TaskState.CANCELLED if change == "nothing" else TaskState.READY
        assert [(await one.status()).state for one in (mine, other)] == [cancelled, TaskState.READY]
