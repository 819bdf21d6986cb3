"""`orc tasks why|cancel|delete` typed beside a team in this process: effects, forms of output, exit codes."""

from __future__ import annotations

import re
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Cause, KeyConflict, TaskCancelled
from orchestrator.tasks.model import TaskState
from orchestrator.views.control import list_commands
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Done, Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam

UNKNOWN_ID = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"
GONE = "does not exist, or its retention has passed"


class Orc(Protocol):
    """Types `orc tasks …` and answers what it did."""

    async def __call__(self, *arguments: str) -> Done:
        """Run it."""


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal whose commands see the team's pool."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


@pytest.fixture
def orc(terminal: Terminal) -> Orc:
    """Runs a command in a thread, while the team goes on."""

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, "tasks", *arguments))

    return typed


class Stubborn:
    """An agent with a skill that ends at once, and one that ignores its cancellation until it is let go."""

    def __init__(self) -> None:
        self.agent, self.let_go, self.started = Agent("editor", concurrency=8), anyio.Event(), 0

        @self.agent.skill
        async def work(fail: bool = False) -> str:  # noqa: FBT001, FBT002 - arguments come by name
            if fail:
                raise ValueError("too hot \x1b[31m")
            return "done"

        @self.agent.skill
        async def stay() -> None:
            self.started += 1
            with anyio.CancelScope(shield=True):
                await self.let_go.wait()
            await anyio.sleep_forever()


@pytest.fixture
async def stubborn(team: LocalTeam) -> Stubborn:
    """The agent, at work."""
    made = Stubborn()
    await team.work(made.agent)
    return made


async def running(team: LocalTeam, stubborn: Stubborn) -> TaskHandle[Any]:
    """A task that runs."""
    before = stubborn.started
    handle = await team.orc.submit("stay")
    await wait_for(lambda: stubborn.started > before, "it to run")
    return handle


async def ended(team: LocalTeam) -> TaskHandle[Any]:
    """A task that has succeeded."""
    handle = await team.orc.submit("work", key="k", tags=["t"])
    await handle.result(TIMEOUT_S)
    return handle


# ------------------------------------------------------------------------------------------------------------------ why


async def test_why(team: LocalTeam, orc: Orc) -> None:
    """The table is one line that begins with the state; programs get the cause and what belongs to it alone."""
    task = (await team.orc.submit("nobody_can")).id
    text = "parked: no live agent has the skill 'nobody_can'; start one with `orc worker run` that has"
    assert await orc("why", task) == Done(0, f"ready: {text}\n", "")
    known = {"id": task, "state": "ready", "cause": "no_agent", "text": text, "skill": "nobody_can"}
    known["queue"] = "skill:nobody_can"
    assert (await orc("why", task, "-o", "json")).json() == known
    line = await orc("why", task, "-o", "jsonl")
    assert (line.json(), line.out.count("\n")) == (known, 1)
    assert (await orc("why", task, "-o", "id")).out == f"{task}\n"
    assert text in (await orc("show", task)).out
    assert (await orc("show", task, "-o", "json")).json()["why"] == text


async def test_why_of_a_time(team: LocalTeam, orc: Orc) -> None:
    """Times are RFC 3339 for programs, and a time of day with its distance for people."""
    task = (await team.orc.submit("work", delay=90)).id
    found = (await orc("why", task, "-o", "json")).json()
    assert found["cause"] == Cause.SCHEDULED
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", found["until"])
    shown = (await orc("why", task)).out
    assert re.fullmatch(r"scheduled: starts no earlier than .*\d\d:\d\d:\d\d UTC \(in (90|89) s\)\n", shown)


async def test_why_commands_no_terminal(team: LocalTeam, orc: Orc, stubborn: Stubborn) -> None:
    """What a handler wrote into its failure cannot command the terminal."""
    handle = await team.orc.submit("work", {"fail": True}, max_attempts=1)
    await wait_for(lambda: _is(handle, TaskState.DEAD), "its end")
    done = await orc("why", handle.id)
    assert done.out.endswith("ago): ValueError: too hot \\x1b[31m\n")


async def test_queues_tell_why_their_heads_wait(team: LocalTeam, terminal: Terminal, stubborn: Stubborn) -> None:
    """`orc queues list` and `orc status` say what the first task of each queue waits for."""
    unserved = [await team.orc.submit("nobody_can") for _ in range(2)]
    due = await team.orc.submit("work", delay=60)
    typed = partial(anyio.to_thread.run_sync, terminal.orc)
    rows = {row["queue"]: row for row in (await typed("queues", "list", "-o", "json")).json()["items"]}
    assert {queue: (row["tasks"], row["head"], row["cause"]) for queue, row in rows.items()} == {
        "skill:nobody_can": (2, unserved[0].id, "no_agent"),
        "scheduled": (1, due.id, "scheduled"),
    }
    for words in (["queues", "list"], ["status"]):
        lines = (await typed(*words)).out.splitlines()
        (line,) = [line for line in lines if line.startswith("skill:nobody_can")]
        assert "no live agent has the skill 'nobody_can'; start one with" in line
    for handle in (*unserved, due):
        await handle.cancel()
    assert (await typed("queues", "list")).err == "no tasks wait\n"


async def test_why_of_nothing(team: LocalTeam, orc: Orc) -> None:
    """An unknown task is exit code 3."""
    assert await orc("why", UNKNOWN_ID) == Done(3, "", f"error: task {UNKNOWN_ID} {GONE}\n")


async def _is(handle: TaskHandle[Any], state: TaskState) -> bool:
    return (await handle.status()).state is state


# --------------------------------------------------------------------------------------------------------------- cancel


async def test_cancel(team: LocalTeam, orc: Orc, stubborn: Stubborn) -> None:
    """One call ends what waits and stops what runs; per id it says what was done, in every form."""
    ready, scheduled = await team.orc.submit("nobody_can"), await team.orc.submit("work", delay=60)
    runs, over = await running(team, stubborn), await ended(team)
    ids = [ready.id, scheduled.id, runs.id, over.id, UNKNOWN_ID]
    done = await orc("cancel", *ids, ready.id, "--reason", "wrong input")
    assert (done.code, done.err) == (6, "")
    words = ["ended", "ended", "told to stop", "had ended before: succeeded", GONE]
    assert [line.split(None, 1) for line in done.out.splitlines()] == [
        ["ID", "DONE"],
        *[[id_, text] for id_, text in zip(ids, words, strict=True)],
    ]
    for handle in (ready, scheduled):
        with pytest.raises(TaskCancelled, match="wrong input"):
            await handle.result(TIMEOUT_S)
    assert (await runs.status()).detail.reason == "wrong input"
    again = await orc("cancel", *ids, "-o", "json")
    assert again.code == 6
    assert again.json()["items"] == [
        {"id": ready.id, "status": "already", "state": "cancelled"},
        {"id": scheduled.id, "status": "already", "state": "cancelled"},
        {"id": runs.id, "status": "signalled", "state": "cancelling"},
        {"id": over.id, "status": "already", "state": "succeeded"},
        {"id": UNKNOWN_ID, "status": "unknown", "state": None},
    ]
    lines = await orc("cancel", *ids, "-o", "jsonl")
    assert [line for line in lines.out.splitlines() if '"signalled"' in line] == [
        f'{{"id":"{runs.id}","status":"signalled","state":"cancelling"}}'
    ]
    bare = await orc("cancel", *ids, "-o", "id")
    assert (bare.out.split(), bare.err) == (ids[:-1], f"task {UNKNOWN_ID}: {GONE}\n")
    stubborn.let_go.set()
    with pytest.raises(TaskCancelled, match="wrong input"):
        await runs.result(TIMEOUT_S)


async def test_cancel_exit_codes(team: LocalTeam, orc: Orc) -> None:
    """0: none of them will run on; 3: all unknown; 6: some."""
    task = (await team.orc.submit("nobody_can")).id
    for ids, code in (([task], 0), ([task], 0), ([UNKNOWN_ID], 3), ([task, UNKNOWN_ID], 6)):
        assert (await orc("cancel", *ids)).code == code, ids


async def test_cancel_many(team: LocalTeam, orc: Orc) -> None:
    """More ids than one script call takes are cancelled in several."""
    from orchestrator import Submission

    handles = await team.orc.submit_many([Submission("nobody_can") for _ in range(501)])
    done = await orc("cancel", *[handle.id for handle in handles], "-o", "id")
    assert (done.code, len(done.out.split())) == (0, 501)
    assert await _is(handles[-1], TaskState.CANCELLED)


async def test_cancel_and_wait(team: LocalTeam, orc: Orc, stubborn: Stubborn) -> None:
    """With --wait it comes back when what ran has ended, or when the time is over: exit code 5, and the stop stands."""
    runs, waits = await running(team, stubborn), await team.orc.submit("nobody_can")
    late = await orc("cancel", runs.id, waits.id, "--wait", "--timeout", "200ms")
    assert late.code == 5
    assert f"{runs.id}  told to stop, not ended after 200ms\n" in late.out
    assert f"{waits.id}  ended\n" in late.out
    finished: list[Done] = []

    async def wait() -> None:
        finished.append(await orc("cancel", runs.id, "--wait", "-o", "json"))

    async def told_twice() -> bool:
        return len(await list_commands(team.services)) == 2

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await wait_for(told_twice, "the record of the second command", 10)
        assert not finished
        stubborn.let_go.set()
    assert finished[0].code == 0
    assert finished[0].json()["items"] == [{"id": runs.id, "status": "signalled", "state": "cancelled"}]


async def test_interrupted_cancel(team: LocalTeam, terminal: Terminal, stubborn: Stubborn) -> None:
    """Ctrl-C ends the waiting with exit code 130; the task was told to stop all the same."""
    runs = await running(team, stubborn)
    with terminal.start("tasks", "cancel", runs.id, "--wait") as waiting:
        await wait_for(lambda: _is_cancelling(runs), lambda: waiting.describe("its cancellation"), 10)
        await anyio.sleep(0.2)
        waiting.signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(waiting.wait_exit) == 130
        assert waiting.output == "interrupted\n"
    stubborn.let_go.set()
    with pytest.raises(TaskCancelled):
        await runs.result(TIMEOUT_S)


async def _is_cancelling(handle: TaskHandle[Any]) -> bool:
    return (await handle.status()).detail.cause is Cause.CANCELLING


# --------------------------------------------------------------------------------------------------------------- delete


async def test_delete(team: LocalTeam, orc: Orc, stubborn: Stubborn) -> None:
    """Ended tasks go for good, and their keys are free again; others are refused; per id it says what was done."""
    over, runs = await ended(team), await running(team, stubborn)
    waits = await team.orc.submit("nobody_can")
    with pytest.raises(KeyConflict):
        await team.orc.submit("nobody_can", key="k")
    ids = [over.id, runs.id, waits.id, UNKNOWN_ID]
    done = await orc("delete", *ids, "--yes")
    assert (done.code, done.err) == (6, "")
    words = [
        "deleted",
        "has not ended, it is assigned: cancel it first",
        "has not ended, it is ready: cancel it first",
        GONE,
    ]
    assert [line.split(None, 1) for line in done.out.splitlines()[1:]] == [
        [id_, text] for id_, text in zip(ids, words, strict=True)
    ]
    assert (await orc("show", over.id)).code == 3
    assert over.id not in (await orc("list", "-o", "id")).out
    assert await _is(await team.orc.submit("nobody_can", key="k"), TaskState.READY)
    assert [await _is(handle, state) for handle, state in ((runs, TaskState.RUNNING), (waits, TaskState.READY))] == [
        True,
        True,
    ]
    stubborn.let_go.set()


async def test_delete_forms_and_exit_codes(team: LocalTeam, orc: Orc) -> None:
    """0 deleted, 3 unknown, 4 refused, 6 some of each, 1 several reasons and nothing done; as JSON, lines and ids."""
    waits = await team.orc.submit("nobody_can")
    over = [await team.orc.submit("nobody_can") for _ in range(4)]
    for handle in over:
        await handle.cancel()
    gone = [handle.id for handle in over]
    assert (await orc("delete", gone[0], "--yes", "-o", "json")).json()["items"] == [
        {"id": gone[0], "status": "deleted", "state": None}
    ]
    some = await orc("delete", gone[1], waits.id, "--yes", "-o", "id")
    assert (some.code, some.out) == (6, f"{gone[1]}\n")
    assert some.err == f"task {waits.id}: has not ended, it is ready: cancel it first\n"
    refused = await orc("delete", waits.id, "--yes", "-o", "jsonl")
    assert (refused.code, refused.out) == (4, f'{{"id":"{waits.id}","status":"refused","state":"ready"}}\n')
    for ids, code in (([gone[2], gone[3]], 0), ([UNKNOWN_ID], 3), ([UNKNOWN_ID, waits.id], 1)):
        assert (await orc("delete", *ids, "--yes")).code == code, ids
    assert await _is(waits, TaskState.READY)


async def test_delete_asks(team: LocalTeam, orc: Orc) -> None:
    """Without --yes and without a terminal nothing is deleted: exit code 4, in one line that says how many."""
    handle = await team.orc.submit("nobody_can")
    await handle.cancel()
    done = await orc("delete", handle.id, UNKNOWN_ID)
    said = "error: cannot ask for confirmation to delete 2 tasks without a terminal; add --yes to confirm\n"
    assert done == Done(4, "", said)
    assert await _is(handle, TaskState.CANCELLED)


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 4), ("\x03", 130)])
async def test_delete_obeys_the_answer(team: LocalTeam, terminal: Terminal, answer: str, code: int) -> None:
    """On a terminal it asks with the count; anything but yes deletes nothing, Ctrl-C ends the question."""
    handle = await team.orc.submit("nobody_can")
    await handle.cancel()
    typed = partial(terminal.answer, "tasks", "delete", handle.id, answer=answer)
    screen, returned = await anyio.to_thread.run_sync(typed)
    assert "delete 1 task? This cannot be undone. [y/N] " in screen
    assert returned == code, screen
    deleted = await orc_knows(terminal, handle.id) == 3
    assert deleted == (code == 0)


async def test_delete_names_what_a_beginning_means(team: LocalTeam, terminal: Terminal, orc: Orc) -> None:
    """The question has the whole id; --yes takes no beginning, because an older task may begin so too."""
    handle = await team.orc.submit("nobody_can")
    await handle.cancel()
    begin = handle.id[:-1]
    done = await orc("delete", begin, "--yes")
    said = f"error: --yes needs whole ids, and {begin} is the beginning of one; give the whole id\n"
    assert done == Done(2, "", said)
    typed = partial(terminal.answer, "tasks", "delete", begin, answer="n\n")
    screen, returned = await anyio.to_thread.run_sync(typed)
    assert (f"delete 1 task ({handle.id})? This cannot be undone." in screen, returned) == (True, 4), screen
    assert await _is(handle, TaskState.CANCELLED)
    typed = partial(terminal.answer, "tasks", "delete", begin, answer="y\n")
    screen, returned = await anyio.to_thread.run_sync(typed)
    assert returned == 0, screen
    assert await orc_knows(terminal, handle.id) == 3


async def orc_knows(terminal: Terminal, task: str) -> int:
    """The exit code of showing a task."""
    return (await anyio.to_thread.run_sync(terminal.orc, "tasks", "show", task)).code
