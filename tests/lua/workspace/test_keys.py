"""The keys that the scripts of workspaces touch: none outside of their session, none that is not in the table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orchestrator.store.key_kinds import SCOPE_KEYS
from orchestrator.store.script_files import all_scripts
from orchestrator.workspace import scripts
from tests.faultkit.servers import cluster_server
from tests.helpers.server_matrix import ALL_SERVERS, binary_of
from tests.lua.workspace.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from orchestrator.store.calls import Argument
    from tests.faultkit.servers import RedisServer


def use(space: Space) -> set[str]:
    """Call every script of workspaces, with every kind of key; answers their names."""
    for _ in range(2):
        space.patch(("p", "set", b"1"), ("q", "incr", b"1"), ("r", "del", b""))
        space.patch(("p",), ("q",), owner="ada")
        space.append("l", b"1", b"2", cap=3)
        space.members("s", "add", "x", "y")
        space.members("s", "remove", "x")
        space.transition("t", "open")
        space.publish("p")
        space.publish("q", log="l")
        space.join("ada", 1000)
        entry = space.direct("bob").rest[0].decode()
        space.acknowledge("bob", entry)
        space.present()
        space.tail("l", 0)
        space.sleep(20_000)
    space.clear()
    return {name for name in all_scripts() if name.startswith("workspace/")}


@pytest.mark.every_server
def test_undeclared_keys(space: Space, redis_client: redis.Redis) -> None:
    """Everything that the server was told to touch begins with the declared root, and stands in the table of keys."""
    marker = f"{space.keys.root}:done"
    touched = set()
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        use(space)
        redis_client.exists(marker)
        for seen in monitor.listen():
            if marker in seen["command"]:
                break
            if seen["client_type"] == "lua":
                touched |= set(seen["command"].split(" ")[1:])
    keys = {word for word in touched if "{session:" in word}
    assert len(keys) > 12
    assert all(key.startswith(f"{space.keys.root}:") for key in keys)
    suffixes = {key.removeprefix(f"{space.keys.root}:") for key in keys}
    known = [re.sub(r"\b[A-Z]+\b", "[^:]+", kind.suffix) for kind in SCOPE_KEYS]
    assert [suffix for suffix in suffixes if not any(re.fullmatch(one, suffix) for one in known)] == []


def test_undeclared_keys_are_seen(redis_client: redis.Redis, prefix: str) -> None:
    """A twin: a script that touches another session's key is found by the same look."""
    text = "#!lua\nreturn redis.call('EXISTS', KEYS[1] .. 'x')"
    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        redis_client.eval(text, 1, f"{prefix}:{{session:other}}:")
        command = next(seen["command"] for seen in monitor.listen() if seen["client_type"] == "lua")
    assert command == f"EXISTS {prefix}:{{session:other}}:x"


@pytest.fixture(scope="module", params=ALL_SERVERS)
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """One server that is a whole cluster."""
    with cluster_server(binary_of(request.param)) as server:
        yield server


def test_one_slot(cluster: RedisServer) -> None:
    """On a server in cluster mode every script runs, and every key lies in the slot of the session."""
    space = Space(cluster.url, "slots:c:t", "S {1}:é")
    use(space)
    space.patch(("p",))
    space.append("l", b"1")
    slots = {space.execute("CLUSTER", "KEYSLOT", name) for name in space.names()}
    assert slots == {space.execute("CLUSTER", "KEYSLOT", space.keys.root)}
    space.execute("FLUSHALL")
    space.close()


def test_foreign_slots_are_refused(cluster: RedisServer) -> None:
    """A lock's name that would lead to another slot is refused by the server itself, and nothing is changed."""
    space = Space(cluster.url, "foreign:c:t")
    text = (
        all_scripts()["workspace/append"]
        .text.replace("scope .. ':ws:log:'", "'elsewhere:ws:log:'")
        .replace("local log_key = scope .. ':' .. part", "local log_key = 'elsewhere:' .. part")
    )
    with cluster.client() as client, space.unchanged():
        call = ["EVAL", text, 1, space.keys.root, *_append_args(space)]
        with pytest.raises(Exception, match=r"non local key|undeclared key|Script attempted to access"):
            client.execute_command(*call)
    space.execute("FLUSHALL")
    space.close()


def _append_args(space: Space) -> list[Argument]:
    call = scripts.append(space.change("o"), log="l", texts=[b"1"], cap=1)
    return list(call.command()[4:])
