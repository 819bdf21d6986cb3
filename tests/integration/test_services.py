"""The ground that clients, supervisors and workers stand on: settings, server, data format, scripts."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import orchestrator
from orchestrator import Agent, ConfigError, FormatMismatch, InvalidInput, Orchestrator, ServerUnavailable
from orchestrator.core.errors import UpgradeUnfinished
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT, Feature
from orchestrator.core.ids import new_task_id
from orchestrator.services import open_services, resolve_settings
from orchestrator.store import script_files, store
from orchestrator.store.keys import PoolKeys
from orchestrator.store.script_files import all_scripts, read_all_scripts
from orchestrator.store.server_info import read_info
from orchestrator.store.store import Endpoint, Store
from orchestrator.supervisor.daemon import run_supervisor
from orchestrator.tasks.model import CancelStatus
from orchestrator.tasks.scripts import cancel
from orchestrator.testing.waiting import wait_for
from tests.faultkit.servers import RedisServer
from tests.helpers.cases import each_case
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.core.settings import Settings
    from orchestrator.store.locator import Address
    from orchestrator.store.script_files import ScriptFile
    from orchestrator.store.server_info import ServerInfo
    from tests.helpers.local_team import LocalTeam


def test_what_the_caller_names_overrides_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """URL, pool and prefix given to a client stand above the environment; they exclude whole settings."""
    monkeypatch.setenv("ORC_POOL", "from-environment")
    monkeypatch.setenv("ORC_PREFIX", "a:b:c")
    settings = resolve_settings(url="redis://localhost:1/0", pool="mine")
    assert (settings.pool, settings.prefix) == ("mine", "a:b:c")
    assert resolve_settings(settings=settings) is settings
    with pytest.raises(ConfigError, match="either settings= or url="):
        resolve_settings(settings=settings, pool="other")
    with pytest.raises(ConfigError, match="pool"):
        Orchestrator(pool="a b")
    with pytest.raises(ConfigError, match=r"redis\.url"):
        Orchestrator("localhost:6379")


async def test_without_any_server_the_error_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No URL, no setting and no embedded server near by: the error names the ways out."""
    for name in ("ORC_REDIS__URL", "ORC_DATA_DIR", "ORC_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServerUnavailable, match="orc up"):
        await Orchestrator().open()


async def test_opening_reads_the_scripts_in_a_thread(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop of the program goes on while all files are read and compiled."""
    threads: set[int] = set()

    def in_thread() -> list[ScriptFile]:
        threads.add(threading.get_ident())
        return read_all_scripts()

    monkeypatch.setattr(store, "read_all_scripts", in_thread)
    async with open_services(settings, name="s"):
        assert threads
        assert threading.get_ident() not in threads


async def test_a_client_that_could_not_open_opens_later() -> None:
    """The first open finds no server; the second, when one runs, gives a client that works."""
    server = RedisServer(port=0)
    orc = Orchestrator(f"redis://127.0.0.1:{server.port}/0", prefix="later:test:t")
    with pytest.raises(ServerUnavailable):
        await orc.open()
    with server:
        await orc.open()
        handle = await orc.submit("nobody")
        assert (await handle.status()).state == "ready"
        await orc.aclose()


async def test_data_of_another_format_is_left_alone(settings: Settings) -> None:
    """A program refuses data of a newer or an older format, names both formats, and says what to do."""
    async with open_services(settings, name="test") as services:  # no supervisor, which would leave too
        store, keys = services.store, services.keys
        for stored, message in (
            (99, rf"format 99 or newer, and this one \(version .*\) has format {FORMAT}; install the newer version"),
            (1, rf"has format 1, .*formats {OLDEST_FORMAT} to {FORMAT}; run the version that wrote it"),
            ("x", rf"has format x, .*formats {OLDEST_FORMAT} to {FORMAT}; "),
        ):
            await store.execute("SET", keys.format, stored)
            with pytest.raises(FormatMismatch, match=message):
                async with Orchestrator(settings=settings):
                    pass
            assert await store.execute("GET", keys.format) == str(stored).encode()


@pytest.mark.roles(client="operator")  # a client may not set the floor
async def test_the_floor_of_a_pool(team: LocalTeam) -> None:
    """An empty pool admits no older program; a floor that Redis has lost becomes the oldest one, which harms none."""
    store, keys = team.services.store, team.services.keys
    assert await store.execute("GET", keys.format) == str(FORMAT).encode()
    await store.execute("DEL", keys.format)
    await team.client()
    assert await store.execute("GET", keys.format) == str(OLDEST_FORMAT).encode()


@pytest.mark.roles(client="operator")  # a client may not set the floor
async def test_a_lost_floor_returns(team: LocalTeam) -> None:
    """Programs that have seen the floor never lower it, and supervisors store it again after a program that has not."""
    store, keys = team.services.store, team.services.keys
    await store.execute("DEL", keys.format)
    await store.check_format()
    assert (store.floor.value, await store.execute("GET", keys.format)) == (FORMAT, str(FORMAT).encode())
    await store.execute("DEL", keys.format)
    await team.client()
    await store.check_format()
    assert (store.floor.value, await store.execute("GET", keys.format)) == (FORMAT, str(OLDEST_FORMAT).encode())
    await team.start_supervisor()

    async def returned() -> bool:
        return bool(await store.execute("GET", keys.format) == str(FORMAT).encode())

    await wait_for(returned, "the floor")


async def test_a_feature_waits_for_the_floor(settings: Settings) -> None:
    """A feature that older programs would misread is refused until the floor is raised; no restart is needed then."""
    # A supervisor that leads raises the floor again to the one that it has seen.
    async with run_local_team(settings, supervised=False) as team:
        store, keys = team.services.store, team.services.keys
        await store.execute("SET", keys.format, OLDEST_FORMAT)
        orc = await team.client()
        needed = Feature.LARGE_COSTS.floor
        message = f"needs programs of format {needed}, and pool .* admits format {OLDEST_FORMAT}; .*orc upgrade finish"
        with pytest.raises(UpgradeUnfinished, match=message):
            await orc.services.store.require(Feature.LARGE_COSTS)
        await store.execute("SET", keys.format, needed)
        await orc.services.store.require(Feature.LARGE_COSTS)


@pytest.mark.parametrize("pool", ["default", "mail"])
async def test_pools_are_worlds_of_their_own(team: LocalTeam, settings: Settings, pool: str) -> None:
    """A task of one pool is not seen by another one."""
    handle = await team.orc.submit("nobody")
    async with Orchestrator(settings=settings.model_copy(update={"pool": pool})) as orc:
        found = orc.task(handle.id)
        if pool == "default":
            assert (await found.info()).skill == "nobody"
        else:
            with pytest.raises(orchestrator.NotFound):
                await found.info()


async def test_scripts_that_the_server_forgot_are_loaded_again(team: LocalTeam) -> None:
    """After SCRIPT FLUSH everything goes on: submit, assign, finish, heartbeat."""
    agent = Agent("steady")

    @agent.skill
    async def work() -> int:
        return 1

    await team.work(agent)
    for _ in range(3):
        await team.services.store.execute("SCRIPT", "FLUSH")
        assert await (await team.orc.submit("work")).result(TIMEOUT_S) == 1


async def test_a_start_loads_only_scripts_for_readers(prefix: str) -> None:
    """A user who may only read cannot load the scripts that views call; each other one waits for its first call."""
    scripts = all_scripts()
    with RedisServer() as server:

        async def loaded() -> set[str]:
            known = await services.store.execute("SCRIPT", "EXISTS", *[script.sha for script in scripts.values()])
            return {name for name, is_known in zip(scripts, known, strict=True) if is_known}

        async with open_services(local_settings(server.url, prefix), name="test") as services:
            at_start = {name for name, script in scripts.items() if script.may_only_read}
            assert at_start > {"tasks/why", "tasks/repair"}
            assert "tasks/submit" not in at_start
            assert await loaded() == at_start
            call = cancel(services.keys, ids=[new_task_id()], reason="")
            assert (await services.store.call(call)).answers == [(CancelStatus.UNKNOWN, None)]
            assert await loaded() == {*at_start, "tasks/cancel"}


async def test_a_short_command_reads_and_loads_what_it_calls(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read all scripts takes longer than most commands, so that these read one when they call it."""
    plain, read = script_files.load_script, list[str]()

    def load(root: Any, name: str, modules: Any) -> ScriptFile:
        read.append(name)
        return plain(root, name, modules)

    monkeypatch.setattr(script_files, "load_script", load)
    script_files.all_scripts.cache_clear()
    with RedisServer() as server:
        async with open_services(local_settings(server.url, prefix), name="test", brief=True) as services:
            assert read == []
            for _ in range(2):
                await services.store.call(cancel(services.keys, ids=[new_task_id()], reason=""))
            assert read == ["tasks/cancel"]


async def test_a_server_that_may_evict_is_refused(prefix: str) -> None:
    """The supervisor does not start on a server that may throw tasks away, unless that is meant."""
    with RedisServer(options={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        settings = local_settings(server.url, prefix)
        with pytest.raises(ConfigError, match=r"allkeys-lru.*noeviction"):
            await run_supervisor(settings)
        async with open_services(settings, name="test") as services:
            check = services.store.check_server
            assert "append-only" in (await check(allow_eviction=True))[0]
            assert "'fsync' needs an append-only file" in (await check(allow_eviction=True, durability="fsync"))[1]


@each_case(("version", "accepted"), [("2.8.24", False), ("6.2.19", False), ("7.0.0", True), ("7.0.15", True)])
def test_a_server_that_is_too_old_is_refused(redis_server: RedisServer, version: str, *, accepted: bool) -> None:
    """The supervisor accepts Redis 7.0 and refuses the line before it."""

    class OtherVersion(Store):
        async def server_info(self, *, at: Address | None = None) -> ServerInfo:
            line = read_info(f"redis_version:{version}\n").line
            return replace(await super().server_info(at=at), version=version, line=line)

    async def check() -> None:
        async with OtherVersion(Endpoint.at(redis_server.url), PoolKeys("a:b:c", "p")) as store:
            await store.check_server(allow_eviction=False)

    if accepted:
        anyio.run(check)
    else:
        with pytest.raises(ConfigError, match=rf"Redis {re.escape(version)} is too old; Redis 7\.0 or newer is needed"):
            anyio.run(check)


def test_input_errors_are_value_errors() -> None:
    """Whoever catches the builtin catches ours."""
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(orchestrator.NotFound, LookupError)
