"""Every script call of every actor reaches the server twice, along the whole main path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from orchestrator.store.script_files import all_scripts
from orchestrator.testing.commands import any_script
from tests.helpers.main_path import check, walk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.testing.proxy import FaultProxy
    from tests.helpers.team import Team

ON_THE_PATH = {
    "agents/beat", "agents/deregister", "agents/lead", "agents/register", "agents/resign", "tasks/adopt",
    "tasks/assign", "tasks/cancel", "tasks/finish", "tasks/promote", "tasks/renew", "tasks/submit",
}  # fmt: skip


def doubled(*proxies: FaultProxy) -> set[str]:
    """The scripts that reached the server twice in one sending."""
    names = {script.sha: name for name, script in all_scripts().items()}
    calls = [record for proxy in proxies for record in proxy.commands("EVALSHA") if record.copies == 2]
    return {names[record.arguments[0].decode()] for record in calls}


@pytest.mark.parametrize("answer", ["first", "second"])
async def test_every_script_may_be_sent_twice(
    answer: Literal["first", "second"], make_team: Callable[..., Team], gate: Path
) -> None:
    """Whichever of the two answers arrives: each task ends once, as it should, and nothing is left behind."""

    def twice(proxy: FaultProxy) -> None:
        proxy.double(any_script, nth="every", answer=answer)

    async with make_team(drain_s=0.2, fault=twice) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            story = await walk(team, orc, worker, gate)
        await team.stop_supervisor()
        check(story, team)
        assert doubled(*team.proxies) >= ON_THE_PATH
