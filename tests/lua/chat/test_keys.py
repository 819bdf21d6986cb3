"""The keys and the commands of the scripts of chats, and a server whose memory is full."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orchestrator.chat import scripts
from orchestrator.core.errors import ServerFull
from orchestrator.store.key_kinds import SCOPE_KEYS
from tests.faultkit.servers import RedisServer
from tests.helpers.server_matrix import ALL_SERVERS, binary_of
from tests.lua.chat.chats import CHANGES, Chats, fill, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis


@pytest.mark.every_server
def test_undeclared_keys(chats: Chats, redis_client: redis.Redis) -> None:
    """Everything that the server was told to touch begins with the declared root, and stands in the table of keys."""
    marker = f"{chats.keys.root}:done"
    touched = set()
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        for change in CHANGES.values():
            fill(chats)
            change(chats)
        chats.since(1, 1)
        chats.append(row("d"))
        assert chats.extracted(9).rest[0] > 0
        CHANGES["pop"](chats)
        chats.call(scripts.page(chats.keys, source="main", before=9, limit=9))
        chats.call(scripts.touch(chats.keys, source="main", ttl_ms=10**9, life_ms=10**10))
        redis_client.exists(marker)
        for seen in monitor.listen():
            if marker in seen["command"]:
                break
            if seen["client_type"] == "lua":
                touched |= set(seen["command"].split(" ")[1:])
    keys = {word for word in touched if "{session:" in word}
    assert all(key.startswith(f"{chats.keys.root}:") for key in keys)
    suffixes = {key.removeprefix(f"{chats.keys.root}:") for key in keys}
    assert {"chat:main:q", "chat:main:id", "chat:main:meta", "chat:main:sum", "chats"} <= suffixes
    known = [re.sub(r"\b[A-Z]+\b", "[^:]+", kind.suffix) for kind in SCOPE_KEYS]
    assert [suffix for suffix in suffixes if not any(re.fullmatch(one, suffix) for one in known)] == []


@pytest.mark.every_server
@pytest.mark.parametrize("chats", [{"max_messages": 5000}], indirect=True)
def test_changes_do_not_grow(chats: Chats) -> None:
    """The same commands for a change of a short chat and of a long one; for a full one those that drop a message."""
    written = iter(range(10**6))

    def append() -> object:
        return chats.append(row(f"n{next(written)}"))

    changes: list[Callable[[], object]] = [
        append,
        lambda: chats.run(scripts.put, row=row("n0", 1, version=next(written) + 10), mode="newer"),
        lambda: CHANGES["pop"](chats),
        lambda: CHANGES["meta"](chats),
    ]

    def calls(change: Callable[[], object]) -> int:
        change()
        before = total_calls(chats)
        for _ in range(5):
            change()
        return total_calls(chats) - before

    append()
    for _ in range(10):
        append()
    small = [calls(change) for change in changes]
    for start in range(0, 4900, 490):
        chats.append(*[row(f"m{number}") for number in range(start, start + 490)])
    assert [calls(change) for change in changes] == small
    chats.append(*[row(f"x{number}") for number in range(200)])
    assert chats.head().count == 5000
    assert calls(append) <= small[0] + 5 * 4


def total_calls(chats: Chats) -> int:
    """Commands that the server has run, those inside scripts too."""
    lines = chats.store.execute("INFO", "commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)


@pytest.fixture(params=ALL_SERVERS)
def full(request: pytest.FixtureRequest) -> Iterator[Chats]:
    """A chat on a server that takes no more."""
    with RedisServer(binary_of(request.param)) as server:
        chats = Chats(server.url, "full:t:t")
        fill(chats)
        chats.store.execute("CONFIG", "SET", "maxmemory", 100_000)
        yield chats
        chats.close()


def test_full_server(full: Chats) -> None:
    """A change that adds is refused before its first write; reading and removing go on."""
    before = full.snapshot()
    for name in ("append", "put", "patch", "meta", "summarize"):
        with pytest.raises(ServerFull):
            CHANGES[name](full)
    assert full.snapshot() == before
    assert len(full.since(1, 0).entries) == 3
    for name in ("pop", "truncate", "erase", "clear"):
        assert CHANGES[name](full).status == "ok"
    assert full.ids() == []
