"""Everything works where OpenTelemetry is not installed, and nothing loads it where no program traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys

BLOCKED = sys.argv[3] == "blocked"

class Finder:
    def find_spec(self, name, path=None, target=None):
        if BLOCKED and name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())

import anyio
from orchestrator import Agent, TaskContext
from orchestrator.core.ids import TaskIds
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts
from orchestrator.tasks.model import Envelope, encode_envelope
from orchestrator.tracing.active import active
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.process_handlers import cruncher

agent = Agent("worker", concurrency=2)
HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

@agent.skill
async def parent(ctx: TaskContext) -> str:
    async with ctx.locks.hold("page"):
        child = await ctx.submit("swap", {"point": {"x": 1, "y": 2}})
    await child.result()
    return child.id

async def main() -> None:
    settings = local_settings(sys.argv[1], sys.argv[2])
    async with run_local_team(settings) as team:
        await team.work(agent, cruncher)
        # As a client with a tracer submits it.
        packed = encode_envelope(Envelope("parent", b"{}", trace=HEADER))
        row = scripts.SubmitRow(TaskIds(listens=False).next(), opaque(packed))
        call = scripts.submit(team.services.keys, rows=[row], max_tasks=10, max_wait_s=60)
        await team.services.store.call(call)
        child = await team.orc.task(row.id).result(10)
        print((await team.orc.task(row.id).info()).trace_id, (await team.orc.task(child).info()).trace_id)
        assert active() is None
        assert not BLOCKED or not any(name.partition(".")[0] == "opentelemetry" for name in sys.modules)

anyio.run(main)
"""


@pytest.mark.parametrize("how", ["blocked", pytest.param("unused", marks=pytest.mark.slow)])
def test_a_team_without_a_tracer(redis_server: RedisServer, prefix: str, how: str) -> None:
    """Tasks run, and a trace context that another program wrote goes on to the children."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, redis_server.url, prefix, how],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4bf92f3577b34da6a3ce929d0e0e4736"] * 2
