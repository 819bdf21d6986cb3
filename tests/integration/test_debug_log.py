"""With `--debug` the log says what each loop of the supervisor and of a worker does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, TaskContext
from tests.helpers.json_log import json_log
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

LOOPS = {
    "control_swept",
    "doorbell_read",
    "entries_read",
    "heartbeat_sent",
    "leadership_renewed",
    "output_stored",
    "recover_finished",
    "registry_checked",
    "schedules_checked",
    "tasks_assigned",
    "tasks_promoted",
    "verdicts_stored",
}


@pytest.mark.parametrize("settings", [{"supervisor__sweep_s": 0.2, "supervisor__leader_lease_s": 1.0}], indirect=True)
async def test_each_loop_tells_what_it_does(team: LocalTeam) -> None:
    """While tasks run, be it at once or later, each loop writes a line at debug, and none at info."""
    agent = Agent("talker")

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        await ctx.emit("a chunk")

    with json_log("debug") as log:
        await team.work(agent)
        for delay in (0, 0.1):
            await (await team.orc.submit("work", delay=delay)).result(30)

        def missing() -> set[str]:
            return LOOPS - {line["event"] for line in log.all()}

        await wait_for(lambda: not missing(), lambda: f"lines of {sorted(missing())}", 30)
        assert {line["level"] for line in log.lines(*LOOPS)} == {"debug"}
