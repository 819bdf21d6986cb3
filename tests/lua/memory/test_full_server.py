"""On a server whose memory is full: records are refused as a whole, reading and removing go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ServerFull
from orchestrator.embedded.server_binary import find_server_binary
from tests.faultkit.servers import RedisServer, find_binary_of_line
from tests.lua.memory.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["newest", "redis7"])
def full(request: pytest.FixtureRequest) -> Iterator[Records]:
    """A memory with two records, on a server that takes no more."""
    binary = find_server_binary() if request.param == "newest" else find_binary_of_line("7.")
    if binary is None:
        pytest.skip("needs a redis-server 7.x on the PATH")
    with RedisServer(binary) as server:
        records = Records(server.url, "full:t:t")
        records.put("a", 1)
        records.put("b", 2)
        records.embed(("b", b"1"))
        records.store.execute("CONFIG", "SET", "maxmemory", 100_000)
        yield records
        records.close()


def test_records_are_refused(full: Records) -> None:
    """Each change that adds is refused before its first write; reads and removals pass."""
    before = full.snapshot()
    for change in (
        lambda: full.put("c"), lambda: full.update("a", content=b"2"), lambda: full.touch("a"),
        lambda: full.embed(("a", b"1")),
    ):  # fmt: skip
        with pytest.raises(ServerFull, match=r"out of memory; raise maxmemory"):
            change()
    assert full.snapshot() == before
    assert full.ids() == ["b", "a"]
    assert full.drop_vectors("b").rest == (1,)
    assert full.remove("a").rest == (1,)
    assert full.contradictions() == []
    full.store.execute("CONFIG", "SET", "maxmemory", 0)
    assert full.put("c", 3) == "ok"


def test_records_leave_for_other_tiers(full: Records) -> None:
    """Records move to the next tier and to the outbox, from where they leave memory."""
    assert full.transition(age_ms=0).rest[0] == 2
    assert full.offload().rest[0] == 2
    assert full.ids() == []
