"""An outage of Redis is two lines in the log of each process and client: lost, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator.testing.waiting import wait_for
from tests.helpers.json_log import Log, json_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.team import Team

OUTAGE_S = 3.0


@pytest.fixture
def log() -> Iterator[Log]:
    """The log at debug, as JSON lines."""
    with json_log("debug") as kept:
        yield kept


def _addresses(team: Team) -> list[str]:
    return sorted(proxy.url.removeprefix("redis://").partition("/")[0] for proxy in team.proxies)


async def test_an_outage_is_told_once_per_process(make_team: Callable[..., Team], log: Log) -> None:
    """Supervisor, worker and client lose Redis for 3 s: each writes one warning, and one line when it is back."""
    async with make_team(lease_s=30.0, leader_lease_s=30.0) as team:
        await team.start_supervisor()
        await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=20) == 1
            for proxy in team.proxies:
                proxy.refuse()
                proxy.cut()
            await anyio.sleep(OUTAGE_S)
            assert sorted(line["address"] for line in log.lines("redis_lost")) == _addresses(team)
            for proxy in team.proxies:
                proxy.heal()
            await wait_for(lambda: len(log.lines("redis_back")) >= len(team.proxies), "all to be back", 20)
            assert await (await orc.submit("echo", {"n": 2})).result(timeout=20) == 2
        back = log.lines("redis_back")
        assert sorted(line["address"] for line in back) == _addresses(team)
        assert all(line["away_s"] >= OUTAGE_S - 0.5 for line in back)
        loud = [line["event"] for line in log.all() if line["level"] in {"warning", "error"}]
        assert loud == ["redis_lost"] * len(team.proxies)


async def test_the_loops_feel_it(make_team: Callable[..., Team], log: Log) -> None:
    """The twin: at debug each loop tells its failures, so that the silence above is not for want of them."""
    async with make_team(lease_s=30.0, leader_lease_s=30.0) as team:
        await team.start_supervisor()
        await team.start_worker()
        for proxy in team.proxies:
            proxy.refuse()
            proxy.cut()

        def hushed() -> set[str]:
            return {line["event"] for line in log.all() if line["level"] == "debug"}

        wanted = {"heartbeat_missed", "inboxes_unread", "doorbell_read_failed", "assign_failed"}
        await wait_for(lambda: wanted <= hushed(), "the loops to fail", 30)
        for proxy in team.proxies:
            proxy.heal()
        await wait_for(lambda: log.lines("redis_back"), "Redis to be back", 20)
