"""A workspace with a value that no program writes: the others are read, and the damaged one is an error of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import DamagedData

if TYPE_CHECKING:
    import redis

    from tests.helpers.local_team import LocalTeam


@pytest.mark.parametrize("stored", [b"\xff", b"", b"1 ada [", b"x y z"])
async def test_paths(team: LocalTeam, redis_client: redis.Redis, stored: bytes) -> None:
    """`read` leaves a damaged path out; reading that path alone names the damage."""
    workspace = team.orc.workspace("101")
    async with workspace.edit() as space:
        await space.set("sound", 1)
        await space.set("damaged", 2)
    (key,) = redis_client.keys(f"{team.settings.prefix}:*:ws:doc")
    redis_client.hset(key, "damaged", stored)
    snapshot = await workspace.snapshot()
    assert list(snapshot.paths) == ["sound"]
    with pytest.raises(DamagedData):
        await workspace.get("damaged")
