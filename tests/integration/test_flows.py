"""Flows with real workers: results by reference, failures, repeats, children."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import pytest
from pydantic import AfterValidator, BaseModel, field_serializer

from orchestrator import (
    After,
    Agent,
    CancelStatus,
    Cause,
    Flow,
    InvalidInput,
    KeyConflict,
    NotFound,
    OrchestratorError,
    Reject,
    Retry,
    SubmitRefused,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskFilter,
    TaskState,
    UpgradeUnfinished,
)
from orchestrator.core.formats import FORMAT, Feature, Floor
from orchestrator.services import Endpoint, PoolKeys, SyncStore
from orchestrator.sync import Orchestrator as SyncOrchestrator
from orchestrator.tasks import scripts
from orchestrator.tasks.submission import Submission
from orchestrator.views.status import read_status
from orchestrator.workers.runtime import filling
from orchestrator.workers.testing import run_skill
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import TaskHandle
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

pytestmark = pytest.mark.every_server
LONG_S = 6 * TIMEOUT_S


CHECKED_IN: list[int] = []
"""The threads that have checked arguments."""


def note_thread(value: Any) -> Any:
    """Note which thread checks an argument."""
    CHECKED_IN.append(threading.get_ident())
    return value


def reviewer(**options: Any) -> Agent:
    """An agent whose skills a flow joins."""
    agent = Agent("reviewer", concurrency=4)

    @agent.skill(**options)
    async def fetch(url: str, size: int = 1) -> dict[str, Any]:
        if url == "bad":
            raise Reject("no such page")
        return {"url": url, "words": ["null", "ü" * size]}

    @agent.skill
    async def judge(pages: list[Any], title: str = "") -> list[Any]:
        return [title, *pages]

    @agent.skill
    async def count(text: str) -> int:
        return len(text)

    return agent


async def is_in(handle: TaskHandle[Any], state: TaskState) -> None:
    """Wait for the state of a task."""

    async def found() -> bool:
        return (await handle.status()).state is state

    await wait_for(found, str(state), TIMEOUT_S)


async def test_results_by_reference(team: LocalTeam) -> None:
    """Results stand anywhere in the arguments of later tasks; texts that look like places stay as they are."""
    await team.work(reviewer())
    flow = Flow("review")
    pages = [flow.task("fetch", {"url": f"p{n}"}) for n in range(3)]
    given = ["null", {"deep": [pages[0].result]}, *[page.result for page in pages]]
    judged = flow.task("judge", {"pages": given, "title": 'a "null"'})
    handle = await team.orc.submit_flow(flow)
    assert handle.names == ["fetch", "fetch-2", "fetch-3", "judge"]
    found = await handle.results(LONG_S)
    values = [{"url": f"p{n}", "words": ["null", "ü"]} for n in range(3)]
    assert found["judge"] == ['a "null"', "null", {"deep": [values[0]]}, *values]
    assert await handle.task(judged).result(LONG_S) == found["judge"]
    with pytest.raises(NotFound, match="no task 'fetch-4'"):
        handle.task("fetch-4")


async def test_large_results(team: LocalTeam) -> None:
    """Results and arguments that are stored apart from the record are read too."""
    await team.work(reviewer())
    flow = Flow("large")
    page = flow.task("fetch", {"url": "p", "size": 20_000})
    flow.task("judge", {"pages": [page.result, page.result], "title": "x" * 20_000})
    found = await (await team.orc.submit_flow(flow)).results(LONG_S)
    assert found["judge"] == ["x" * 20_000, found["fetch"], found["fetch"]]


async def test_failures(team: LocalTeam) -> None:
    """A failure cancels what follows; a task with a default runs all the same."""
    await team.work(reviewer())
    flow = Flow("review")
    bad = flow.task("fetch", {"url": "bad"})
    flow.task("judge", {"pages": [bad.result]}, name="lost")
    flow.task("judge", {"pages": [bad.result_or({"none": True})]}, name="kept")
    flow.task("judge", {"pages": []}, after=[After(bad, failed="run")], name="late")
    handle = await team.orc.submit_flow(flow)
    found = await handle.results(LONG_S, failed="collect")
    assert isinstance(found["fetch"], TaskFailed)
    assert isinstance(found["lost"], TaskCancelled)
    assert str(handle.task("fetch").id) in str(found["lost"])
    assert (found["kept"], found["late"]) == (["", {"none": True}], [""])
    with pytest.raises(TaskFailed, match="no such page"):
        await handle.results(LONG_S)


@pytest.mark.parametrize("failed", ["raise", "collect"])
async def test_a_failure_behind_a_task_that_runs(team: LocalTeam, failed: Any) -> None:
    """`results` raises the error of a task at once, and waits for the others only if it collects."""
    flow = Flow("review")
    flow.task("fetch", {"url": "p"}, name="late", agent="absent")
    bad = flow.task("fetch", {"url": "bad"})
    flow.task("judge", {"pages": [bad.result]}, name="lost")
    handle = await team.orc.submit_flow(flow)
    await team.work(reviewer())
    error = TaskFailed if failed == "raise" else TimeoutError
    with pytest.raises(error, match="no such page" if failed == "raise" else "1 of 3 tasks have not ended after 5 s"):
        await handle.results(LONG_S if failed == "raise" else 5, failed=failed)
    with pytest.raises(TimeoutError if failed == "collect" else TaskFailed):
        await handle.results(0, failed=failed)


async def test_waits_of_results(team: LocalTeam) -> None:
    """A wait that takes too long tells how many tasks run, and what the first one waits for; 0 asks once."""
    flow = Flow("review")
    page = flow.task("fetch", {"url": "p"})
    flow.task("judge", {"pages": [page.result]})
    handle = await team.orc.submit_flow(flow)
    with pytest.raises(
        TimeoutError, match=r"2 of 2 tasks have not ended after 0.2 s; .* Task 'fetch' is ready: parked"
    ):
        await handle.results(0.2)
    with pytest.raises(TimeoutError, match=r"2 of 2 tasks have not ended after 0 s; they go on, ask again$"):
        await handle.results(0)
    await team.work(reviewer())
    assert await handle.results(LONG_S) == await handle.results(0)
    assert handle.task(page).id == handle.task("fetch").id
    with pytest.raises(NotFound, match="is not a task of the flow 'review' that was submitted"):
        handle.task(Flow("review").task("fetch"))


async def test_results_after_a_retry(team: LocalTeam) -> None:
    """A task that another program has requeued is waited for again, within the timeout, and a closed client tells."""
    flow = Flow("review")
    first, second = flow.task("fetch", {"url": "bad"}), flow.task("fetch", {"url": "bad"})
    client = await team.client()
    handle = await client.submit_flow(flow)
    worker = await team.work(reviewer())
    async for ended in client.as_completed(handle.handles):
        with pytest.raises(TaskFailed):
            await ended.result()
    await team.stop(worker)
    await team.orc.task(handle.task(first).id).retry()
    with pytest.raises(TimeoutError, match=r"1 of 2 tasks have not ended after 0\.3 s"):
        await handle.results(0.3, failed="collect")
    with pytest.raises(TaskFailed, match=handle.task(second).id):
        await handle.results(0.3)
    await client.aclose()
    with pytest.raises(OrchestratorError, match="is closed; ask an open one"):
        await handle.results()


async def test_known_results_of_a_closed_client(team: LocalTeam) -> None:
    """What the client knew before it was closed is told."""
    await team.work(reviewer())
    client = await team.client()
    flow = Flow("review")
    flow.task("fetch", {"url": "bad"})
    handle = await client.submit_flow(flow)
    async for _ in client.as_completed(handle.handles):
        await client.aclose()
    for timeout in (None, 0):
        with pytest.raises(TaskFailed, match="no such page"):
            await handle.results(timeout)


async def test_arguments_are_checked_after_filling(team: LocalTeam) -> None:
    """A result of the wrong type makes the task a dead letter, as wrong arguments do."""
    agent = reviewer()
    await team.work(agent)
    flow = Flow("wrong")
    page = flow.task(agent.skills["fetch"], {"url": "p"})
    flow.task(agent.skills["count"], {"text": page.result})
    with pytest.raises(TaskFailed, match="text"):
        await (await team.orc.submit_flow(flow)).results(LONG_S)


async def test_a_lost_result(team: LocalTeam) -> None:
    """A result that is gone makes the task that takes it a dead letter with a sentence."""
    flow = Flow("lost")
    page = flow.task("fetch", {"url": "p"})
    flow.task("judge", {"pages": [page.result]}, lane="one")
    first = await team.orc.submit("judge", {"pages": []}, lane="one", agent="absent")
    handle = await team.orc.submit_flow(flow)
    await team.work(reviewer())
    await handle.task("fetch").result(LONG_S)
    store = team.orc.services.store
    await store.call(scripts.delete(store.keys, ids=[handle.task("fetch").id]))
    await first.cancel()
    with pytest.raises(TaskFailed, match="is not kept any longer"):
        await handle.task("judge").result(LONG_S)


@pytest.mark.parametrize("lost", ["result", "end"])
async def test_a_default_is_for_failures_only(team: LocalTeam, lost: str) -> None:
    """A default stands in neither for a lost result of a task that succeeded, nor for one of a task that runs again."""
    flow = Flow("lost")
    page = flow.task("fetch", {"url": "p"})
    flow.task("judge", {"pages": [page.result_or("none")]}, lane="one")
    first = await team.orc.submit("judge", {"pages": []}, lane="one", agent="absent")
    handle = await team.orc.submit_flow(flow)
    await team.work(reviewer())
    await handle.task("fetch").result(LONG_S)
    store, key = team.orc.services.store, team.orc.services.keys.task(handle.task("fetch").id)
    assert await store.execute("HDEL", key, "result") == 1
    if lost == "end":
        await store.execute("HSET", key, "state", "ready")
    await first.cancel()
    said = "is not kept any longer" if lost == "result" else "has not ended; retry this task after it"
    with pytest.raises(TaskFailed, match=said):
        await handle.task("judge").result(LONG_S)


async def test_results_that_are_too_large_together(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that arguments take many times cannot fill the memory of the worker."""
    monkeypatch.setattr(filling, "MOST_BYTES", 2_000_000)
    await team.work(reviewer())
    flow = Flow("large")
    page = flow.task("fetch", {"url": "p", "size": 20_000})
    flow.task("judge", {"pages": [page.result] * 40}, name="fits")
    flow.task("judge", {"pages": [page.result] * 60}, name="large")
    found = await (await team.orc.submit_flow(flow)).results(LONG_S, failed="collect")
    assert str(found["fits"]).count("result of 'judge' would be") == 1  # it has run
    assert "would have 2,4" in str(found["large"])
    assert "at most 2,000,000 are allowed" in str(found["large"])


async def test_key(team: LocalTeam) -> None:
    """A second submit with the key returns the same tasks; another flow with it is refused."""
    await team.work(reviewer())

    def review(url: str) -> Flow:
        flow = Flow("review")
        page = flow.task("fetch", {"url": url})
        flow.task("judge", {"pages": [page.result]})
        return flow

    first = await team.orc.submit_flow(review("a"), key="k")
    await first.results(LONG_S)
    second = await team.orc.submit_flow(review("a"), key="k")
    assert [one.id for one in second.handles] == [one.id for one in first.handles]
    assert await second.results(LONG_S) == await first.results(LONG_S)
    with pytest.raises(KeyConflict, match="key 'k' already belongs to task"):
        await team.orc.submit_flow(review("b"), key="k")
    with pytest.raises(KeyConflict, match="key 'k' already belongs to task"):
        await team.orc.submit("fetch", {"url": "a"}, key="k")
    await team.orc.submit("fetch", {"url": "a"}, key="one")
    with pytest.raises(KeyConflict, match="key 'one' already belongs to task"):
        await team.orc.submit_flow(review("a"), key="one")


async def test_a_repeat_whose_tasks_are_gone(team: LocalTeam) -> None:
    """A repeat makes no task again: the error names a task that is gone, and has the handles of the others."""
    flow = Flow("review")
    for _ in range(3):
        flow.task("fetch", {"url": "a"})
    first = await team.orc.submit_flow(flow, key="k")
    await first.cancel()
    ids, store = [one.id for one in first.handles], team.orc.services.store
    await store.call(scripts.delete(store.keys, ids=ids[1:2]))
    with pytest.raises(SubmitRefused) as refused:
        await team.orc.submit_flow(flow, key="k")
    assert str(refused.value) == (
        "flow 'review' was submitted before with key 'k', and its task 'fetch-2' is not kept any longer; submit it "
        f"with another key. Its other tasks: {ids[0]}, {ids[2]}"
    )
    assert [getattr(one, "id", None) for one in refused.value.outcomes] == [ids[0], None, ids[2]]


async def test_another_flow_or_task_of_an_earlier_attempt(team: LocalTeam) -> None:
    """A flow at the place where the earlier attempt submitted a task is a conflict, and the other way round."""
    agent, conflicts = Agent("lead", concurrency=2), list[str]()

    @agent.skill
    async def lead(ctx: TaskContext, first: str) -> None:
        flow = Flow("below")
        flow.task("fetch", {"url": "a"}, agent="absent")
        try:
            if (first == "flow") == (ctx.attempt == 1):
                await ctx.submit_flow(flow)
            else:
                await ctx.submit("fetch", {"url": "a"}, agent="absent")
        except KeyConflict:
            conflicts.append(first)
            return
        raise Retry(delay=0)

    await team.work(agent)
    for first in ("flow", "task"):
        await (await team.orc.submit("lead", {"first": first})).result(LONG_S)
    assert conflicts == ["flow", "task"]


@pytest.mark.parametrize("change", ["names", "place", "default"])
async def test_another_flow_with_the_same_key(team: LocalTeam, change: str) -> None:
    """Other names, another place of a result and another default make another flow."""

    def review(*, changed: bool) -> Flow:
        flow = Flow("review")
        page = flow.task("fetch", {"url": "a"}, name="other" if changed and change == "names" else None)
        taken: list[Any] = [page.result_or(2 if changed and change == "default" else 1), None]
        if changed and change == "place":
            taken.reverse()
        flow.task("judge", {"pages": taken}, name="last" if changed and change == "names" else None)
        return flow

    first = await team.orc.submit_flow(review(changed=False), key="k")
    second = await team.orc.submit_flow(review(changed=False), key="k")
    assert [one.id for one in second.handles] == [one.id for one in first.handles]
    with pytest.raises(KeyConflict):
        await team.orc.submit_flow(review(changed=True), key="k")
    assert len(await team.orc.tasks.find()) == 2


async def test_all_or_nothing(team: LocalTeam) -> None:
    """A task that is refused keeps the flow out, and the error tells which one and why."""
    flow = Flow("review")
    page = flow.task("fetch", {"url": "a"})
    flow.task("judge", {"pages": [page.result]}, budget="none")
    with pytest.raises(SubmitRefused, match="none of its tasks was stored: task 'judge': budget 'none'") as refused:
        await team.orc.submit_flow(flow)
    assert [type(one) for one in refused.value.outcomes] == [SubmitRefused, SubmitRefused]
    assert not await team.orc.tasks.find()


async def test_cancel(team: LocalTeam) -> None:
    """A cancel of the flow ends all of its tasks."""
    flow = Flow("review")
    page = flow.task("fetch", {"url": "a"})
    flow.task("judge", {"pages": [page.result]})
    handle = await team.orc.submit_flow(flow)
    assert (await handle.task("judge").status()).state is TaskState.AWAITING_TASKS
    assert await handle.cancel("enough") == {"fetch": CancelStatus.ENDED, "judge": CancelStatus.ENDED}
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.task("judge").result(LONG_S)


async def test_commands(team: LocalTeam, tmp_path: Path) -> None:
    """`orc tasks why`, `show` and `list` tell what a task waits for."""
    flow = Flow("review")
    page = flow.task("fetch", {"url": "a"})
    flow.task("judge", {"pages": [page.result]})
    handle = await team.orc.submit_flow(flow)
    fetch, judge = [one.id for one in handle.handles]
    status = await handle.task("judge").status()
    assert status.detail.cause is Cause.PREDECESSORS
    assert status.why.startswith(f"runs after 1 task of its flow, which has not ended: {fetch}; task {fetch}: ")
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def orc(*typed: str) -> Any:
        done = await anyio.to_thread.run_sync(partial(terminal.orc, *typed, "-o", "json"))
        assert done.code == 0, done.err
        return json.loads(done.out)

    assert fetch in str(await orc("tasks", "why", judge))
    assert (await orc("tasks", "show", judge))["after"] == [fetch]
    assert (await orc("tasks", "show", fetch))["followers"] == [judge]
    assert [one.id for one in await team.orc.tasks.find(states=["awaiting_tasks"])] == [judge]
    assert judge in str(await orc("tasks", "list", "--state", "awaiting_tasks"))
    assert (await read_status(team.services)).now["awaiting_tasks"] == 1


async def test_children(team: LocalTeam) -> None:
    """A handler submits a flow, joins it without a slot, and finds it again in its next attempt."""
    agent = Agent("lead", concurrency=1)

    @agent.skill
    async def double(n: int) -> int:
        return 2 * n

    @agent.skill
    async def lead(ctx: TaskContext) -> list[int]:
        flow = Flow("below")
        first = flow.task("double", {"n": 1})
        flow.task("double", {"n": first.result})
        handle = await ctx.submit_flow(flow)
        return [one.value for one in await ctx.join(handle.handles)]

    await team.work(agent)
    handle = await team.orc.submit("lead")
    assert await handle.result(LONG_S) == [2, 4]
    assert len(await team.orc.tasks.tree(handle.id)) == 3


async def test_diamond_of_500(team: LocalTeam) -> None:
    """One task, 498 behind it, and one behind all of these."""
    agent = Agent("many", concurrency=16)

    @agent.skill
    async def add(numbers: list[int]) -> int:
        return sum(numbers) + 1

    await team.work(agent)
    flow = Flow("diamond")
    root = flow.task("add", {"numbers": []})
    wide = [flow.task("add", {"numbers": [root.result]}) for _ in range(498)]
    last = flow.task("add", {"numbers": [one.result for one in wide]})
    handle = await team.orc.submit_flow(flow)
    assert await handle.task(last).result(3 * LONG_S) == 2 * 498 + 1


async def test_lists_in_pages(team: LocalTeam) -> None:
    """Pages go on where the last one ended, also between tasks of flows and those with a delay."""
    delayed = [(await team.orc.submit("judge", {"pages": []}, delay=600)).id for _ in range(3)]
    flow = Flow("review")
    page = flow.task("fetch", {"url": "a"})
    for _ in range(7):
        flow.task("judge", {"pages": [page.result]})
    first, *behind = (await team.orc.submit_flow(flow)).handles
    wanted, found = TaskFilter(states=(TaskState.SCHEDULED, TaskState.AWAITING_TASKS, TaskState.READY)), list[str]()
    after: str | None = None
    for _ in range(20):
        listed = await team.orc.tasks.page(wanted, after=after, limit=2)
        found += [task.id for task in listed.tasks]
        after = listed.cursor
        if after is None:
            break
    assert after is None
    assert sorted(found) == sorted([first.id, *delayed, *[one.id for one in behind]])


async def test_refused_at_the_door() -> None:
    """What a flow cannot be is refused with a sentence, before anything is sent."""
    flow, other = Flow("a"), Flow("b")
    first, foreign = flow.task("x"), other.task("y")
    for wrong, said in (
        (lambda: flow.task("z", after=[foreign]), "task of another flow"),
        (lambda: flow.task("z", {"n": [foreign.result]}), "task of another flow"),
        (lambda: flow.task("z", key="k"), "takes no key="),
        (lambda: flow.task("z", name="x"), "has a task 'x' already"),
        (lambda: After(first, failed="go"), "failed= of After"),  # type: ignore[arg-type]
        (lambda: flow.task("z", after=["x"]), "not after 'x'"),  # type: ignore[list-item]
        (lambda: Flow("no blanks please"), "flow"),
        (lambda: Flow("e").members(), "has no task"),
    ):
        with pytest.raises(InvalidInput, match=said):
            wrong()
    late: dict[str, Any] = {}
    a = flow.task("p", late)
    b = flow.task("q", after=[a])
    late["n"] = b.result
    with pytest.raises(InvalidInput, match=r"cycle.*p, q"):
        flow.members()
    risky = Flow("r")
    c = risky.task("x")
    risky.task("y", {"n": c.result}, after=[After(c, failed="run")])
    with pytest.raises(InvalidInput, match="result_or"):
        risky.members()
    full = Flow("f")
    for _ in range(500):
        full.task("x")
    with pytest.raises(InvalidInput, match="500 tasks"):
        full.task("x")


async def test_an_older_pool(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that admits programs which do not know flows refuses them."""
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.FLOWS)
    flow = Flow("a")
    flow.task("x")
    with pytest.raises(UpgradeUnfinished):
        await team.orc.submit_flow(flow)


async def test_errors_name_the_task(team: LocalTeam) -> None:
    """Errors of arguments, options and defaults name the task and its flow; a serialiser that fails is one of them."""
    agent = reviewer()
    await team.work(agent)

    class Broken(BaseModel):
        url: str

        @field_serializer("url")
        def fail(self, _: str) -> str:
            raise RuntimeError("no text")

    count = agent.skills["count"]
    for given, said in (
        ({"skill": "fetch", "args": Broken(url="a")}, "cannot be sent: .*no text"),
        ({"skill": "fetch", "args": {"url": object()}}, "would contain a object"),
        ({"skill": "fetch", "args": {"url": "a"}, "tags": ["x"] * 65}, "65 tags"),
        ({"skill": count, "args": {"text": 1}}, "text"),
        ({"skill": "fetch", "args": {"link": "a"}}, "link"),
    ):
        flow = Flow("review")
        flow.task("fetch", {"url": "a"})
        flow.task(**given, name="second")
        with pytest.raises(InvalidInput, match=rf"(?s)^task 'second' of flow 'review': .*{said}"):
            await team.orc.submit_flow(flow)
    flow = Flow("review")
    flow.task("judge", {"pages": [flow.task("fetch").result_or("x" * 70_000)]})
    with pytest.raises(InvalidInput, match="task 'judge' of flow 'review': the default of a result in its arguments"):
        await team.orc.submit_flow(flow)
    with pytest.raises(InvalidInput, match="submit_flow takes a Flow, not 'x'"):
        await team.orc.submit_flow("x")  # type: ignore[arg-type]
    assert not await team.orc.tasks.find()


async def test_arguments_that_are_large_together(team: LocalTeam) -> None:
    """They are checked and encoded in a thread."""
    agent = Agent("reader")

    @agent.skill
    async def read(text: Annotated[str, AfterValidator(note_thread)]) -> int:
        return len(text)

    for size, in_thread in ((1_000, False), (100_000, True)):
        flow = Flow("large")
        for _ in range(5):
            flow.task(read, {"text": "x" * size})
        CHECKED_IN.clear()
        await team.orc.submit_flow(flow)
        assert len(CHECKED_IN) == 5
        assert (threading.get_ident() not in CHECKED_IN) == in_thread


async def test_filled_arguments_are_checked_in_a_thread(team: LocalTeam) -> None:
    """Arguments that are large with the results in them do not block the event loop of the worker."""
    agent, loop = reviewer(), threading.get_ident()
    CHECKED_IN.clear()

    @agent.skill
    async def read(pages: Annotated[list[Any], AfterValidator(note_thread)]) -> int:
        return len(pages)

    await team.work(agent)
    for taken in (1, 15):
        flow = Flow("large")
        page = flow.task("fetch", {"url": "p", "size": 10_000})
        flow.task("read", {"pages": [page.result] * taken})
        assert (await (await team.orc.submit_flow(flow)).results(LONG_S))["read"] == taken
    assert [thread != loop for thread in CHECKED_IN] == [False, True]


async def test_a_result_at_a_great_depth(team: LocalTeam) -> None:
    """A result may stand as deep as arguments may be nested."""
    await team.work(reviewer())
    orc = await team.client(queue__max_depth=200)
    flow = Flow("deep")
    value: Any = flow.task("fetch", {"url": "p"}).result
    for _ in range(70):
        value = [value]
    flow.task("judge", {"pages": value})
    found = (await (await orc.submit_flow(flow)).results(LONG_S))["judge"][1]
    for _ in range(69):
        (found,) = found
    assert found == {"url": "p", "words": ["null", "ü"]}


async def test_refused_features_of_other_callers(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit that an older pool refuses does not refuse those of others at the same time."""
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.BUDGETS)
    done, refused = list[str](), list[int]()

    async def submit(number: int) -> None:
        try:
            done.append((await team.orc.submit("x", budget="b" if number == 20 else None)).id)
        except UpgradeUnfinished:
            refused.append(number)

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(submit, number)
    assert (len(done), refused) == (39, [20])
    flow = Flow("a")
    flow.task("x", budget="b")
    with pytest.raises(UpgradeUnfinished):
        await team.orc.submit_flow(flow)
    with pytest.raises(UpgradeUnfinished):
        await team.orc.submit_many([Submission("x"), Submission("x", budget="b")])
    assert len(await team.orc.tasks.find()) == 39


async def test_flows_in_tests() -> None:
    """`run_skill` records the tasks of a flow, and fills in scripted results."""
    agent = reviewer()

    @agent.skill
    async def lead(ctx: TaskContext) -> list[Any]:
        flow = Flow("below")
        page = flow.task("fetch", {"url": "p"})
        lost = flow.task("fetch", {"url": "q"}, name="lost")
        judged = flow.task("judge", {"pages": [page.result, lost.result_or("none")]})
        handle = await ctx.submit_flow(flow)
        return list(await handle.task(judged).result())

    ran = await run_skill(lead, children={"fetch": [{"n": 1}, TaskFailed("x", "no", ())], "judge": [["ok"]]})
    assert ran.value == ["ok"]
    assert (ran.submitted[-1].skill, ran.submitted[-1].args) == ("judge", {"pages": [{"n": 1}, "none"]})


async def test_failures_of_flows_in_tests() -> None:
    """`run_skill` cancels what follows a scripted failure, as the server does; a handler may cancel the rest."""
    agent = reviewer()

    @agent.skill
    async def lead(ctx: TaskContext) -> list[Any]:
        flow = Flow("below")
        bad = flow.task(agent.skills["fetch"], {"url": "bad"})
        text = flow.task(agent.skills["count"], {"text": bad.result})
        flow.task("judge", {"pages": []}, after=[text], name="last")
        flow.task("judge", {"pages": []}, after=[After(bad, failed="run")], name="kept")
        flow.task("judge", {"pages": []}, name="open")
        handle = await ctx.submit_flow(flow)
        said = await handle.cancel("enough")
        found = await handle.results(failed="collect")
        with pytest.raises(TaskFailed):
            await handle.results()
        return [said, *(str(found[name]) for name in ("count", "last", "kept", "open"))]

    ends = [["fine"], TaskCancelled("x", "late")]
    ran = await run_skill(lead, children={"fetch": TaskFailed("x", "no", ()), "count": 7, "judge": ends})
    said, count, last, kept, late = ran.value
    assert set(said.values()) == {CancelStatus.ALREADY}
    assert "after which it runs, is a dead letter" in count
    assert "after which it runs, was cancelled" in last
    assert (kept, late[-4:]) == ("['fine']", "late")


def test_the_blocking_client(redis_server: RedisServer, prefix: str) -> None:
    """The blocking client submits flows, too; the handles in its errors block as well."""
    store = SyncStore(Endpoint.at(redis_server.url), PoolKeys(prefix, "default"), name="test")
    store.execute("SET", store.keys.format, FORMAT)
    with SyncOrchestrator(redis_server.url, prefix=prefix) as orc:
        flow = Flow("a")
        first = flow.task("x")
        flow.task("y", after=[first])
        handle = orc.submit_flow(flow, key="k")
        assert handle.task("y").status().state is TaskState.AWAITING_TASKS
        store.execute("DEL", store.keys.idempotency("k/y"))
        with pytest.raises(SubmitRefused, match="its task 'y' is not kept any longer") as refused:
            orc.submit_flow(flow, key="k")
        kept, gone = refused.value.outcomes
        assert (type(kept), type(gone)) == (type(handle.task("x")), SubmitRefused)
        assert set(handle.cancel()) == {"x", "y"}
        with pytest.raises(TaskCancelled):
            handle.results(5)
    store.close()
