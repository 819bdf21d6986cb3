"""Somebody else's data lies where ours should be: what does not need it goes on, and the key is named."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.errors import ServerRefused
from orchestrator.testing.waiting import wait_for
from tests.helpers.end_state import find_violations

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.team import Team


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["queue:skill:stamp", "inbox:clerk", "agent:clerk", "limit:@clerk"])
async def test_another_type_in_the_keys_of_one_agent(
    suffix: str, make_team: Callable[..., Team], caplog: pytest.LogCaptureFixture
) -> None:
    """The other agent works on, the log names the key, which is renamed, and the agent works again by itself."""
    async with make_team(heartbeat_s=0.1, sweep_s=0.3, leader_lease_s=1.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("stamp")).result(timeout=4) == "stamped"
            key = f"{team.keys.root}:{suffix}"
            await wait_for(lambda: not team.direct.xlen(team.keys.inbox("clerk")), "an empty inbox")
            team.direct.delete(key)
            team.direct.set(key, b"\x00\xff not ours", px=60_000)
            stuck = None
            with suppress(ServerRefused):
                stuck = await orc.submit("stamp")
            for n in range(20):
                assert await (await orc.submit("echo", {"n": n})).result(timeout=15) == n
            await wait_for(lambda: f"{suffix} not a " in caplog.text, "the key to be named", 40)
            stuck = stuck or await orc.submit("stamp")
            assert await stuck.result(timeout=15) == "stamped"
        await worker.drain()
        assert [each for each in find_violations(team.direct, team.keys) if "clerk" not in each] == []


async def test_garbage_in_an_inbox(make_team: Callable[..., Team]) -> None:
    """Entries that no script of ours wrote are thrown out; the tasks before and behind them run."""
    async with make_team() as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            inbox = team.keys.inbox("scribe")
            odd: list[dict[Any, Any]] = [
                {b"\xff": b"\x00"},
                {"t": "nobody", "g": "1", "a": "x", "d": "y", "e": b"\xc1"},
            ]
            for fields in odd:
                team.direct.xadd(inbox, fields)
                assert await (await orc.submit("echo", {"n": 1})).result(timeout=5) == 1
            await wait_for(lambda: not team.direct.xlen(inbox), "the garbage to be thrown out", 10)
        await worker.drain()
        assert find_violations(team.direct, team.keys) == []


async def test_garbage_in_a_record(make_team: Callable[..., Team]) -> None:
    """A record whose envelope cannot be read ends as a dead letter with a reason, and holds up nobody."""
    async with make_team() as team:
        await team.start_supervisor()
        async with team.open_client() as orc:
            broken = await orc.submit("echo", {"n": 1})
            team.direct.hset(team.keys.task(broken.id), "env", b"\xc1\xff")
            sound = await orc.submit("echo", {"n": 2})
            worker = await team.start_worker()
            assert await sound.result(timeout=5) == 2
            await wait_for(lambda: team.state(broken.id) == "dead", "the broken one to end", 10)
            assert team.task(broken.id)["reason"]
        await worker.drain()
        assert find_violations(team.direct, team.keys) == []
