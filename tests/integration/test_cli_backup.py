"""`orc backup` and `orc restore`, as an operator types them."""

from __future__ import annotations

import gzip
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from tests.helpers.guards import keys_of
from tests.helpers.local_team import run_local_team
from tests.helpers.terminal import ORC, Done, Terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A team without a supervisor."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal whose commands see the team's pool."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


@pytest.fixture
def copy(settings: Settings, redis_client: redis.Redis) -> Iterator[str]:
    """A prefix without data."""
    prefix = f"{settings.prefix}-copy"
    yield prefix
    if keys := keys_of(redis_client, prefix):
        redis_client.unlink(*keys)


async def orc(terminal: Terminal, *arguments: str) -> Done:
    """Type a command."""
    return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))


@pytest.mark.default_user
async def test_save_list_restore(
    team: LocalTeam, terminal: Terminal, copy: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """A backup with a chosen and with its own name; a dry run that writes nothing; a restore that is confirmed."""
    task = await team.orc.submit("work", {"text": "\u00fc"})
    done = await orc(terminal, "backup", "pool.orc.gz")
    assert (done.code, done.out) == (0, "pool.orc.gz\n")
    assert "1 tasks (1 ready)" in done.err
    named = (await orc(terminal, "backup", "--plain", "-o", "json")).json()
    assert (named["counts"]["tasks"], named["skipped"]) == (1, [])
    assert named["file"].startswith("default-20")
    assert named["file"].endswith("Z.orc")
    assert (await orc(terminal, "backup", "pool.orc.gz")).err.startswith("error: pool.orc.gz exists")

    done = await orc(terminal, "backup", "--list", "pool.orc.gz", "-o", "json")
    assert (done.json()["pool"], done.json()["counts"]["ready"]) == ("default", 1)
    done = await orc(terminal, "restore", "pool.orc.gz", "--into", copy, "--dry-run")
    assert (done.code, "1 tasks (1 ready)" in done.out) == (0, True)
    assert f"nothing was changed; without --dry-run this is restored into pool default of {copy}" in done.err
    assert keys_of(redis_client, copy) == []
    done = await orc(terminal, "restore", "pool.orc.gz", "--into", copy)
    assert (done.code, "add --yes to confirm" in done.err) == (4, True)
    assert keys_of(redis_client, copy) == []

    done = await orc(terminal, "restore", "pool.orc.gz", "--into", copy, "--pool", "drill", "--yes")
    assert done.code == 0
    assert "restored 1 tasks, 1 other keys, 0 commands\n" in done.out
    assert "is stopped; stop the original if it still runs, then type `orc start`" in done.err
    place = ("--prefix", copy, "--pool", "drill")
    assert "restored from pool.orc.gz" in (await orc(terminal, "tasks", "why", task.id, *place)).out
    assert (await orc(terminal, "keys", "check", *place)).code == 0
    done = await orc(terminal, "restore", "pool.orc.gz", "--into", copy, "--pool", "drill", "--yes")
    assert (done.code, "the target is not empty" in done.err) == (4, True)
    assert (await orc(terminal, "start", *place, "--no-wait")).code == 0


async def test_to_standard_output(team: LocalTeam, terminal: Terminal, tmp_path: Path) -> None:
    """A backup goes through a pipe, and is the same as one in a file."""
    await team.orc.submit("work")
    done = await anyio.run_process([ORC, "backup", "-"], env=terminal.environ, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "1 tasks (1 ready), 1 other key\n")
    assert gzip.decompress(done.stdout).count(b'"kind":"task"') == 1
    path = anyio.Path(tmp_path / "piped")
    await path.write_bytes(done.stdout)
    assert (await orc(terminal, "backup", "--list", "piped")).code == 0


async def test_refusals(team: LocalTeam, terminal: Terminal, tmp_path: Path, copy: str) -> None:
    """Damage is reported in one line with the place; so are a missing file and a record that was left out."""
    task = await team.orc.submit("work")
    assert (await orc(terminal, "backup", "a")).code == 0
    path = anyio.Path(tmp_path / "a")
    await path.write_bytes((await path.read_bytes())[:-40])
    for command in (("backup", "--list", "a"), ("restore", "a", "--into", copy, "--yes")):
        done = await orc(terminal, *command)
        assert (done.code, done.err.count("\n")) == (1, 1)
        assert "error: a is damaged: it is incomplete, in chunk 2" in done.err
    assert (await orc(terminal, "backup", "--list", "nothing")).code == 2
    assert (await orc(terminal, "backup", "--list")).err.startswith("error: --list needs the name of a file")
    await team.services.store.execute("HSET", team.services.keys.task(task.id), "gen", "x")
    done = await orc(terminal, "backup", "b")
    assert done.code == 1
    assert f"left out, because they are damaged: {task.id}" in done.err
