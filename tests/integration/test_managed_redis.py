"""A server as managed services run it: few rights, disabled commands, short-lived idle connections."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.server_matrix import ALL_SERVERS_RARELY, binary_of
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREFIX = "shop:prod:acme"
DISABLED = (
    "ACL", "BGREWRITEAOF", "BGSAVE", "CLUSTER", "COMMAND", "CONFIG", "DEBUG", "FAILOVER", "LASTSAVE", "MIGRATE",
    "MONITOR", "REPLICAOF", "SAVE", "SHUTDOWN", "SLAVEOF", "SYNC",
)  # fmt: skip
"""Each is disabled by a service of docs/guides/managed-redis.md."""
RIGHTS = f"on >pw ~{PREFIX}:* &{PREFIX}:* +@all -@admin -@dangerous +info +client|list -script|flush -script|kill"
"""Of a user as services grant it: its own keys, nothing that administers."""
AGENT = """
from orchestrator import Agent

agent = Agent("ada", concurrency=2)
other = Agent("bob")

@agent.skill
async def double(n: int) -> int:
    return 2 * n

@other.skill
async def half(n: int) -> int:
    return n // 2
"""


def managed_server(which: str, folder: Path) -> RedisServer:
    """Return a server of the matrix with these commands disabled and this user."""
    lines = [f'rename-command {name} ""' for name in DISABLED]
    file = folder / "managed.conf"
    file.write_text("\n".join([*lines, f"user managed {RIGHTS}", "appendonly yes", ""]))
    return RedisServer(binary_of(which), options={"include": str(file)})


@pytest.fixture(params=ALL_SERVERS_RARELY)
def managed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of such a server with the login of the user."""
    with managed_server(request.param, tmp_path) as server:
        yield f"unix://managed:pw@{server.directory}/redis.sock"


@pytest.mark.slow
def test_the_usual_life(managed: str, tmp_path: Path) -> None:
    """The demo, a supervisor, a worker with two agents, submits, lists and a drain; the doctor names what is denied."""
    (tmp_path / "team.py").write_text(AGENT)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "shop.py").write_text('"""A shop."""\n\n\ndef total(n):\n    return n\n')
    terminal = Terminal(tmp_path, ORC_REDIS__URL=managed, ORC_PREFIX=PREFIX, ORC_LOGGING__FORMAT="json")

    def run(line: str) -> str:
        done = terminal.orc(*line.split(" "))
        assert done.code == 0, f"orc {line}: {done}"
        return done.out

    demo = terminal.orc("demo", "tree", "--out", "report", "--processes", "1", "--prefix", PREFIX)
    assert demo.code == 0, demo
    with ExitStack() as stack:
        commands = {"supervisor": ["supervisor", "run"], "worker": ["worker", "run", "team:agent", "team:other"]}
        actors = {}
        for name, words in commands.items():
            actor = ActorProcess([ORC, *words], name=name, env=terminal.environ, cwd=tmp_path)
            actors[name] = stack.enter_context(actor)
        actors["worker"].wait_output("worker_started", 20)
        actors["supervisor"].wait_output("leadership_acquired", 20)
        assert run("tasks submit double -a n=21 --wait -o json").find("42") >= 0
        task = run("tasks submit half -a n=4 -o id").strip()
        run(f"tasks wait {task}")
        for line in ("status", "agents list", "workers list", "queues list", "tasks list", "keys report", "keys check"):
            run(line)
        found = [json.loads(line) for line in terminal.orc("doctor", "-o", "jsonl").out.splitlines()]
        problems = {one["code"]: one["found"] for one in found if one["severity"] == "problem"}
        assert problems == {"rights": "the user of the URL may not run client|unblock"}
        for actor in actors.values():
            actor.terminate()
            assert actor.wait_exit(20) == 0, actor.output
            assert "CONFIG" not in actor.output
            assert '"level": "error"' not in actor.output


@pytest.mark.slow
async def test_idle_connections_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    """A server closes each connection that is idle for a second: tasks go on, and the programs complain of nothing."""
    with RedisServer(options={"timeout": "1"}) as server, server.client() as direct:
        async with run_local_team(local_settings(server.url, PREFIX)) as team:
            agent = Agent("ada")

            @agent.skill
            async def double(n: int) -> int:
                return 2 * n

            await team.work(agent)
            for _ in range(3):
                assert await (await team.orc.submit("double", {"n": 4})).result(TIMEOUT_S) == 8
                before = direct.info("stats")["total_connections_received"]
                await anyio.sleep(2.2)  # the time is what is tested
                after = direct.info("stats")["total_connections_received"]
                assert 0 < after - before < 20
    assert [record for record in caplog.records if record.levelname not in {"DEBUG", "INFO"}] == []
