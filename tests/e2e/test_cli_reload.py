"""`orc up --reload`: edited source takes over, broken source does not, and what runs meanwhile is not lost."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_until
from tests.helpers.terminal import AGENTS, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.servers import RedisServer

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"), pytest.mark.timeout(120)]

TIMEOUT_S = 30.0
HOLD = """

@agent.skill
async def hold(gate: str) -> None:
    while not await anyio.Path(gate).exists():
        await anyio.sleep(0.05)
"""
FROM_MODULE = (
    (AGENTS + HOLD)
    .replace('f"Hello, {name}"', 'f"{words.HELLO}, {name}"')
    .replace("from orchestrator import", "from kit import words\nfrom orchestrator import")
)


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal in a folder of its own, whose agents take their words from a package."""
    terminal = Terminal(tmp_path, ORC_WORKER__DRAIN_S="10", ORC_SUPERVISOR__LEADER_LEASE_S="2")
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "words.py").write_text('HELLO = "Hello"\n')
    (tmp_path / "my_agents.py").write_text(FROM_MODULE)
    return terminal


def wait_started(up: ActorProcess, times: int) -> None:
    """Wait until workers have started for the n-th time."""
    wait_until(
        lambda: up.output.count("worker_started") >= times, lambda: up.describe(f"start {times} of workers"), TIMEOUT_S
    )


def greeting(terminal: Terminal) -> str:
    """What the agents answer now."""
    done = terminal.orc("tasks", "submit", "greet", "--wait", "--timeout", f"{TIMEOUT_S}s")
    assert done.code == 0, done
    return str(done.json())


@pytest.mark.slow
def test_edits(terminal: Terminal) -> None:
    """New text is answered after an edit; a broken one is shown and changes nothing; the next good one takes over.

    A task that ends within the short drain ends; one that does not runs again, and no attempt is counted for it. At the
    end a kill -9 leaves nothing behind.
    """
    words, more, gate = (terminal.folder / name for name in ("kit/words.py", "lib/more.py", "gate"))
    with terminal.start("up", "my_agents:agent", "--reload") as up:
        wait_started(up, 1)
        assert greeting(terminal) == "Hello, you"
        long = terminal.orc("tasks", "submit", "hold", "-a", f"gate={gate}", "-o", "id").out.strip()
        short = terminal.orc("tasks", "submit", "nap", "-a", "seconds=1.5", "-o", "id").out.strip()
        wait_until(
            lambda: len(terminal.orc("tasks", "list", "--state", "running", "-o", "id").out.split()) == 2, "both", 10.0
        )

        # A folder that the agents did not know: from now on it is watched too.
        more.parent.mkdir()
        more.write_text('HELLO = "Howdy"\n')
        words.write_text("from lib.more import HELLO\n")
        up.wait_output("words.py changed", TIMEOUT_S)
        wait_started(up, 2)
        assert greeting(terminal) == "Howdy, you"
        gate.touch()
        assert terminal.orc("tasks", "wait", long, short, "--timeout", f"{TIMEOUT_S}s").code == 0
        assert [terminal.orc("tasks", "show", id_, "-o", "json").json()["attempts"] for id_ in (long, short)] == [1, 1]
        assert terminal.orc("status", "-o", "json").json()["tasks"]["given_back"] == 1

        more.write_text('HELLO = "Moin\n')
        up.wait_output("the workers continue with the old source", TIMEOUT_S)
        assert "more.py changed" in up.output
        assert "SyntaxError: unterminated string literal" in up.output
        assert greeting(terminal) == "Howdy, you"
        assert up.output.count("worker_stopped") == 1

        more.write_text('HELLO = "Salve"\n')
        wait_started(up, 3)
        assert greeting(terminal) == "Salve, you"

        up.kill()
        wait_until(lambda: not terminal.processes(), lambda: f"an end of {terminal.processes()}", TIMEOUT_S)


def test_sources_with_long_paths(terminal: Terminal, redis_server: RedisServer, prefix: str) -> None:
    """Workers start also when the paths of the sources are longer together than a pipe holds (64 KiB on Linux)."""
    folder = terminal.folder.joinpath(*["x" * 200] * 15)
    folder.mkdir(parents=True)
    names = [f"part{number}" for number in range(24)]
    for name in names:
        (folder / f"{name}.py").touch()
    assert sum(len(os.fsencode(folder / f"{name}.py")) for name in names) > 65_536
    imports = f"import sys\nsys.path.append({str(folder)!r})\nimport {', '.join(names)}\n"
    (terminal.folder / "my_agents.py").write_text(imports + AGENTS)
    arguments = ("worker", "run", "my_agents:agent", "--reload", "--url", redis_server.url, "--prefix", prefix)
    with terminal.start(*arguments) as worker:
        wait_started(worker, 1)


@pytest.mark.slow
def test_worker_run_alone(terminal: Terminal) -> None:
    """`orc worker run --reload` does the same; source that is broken at the start is waited for, not given up."""
    assert terminal.orc("up", "--reload").code == 2
    agents = terminal.folder / "my_agents.py"
    agents.write_text("import nonsense\n")
    with terminal.start("redis", "run") as redis:
        redis.wait_output("Ctrl-C stops it")
        with terminal.start("worker", "run", "my_agents:agent", "--reload") as worker:
            worker.wait_output("no workers run; waiting for the next change of the source", TIMEOUT_S)
            assert "No module named 'nonsense'" in worker.output
            agents.write_text("import time\ntime.sleep(600)\n")
            worker.wait_output("my_agents.py changed", TIMEOUT_S)
            agents.write_text(FROM_MODULE)  # nobody waits for the import of what has changed meanwhile
            wait_started(worker, 1)
            worker.terminate()
            assert worker.wait_exit(TIMEOUT_S) == 0, worker.output
        redis.terminate()
        assert redis.wait_exit(TIMEOUT_S) == 0
    assert not terminal.processes()
