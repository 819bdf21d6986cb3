"""lua/repair: what is missing in a workspace or a list of locks is found, named and corrected, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.repair import scripts
from tests.lua.scope import Scope
from tests.lua.workspace.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server
TTL_MS = 86_400_000


@pytest.fixture
def space(redis_server: RedisServer, prefix: str) -> Iterator[Space]:
    """A session with every kind of data, by the clock of the server."""
    space = Space(redis_server.url, prefix)
    space.now_us = None
    space.patch(("p", "set", b'"a"'), ("q", "set", b"2"))
    space.patch(("own",), owner="ada")
    space.append("l", b"1", b"2", b"3")
    space.members("s", "add", "x", "y")
    space.transition("t", "open")
    space.direct("bob")
    yield space
    space.close()


def check(space: Space, *, repair: bool = True) -> list[tuple[str, str, bool]]:
    """Compare the counts of the workspace."""
    found = space.call(scripts.check_workspace(space.keys, ttl_ms=TTL_MS, repair=repair))
    assert isinstance(found, list)
    return [(each.code, each.place, each.repaired) for each in found]


def test_sound(space: Space) -> None:
    """Nothing is found after any change, and nothing is written."""
    space.append("l", *[b"4"] * 50, cap=20)
    space.publish("own", log="l")
    space.members("s", "remove", "x", "y")
    space.patch(("p", "del"))
    with space.unchanged():
        assert check(space) == []
    space.clear()
    assert check(space) == []
    space.execute("UNLINK", *space.names())
    assert check(space) == []


@pytest.mark.parametrize(
    ("suffix", "left", "place"),
    [
        *[("ws:doc", 7, ""), ("ws:task", 8, ""), ("ws:log:l", 6, "ws:log:l"), ("ws:set:s", 7, "")],
        ("agent:ada:kv", 8, ""),
    ],
)
def test_each_lost_key_is_noticed(space: Space, suffix: str, left: int, place: str) -> None:
    """The counts tell that data is missing; a repair corrects them once, and the workspace goes on."""
    space.execute("UNLINK", space.keys.key(suffix))
    with space.unchanged():
        assert check(space, repair=False) == [("lost-items", place, False)]
    assert check(space) == [("lost-items", place, True)]
    assert int(space.execute("HGET", space.keys.key("meta"), "items")) == left
    assert check(space) == []
    space.patch(("new", "set", b"1"))
    assert check(space) == []


def test_lost_counts(space: Space) -> None:
    """Revisions and versions go on above the old ones, the lifetime is that of the data."""
    revision = int(space.execute("HGET", space.keys.key("meta"), "rev"))
    version = space.patch(("p", "set", b"1")).rest[0]
    space.execute("UNLINK", space.keys.key("meta"))
    with space.unchanged():
        assert check(space, repair=False) == [("lost-counts", "", False)]
    assert check(space) == [("lost-counts", "", True)]
    assert check(space) == []
    assert 0 < space.ttl_ms("meta") <= TTL_MS * 9 / 8
    assert space.patch(("p", "set", b"1")).rest[0] == version + 1
    changed = space.patch(("p", "del"), ("new", "set", b"1"))
    assert changed.revision == revision + 3
    assert changed.rest[2] > 1_000_000_000_000
    assert int(space.execute("HGET", space.keys.key("meta"), "items")) == 9
    assert int(space.execute("HGET", space.keys.key("meta"), "bytes")) > 0


def test_lost_counts_and_events(space: Space) -> None:
    """Without events the revision is a time, above all that was read."""
    space.execute("UNLINK", space.keys.key("meta"), space.keys.key("ws:ev"))
    assert [code for code, _, _ in check(space)] == ["lost-counts"]
    assert space.patch(("p", "set", b"1")).revision > 1_000_000_000_000
    assert check(space) == []


def test_lost_events(space: Space) -> None:
    """A stream that is gone is named once; the next change begins a new one."""
    space.execute("UNLINK", space.keys.key("ws:ev"))
    assert check(space, repair=False) == [("lost-events", "", False)]
    assert check(space) == [("lost-events", "", True)]
    assert check(space) == []
    space.patch(("p", "set", b"1"))
    assert check(space) == []


def test_unlisted_parts(space: Space) -> None:
    """Parts that the workspace does not list are listed again, a log behind its last item."""
    parts = [("ws:log:l", "list"), ("ws:set:s", "set"), ("agent:ada:kv", "hash"), ("inbox:bob", "stream")]
    rows = [(suffix.encode(), type_) for suffix, type_ in [*parts, ("ws:log:none", "list")]]
    assert space.call(scripts.check_parts(space.keys, rows=rows, repair=True)) == []
    space.execute("UNLINK", space.keys.key("ws:parts"))
    with space.unchanged():
        found = space.call(scripts.check_parts(space.keys, rows=rows, repair=False))
        assert isinstance(found, list)
        assert [(each.row, each.code, each.repaired) for each in found] == [
            (row, "unlisted-part", False) for row in range(4)
        ]
    space.call(scripts.check_parts(space.keys, rows=rows, repair=True))
    assert space.call(scripts.check_parts(space.keys, rows=rows, repair=True)) == []
    assert space.ttl_ms("ws:parts") > 0
    assert space.append("l", b"4").rest[0] == 4
    assert check(space) == []


def test_keys_of_another_type_are_left_alone(space: Space) -> None:
    """The check of types names them."""
    for suffix in ("ws:log:l", "ws:doc", "ws:parts", "meta"):
        space.execute("UNLINK", space.keys.key(suffix))
        space.execute("SET", space.keys.key(suffix), "x", "EX", 1000)
        with space.unchanged():
            assert check(space) == []
            rows = [(b"ws:log:l", "list")]
            assert space.call(scripts.check_parts(space.keys, rows=rows, repair=True)) == []


def test_unlisted_locks(redis_server: RedisServer, prefix: str) -> None:
    """A held lock that its scope does not list is listed until it lapses; a free one is not."""
    scope = Scope(redis_server.url, prefix)
    scope.take("lock:n")
    scope.claim("exec", "t1")
    scope.take("lock:gone")
    scope.lapse("lock:gone")
    rows = [b"lock:n", b"exec", b"lock:gone"]
    assert scope.call(scripts.check_locks(scope.keys, rows=rows, repair=True)) == []
    scope.store.execute("UNLINK", scope.keys.key("locks"))
    before = scope.snapshot()
    found = scope.call(scripts.check_locks(scope.keys, rows=rows, repair=False))
    assert isinstance(found, list)
    assert [(each.row, each.code, each.repaired) for each in found] == [
        (0, "unlisted-lock", False),
        (1, "unlisted-lock", False),
    ]
    assert scope.snapshot() == before
    scope.call(scripts.check_locks(scope.keys, rows=rows, repair=True))
    assert scope.call(scripts.check_locks(scope.keys, rows=rows, repair=True)) == []
    assert {info.at for info in scope.peek()} == {"lock:n", "exec"}
    scope.close()
