"""Copies of the states of providers that pools share, while a server of the cluster is down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.limits.shared import Compared, compare
from orchestrator.store.keys import PoolKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.store import Store

KEYS = PoolKeys("test", "pool")


class Cluster:
    """Servers of a cluster, of which one is down. As a router does, it fails as a whole if that one is asked first."""

    def __init__(self, down: str) -> None:
        self.down = down

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Answer that no key is there."""
        replies: list[Any] = []
        for _, key, *fields in commands:
            is_down = self.down in str(key)
            if is_down and not replies:
                raise ServerUnavailable("down")
            replies.append(ServerUnavailable("down") if is_down else [None] * len(fields))
        return replies


@pytest.mark.parametrize("down", ["{limit:a}", "{limit:b}"])
async def test_other_providers_are_compared(down: str) -> None:
    """The providers whose scopes have servers that answer are compared, wherever the others stand."""
    found = await compare(cast("Store", Cluster(down)), KEYS, ["a", "b"])
    assert [isinstance(one, StoreError) for one in found] == [down == "{limit:a}", down == "{limit:b}"]
    assert [one for one in found if not isinstance(one, StoreError)] == [Compared(differs=False, cleared=None)]


async def test_the_server_of_the_pool_is_down() -> None:
    """Without the pool nothing can be compared."""
    with pytest.raises(ServerUnavailable):
        await compare(cast("Store", Cluster("{pool:")), KEYS, ["a"])
