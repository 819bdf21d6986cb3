"""Control commands typed beside a team in this process: effects, forms of output, exit codes."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent
from orchestrator.agents import scripts as agents
from orchestrator.agents.model import AgentSpec
from orchestrator.core.command_record import unpack_issued
from orchestrator.core.errors import Stopped
from orchestrator.core.ids import new_task_id
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Done, Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.workers.runtime.worker import Worker
    from tests.helpers.local_team import LocalTeam

ID: Final = r"[0-9a-f]{8}-[0-9a-f-]{27}"
SECRET: Final = "canary-of-the-control-secret"


class Orc(Protocol):
    """Types `orc …` and answers what it did."""

    async def __call__(self, *arguments: str, **variables: str) -> Done:
        """Run it."""


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Orc:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str, **variables: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments, **variables))

    return typed


class Ed:
    """An agent with a quick skill, and one that runs until it is let go."""

    def __init__(self, name: str = "ed", **options: Any) -> None:
        self.agent, self.let_go, self.staying, self.cancelled = Agent(name, **options), anyio.Event(), 0, 0

        @self.agent.skill
        async def work() -> str:
            return "done"

        @self.agent.skill
        async def stay() -> None:
            self.staying += 1
            try:
                await self.let_go.wait()
            except anyio.get_cancelled_exc_class():
                self.cancelled += 1
                raise


@pytest.fixture
async def ed(team: LocalTeam) -> Ed:
    """The agent; its worker is `worker`."""
    return Ed()


@pytest.fixture
async def worker(team: LocalTeam, ed: Ed) -> Worker:
    """A worker of the agent, at work."""
    return await team.work(ed.agent)


async def deaf(team: LocalTeam, worker: str = "deaf:1:0000") -> str:
    """Register a worker that hears nothing."""
    services = team.services
    about: dict[str, str | int] = {"host": "h", "pid": 1}
    spec = AgentSpec("deaf", frozenset({"nothing"}))
    await services.store.call(
        agents.register(services.keys, worker=worker, spec=spec, slots=1, backlog=0, about=about, alive_s=20)
    )
    return worker


async def runs(team: LocalTeam) -> None:
    """A quick task runs."""
    await (await team.orc.submit("work")).result(TIMEOUT_S)


async def waits(team: LocalTeam) -> None:
    """A quick task is accepted, and does not run."""
    handle = await team.orc.submit("work")
    with pytest.raises(TimeoutError):
        await handle.result(0.1)
    await handle.cancel()


# ---------------------------------------------------------------------------------------------------------- stop, start


async def test_stop_and_start(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """A stop prints its id and who answered when; nothing runs until the start."""
    await runs(team)
    done = await orc("stop", "--reason", "for a test")
    assert (done.code, done.err) == (0, "")
    first, heads, *rows = done.out.splitlines()
    assert re.fullmatch(rf"command {ID}: stop", first)
    assert heads.split() == ["ANSWERED", "AFTER", "WORD", "DETAIL"]
    assert {row.split()[0] for row in rows} == {worker.id, "supervisor"}
    assert all(re.search(r"  \d+ ms +done$", row) for row in rows)
    await waits(team)
    done = await orc("start")
    assert (done.code, done.err) == (0, "")
    await runs(team)


async def test_forms(orc: Orc, worker: Worker) -> None:
    """Programs get the command with all receipts; a pipe gets the id alone."""
    done = await orc("stop", "--agent", "ed", "--now", "-o", "json")
    record = done.json()
    assert (record["kind"], record["words"]) == ("stop", "stop agent=ed now")
    assert (record["missing"], record["busy"]) == ([], [])
    assert {row["sender"]: row["word"] for row in record["answered"]} == {worker.id: "done", "supervisor": "done"}
    assert all(set(row) == {"sender", "after_ms", "word", "detail", "at"} for row in record["answered"])
    line = await orc("start", "--agent", "ed", "-o", "jsonl")
    assert (line.json()["kind"], line.out.count("\n")) == ("start", 1)
    assert re.fullmatch(rf"{ID}\n", (await orc("stop", "-o", "id")).out)


@pytest.mark.parametrize("scope", [(), ("--agent", "ed"), ("--skill", "work"), ("--session", "a b/ü")])
async def test_scopes(team: LocalTeam, orc: Orc, worker: Worker, scope: tuple[str, ...]) -> None:
    """Each scope holds back its own tasks, and the same words end it."""
    assert (await orc("stop", *scope)).code == 0
    handle = await team.orc.submit("work", session="a b/ü")
    with pytest.raises(TimeoutError):
        await handle.result(0.1)
    assert (await orc("start", *scope)).code == 0
    await handle.result(TIMEOUT_S)


async def test_refuse(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """With --refuse new tasks are refused at once."""
    assert (await orc("stop", "--refuse")).code == 0
    with pytest.raises(Stopped):
        await team.orc.submit("work")
    refused = await orc("tasks", "submit", "work")
    assert refused.code == 4
    assert "stopped and refuses new tasks until `orc start`" in refused.err


async def test_now(team: LocalTeam, orc: Orc, ed: Ed, worker: Worker) -> None:
    """With --now what runs is interrupted and waits; without it goes on."""
    await team.orc.submit("stay")
    await wait_for(lambda: ed.staying == 1, "it to run")
    assert (await orc("stop")).code == 0
    assert ed.cancelled == 0
    assert (await orc("stop", "--now", "--wait", "--timeout", "4s")).code == 0
    assert ed.cancelled == 1
    await orc("start")
    await wait_for(lambda: ed.staying == 2, "it to run again")


async def test_wait(team: LocalTeam, orc: Orc, ed: Ed, worker: Worker) -> None:
    """With --wait it comes back when nothing runs any more; in time, or with exit code 5."""
    handle = await team.orc.submit("stay")
    await wait_for(lambda: ed.staying == 1, "it to run")
    done = await orc("stop", "--wait", "--timeout", "0.2")
    assert done.code == 5
    assert f"{worker.id}" in done.out
    assert re.fullmatch(
        rf"error: not done within 0.2 s: {worker.id}; the command is active all the same, "
        rf"see `orc control show {ID}`\n",
        done.err,
    )
    ed.let_go.set()
    await handle.result(TIMEOUT_S)
    assert (await orc("stop", "--wait")).code == 0


async def test_who_has_not_answered(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """Who is silent is named: exit code 5, and the stop holds all the same."""
    silent = await deaf(team)
    done = await orc("stop", "--timeout", "300ms")
    assert done.code == 5
    assert re.fullmatch(
        rf"error: not answered within 0.3 s: {silent}; the command is active all the same, "
        rf"see `orc control show {ID}`\n",
        done.err,
    )
    assert {row.split()[0] for row in done.out.splitlines()[2:]} == {worker.id, "supervisor"}
    await waits(team)
    assert (await orc("start", "--timeout", "0.1", "-o", "json")).json()["missing"] == [silent]
    done = await orc("stop", "--no-wait")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)


async def test_nobody_runs(orc: Orc) -> None:
    """Where nobody runs it is stored and holds for whoever starts."""
    done = await orc("stop", "--pool", "empty")
    assert done.code == 0
    assert re.fullmatch(
        rf"no process runs that could answer; command {ID} is stored and applies to those that start\n", done.err
    )
    assert [
        row["slot"] for row in (await orc("status", "--pool", "empty", "-o", "json")).json()["active_commands"]
    ] == ["stop:all"]


async def test_who_starts_later_obeys(team: LocalTeam, orc: Orc, ed: Ed) -> None:
    """A worker that starts after the stop starts nothing, and says so."""
    sent = (await orc("stop", "-o", "id")).out.strip()
    worker = await team.work(ed.agent)
    await waits(team)

    async def answered() -> bool:
        shown = (await orc("control", "show", sent, "-o", "json")).json()
        return worker.id in {row["sender"] for row in shown["answered"]}

    await wait_for(answered, "its receipt")


async def test_pauses_with_an_end(orc: Orc, worker: Worker) -> None:
    """A pause takes a duration as other options do; one that is none is exit code 2."""
    done = await orc("agents", "hold", "ed", "5m", "--reason", "429")
    assert (done.code, done.out.splitlines()[0].partition(": ")[2]) == (0, "hold-agent for_s=300.0 agent=ed")
    done = await orc("agents", "hold", "ed", "600", "--reason", "429")
    assert (done.code, done.out.splitlines()[0].partition(": ")[2]) == (0, "hold-agent for_s=600.0 agent=ed")
    done = await orc("agents", "hold", "ed", "0")
    assert (done.code, done.err) == (2, "error: DURATION in seconds should be greater than 0\n")
    done = await orc("limits", "hold", "model", "soon")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: DURATION 'soon' is not a duration; write 90s, 5m, 2h, 1h30m or seconds\n"


async def test_hints(orc: Orc, worker: Worker) -> None:
    """An unknown agent, a start of nothing, and other stops that still hold are said."""
    done = await orc("stop", "--agent", "nobody")
    assert done.code == 0
    assert done.err == ("no agent 'nobody' is known now (known: ed); the command applies when it registers\n")
    done = await orc("start")
    assert done.code == 0
    assert done.err.splitlines() == [
        "nothing changes: all was not stopped",
        "still stopped: agent:nobody; `orc start` with the same scope ends each",
    ]


async def test_many_stops(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """However many sessions are stopped, the screen of everything and the hint stay short; programs get the number."""
    for n in range(23):
        await team.orc.admin.stop(session=f"s{n:02}")
    done = await orc("status")
    assert done.out.count("stop:session:") == 20
    assert "and 3 more\n" in done.out
    record = (await orc("status", "-o", "json")).json()
    assert (len(record["active_commands"]), record["totals"]["active_commands"]) == (20, 23)
    assert "session:s19 and 3 more; `orc start`" in (await orc("start")).err


@pytest.mark.parametrize("settings", [{"control__secret": SECRET}], indirect=True)
async def test_without_the_secret(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """Who lacks the secret hears that all refuse: exit code 4, and nothing is stopped."""
    done = await orc("stop")
    assert done.code == 4
    assert "it is not signed" in done.out
    await runs(team)
    assert (await orc("stop", ORC_CONTROL__SECRET=SECRET)).code == 0
    await waits(team)


async def test_too_many(orc: Orc, worker: Worker) -> None:
    """Beyond the cap a command is refused with exit code 4; a stop is not."""
    codes = [(await orc("agents", "pause", "ed", ORC_CONTROL__PER_MINUTE="1")).code for _ in range(3)]
    assert codes[-1] == 4
    assert (await orc("stop", ORC_CONTROL__PER_MINUTE="1")).code == 0
    (refused, *_) = (await orc("control", "list", "--refused", "-o", "json")).json()["items"]
    assert refused["problem"] == "more commands than control.per_minute were given in that minute"


@pytest.mark.parametrize(
    "typed",
    [
        "stop --agent a --skill b",
        "stop --skill a?b",
        "stop --wait --no-wait",
        "stop --timeout soon",
        "start --agent a --session b",
        "agents limit ed",
        "agents limit ed 5/min --reset",
        "agents limit ed fast",
        "queues pause sum",
        "queues drain skill:a?b",
        "limits set model",
        "limits set model fast",
        "control log-level",
        "control log-level loud",
        "control log-level debug --reset",
        "control list --kind nonsense",
        "control list --limit 0",
        "control list --since soon",
        "workers drain x --wait --no-wait",
    ],
)
async def test_usage_errors(orc: Orc, typed: str) -> None:
    """What cannot be meant is refused with exit code 2 before anything is given."""
    done = await orc(*typed.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert (await orc("control", "list", "-o", "id")).out == ""


# -------------------------------------------------------------------------------------------------------------- control


async def test_control_list(orc: Orc, worker: Worker) -> None:
    """The newest first, with who, why and whether it holds; filters leave out the others."""
    await orc("stop", "--reason", "one\nline")
    await orc("start")
    await orc("agents", "pause", "ed", "--reason", "slow")
    rows = (await orc("control", "list", "-o", "json")).json()["items"]
    assert [(row["kind"], row["state"]) for row in rows] == [
        ("pause-agent", "active"), ("start", "given"), ("stop", "given")
    ]  # fmt: skip
    assert rows[0]["words"] == "pause-agent agent=ed"
    actor = rows[0]["actor"]
    assert "@" in actor
    table = (await orc("control", "list")).out.splitlines()
    assert table[0].split() == ["ID", "AT", "ACTOR", "STATE", "COMMAND", "REASON"]
    assert table[-1].endswith("one\\nline")
    ids = [row["id"] for row in rows]
    assert (await orc("control", "list", "-o", "id")).out.split() == ids
    assert (await orc("control", "list", "--kind", "stop", "-o", "id")).out.split() == ids[2:]
    assert (await orc("control", "list", "--actor", actor, "--limit", "2", "-o", "id")).out.split() == ids[:2]
    assert (await orc("control", "list", "--actor", "nobody", "-o", "id")).out == ""
    assert (await orc("control", "list", "--since", "1h", "-o", "id")).out.split() == ids
    assert (await orc("control", "list", "--since", "0.000001", "-o", "id")).out == ""
    assert (await orc("control", "list", "--refused", "-o", "jsonl")).out == ""
    assert (await orc("control", "list", "--refused")).err == "no commands\n"


async def test_control_show(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """One command with its receipts, and who of those who were there has not answered."""
    silent = await deaf(team)
    id_ = (await orc("stop", "--timeout", "0.1", "--reason", "why not", "-o", "id")).out.strip()
    await orc("start", "--no-wait")
    shown = await orc("control", "show", id_)
    facts, receipts = shown.out.split("\n\n")
    assert re.search(r"^reason +why not$", facts, re.MULTILINE)
    assert re.search(rf"^missing +{silent}$", facts, re.MULTILINE)
    assert re.search(r"^state +given$", facts, re.MULTILINE)
    assert worker.id in receipts
    await deaf(team, "late:1:0000")
    record = (await orc("control", "show", id_, "-o", "json")).json()
    assert (record["id"], record["missing"], record["state"]) == (id_, [silent], "given")
    assert (await orc("control", "show", id_, "-o", "id")).out == f"{id_}\n"
    begun = await orc("control", "show", id_[:30], "-o", "id")
    assert begun.out == f"{id_}\n"
    assert (await orc("stop", "--agent", "other", "--no-wait")).code == 0
    several = await orc("control", "show", id_[:4])
    assert (several.code, "commands begin with" in several.err) == (2, True)
    unknown = await orc("control", "show", new_task_id())
    assert unknown.code == 3
    assert unknown.err.startswith("error: no command ")


async def test_control_renew(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """It asks first, and without a terminal it is refused; then what stands, stands."""
    await orc("stop")
    done = await orc("control", "renew")
    assert done.code == 4
    assert "add --yes to confirm" in done.err
    assert (await orc("control", "renew", "--yes")).code == 0
    assert (await team.services.store.execute("HGET", team.services.keys.desired, "epoch")) == b"1"
    await waits(team)
    assert (await orc("start")).code == 0
    await runs(team)


async def test_control_log_level(orc: Orc, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    """All answer, and the level is reset again."""
    caplog.set_level("INFO")  # it is put back after the test: supervisor and worker live in this process
    done = await orc("control", "log-level", "debug", "-o", "json")
    assert {row["sender"] for row in done.json()["answered"]} == {worker.id, "supervisor"}
    (order,) = (await orc("status", "-o", "json")).json()["active_commands"]
    assert (order["slot"], order["state"]) == ("log:level", "log level set to debug")
    assert (await orc("control", "log-level", "--reset")).code == 0
    assert (await orc("status", "-o", "json")).json()["active_commands"] == []


# ------------------------------------------------------------------------------------------- agents, queues and limits


async def test_agents_pause_and_resume(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """A paused agent starts nothing; lists and status say by whom and why."""
    assert (await orc("agents", "pause", "ed", "--reason", "slow")).code == 0
    await waits(team)
    table = (await orc("agents", "list")).out
    assert re.search(r"ACTIVE COMMANDS\n.*paused by \S+@\S+: slow\n$", table, re.DOTALL)
    assert "paused by" in (await orc("agents", "show", "ed")).out
    (order,) = (await orc("agents", "show", "ed", "-o", "json")).json()["active_commands"]
    assert (order["slot"], order["state"], order["reason"]) == ("pause:agent:ed", "paused", "slow")
    status = (await orc("status")).out
    assert re.search(r"^pause:agent:ed +paused +\d+ s ago +\S+@\S+ +slow$", status, re.MULTILINE)
    assert (await orc("agents", "resume", "ed")).code == 0
    assert "ACTIVE COMMANDS" not in (await orc("agents", "list")).out
    await runs(team)


async def test_agents_limit(team: LocalTeam, orc: Orc) -> None:
    """An agent's own limit gets another rate and its own one back; one without a limit is told so."""
    await team.work(Ed("quick", rate="1000/s").agent, Ed("free").agent)
    assert (await orc("agents", "limit", "quick", "7/min")).code == 0
    assert (await orc("agents", "show", "quick", "-o", "json")).json()["limits"] == {"rate": "7/min"}
    assert (await orc("agents", "limit", "quick", "--reset")).code == 0
    assert (await orc("agents", "show", "quick", "-o", "json")).json()["limits"] == {"rate": "1000/s"}
    refused = await orc("agents", "limit", "free", "7/min")
    assert (refused.code, refused.out) == (4, "")
    assert refused.err == "error: agent 'free' has no limit of its own; give it a rate in its declaration\n"
    later = await orc("agents", "limit", "later", "7/min")
    assert later.code == 0
    assert later.err.startswith("no agent 'later' is known now")


async def test_limits(team: LocalTeam, orc: Orc) -> None:
    """Named limits are listed with the rate that counts and the one that is defined; set, and reset."""
    assert (await orc("limits", "list")).err == "no limits\n"
    await team.work(Ed("bound", limits=["model:x"]).agent, limits={"model:x": "100/s"})
    done = await orc("limits", "set", "model:x", "3/h", "--reason", "quota")
    assert (done.code, done.err) == (0, "")
    (row,) = (await orc("limits", "list", "-o", "json")).json()["items"]
    assert (row["limit"], row["rate"], row["defined"], row["agents"]) == ("model:x", "3/h", "100/s", ["bound"])
    assert "limited to 3/h by" in (await orc("limits", "list")).out
    assert (await orc("limits", "list", "-o", "id")).out == "model:x\n"
    assert (await orc("limits", "reset", "model:x")).code == 0
    (row,) = (await orc("limits", "list", "-o", "json")).json()["items"]
    assert (row["rate"], row["active_commands"]) == ("100/s", [])
    unknown = await orc("limits", "set", "model:y", "3/h")
    assert unknown.code == 0
    assert unknown.err.startswith("no known agent has the limit 'model:y'")
    done = await orc("limits", "list", "--limit", "1", "-o", "id")
    assert (done.out, done.err) == ("model:x\n", "these are 1 of 2; raise --limit for more\n")


async def test_queues_pause_and_resume(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """Nothing leaves a paused queue; the list says so, also when it is empty."""
    assert (await orc("queues", "pause", "skill:work", "--reason", "the model is down")).code == 0
    (row,) = (await orc("queues", "list", "-o", "json")).json()["items"]
    assert (row["queue"], row["tasks"], row["head"]) == ("skill:work", 0, None)
    assert row["active_commands"][0]["state"] == "paused"
    await waits(team)
    assert "paused by" in (await orc("queues", "list")).out
    assert (await orc("queues", "resume", "skill:work")).code == 0
    await runs(team)


async def test_queues_drain(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """A drained queue refuses new tasks; what waits in it is worked off."""
    await orc("agents", "pause", "ed")
    waiting = await team.orc.submit("work")
    assert (await orc("queues", "drain", "skill:work")).code == 0
    with pytest.raises(Stopped, match="drained"):
        await team.orc.submit("work")
    await orc("agents", "resume", "ed")
    await waiting.result(TIMEOUT_S)
    unknown = await orc("queues", "drain", "skill:nobody")
    assert unknown.code == 0
    assert unknown.err.startswith("queue skill:nobody is empty and no known agent serves it")
    assert (await orc("queues", "resume", "skill:work")).code == 0
    await runs(team)


# -------------------------------------------------------------------------------------------------------------- workers


async def test_workers_show(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """By its id or its beginning; an unknown one is exit code 3, one of several 2."""
    prefix = worker.id.rpartition(":")[0]
    record = (await orc("workers", "show", prefix, "-o", "json")).json()
    assert (record["id"], record["active_commands"]) == (worker.id, [])
    assert (await orc("workers", "show", worker.id, "-o", "id")).out == f"{worker.id}\n"
    assert "\npid " in (await orc("workers", "show", prefix)).out
    unknown = await orc("workers", "show", "nobody")
    assert (unknown.code, unknown.err) == (
        3,
        "error: no live worker has the id 'nobody'; `orc workers list` shows them\n",
    )
    await deaf(team, f"{prefix}:other")
    several = await orc("workers", "drain", prefix)
    assert several.code == 2
    assert several.err.startswith("error: 2 workers match ")
    assert (await orc("workers", "show", worker.id)).code == 0


async def test_workers_drain_and_resume(team: LocalTeam, orc: Orc, ed: Ed, worker: Worker) -> None:
    """A drained worker finishes what it has and starts nothing; resumed it goes on."""
    handle = await team.orc.submit("stay")
    await wait_for(lambda: ed.staying == 1, "it to run")
    done = await orc("workers", "drain", worker.id, "--reason", "new version", "-o", "json")
    assert done.code == 0
    assert [(row["sender"], row["word"]) for row in done.json()["answered"]] == [(worker.id, "received")]
    await waits(team)
    assert "draining by" in (await orc("workers", "list")).out
    late = await orc("workers", "drain", worker.id, "--wait", "--timeout", "0.2")
    assert late.code == 5
    ed.let_go.set()
    await handle.result(TIMEOUT_S)
    assert (await orc("workers", "drain", worker.id, "--wait")).code == 0
    assert (await orc("workers", "resume", worker.id)).code == 0
    await runs(team)


async def test_workers_stop(team: LocalTeam, orc: Orc, worker: Worker) -> None:
    """It ends, as after a signal."""
    assert (await orc("workers", "stop", worker.id)).code == 0

    async def gone() -> bool:
        return worker.id not in (await orc("workers", "list", "-o", "id")).out.split()

    await wait_for(gone, "its end")


# --------------------------------------------------------------------------------------------------------------- schema


async def test_config_schema(orc: Orc) -> None:
    """The schemas of settings and of commands are JSON, whatever the form of output."""
    settings = await orc("config", "schema")
    assert settings.json()["properties"]["control"]
    commands = await orc("config", "schema", "--commands")
    assert "stop" in commands.json()["discriminator"]["mapping"]
    assert (await orc("config", "schema", "-o", "jsonl")).out.count("\n") == 1


async def test_secrets_are_masked(orc: Orc) -> None:
    """Neither `config show` in any form nor a failing command shows the secret."""
    for typed in (
        "config show",
        "config show --sources -o json",
        "stop --debug",
        "control list -o json",
        "config schema",
    ):
        done = await orc(*typed.split(), ORC_CONTROL__SECRET=SECRET, ORC_CONTROL__PREVIOUS_SECRET=SECRET + "2")
        # The supervisor has no secret, so it does not answer the stop: it leads no pool with signed commands.
        assert done.code == 0
        assert SECRET not in done.out + done.err
    done = await orc("config", "show", ORC_CONTROL__SECRET="too-short")
    assert done.code == 78
    assert "too-short" not in done.out + done.err


@pytest.mark.parametrize("settings", [{"control__secret": SECRET}], indirect=True)
@pytest.mark.parametrize("secret", [SECRET, ""], ids=["signed", "twin without a secret"])
async def test_forged_receipt(orc: Orc, team: LocalTeam, secret: str) -> None:
    """`orc stop --now` shows the forged receipt of a worker that answers nothing as one, and does not end with 0."""
    store, keys = team.services.store, team.services.keys
    await store.execute("HSET", keys.worker("silent"), "started_ms", 1)
    await store.execute("EXPIRE", keys.worker("silent"), 60)
    await store.execute("ZADD", keys.workers, 4 * 10**12, "silent")
    found: list[Done] = []

    async def give() -> None:
        variables = {"ORC_CONTROL__SECRET": secret} if secret else {}
        found.append(await orc("stop", "--now", "--timeout", "1s", **variables))

    async def forge() -> None:
        async def given() -> bool:
            return bool(await store.execute("XLEN", keys.control))

        await wait_for(given, "the command")
        ((_, fields),) = await store.execute("XREVRANGE", keys.control, "+", "-", "COUNT", 1)
        receipts_key = keys.receipts(unpack_issued(fields[1]).id)
        await store.execute("HSET", receipts_key, "silent", "1700000000000 done ")
        await store.execute("EXPIRE", receipts_key, 60)

    async with anyio.create_task_group() as both:
        both.start_soon(give)
        both.start_soon(forge)
    (done,) = found
    if secret:
        assert done.code == 5
        assert "silent      0 ms   forged  done, without a valid signature" in done.out
        assert "forged receipts, or those of an older program or of another secret: silent" in done.err
        shown = await orc("control", "show", done.out.split()[1].rstrip(":"), ORC_CONTROL__SECRET=SECRET)
        assert "forged" in shown.out
    else:
        # The supervisor refuses the command; this client believes whatever it reads.
        assert done.code == 6
        assert "forged" not in done.out + done.err
