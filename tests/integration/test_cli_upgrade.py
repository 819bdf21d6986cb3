"""`orc upgrade status|finish` beside programs that look like those of an older version; tests/slow has real ones."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest
import redis

from orchestrator import Agent, InvalidInput, Orchestrator, OrchestratorError, UpgradeRefused
from orchestrator.agents import scripts as registry
from orchestrator.agents.model import AgentSpec
from orchestrator.agents.programs import read_programs
from orchestrator.client import admin
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT, Feature, program_version
from orchestrator.services import pool_keys
from orchestrator.supervisor import older_workers
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orchestrator.agents.programs import Programs
    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam


@pytest.fixture
async def team(settings: Settings, redis_client: redis.Redis) -> AsyncIterator[LocalTeam]:
    """A team without a supervisor, in a pool that an older program has used."""
    redis_client.set(pool_keys(settings).format, OLDEST_FORMAT)
    async with run_local_team(settings, supervised=False) as running:
        yield running


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal whose commands see the team's pool."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


async def orc(terminal: Terminal, *arguments: str) -> Done:
    """Type a command."""
    return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))


async def register_older(team: LocalTeam, worker: str) -> None:
    """Register a worker as programs from before format 3 do: it names a version and no format."""
    spec = AgentSpec("elder", frozenset({"work"}))
    call = registry.register(
        team.services.keys, worker=worker, spec=spec, slots=1, backlog=0, about={"version": "0.0.9"}, alive_s=60
    )
    await team.services.store.call(call)


async def test_status_lists_the_programs(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """Each program has its version and format; older ones are found by what they leave in Redis."""
    await team.start_supervisor()
    agent = Agent("steady")
    agent.skill(name="work")(lambda: "x")
    worker = await team.work(agent)
    await register_older(team, "h:1:old")
    with redis.Redis(connection_pool=redis_client.connection_pool, client_name="client") as _:
        pass
    done = await orc(terminal, "upgrade", "status", "-o", "json")
    found = done.json()
    assert (done.code, found["floor"], found["format"]) == (0, OLDEST_FORMAT, FORMAT)
    assert found["waiting"] == [feature.label for feature in Feature]
    programs = {(each["kind"], each["version"], each["format"]): each["id"] for each in found["programs"]}
    assert programs["worker", program_version(), FORMAT] == worker.id
    assert programs["worker", "0.0.9", OLDEST_FORMAT] == "h:1:old"
    assert {("supervisor", program_version(), FORMAT), ("client", program_version(), FORMAT)} <= set(programs)
    done = await orc(terminal, "upgrade", "status")
    assert f"admits programs of format {OLDEST_FORMAT} and newer; this version has format {FORMAT}" in done.out
    assert "h:1:old" in done.out
    assert "waiting for `orc upgrade finish`: " in done.out


async def test_finish(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """Refused while an older worker, leader or client is there, which it names; then it asks, raises and records."""
    keys = team.services.keys
    await register_older(team, "h:1:old")
    done = await orc(terminal, "upgrade", "finish", "--yes")
    assert done.code == 4
    assert f"older than format {FORMAT}: worker h:1:old (version 0.0.9, format {OLDEST_FORMAT})" in done.err
    redis_client.zrem(keys.workers, "h:1:old")

    redis_client.set(keys.leader, "h:2:elder", px=60_000)
    done = await orc(terminal, "upgrade", "finish", "--yes")
    assert done.code == 4
    assert f"supervisor h:2:elder (format {OLDEST_FORMAT})" in done.err
    redis_client.delete(keys.leader)

    url = team.settings.redis.url
    assert url is not None
    with redis.Redis.from_url(url.get_secret_value(), client_name="client") as elder:
        elder.ping()
        done = await orc(terminal, "upgrade", "finish", "--yes")
        assert done.code == 4
        assert "client " in done.err
        assert redis_client.get(keys.format) == str(OLDEST_FORMAT).encode()
        done = await orc(terminal, "upgrade", "finish")
        assert done.code == 4
        assert "add --yes" in done.err
        done = await orc(terminal, "upgrade", "finish", "--yes", "--ignore-connections", "--reason", "all new")
    assert (done.code, done.out) == (0, f"the pool admits programs of format {FORMAT} and newer\n")
    assert redis_client.get(keys.format) == str(FORMAT).encode()
    record = (await orc(terminal, "control", "list", "-o", "json")).json()["items"][0]
    assert (record["kind"], record["words"], record["reason"]) == (
        "finish-upgrade",
        f"finish-upgrade floor={FORMAT}",
        "all new",
    )
    assert "waiting" not in (await orc(terminal, "upgrade", "status")).out


async def test_an_older_worker_that_comes_back_is_stopped(
    team: LocalTeam, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off while the floor was raised; the supervisor gives the command that older workers obey.

    Twin: a worker whose format cannot be read is not stopped.
    """
    monkeypatch.setattr(older_workers, "SWEEPS", 0.01)
    for worker in ("h:1:odd", "h:1:old"):
        await register_older(team, worker)
    redis_client.hset(team.services.keys.worker("h:1:odd"), "format", "x")
    await team.start_supervisor()
    slot = "drain:worker:h:1:old"
    keys = team.services.keys

    async def looked() -> bool:
        return bool(redis_client.exists(keys.leader))

    await wait_for(looked, "a leader")
    assert not redis_client.hexists(keys.desired, slot)
    redis_client.set(keys.format, FORMAT)
    await wait_for(lambda: redis_client.hexists(keys.desired, slot), "the command")
    assert not redis_client.hexists(keys.desired, "drain:worker:h:1:odd")
    assert str(redis_client.hget(keys.desired, slot)).startswith("b'1s")


async def test_finish_without_the_right_to_list_connections(
    team: LocalTeam, redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    """Unknown clients may be older, so the caller has to say that they are not."""
    user = f"u{secrets.token_hex(4)}"
    redis_client.execute_command("ACL", "SETUSER", user, "on", ">pw", "&*", "~*", "+@all", "-client|list")  # type: ignore[no-untyped-call]
    try:
        url = f"unix://{user}:pw@{redis_server.directory}/redis.sock"
        async with Orchestrator(settings=local_settings(url, team.settings.prefix)) as limited:
            with pytest.raises(UpgradeRefused, match=r"may not run CLIENT LIST; .*--ignore-connections"):
                await limited.admin.finish_upgrade()
            assert redis_client.get(team.services.keys.format) == str(OLDEST_FORMAT).encode()
            await limited.admin.finish_upgrade(ignore_connections=True)
    finally:
        redis_client.acl_deluser(user)
    assert redis_client.get(team.services.keys.format) == str(FORMAT).encode()


async def test_a_finish_that_is_not_recorded(team: LocalTeam, redis_client: redis.Redis) -> None:
    """The error says that the floor is up. An invalid reason is refused before."""
    keys = team.services.keys
    with pytest.raises(InvalidInput):
        await team.orc.admin.finish_upgrade(reason="x" * 100_000)
    assert redis_client.get(keys.format) == str(OLDEST_FORMAT).encode()
    redis_client.set(keys.desired, "no hash")
    with pytest.raises(OrchestratorError, match=rf"was raised to {FORMAT}, but not recorded: "):
        await team.orc.admin.finish_upgrade()
    assert redis_client.get(keys.format) == str(FORMAT).encode()


async def test_an_older_program_that_starts_while_the_floor_rises(
    team: LocalTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named afterwards, because an older client reads the floor at its start only."""

    async def read_then_start(store: Store) -> Programs:
        found = await read_programs(store)
        await register_older(team, "h:1:late")
        return found

    monkeypatch.setattr(admin, "read_programs", read_then_start)
    sent = await team.orc.admin.finish_upgrade()
    assert sent.older == (f"worker h:1:late (version 0.0.9, format {OLDEST_FORMAT})",)
