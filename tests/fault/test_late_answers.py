"""An answer that comes so late that its entry may be somebody else's by now is checked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.testing.waiting import wait_for
from tests.faultkit.commands import named
from tests.helpers.end_state import find_violations

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.team import Team


async def test_an_entry_that_was_taken_meanwhile_is_not_started(make_team: Callable[..., Team]) -> None:
    """A worker hears of an entry when its peer has already done the task: it asks, and starts nothing."""
    async with make_team(lease_s=1.0) as team:
        await team.start_supervisor()
        late = await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=4) == 1
            late.proxy.blackhole(up=False)
            handle = await orc.submit("echo", {"n": 2})
            inbox = team.keys.inbox("scribe")
            await wait_for(
                lambda: team.direct.xpending_range(inbox, "workers", "-", "+", 10, consumername=late.worker.id),
                "the entry to be handed to the worker that does not hear of it",
            )
            peer = await team.start_worker()
            assert await handle.result(timeout=10) == 2
            asked = len(late.proxy.commands("EVALSHA"))
            late.proxy.heal()
            await wait_for(
                lambda: sum(record.outcome == "replied" for record in late.proxy.commands("EVALSHA")[asked:]) >= 3,
                "the late worker to be heard",
            )
            assert len(team.attempt_log.notes("begun", task=handle.id)) == 1, "it ran again, for nothing"
        for member in (late, peer):
            await member.drain()
        assert find_violations(team.direct, team.keys) == []


@pytest.mark.slow
async def test_what_the_last_read_swallowed_goes_back_before_a_worker_leaves(make_team: Callable[..., Team]) -> None:
    """The answers to its reads are lost and it is told to stop: it asks, so a peer need not wait for a lease."""
    async with make_team(lease_s=10.0) as team:
        await team.start_supervisor()
        leaving = await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=4) == 1
            lost = leaving.proxy.fail_reply(named("XREADGROUP"), nth="every", how="swallow")
            await wait_for(lambda: lost.seen, "a read whose answer will be lost")
            handle = await orc.submit("echo", {"n": 2})
            await wait_for(
                lambda: team.direct.xpending_range(team.keys.inbox("scribe"), "workers", "-", "+", 10),
                "a lost read",
            )
            await leaving.drain()
            assert team.state(handle.id) == "ready"
            await team.start_worker()
            assert await handle.result(timeout=4) == 2
            assert "deaths" not in team.task(handle.id)
