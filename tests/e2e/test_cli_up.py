"""`orc up` as a parent: what starts, what is restarted, what stops and in which order, whichever way it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.helpers.site import LINK
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal in a folder of its own; another supervisor may lead after two seconds."""
    return Terminal(tmp_path, ORC_WORKER__DRAIN_S="10", ORC_SUPERVISOR__LEADER_LEASE_S="2")


def ready(up: ActorProcess) -> ActorProcess:
    """Wait until tasks are assigned and run."""
    up.wait_output("worker_started", timeout_s=20)
    up.wait_output("leadership_acquired", timeout_s=20)
    return up


def pid_of(terminal: Terminal, part: str) -> int:
    """The oldest process whose command line holds these words."""
    return min(pid for pid, command in terminal.processes().items() if part in command)


def start_nap(terminal: Terminal, seconds: float, *options: str) -> str:
    """Submit a task and wait until it runs."""
    task = terminal.orc("tasks", "submit", "nap", "-a", f"seconds={seconds}", "-o", "id", *options).out.strip()
    running = ("tasks", "list", "--state", "running", "-o", "id", *options)
    wait_until(lambda: terminal.orc(*running).out.strip() == task, "the nap", 10.0)
    return task


def test_ctrl_c_finishes_what_runs(terminal: Terminal) -> None:
    """After Ctrl-C a running task ends well, then everything stops in order; the data is there the next time."""
    with terminal.start("up", "my_agents:agent", "--processes", "2") as up:
        assert str(terminal.folder / "data") in ready(up).output
        task = start_nap(terminal, 1.0)
        up.signal(signal.SIGINT)
        assert up.wait_exit(20) == 0, up.output
        said = up.output
    assert said.index("worker_stopped") < said.index("supervisor_stop_requested") < said.index("the data is kept")
    # Its workers tell of starts and successes; those of services do so at debug.
    assert said.index("task_started") < said.index("task_succeeded") < said.index("the data is kept")
    assert not terminal.processes()
    with terminal.start("redis", "run") as redis:
        redis.wait_output("Ctrl-C stops it")
        assert terminal.orc("tasks", "result", task).out == '"rested"\n'
        redis.terminate()
        assert redis.wait_exit() == 0


@pytest.mark.slow
def test_second_ctrl_c_hurries(terminal: Terminal) -> None:
    """A second Ctrl-C does not wait for what runs; the task is given back without an attempt."""
    with terminal.start("up", "my_agents:agent") as up:
        ready(up)
        task = start_nap(terminal, 60)
        # A share of ours, so that the server outlives them.
        with terminal.start("redis", "run") as redis:
            redis.wait_output("Ctrl-C stops it")
            up.signal(signal.SIGINT)
            up.wait_output("worker_stop_requested")
            up.signal(signal.SIGINT)
            assert up.wait_exit(8) == 130, up.output
            assert "redis keeps running for other processes" in up.output
            shown = terminal.orc("tasks", "show", task, "-o", "json").json()
            assert (shown["state"], shown["attempts"]) == ("ready", 0)
            redis.terminate()
            assert redis.wait_exit() == 0
    assert not terminal.processes()


@pytest.mark.slow
def test_killed_up_leaves_nothing(terminal: Terminal) -> None:
    """After kill -9 of `orc up` supervisor, workers and Redis end by themselves; what ran is not lost."""
    with terminal.start("up", "my_agents:agent", "--processes", "2") as up:
        ready(up)
        task = start_nap(terminal, 0.5)
        up.kill()
        wait_until(lambda: not terminal.processes(), lambda: f"an end of {terminal.processes()}", 20.0)
    with terminal.start("up", "my_agents:agent") as up:
        ready(up)
        assert terminal.orc("tasks", "wait", task, "--timeout", "15s").code == 0
        up.terminate()
        assert up.wait_exit(20) == 0


@pytest.mark.slow
def test_nohup(terminal: Terminal) -> None:
    """Started with `nohup` it ignores SIGHUP. Without, tests/fault/test_reload.py closes its terminal."""
    (terminal.folder / "nohup.sh").write_text(f'trap "" HUP; exec {ORC} up\n')
    with ActorProcess(["/bin/sh", "nohup.sh"], name="nohup", env=terminal.environ, cwd=terminal.folder) as up:
        up.wait_output("leadership_acquired", timeout_s=20)
        up.signal(signal.SIGHUP)
        assert terminal.orc("status").code == 0
        assert up.returncode is None
        up.terminate()
        assert up.wait_exit(20) == 0
        assert "SIGHUP" not in up.output
        assert "settings_reloaded" not in up.output
    assert not terminal.processes()


@pytest.mark.parametrize(
    "part",
    [
        "embedded.guardian",
        *[
            pytest.param(part, marks=pytest.mark.slow)
            for part in ("supervisor run", "-m orchestrator.workers", "orchestrator web")
        ],
    ],
)
def test_killed_part_comes_back(terminal: Terminal, part: str) -> None:
    """A part that is killed is started again, and work goes on."""
    with terminal.start("up", "my_agents:agent") as up:
        ready(up)
        os.kill(pid_of(terminal, part), signal.SIGKILL)
        up.wait_output("restarting it")
        done = terminal.orc("tasks", "submit", "greet", "--wait", "--timeout", "20s")
        assert (done.code, done.out) == (0, '"Hello, you"\n'), up.output
        up.terminate()
        assert up.wait_exit(20) == 0, up.output
    assert not terminal.processes()


def test_dashboard(terminal: Terminal) -> None:
    """It prints a link that logs in, at a free port when that of the settings is taken; at the end it goes too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        terminal.environ["ORC_DASHBOARD__PORT"] = str(taken.getsockname()[1])
        with terminal.start("up", "my_agents:agent") as up:
            link = LINK.search(wait_until(lambda: LINK.search(up.output) and up.output, "the link", 20.0) or "")
            assert link is not None
            with urlopen(link[1], timeout=10) as answer:
                assert "Log in" in answer.read().decode()
            ready(up).terminate()
            assert up.wait_exit(20) == 0, up.output
    assert not terminal.processes()


@pytest.mark.parametrize("why", ["--no-web", "two pools", "refused"])
def test_without_dashboard(terminal: Terminal, why: str) -> None:
    """The others run without a dashboard that is not wanted, that would serve several pools, or that cannot start."""
    words = {"--no-web": ["--no-web"], "two pools": ["--pool", "mail", "--pool", "billing"]}.get(why, [])
    if why == "refused":
        terminal.environ["ORC_DASHBOARD__HOST"] = "0.0.0.0"
    with terminal.start("up", "my_agents:agent", *words) as up:
        if why == "refused":
            up.wait_output("the dashboard does not run; everything else does", timeout_s=20)
            assert "it has no users" in up.output
        ready(up)
        assert terminal.orc("tasks", "submit", "greet", "--wait", *words[-2:] * (why == "two pools")).code == 0
        assert not [command for command in terminal.processes().values() if "orchestrator web" in command]
        up.terminate()
        assert up.wait_exit(20) == 0, up.output
        assert not LINK.search(up.output)


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("my_agents:nobody", "my_agents.py has no 'nobody'; it has agent"),
        ("broken:agent", "broken cannot be imported: RuntimeError: on purpose\n  File "),
    ],
)
@pytest.mark.parametrize("command", ["up", "worker run"])
def test_wrong_app(terminal: Terminal, command: str, app: str, said: str) -> None:
    """Agents that cannot be loaded end the program with exit code 78 and the user's frames; it starts nothing."""
    (terminal.folder / "broken.py").write_text("def fail(): raise RuntimeError('on purpose')\nfail()\n")
    done = terminal.process(*command.split(), app)
    assert done.code == 78, done
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.err.count(f"{terminal.folder}/broken.py") == 2 * ("broken" in app), done
    assert not (terminal.folder / "data").exists()
    assert not terminal.processes()


@pytest.mark.slow
def test_worker_run_alone(terminal: Terminal) -> None:
    """Supervisor and workers run as services of their own, on a server that somebody else holds."""
    with terminal.start("redis", "run") as redis:
        redis.wait_output("Ctrl-C stops it")
        with (
            terminal.start("worker", "run", "my_agents:agent") as worker,
            terminal.start("supervisor", "run") as supervisor,
        ):
            worker.wait_output("worker_started", timeout_s=20)
            supervisor.wait_output("leadership_acquired", timeout_s=20)
            assert terminal.orc("tasks", "submit", "greet", "--wait", "--timeout", "10s").code == 0
            for part in (supervisor, worker, redis):
                part.terminate()
                assert part.wait_exit(20) == 0, part.output
    assert not terminal.processes()


def test_reload_of_settings(terminal: Terminal) -> None:
    """`orc up` passes SIGHUP on to its supervisor and its workers, and goes on; Ctrl-C stops it as before."""
    file = terminal.folder / "orc.toml"
    file.write_text("[results]\nttl_s = 300\n")
    terminal.environ |= {"ORC_CONFIG": str(file), "ORC_LOGGING__FORMAT": "json"}
    with terminal.start("up", "my_agents:agent") as up:
        ready(up)
        file.write_text("[results]\nttl_s = 900\n[worker]\ndrain_s = 5\n")
        up.signal(signal.SIGHUP)
        wait_until(lambda: up.output.count('"settings_reloaded"') == 2, lambda: up.describe("two reloads"), 20.0)
        assert up.output.count("results.ttl_s = 900.0 (was 300.0)") == 2
        up.wait_output("settings_applied")
        assert terminal.orc("tasks", "submit", "greet", "--wait").code == 0
        assert "restarting it" not in up.output
        up.signal(signal.SIGINT)
        assert up.wait_exit(20.0) == 0, up.output


@pytest.mark.slow
def test_two_pools(terminal: Terminal) -> None:
    """Each pool has workers of its own and one process supervises both; a stop of one leaves the other alone."""
    with terminal.start("up", "my_agents:agent", "--pool", "mail", "--pool", "billing") as up:
        up.wait_output("2 worker processes for my_agents:agent")
        for pool in ("mail", "billing"):
            greeted = terminal.orc("tasks", "submit", "greet", "--wait", "--timeout", "30s", "--pool", pool)
            assert (greeted.code, greeted.out) == (0, '"Hello, you"\n'), up.output
        workers = [terminal.orc("workers", "list", "-o", "id", "--pool", pool).out for pool in ("mail", "billing")]
        assert [len(listed.split()) for listed in workers] == [1, 1]
        assert workers[0] != workers[1]
        assert len([command for command in terminal.processes().values() if "supervisor run" in command]) == 1

        assert terminal.orc("stop", "--pool", "mail").code == 0
        held = terminal.orc("tasks", "submit", "greet", "-o", "id", "--pool", "mail").out.strip()
        assert terminal.orc("tasks", "submit", "greet", "--wait", "--timeout", "20s", "--pool", "billing").code == 0
        assert terminal.orc("tasks", "show", held, "-o", "json", "--pool", "mail").json()["state"] == "ready"
        assert terminal.orc("start", "--pool", "mail").code == 0
        assert terminal.orc("tasks", "wait", held, "--timeout", "20s", "--pool", "mail").code == 0

        # Long enough for a slow machine to see it run.
        nap = start_nap(terminal, 6.0, "--pool", "billing")
        up.signal(signal.SIGINT)
        assert up.wait_exit(30) == 0, up.output
    assert not terminal.processes()
    with terminal.start("redis", "run") as redis:
        redis.wait_output("Ctrl-C stops it")
        assert terminal.orc("tasks", "result", nap, "--pool", "billing").out == '"rested"\n'
        redis.terminate()
        assert redis.wait_exit() == 0


def test_other_commands_take_one_pool(terminal: Terminal) -> None:
    """A command of a client refuses two pools, before it looks for a server; a program refuses an invalid name."""
    refused = terminal.orc("tasks", "list", "--pool", "mail", "--pool", "billing")
    assert (refused.code, refused.out) == (2, "")
    assert "only `orc up`, `orc supervisor run` and `orc worker run` take several pools" in refused.err
    for command in (["up"], ["supervisor", "run"], ["worker", "run", "my_agents:agent"]):
        refused = terminal.process(*command, "--pool", "mail", "--pool", "a b")
        assert refused.code == 2, refused
        assert "pool" in refused.err
