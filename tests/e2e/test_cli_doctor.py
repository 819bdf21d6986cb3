"""`orc doctor`: its exit codes, its forms, and what it says of a team at work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.doctor.findings import TOPICS
from tests.faultkit.servers import RedisServer
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal in a folder where nothing runs."""
    return Terminal(tmp_path, ORC_WORKER__DRAIN_S="1")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_team_at_work(terminal: Terminal) -> None:
    """With `orc up` there is nothing to complain of, and every check of the table but none else was made."""
    with terminal.start("up", "my_agents:agent") as up:
        up.wait_output("worker_started", timeout_s=20)
        up.wait_output("leadership_acquired", timeout_s=20)
        done = terminal.process("doctor", "--strict", "--all")
        assert (done.code, done.err) == (0, "no problems found\n"), done
        assert "ok       supervisor" in done.out
        assert terminal.orc("doctor").out == ""
        assert "\x1b" not in done.out
        rows = terminal.orc("doctor", "-o", "json").json()["items"]
        # Without a payload store no payload can be an orphan.
        assert {row["code"] for row in rows} == set(TOPICS) - {"payload-orphans"}
        assert {row["severity"] for row in rows} == {"ok"}
        up.terminate()
        assert up.wait_exit(20) == 0
    assert not terminal.processes()


def test_nobody_answers(terminal: Terminal) -> None:
    """Without a server the machine is looked at all the same; the exit code is 69, and no folder is made."""
    done = terminal.orc("doctor")
    assert done.code == 69
    assert "problem  redis-reach" in done.out
    assert "→ start it with `orc up" in done.out
    assert "ok  " not in done.out
    assert "ok       python" in terminal.orc("doctor", "--all").out
    assert done.err == "1 problem\n"
    assert not (terminal.folder / "data").exists()


def test_exit_codes(terminal: Terminal) -> None:
    """Warnings count with --strict alone; problems always; every form has the same rows."""
    with RedisServer() as server, server.client() as client:
        done = terminal.orc("doctor", ORC_REDIS__URL=server.url)
        usual = 3 + ("server-faults" in done.out)  # the server of the tests may lack a security fix
        assert (done.code, done.err) == (0, f"{usual} warnings\n")
        assert terminal.orc("doctor", "--strict", ORC_REDIS__URL=server.url).code == 1
        client.config_set("maxmemory-policy", "allkeys-lru")
        done = terminal.orc("doctor", "-o", "jsonl", ORC_REDIS__URL=server.url)
        assert (done.code, done.err) == (1, f"1 problem, {usual} warnings\n")
        assert '"code":"redis-eviction","severity":"problem"' in done.out
        codes = terminal.orc("doctor", "-o", "id", ORC_REDIS__URL=server.url).out.split()
        assert len(codes) == done.out.count("\n")


def test_wrong_settings(terminal: Terminal) -> None:
    """Settings that cannot be used are a problem like others, and are said on standard output."""
    done = terminal.orc("doctor", ORC_POOOL="x")
    assert done.code == 1
    assert "problem  settings" in done.out
    assert "ORC_POOL?" in done.out
    assert done.err == "1 problem\n"
