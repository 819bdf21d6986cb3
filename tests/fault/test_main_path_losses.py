"""Every reply, and every command, of every actor is lost once, along the whole main path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.store.script_files import all_scripts
from tests.fault.main_path import check, run_main_path
from tests.faultkit.commands import Command, any_work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faultkit.faults import Loss
    from tests.faultkit.proxy import FaultProxy
    from tests.helpers.team import Team

_FIND_LOST = all_scripts()["tasks/find_lost"].sha
_READS = {"XREADGROUP", "XREAD", "TIME", "HGET"}
LOSSES: tuple[Loss, ...] = ("cut", "reset", "truncate", "swallow")


def all_but_reads(command: Command) -> bool:
    """Match what is not a read of a stream; those tell the time they wait, so each of them is a different command.

    What a client sends beside its submits is left out, which are the check for lost tasks, TIME and HGET: their loss
    closes the connection too, so that a submit would meet two losses in a row, longer than it is repeated here.
    """
    return any_work(command) and command.name not in _READS and command.script != _FIND_LOST


@pytest.mark.parametrize("how", [LOSSES[0], *[pytest.param(how, marks=pytest.mark.slow) for how in LOSSES[1:]]])
@pytest.mark.parametrize("what", ["reply", "command"])
async def test_everything_may_be_lost_once(what: str, how: Loss, make_team: Callable[..., Team], gate: Path) -> None:
    """Each task ends once, as it should, no attempt runs twice, and nothing is left behind."""

    def lossy(proxy: FaultProxy) -> None:
        lose = proxy.fail_reply if what == "reply" else proxy.fail_command
        lose(all_but_reads, nth="first-of-each", how=how)
        for number in (2, 4, 7):
            lose("XREADGROUP", nth=number, how=how)
            lose("XREAD", nth=number, how=how)

    # A swallowed answer costs the time-out of its command, and a blocking one the time that it would have waited.
    team = make_team(lease_s=2.0, command_timeout_s=0.15, sweep_s=0.5, drain_s=0.2)
    async with team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            for proxy in team.proxies:
                lossy(proxy)
            expected_state = await run_main_path(team, orc, worker, gate)
        for proxy in team.proxies:
            proxy.heal()
        await team.stop_supervisor()
        check(expected_state, team)
        felt = f"fail_{what}"
        assert all(proxy.applied[felt] >= 4 for proxy in team.proxies[:3]), [proxy.applied for proxy in team.proxies]
