"""`orc stop` in one terminal and `orc up` in another: what is ordered outlives everything, and is obeyed by all."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_until
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.processes import ActorProcess

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

SECRET = "canary-of-the-control-secret"


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal whose commands are signed."""
    return Terminal(tmp_path, ORC_CONTROL__SECRET=SECRET, ORC_SUPERVISOR__LEADER_LEASE_S="2")


def ready(up: ActorProcess) -> ActorProcess:
    """Wait until tasks would be assigned and run."""
    up.wait_output("worker_started", timeout_s=20)
    up.wait_output("leadership_acquired", timeout_s=20)
    return up


def test_a_stop_outlives_everything(terminal: Terminal) -> None:
    """Given while nothing works, it holds when all of it starts; all answer; a start ends it; no secret is shown."""
    with terminal.start("redis", "run") as redis:
        redis.wait_output("Ctrl-C stops it")
        stopped = terminal.process("stop", "--reason", "before anything runs")
        assert stopped.code == 0, stopped.err
        assert "no process runs that could answer" in stopped.err
        task = terminal.orc("tasks", "submit", "greet", "-o", "id").out.strip()
        redis.terminate()
        assert redis.wait_exit() == 0
    with terminal.start("up", "my_agents:agent", "--processes", "2") as up:
        ready(up)
        id_ = stopped.out.split()[1].rstrip(":")
        wait_until(lambda: len(terminal.orc("control", "show", id_, "-o", "json").json()["answered"]) == 3, "all", 10.0)
        why = terminal.orc("tasks", "why", task).out
        assert "before anything runs" in why
        assert terminal.orc("tasks", "wait", task, "--timeout", "0.3").code == 5
        began_s = time.monotonic()
        started = terminal.process("start", "-o", "json")
        assert started.code == 0, started.err
        assert {row["word"] for row in started.json()["answered"]} == {"done"}
        assert len(started.json()["answered"]) == 3
        assert terminal.orc("tasks", "wait", task, "--timeout", "10").code == 0
        assert time.monotonic() - began_s < 8
        up.terminate()
        assert up.wait_exit(20) == 0, up.output
        assert SECRET not in up.output + why + stopped.out + stopped.err + started.out
    assert not terminal.processes()
