"""`orc locks list|release` typed beside clients in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread
import pytest

from orchestrator import LockLost
from orchestrator.tasks.queries import server_ms
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


class Orc(Protocol):
    """Types `orc …` and answers what it did."""

    async def __call__(self, *arguments: str) -> Done:
        """Run it."""


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Orc:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


async def test_list(team: LocalTeam, orc: Orc) -> None:
    """The locks of one scope, with holder, fence and who waits; those of another one are not there."""
    async with team.orc.locks("session:s", owner="ann").hold("a b") as lease, team.orc.locks().hold("n"):
        listed = await orc("locks", "list", "session:s", "-o", "json")
        (row,) = listed.json()["items"]
        assert (row["name"], row["holder"], row["fence"], row["waiting"]) == ("a b", "ann", lease.fence, 0)
        assert "nonce" not in row
        pool = await orc("locks", "list")
        assert "a b" not in pool.out
        assert "n " in pool.out
    assert "no lock of session:s is held" in (await orc("locks", "list", "session:s")).err
    assert (await orc("locks", "list", "elsewhere")).code == 2


async def test_release(team: LocalTeam, orc: Orc) -> None:
    """Asks, takes the lock away, and is recorded; the holder's block is cancelled. Unknown: 3, not asked: 4."""
    held, begun = [], anyio.Event()

    async def work() -> None:
        try:
            async with team.orc.locks("session:s", owner="ann").hold("n", ttl=0.6):
                begun.set()
                await anyio.sleep(20)
        except LockLost as lost:
            held.append(lost)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await begun.wait()
        assert (await orc("locks", "release", "session:s", "m", "--yes")).code == 3
        asked = await orc("locks", "release", "session:s", "n")
        assert asked.code == 4
        assert "held by ann" in asked.err
        done = await orc("locks", "release", "session:s", "n", "--yes", "--reason", "it hangs")
        assert (done.code, done.out) == (0, "released lock n of ann\n")
    assert held
    recorded = await orc("control", "list", "-o", "json")
    (command,) = recorded.json()["items"]
    assert (command["kind"], command["reason"]) == ("release-lock", "it hangs")


async def test_release_tells_that_it_is_not_recorded(team: LocalTeam, orc: Orc) -> None:
    """The lock is released although its record is refused, and the operator is told why."""
    locks = team.orc.locks("session:s")
    assert await locks.try_acquire("n") is not None
    minute = await server_ms(team.services.store) // 60_000
    for each in (minute, minute + 1):
        await team.services.store.execute("SET", f"{team.services.keys.control}:{each}", 600, "EX", 120)
    done = await orc("locks", "release", "session:s", "n", "--yes", "-o", "json")
    assert done.code == 0
    assert "was not recorded" in done.err
    assert "control.per_minute" in done.err
    assert await locks.peek("n") is None
