"""The keys that the scripts of memories touch: none outside of their agent, none that is not in the table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import pytest

from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.store.key_kinds import scope_kind_of
from orchestrator.store.script_files import all_scripts
from tests.faultkit.servers import cluster_server, find_binary_of_line
from tests.lua.memory.records import Records, Shown, use_every_script

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from orchestrator.store.calls import Call
    from tests.faultkit.servers import RedisServer

T = TypeVar("T")


class Watched(Records):
    """Records that know which of their scripts have run."""

    ran: frozenset[str] = frozenset()

    def call(self, call: Call[T]) -> T:
        """Run a call and note its script."""
        self.ran |= {call.script}
        return super().call(call)


@pytest.mark.every_server
def test_undeclared_keys(records: Records, redis_client: redis.Redis) -> None:
    """Everything that the server was told to touch begins with the declared root, and stands in the table of keys."""
    marker = f"{records.keys.root}:done"
    touched = set()
    shown = Shown("exec:t", "1:t:1:0")
    records.store.execute("SET", records.keys.key(shown.lock), shown.value, "EX", 1000)
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        use_every_script(records, shown)
        redis_client.exists(marker)
        for seen in monitor.listen():
            if marker in seen["command"]:
                break
            if seen["client_type"] == "lua":
                touched |= set(seen["command"].split(" ")[1:])
    keys = {word for word in touched if re.search(r"\{\w+:", word)}
    assert len(keys) > 20
    assert all(key.startswith(f"{records.keys.root}:") for key in keys)
    suffixes = {key.removeprefix(f"{records.keys.root}:") for key in keys}
    assert [suffix for suffix in suffixes if scope_kind_of(suffix) is None] == []


@pytest.fixture(scope="module", params=["newest", "redis7"])
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """One server that is a whole cluster."""
    binary = find_server_binary() if request.param == "newest" else find_binary_of_line("7.")
    if binary is None:
        pytest.skip("needs a redis-server 7.x on the PATH")
    with cluster_server(binary) as server:
        yield server


@pytest.mark.parametrize(("kind", "id_"), [("agent", "ed"), ("user", "}:{pool:q} ä"), ("global", "all")])
def test_one_slot(cluster: RedisServer, kind: str, id_: str) -> None:
    """On a server in cluster mode every script runs, and every key lies in the slot of the owner."""
    records = Watched(cluster.url, "slots:c:t", id_, kind=kind)
    use_every_script(records)
    assert records.ran == {name for name in all_scripts() if name.startswith("memory/")}
    slots = {records.store.execute("CLUSTER", "KEYSLOT", name) for name in records.names()}
    assert slots == {records.store.execute("CLUSTER", "KEYSLOT", records.keys.root)}
    records.store.execute("FLUSHALL")
    records.close()
