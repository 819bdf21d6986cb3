"""Every script call of every actor reaches the server twice, along the whole main path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from orchestrator.store.script_files import all_scripts
from orchestrator.testing.waiting import wait_for
from tests.fault.main_path import check, run_main_path
from tests.faultkit.commands import any_script, script
from tests.helpers.end_state import find_violations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faultkit.commands import Command
    from tests.faultkit.faults import Fault
    from tests.faultkit.proxy import FaultProxy
    from tests.helpers.attempt_log import AttemptLog
    from tests.helpers.team import Team

ON_THE_PATH = {
    "agents/heartbeat", "agents/deregister", "agents/lead", "agents/register", "agents/resign", "tasks/adopt",
    "tasks/assign", "tasks/cancel", "tasks/finish", "tasks/promote", "tasks/renew", "tasks/submit",
}  # fmt: skip


def doubled(*proxies: FaultProxy) -> set[str]:
    """The scripts that reached the server twice in one sending."""
    names = {one.sha: name for name, one in all_scripts().items()}
    calls = [record for proxy in proxies for record in proxy.commands("EVALSHA") if record.copies == 2]
    return {names[record.arguments[0].decode()] for record in calls}


@pytest.mark.parametrize("answer", ["first", "second"])
async def test_every_script_may_be_sent_twice(
    answer: Literal["first", "second"], make_team: Callable[..., Team], gate: Path
) -> None:
    """Whichever of the two answers arrives: each task ends once, as it should, and nothing is left behind."""
    adopt = script(all_scripts()["tasks/adopt"].sha)

    def twice(proxy: FaultProxy) -> None:
        proxy.double(lambda command: any_script(command) and not adopt(command), nth="every", answer=answer)
        # Of two adoptions the later one counts: what it hands over has a newer generation (see the test below).
        proxy.double(adopt, nth="every", answer="second")

    async with make_team(drain_s=0.2, heartbeat_s=0.05, fault=twice) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            expected_state = await run_main_path(team, orc, worker, gate)
        await team.stop_supervisor()
        check(expected_state, team)
        assert doubled(*team.proxies) >= ON_THE_PATH


async def test_an_adoption_that_a_later_one_overtook_costs_a_run_and_no_more(
    make_team: Callable[..., Team], attempt_log: AttemptLog
) -> None:
    """A worker that is told the older of two answers runs a fenced attempt; the task ends once, by a newer one."""
    async with make_team(lease_s=2.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            lost = worker.proxy.fail_reply("XREADGROUP", nth="every")
            await wait_for(lambda: lost.fired >= 2, "the reads under way to end")
            overtaken: list[Fault] = []

            def overtake(_: Command) -> None:
                if team.direct.xlen(team.keys.inbox("scribe")) and not overtaken:
                    overtaken.append(worker.proxy.double(adopts("scribe"), answer="first"))

            worker.proxy.watch("XREADGROUP", overtake, where="reply")
            handle = await orc.submit("pause", {"seconds": 0.1})
            await wait_for(lambda: overtaken and overtaken[0].fired, "an adoption that is overtaken", 20)
            lost.stop()
            result = await handle.result(timeout=10)
        begun = attempt_log.notes("begun", task=handle.id)
        assert len(begun) == 2, "the first run was not overtaken"
        assert int(begun[0].generation) < int(begun[1].generation)
        assert result == begun[1].generation
        assert find_violations(team.direct, team.keys) == []


def adopts(agent: str) -> Callable[[Command], bool]:
    """Match the adoptions of one agent."""
    adopt = script(all_scripts()["tasks/adopt"].sha)
    return lambda command: adopt(command) and agent.encode() in command.arguments
