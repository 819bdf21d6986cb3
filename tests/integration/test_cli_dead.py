"""`orc dead`, `orc tasks retry`, `orc queues purge` typed beside a team in this process: effects, forms, exit codes."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, RuleExtractor, Submission, TaskFailed
from orchestrator.tasks.model import TaskState
from tests.helpers.local_team import run_local_team
from tests.helpers.terminal import Done, Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from orchestrator import Fact, Turn
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

UNKNOWN_ID = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"


class Orc(Protocol):
    """Types `orc …` and answers what it did."""

    async def __call__(self, *arguments: str) -> Done:
        """Run it."""


@pytest.fixture
def terminal(settings: Settings, tmp_path: Path) -> Terminal:
    """A terminal whose commands see the pool."""
    url = settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=settings.prefix)


@pytest.fixture
def orc(terminal: Terminal) -> Orc:
    """Runs a command in a thread, while the team goes on."""

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


class Mailer:
    """An agent that fails as long as the mail server is away."""

    def __init__(self) -> None:
        self.away = True
        self.agent = Agent("mailer", concurrency=20)

        @self.agent.skill(max_attempts=1)
        async def send(to: str) -> str:
            if self.away:
                raise ConnectionError(f"no answer for {to} \x1b[31m")
            return to

        @self.agent.skill(max_attempts=1)
        async def sort() -> None:
            if self.away:
                raise KeyError("folder 7")


@pytest.fixture
async def mailer(team: LocalTeam) -> Mailer:
    """The agent, at work."""
    made = Mailer()
    await team.work(made.agent)
    return made


async def bury(team: LocalTeam, *names: str, **options: Any) -> list[TaskHandle[Any]]:
    """Dead letters of `send`, oldest first."""
    handles = []
    for name in names:
        handle = await team.orc.submit("send", {"to": name}, **options)
        with pytest.raises(TaskFailed):
            await handle.result(5)
        handles.append(handle)
    return handles


# ----------------------------------------------------------------------------------------------------------- list, show


async def test_list(team: LocalTeam, orc: Orc, mailer: Mailer) -> None:
    """The newest first, with what was tried and why it ended; filters leave out the others; every form."""
    ann, bob = await bury(team, "ann", "bob", session="s1", tags=["t"])
    done = await orc("dead", "list")
    assert (done.code, done.err) == (0, "")
    head, *lines = done.out.splitlines()
    assert head.split() == ["ID", "SKILL", "AGENT", "ATTEMPTS", "ENDED", "AT", "REASON"]
    assert [line.split()[:4] for line in lines] == [[one.id, "send", "mailer", "1"] for one in (bob, ann)]
    assert lines[0].endswith("ConnectionError: no answer for bob \\x1b[31m")
    items = (await orc("dead", "list", "-o", "json")).json()["items"]
    assert [(item["id"], item["state"], item["session"], item["tags"]) for item in items] == [
        (one.id, "dead", "s1", ["t"]) for one in (bob, ann)
    ]
    assert len((await orc("dead", "list", "-o", "jsonl")).out.splitlines()) == 2
    for options, found in {
        (): [bob, ann],
        ("--skill", "send"): [bob, ann],
        ("--skill", "sort"): [],
        ("--agent", "mailer", "--session", "s1", "--tag", "t"): [bob, ann],
        ("--reason-contains", "FOR ANN"): [ann],
        ("--error", "in send"): [bob, ann],
        ("--error", "for bob"): [bob],
        ("--since", "1h"): [bob, ann],
        ("--until", "2001-01-01T00:00:00Z"): [],
        ("--older-than", "1h"): [],
    }.items():
        assert (await orc("dead", "list", "-o", "id", *options)).out.split() == [one.id for one in found], options
    cut = await orc("dead", "list", "--limit", "1", "-o", "id")
    assert (cut.out.split(), cut.err) == ([bob.id], "these are the newest 1; raise --limit for more\n")


async def test_groups(team: LocalTeam, orc: Orc, mailer: Mailer) -> None:
    """Those that failed alike are a line: kind of trouble, skill, how many, the newest as an example."""
    handles = await bury(team, "ann", "bob")
    sort = await team.orc.submit("sort")
    with pytest.raises(TaskFailed):
        await sort.result(5)
    done = await orc("dead", "list", "--group", "error")
    assert [line.split()[:3] for line in done.out.splitlines()[1:]] == [
        ["ConnectionError", "send", "2"],
        ["KeyError", "sort", "1"],
    ]
    items = (await orc("dead", "list", "--group", "error", "-o", "json")).json()["items"]
    assert [(item["error"], item["tasks"], item["example"]) for item in items] == [
        ("ConnectionError", 2, handles[1].id),
        ("KeyError", 1, sort.id),
    ]
    assert (await orc("dead", "list", "--group", "error", "-o", "id")).out.split() == [handles[1].id, sort.id]


async def test_show(team: LocalTeam, orc: Orc, mailer: Mailer) -> None:
    """Reason, arguments, each traceback, deaths and requeues; a task that is no dead letter is not shown."""
    (dead,) = await bury(team, "ann")
    await team.services.store.execute(
        "HSET", team.services.keys.task(dead.id), "deaths", 1, "death:1", "1789000000000 w1 killed, beside x"
    )
    await dead.retry("try it")
    with pytest.raises(TaskFailed):
        await dead.result(5)
    record = (await orc("dead", "show", dead.id, "-o", "json")).json()
    assert (record["id"], record["args"], record["attempts"]) == (dead.id, {"to": "ann"}, 3)
    assert ["ConnectionError: no answer for ann" in text for text in record["errors"]] == [True, True]
    assert record["deaths"] == [{"at": "2026-09-10T00:26:40Z", "worker": "w1", "how": "killed, beside x"}]
    assert (record["requeues"][0]["state"], record["requeues"][0]["who"].endswith(": try it")) == ("dead", True)
    table = await orc("dead", "show", dead.id)
    assert "killed, beside x" in table.out
    assert table.out.count("Traceback") == 2
    assert "\x1b" not in table.out
    mailer.away = False
    await dead.retry()
    await dead.result(5)
    gone = await orc("dead", "show", dead.id)
    assert (gone.code, gone.err.startswith(f"error: task {dead.id} is not a dead letter, it is succeeded")) == (3, True)


# ---------------------------------------------------------------------------------------------------------------- retry


async def test_retry_ids(team: LocalTeam, orc: Orc, mailer: Mailer) -> None:
    """By ids it is done at once and kept in the record of commands; what cannot run again says why."""
    ann, bob = await bury(team, "ann", "bob")
    mailer.away = False
    done = await orc("dead", "retry", ann.id, bob.id, UNKNOWN_ID, "--reason", "it is back")
    assert (done.code, done.err) == (6, "")
    assert [line.split(None, 1) for line in done.out.splitlines()[1:]] == [
        [ann.id, "retried"],
        [bob.id, "retried"],
        [UNKNOWN_ID, "does not exist, or its retention has passed"],
    ]
    assert [await ann.result(5), await bob.result(5)] == ["ann", "bob"]
    assert (await ann.info()).requeues[0].endswith(": it is back")
    last = await team.services.store.execute("XREVRANGE", team.services.keys.action_records, "+", "-", "COUNT", 1)
    assert b'"action":"retry"' in last[0][1][1]
    refused = await orc("tasks", "retry", ann.id, "-o", "json")
    assert (refused.code, refused.json()["items"]) == (4, [{"id": ann.id, "status": "refused", "state": "succeeded"}])
    assert (await orc("tasks", "retry", UNKNOWN_ID)).code == 3
    waits = await team.orc.submit("later")
    already = await orc("tasks", "retry", waits.id, "-o", "jsonl")
    assert (already.code, already.out) == (0, f'{{"id":"{waits.id}","status":"already","state":"ready"}}\n')
    assert (await orc("tasks", "retry", waits.id, ann.id, "-o", "id")).out == f"{waits.id}\n"


async def test_retry_by_filter(team: LocalTeam, orc: Orc, mailer: Mailer) -> None:
    """By filter it says what it would do, asks, and lets a supervisor do it; the outcome is counted, in every form."""
    handles = await bury(team, "ann", "bob", "cid")
    await bury(team, "dan", session="other")
    dry = await orc("dead", "retry", "--reason-contains", "for", "--limit", "3", "--dry-run", "-o", "id")
    assert (dry.code, len(dry.out.split())) == (0, 3)
    assert dry.err == "3 tasks, the first of more that match; nothing was changed; filter: reason contains 'for'\n"
    words = ("dead", "retry", "--error", "for bob")
    assert len((await orc(*words, "--dry-run", "-o", "json")).json()["items"]) == 1
    asked = await orc(*words)
    assert asked.code == 4
    assert "cannot ask for confirmation to retry 1 task (filter: error contains 'for bob')" in asked.err
    mailer.away = False
    done = await orc(*words, "--yes", "--reason", "it is back", "-o", "json")
    assert done.code == 0
    assert {name: done.json()[name] for name in ("kind", "state", "ends")} == {
        "kind": "retry-tasks",
        "state": "done",
        "ends": {"requeued": 1},
    }
    assert await handles[1].result(5) == "bob"
    table = await orc("dead", "retry", "--all", "--yes")
    assert (table.code, table.out.splitlines()[1]) == (0, "done: 3 requeued")
    assert [await one.result(5) for one in handles] == ["ann", "bob", "cid"]
    nothing = await orc("dead", "retry", "--all", "-o", "jsonl")
    assert (nothing.code, json.loads(nothing.out)["ends"]) == (0, {})


async def test_cancelled_run_again(team: LocalTeam, orc: Orc) -> None:
    """Cancelled tasks are found by their state among what ended lately, and wait again."""
    handles = [await team.orc.submit("later", session="s") for _ in range(3)]
    assert (await orc("tasks", "cancel", "--session", "s", "--state", "ready", "--yes")).out.endswith(
        "done: 3 cancelled\n"
    )
    assert {(await one.status()).state for one in handles} == {TaskState.CANCELLED}
    assert (await orc("tasks", "retry", "--state", "cancelled", "--session", "s", "--yes")).out.endswith(
        "done: 3 requeued\n"
    )
    assert {(await one.status()).state for one in handles} == {TaskState.READY}
    assert (await orc("tasks", "cancel", "--all", "--yes", "--no-wait", "-o", "id")).code == 0


# ------------------------------------------------------------------------------------------------------- export, delete


async def test_export(team: LocalTeam, orc: Orc, mailer: Mailer, terminal: Terminal) -> None:
    """Each dead letter is a line of JSON with all that is known; a file is never written over."""
    ann, bob = await bury(team, "ann", "bob", key=None, priority="high")
    done = await orc("dead", "export", "--all")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["id"] for record in records] == [bob.id, ann.id]
    assert records[1]["args"] == {"to": "ann"}
    assert (records[1]["priority"], records[1]["queue"], len(records[1]["errors"])) == (1, "skill:send", 1)
    named = await orc("dead", "export", ann.id, UNKNOWN_ID, "--to", "dead.jsonl")
    assert named.code == 6
    assert json.loads((terminal.folder / "dead.jsonl").read_text())["id"] == ann.id
    assert (await orc("dead", "export", ann.id, "--to", "dead.jsonl")).code == 2
    again = await orc("tasks", "submit", records[1]["skill"], json.dumps(records[1]["args"]))
    assert again.code == 0


async def test_delete(team: LocalTeam, orc: Orc, mailer: Mailer) -> None:
    """It asks, and then they are gone; by filter a supervisor does it."""
    ann, _, cid = await bury(team, "ann", "bob", "cid")
    assert (await orc("dead", "delete", ann.id)).code == 4
    assert (await orc("dead", "delete", ann.id, "--yes")).out.splitlines()[1].split() == [ann.id, "deleted"]
    done = await orc("tasks", "delete", "--reason-contains", "for bob", "--yes")
    assert (done.code, done.out.splitlines()[1]) == (0, "done: 1 deleted")
    assert (await orc("dead", "list", "-o", "id")).out.split() == [cid.id]


# ---------------------------------------------------------------------------------------------------------------- purge


async def test_purge(team: LocalTeam, orc: Orc) -> None:
    """All that waits in the queue is cancelled, with a reason; what waits elsewhere stays."""
    gone = [await team.orc.submit("later") for _ in range(3)]
    other = await team.orc.submit("another")
    assert (await orc("queues", "purge", "skill:later", "--yes")).code == 2
    assert (await orc("queues", "purge", "later", "--reason", "x", "--yes")).code == 2
    dry = await orc("queues", "purge", "skill:later", "--dry-run")
    assert sorted(dry.out.split()) == sorted(one.id for one in gone)
    asked = await orc("queues", "purge", "skill:later", "--reason", "test data")
    assert (asked.code, "cancel 3 tasks that wait in skill:later" in asked.err) == (4, True)
    done = await orc("queues", "purge", "skill:later", "--reason", "test data", "--yes", "-o", "json")
    assert (done.code, done.json()["ends"]) == (0, {"cancelled": 3})
    assert (await gone[0].info()).reason.endswith(": test data")
    assert (await other.status()).state is TaskState.READY


@pytest.mark.parametrize(("answer", "code"), [("skill:later\n", 0), ("y\n", 4)])
async def test_purge_of_many(team: LocalTeam, terminal: Terminal, answer: str, code: int) -> None:
    """Of more than 20 tasks it wants the name of the queue; a mere yes is not enough."""
    handles = await team.orc.submit_many([Submission("later") for _ in range(21)])
    words = ("queues", "purge", "skill:later", "--reason", "test data")
    screen, returned = await anyio.to_thread.run_sync(
        partial(terminal.answer, *words, question="to go on: ", answer=answer)
    )
    assert "cancel 21 tasks that wait in skill:later? This cannot be undone. Type skill:later to go on: " in screen
    assert returned == code, screen
    expected = TaskState.CANCELLED if code == 0 else TaskState.READY
    assert {(await handle.status()).state for handle in handles} == {expected}


# ------------------------------------------------------------------------------------------------------- no supervisor


@pytest.fixture
async def unsupervised(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A team without a supervisor."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


async def test_nobody_to_do_it(unsupervised: LocalTeam, orc: Orc) -> None:
    """Without a supervisor the command is stored; exit code 69: nobody has done it; who starts then does it."""
    waits = await unsupervised.orc.submit("later")
    done = await orc("tasks", "cancel", "--skill", "later", "--yes", "-o", "json")
    assert (done.code, done.json()["state"]) == (69, "stored")
    assert "no supervisor leads, so command" in done.err
    assert "orc supervisor run" in done.err
    assert (await waits.status()).state is TaskState.READY
    await unsupervised.start_supervisor()

    async def cancelled() -> bool:
        return (await waits.status()).state is TaskState.CANCELLED

    await wait_for(cancelled, "the stored command to be done")


@pytest.mark.parametrize(
    "typed",
    [
        "dead retry",
        "dead delete",
        "dead export",
        "tasks retry",
        "tasks cancel",
        "tasks delete",
        f"dead retry {UNKNOWN_ID} --all",
        f"dead retry {UNKNOWN_ID} --dry-run",
        "dead retry nonsense",
        "dead list --since soon",
        "dead list --limit 0",
        "tasks retry --state running",
        "tasks cancel --state dead",
        "tasks cancel --skill x --wait",
        "queues purge nonsense --reason x",
    ],
)
async def test_what_cannot_be_meant(orc: Orc, typed: str) -> None:
    """What makes no sense is exit code 2, before anything is sent."""
    done = await orc(*typed.split())
    assert (done.code, done.out) == (2, ""), done


async def test_an_extraction_that_failed(team: LocalTeam, orc: Orc) -> None:
    """It is a dead letter as any other task: shown with its error, and run again by hand."""

    class Failing(RuleExtractor):
        failing = True

        async def extract(self, turns: Sequence[Turn]) -> list[Fact]:
            if Failing.failing:
                raise ConnectionError("the model is away")
            return await super().extract(turns)

    agent = Agent("ed")
    agent.extracts(Failing(), max_attempts=1)
    await team.work(agent)
    await team.orc.chat("s").append([{"role": "user", "content": "My name is Ann."}])
    handle = await team.orc.extract("s", agent="ed")
    assert handle is not None
    with pytest.raises(TaskFailed):
        await handle.result(5)
    assert (await orc("dead", "list", "-o", "id")).out.split() == [handle.id]
    assert "the model is away" in (await orc("dead", "show", handle.id)).out
    Failing.failing = False
    assert (await orc("dead", "retry", handle.id)).code == 0
    assert (await handle.result(5)).records == 1
