"""On a server whose memory is full: changes of shared state are refused as a whole, reading goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ServerFull
from tests.faultkit.servers import RedisServer
from tests.helpers.server_matrix import ALL_SERVERS, binary_of
from tests.lua.workspace.space import Space
from tests.lua.workspace.test_changes import CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterator

MAKES_ROOM = {"clear", "acknowledge"}


@pytest.fixture(params=ALL_SERVERS)
def full(request: pytest.FixtureRequest) -> Iterator[Space]:
    """A workspace on a server that takes no more."""
    with RedisServer(binary_of(request.param)) as server:
        space = Space(server.url, "full:t:t")
        space.patch(("there",))
        space.patch(("draft",), owner="ada")
        space.append("l", b"1", b"2")
        space.execute("CONFIG", "SET", "maxmemory", 100_000)
        yield space
        space.close()


def test_changes_are_refused(full: Space) -> None:
    """Every change that adds is refused before its first write; what is there can be read."""
    for name, change in CHANGES.items():
        if name in MAKES_ROOM:
            continue
        with full.unchanged(), pytest.raises(ServerFull, match=r"out of memory; raise maxmemory"):
            change(full)
    assert full.tail("l", 1) == [2]
    assert full.present() == []
    full.execute("CONFIG", "SET", "maxmemory", 0)
    assert full.append("l", b"3").status == "ok"


def test_a_full_server_can_be_emptied(full: Space) -> None:
    """What makes room passes."""
    CHANGES["clear"](full)
    assert full.tail("l", 1) == []
