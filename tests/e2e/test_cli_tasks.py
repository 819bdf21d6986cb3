"""`orc up` in one terminal, everything else in another: submit, wait, look."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_until
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN_ID = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """The second terminal, while `orc up` runs in the first."""
    terminal = Terminal(
        tmp_path_factory.mktemp("project"),
        ORC_WORKER__DRAIN_S="1",
        ORC_PAYLOAD__STORE=tmp_path_factory.mktemp("payloads").as_uri(),
    )
    with terminal.start("up", "my_agents:agent") as up:
        up.wait_output("worker_started", timeout_s=20)
        up.wait_output("leadership_acquired", timeout_s=20)
        yield terminal
        up.terminate()
        assert up.wait_exit(20) == 0, up.output
    assert not terminal.processes()


def submit(terminal: Terminal, *arguments: str) -> str:
    """Submit a task, answer its id."""
    done = terminal.orc("tasks", "submit", *arguments)
    assert done.code == 0, done
    return done.out.strip()


def test_submit_and_wait(terminal: Terminal) -> None:
    """The result of a task is printed; the folder needs no other setting than its data directory."""
    done = terminal.process("tasks", "submit", "greet", "-a", "name=Ada", "--wait")
    assert (done.code, done.out, done.err) == (0, '"Hello, Ada"\n', "")


@pytest.mark.parametrize("value", ['[1.0,9007199254740993,{},[],"ü",-0.0]', '"text"', "null", "1.0"])
def test_result_is_untouched(terminal: Terminal, value: str) -> None:
    """What was given is what comes back, digit for digit, in every form."""
    done = terminal.orc("tasks", "submit", "echo", "-", "--wait", "-o", "jsonl", stdin=f'{{"value": {value}}}')
    assert done.code == 0, done
    assert done.out.endswith(f'"result":{value}}}\n')
    assert terminal.orc("tasks", "result", done.json()["id"]).out == f"{value}\n"


def test_large_values(terminal: Terminal) -> None:
    """Arguments and a result in the payload store are named by `show`, loaded with --load, and printed by `result`."""
    text = "x" * 1_200_000
    done = terminal.orc("tasks", "submit", "echo", "-", "--wait", "-o", "id", stdin=json.dumps({"value": text}))
    assert done.code == 0, done
    task = done.out.strip()
    shown, loaded = (terminal.orc("tasks", "show", task, "-o", "json", *more) for more in ((), ("--load",)))
    assert "xxx" not in shown.out
    assert shown.json()["stored_result"]["size"] == len(text) + 2
    assert (loaded.json()["args"], loaded.json()["result"]) == (None, text)
    waits = terminal.orc(
        "tasks", "submit", "nobody_can", "-", "-o", "id", stdin=json.dumps({"value": text})
    ).out.strip()
    assert terminal.orc("tasks", "show", waits, "--load", "-o", "json").json()["args"] == {"value": text}
    assert terminal.orc("tasks", "result", task).out == f'"{text}"\n'


def test_id_forms(terminal: Terminal) -> None:
    """A submit prints the bare id, so that a script can keep it; as JSON it is an object."""
    ids = [submit(terminal, "greet"), submit(terminal, "greet", "-o", "id")]
    ids.append(terminal.orc("tasks", "submit", "greet", "-o", "json").json()["id"])
    done = terminal.orc("tasks", "wait", *ids, "-o", "json")
    assert done.code == 0
    assert [(item["id"], item["state"]) for item in done.json()["items"]] == [(one, "succeeded") for one in ids]


def test_wait_tells_by_exit_code(terminal: Terminal) -> None:
    """0 succeeded, 1 failed, 3 unknown, 5 timed out, 6 some of each."""
    good = submit(terminal, "greet")
    bad = submit(terminal, "refuse", "-a", "reason=no \x1b[31m")
    slow = submit(terminal, "greet", "--delay", "1h")
    codes = {
        (good,): 0,
        (bad,): 1,
        (UNKNOWN_ID,): 3,
        (good, bad): 6,
        (bad, UNKNOWN_ID): 1,
        (good, good): 0,
        (good, slow): 5,
    }
    for ids, code in codes.items():
        done = terminal.orc("tasks", "wait", *ids, "--timeout", "1s")
        assert done.code == code, (ids, done)
        assert not done.err
        assert "\x1b" not in done.out


@pytest.mark.parametrize("form", ["table", "json", "id"])
def test_failed_task(terminal: Terminal, form: str) -> None:
    """A task that fails while it is waited for: exit code 1, the reason in one line, no result on standard output."""
    done = terminal.orc("tasks", "submit", "refuse", "-a", "reason=too hot \x1b[31m", "--wait", "-o", form)
    assert done.code == 1
    assert "too hot" in done.err
    assert done.err.count("\n") == 1
    assert "\x1b" not in done.out + done.err
    if form == "json":
        assert done.json()["state"] == "dead"


def test_result_of_what_has_none(terminal: Terminal) -> None:
    """No result: 75 when it may come, 1 when it never will, 3 for an unknown task."""
    for task, code in (
        (submit(terminal, "greet", "--delay", "1h"), 75),
        (terminal.orc("tasks", "submit", "refuse", "-a", "reason=x", "--wait", "-o", "id").out.strip(), 1),
        (UNKNOWN_ID, 3),
    ):
        done = terminal.orc("tasks", "result", task)
        assert (done.code, done.out) == (code, ""), done
        assert task in done.err


def test_refusals(terminal: Terminal) -> None:
    """What the client refuses is exit code 2, what the server refuses 4; each in one line."""
    submit(terminal, "greet", "-a", "name=a", "--key", "once")
    for code, arguments in (
        (2, ["greet", "--priority", "urgent"]),
        (2, ["bad name"]),
        (2, ["greet", "--max-attempts", "0"]),
        (2, ["echo", "-a", "value=" + "[" * 70 + "]" * 70]),
        (4, ["greet", "-a", "name=b", "--key", "once"]),
    ):
        done = terminal.orc("tasks", "submit", *arguments)
        assert (done.code, done.out) == (code, ""), done
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1


def test_same_key_same_task(terminal: Terminal) -> None:
    """The same key with the same body is the same task."""
    first = submit(terminal, "greet", "-a", "name=a", "--key", "same")
    assert submit(terminal, "greet", '{"name": "a"}', "--key", "same") == first


def test_unserved_task_says_why(terminal: Terminal) -> None:
    """Nobody has the skill: the wait runs out with exit code 5 and says so."""
    done = terminal.orc("tasks", "submit", "nobody_can", "--wait", "--timeout", "500ms")
    assert (done.code, done.out) == (5, "")
    assert "no live agent has the skill" in done.err


def test_show(terminal: Terminal) -> None:
    """Everything is shown: what it waits for, its arguments, why it died."""
    task = submit(terminal, "greet", "-a", "name=ü", "--delay", "1h", "--tag", "a", "--tag", "b", "--session", "s 1")
    shown = terminal.orc("tasks", "show", task, "-o", "json").json()
    assert (shown["state"], shown["tags"], shown["session"], shown["args"]) == (
        "scheduled",
        ["a", "b"],
        "s 1",
        {"name": "ü"},
    )
    assert "starts no earlier than" in terminal.orc("tasks", "show", task).out
    dead = terminal.orc("tasks", "submit", "greet", "-a", "name=[]", "--wait", "-o", "id").out.strip()
    assert "name: Input should be a valid string" in terminal.orc("tasks", "show", dead).out
    assert "nme: not an argument" in terminal.orc("tasks", "submit", "greet", "-a", "nme=x").err
    assert terminal.orc("tasks", "show", UNKNOWN_ID).code == 3


def test_list_by_state(terminal: Terminal) -> None:
    """Tasks are listed where they are; a filter leaves the others out."""
    running, scheduled = submit(terminal, "nap", "-a", "seconds=60"), submit(terminal, "greet", "--delay", "1h")
    ready, ended = submit(terminal, "unserved"), submit(terminal, "greet")
    assert terminal.orc("tasks", "wait", ended).code == 0

    def states() -> dict[str, str]:
        items = terminal.orc("tasks", "list", "--limit", "1000", "-o", "json").json()["items"]
        return {item["id"]: item["state"] for item in items}

    wait_until(lambda: states()[running] == "running", "the task to run", 10.0)
    found = states()
    assert (found[scheduled], found[ready], found[ended]) == ("scheduled", "ready", "succeeded")
    for task, state in ((running, "running"), (scheduled, "scheduled"), (ready, "ready"), (ended, "succeeded")):
        assert task in terminal.orc("tasks", "list", "--state", state, "-o", "id").out.split()
    assert not {running, scheduled, ready, ended} & set(
        terminal.orc("tasks", "list", "--state", "cancelled", "-o", "id").out.split()
    )
    assert len(terminal.orc("tasks", "list", "--limit", "2", "-o", "id").out.split()) == 2


def test_registry(terminal: Terminal) -> None:
    """Agents, workers and queues are listed and shown."""
    (agent,) = terminal.orc("agents", "list", "-o", "json").json()["items"]
    assert (agent["name"], agent["slots"], len(agent["workers"])) == ("greeter", 4, 1)
    assert agent == {
        **terminal.orc("agents", "show", "greeter", "-o", "json").json(),
        "last_seen_at": agent["last_seen_at"],
    }
    assert terminal.orc("agents", "show", "nobody").code == 3
    assert terminal.orc("workers", "list", "-o", "id").out.split() == agent["workers"]
    submit(terminal, "never_served")
    queues = {item["queue"]: item for item in terminal.orc("queues", "list", "-o", "json").json()["items"]}
    assert queues["skill:never_served"]["agents"] == []


def test_status(terminal: Terminal) -> None:
    """One screen: server, supervisor, agents, workers, queues, counters; the same as one document."""
    assert terminal.orc("tasks", "submit", "greet", "-a", "name=Ada", "--wait").code == 0
    screen = terminal.orc("status")
    assert screen.code == 0, screen
    for word in ("Redis", "supervisor", "greeter", "submitted"):
        assert word in screen.out
    status = terminal.orc("status", "-o", "json").json()
    assert status["supervisor"]
    assert status["server"]["append_only"] is True
    assert status["tasks"]["submitted"] > 0


def test_status_without_supervisor(terminal: Terminal) -> None:
    """A pool that no supervisor leads is shown, and is exit code 69."""
    done = terminal.orc("status", "--pool", "elsewhere", "-o", "json")
    assert (done.code, done.json()["supervisor"]) == (69, None)
    assert "orc supervisor run" in done.err


def test_redis_info(terminal: Terminal) -> None:
    """The embedded server is described: where its data is and where it listens."""
    found = terminal.orc("redis", "info", "-o", "json").json()
    assert found["data_dir"] == os.path.realpath(terminal.environ["ORC_DATA_DIR"])
    assert found["url"].startswith("unix:///")
    assert terminal.orc("status", "--url", found["url"]).code == 0


def test_found_from_below(terminal: Terminal) -> None:
    """Without a variable, the nearest data directory upwards is found by its name."""
    (terminal.folder / ".orc").symlink_to(terminal.environ["ORC_DATA_DIR"])
    below = terminal.folder / "src" / "deep"
    below.mkdir(parents=True)
    environ = {name: value for name, value in terminal.environ.items() if name != "ORC_DATA_DIR"}
    done = subprocess.run([ORC, "agents", "list", "-o", "id"], cwd=below, env=environ, capture_output=True, check=False)
    assert done.stdout == b"greeter\n", done


def test_interrupted_wait(terminal: Terminal) -> None:
    """Ctrl-C ends the wait with exit code 130 and no traceback; the task goes on."""
    nap = ("nap", "-a", "seconds=1.5", "--session", "sofa", "--key", "nap")
    with terminal.start("tasks", "submit", *nap, "--wait") as waiting:
        wait_until(lambda: "sofa" in terminal.orc("tasks", "list", "--state", "running").out, "the nap", 10.0)
        waiting.signal(signal.SIGINT)
        assert waiting.wait_exit() == 130
        assert waiting.output == "interrupted\n"
    assert terminal.orc("tasks", "wait", submit(terminal, *nap)).code == 0


def test_redis_dies_while_waiting(terminal: Terminal) -> None:
    """A wait outlives a killed server: it is started again, nothing is lost, and the result comes."""
    with terminal.start("tasks", "submit", "nap", "-a", "seconds=1", "--session", "deck chair", "--wait") as waiting:
        wait_until(lambda: "deck chair" in terminal.orc("tasks", "list", "--state", "running").out, "the nap", 10.0)
        os.kill(terminal.orc("redis", "info", "-o", "json").json()["pid"], signal.SIGKILL)
        assert waiting.wait_exit(30) == 0, waiting.output
        assert waiting.output.endswith('"rested"\n')


def test_watch(terminal: Terminal) -> None:
    """Every event is a line; JSON lines have ids, and watching goes on behind each; the exit code is that of wait."""
    task = submit(terminal, "talk", "-a", "to=2")
    assert terminal.orc("tasks", "wait", task).code == 0
    screen = terminal.orc("tasks", "watch", task)
    assert (screen.code, screen.err) == (0, "")
    told = [line.split(maxsplit=1)[1] for line in screen.out.splitlines()]
    assert [" ".join(line.split()) for line in told] == [
        "progress 1 of 2 counting",
        'output {"number":1,"long":1180591620717411303424}',
        "progress 2 of 2 counting",
        'output {"number":2,"long":1180591620717411303424}',
        "succeeded",
    ]
    lines = terminal.orc("tasks", "watch", task, "-o", "jsonl").out.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["kind"] for row in rows] == [line.split()[0] for line in told]
    assert (rows[0]["progress"]["total"], rows[3]["number"], rows[3]["data"]["long"]) == (2, 2, 2**70)
    for position, row in enumerate(rows, 1):
        rest = terminal.orc("tasks", "watch", task, "--after", row["id"], "-o", "json")
        assert (rest.code, rest.json()["items"]) == (0, rows[position:])
    assert terminal.orc("tasks", "watch", task, "-o", "id").out.split() == [row["id"] for row in rows]


def test_watch_ends_with_the_task(terminal: Terminal) -> None:
    """It follows a running task to its end, and tells by its exit code how that was."""
    bad = terminal.orc("tasks", "watch", submit(terminal, "talk", "-a", "to=2", "-a", "fail=true", "--delay", "1s"))
    assert bad.code == 1
    assert [line.split()[1] for line in bad.out.splitlines()] == [
        *["scheduled", "assigned"],
        *["progress", "output"] * 2,
        "dead",
    ]
    assert "no" in bad.err
    assert "\x1b" not in bad.out + bad.err
    never_spoke = terminal.orc("tasks", "submit", "refuse", "-a", "reason=x", "--wait", "-o", "id").out.strip()
    silent = terminal.orc("tasks", "watch", never_spoke, "-o", "jsonl")
    assert (silent.code, silent.json()["kind"], silent.json()["reason"]) == (1, "dead", "x")
    assert terminal.orc("tasks", "watch", never_spoke, "--after", silent.json()["id"]).out == ""
    unserved = submit(terminal, "nobody_can")
    terminal.orc("tasks", "cancel", unserved)
    assert f"{unserved} is cancelled; " in terminal.orc("tasks", "watch", unserved).err
    assert terminal.orc("tasks", "watch", UNKNOWN_ID).code == 3
    assert terminal.orc("tasks", "watch", UNKNOWN_ID, "--after", "soon").code == 2


def test_show_has_the_progress(terminal: Terminal) -> None:
    """`tasks show` tells how far a running task has come."""
    task = submit(terminal, "talk", "-a", "to=3", "-a", "seconds=1")

    def shown() -> object:
        return terminal.orc("tasks", "show", task, "-o", "json").json()["progress"]

    wait_until(lambda: shown() is not None, "progress", 10.0)
    assert shown() == {"done": 1, "total": 3, "message": "counting"}


def test_interrupted_watch(terminal: Terminal) -> None:
    """Ctrl-C ends the watching with exit code 130 and no traceback; the task goes on."""
    task = submit(terminal, "talk", "-a", "to=100", "-a", "seconds=0.5")
    with terminal.start("tasks", "watch", task) as watching:
        wait_until(lambda: "output" in watching.output, lambda: f"the first output; so far: {watching.output}", 10.0)
        watching.signal(signal.SIGINT)
        assert watching.wait_exit() == 130
        assert watching.output.endswith("interrupted\n")
    assert terminal.orc("tasks", "show", task, "-o", "json").json()["state"] == "running"
    assert terminal.orc("tasks", "cancel", task, "--wait").code == 0


def test_watch_draws_a_bar_on_a_terminal(terminal: Terminal) -> None:
    """Somebody who looks gets a bar in place of a line for each progress, and it is gone in the end."""
    task = submit(terminal, "talk", "-a", "to=2", "-a", "seconds=0.5")
    pid, screen = pty.fork()
    if pid == 0:
        os.execve(ORC, [ORC, "tasks", "watch", task], terminal.environ)
    shown = b""
    with contextlib.suppress(OSError):  # how the end of a terminal looks
        while chunk := os.read(screen, 4096):
            shown += chunk
    os.close(screen)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = shown.decode()
    assert "50%  1 of 2  counting" in text
    assert "progress" not in text
    assert "█" not in text.rpartition("\x1b[K")[2]
    assert "succeeded" in text.rpartition("\x1b[K")[2]


@pytest.mark.slow
def test_many_waiters_at_once(terminal: Terminal) -> None:
    """Commands side by side do not disturb each other."""
    started_s = time.monotonic()
    commands = [
        subprocess.Popen(
            [ORC, "tasks", "submit", "echo", "-a", f"value={number}", "--wait"],
            env=terminal.environ,
            stdout=subprocess.PIPE,
        )
        for number in range(4)
    ]
    printed = [json.loads(command.communicate(timeout=20)[0]) for command in commands]
    assert printed == list(range(4)), f"after {time.monotonic() - started_s:.1f} s"
