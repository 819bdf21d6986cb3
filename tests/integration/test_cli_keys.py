"""`orc keys check|report` typed beside a team in this process: what they find, say and repair, forms and exit codes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from orchestrator.store.keys import ScopeKeys
from tests.helpers.local_team import run_local_team
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A client, and nobody who repairs anything meanwhile."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal whose commands see the team's pool."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


async def orc(terminal: Terminal, *arguments: str, stdin: str = "") -> Done:
    """Type a command."""
    return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments, stdin=stdin))


async def test_check_finds_and_repairs(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """Sound: 0. Damaged: 1, with codes, counts and examples; nothing is changed before somebody says yes."""
    done = await orc(terminal, "keys", "check")
    assert (done.code, done.out, done.err) == (0, "", "no damage found\n")
    handles = [await team.orc.submit("nobody") for _ in range(7)]
    redis_client.delete(team.services.keys.queue("skill:nobody"))
    done = await orc(terminal, "keys", "check")
    assert done.code == 1
    assert "lost-ready  7  A ready task is in no queue.\n" in done.out
    assert "  a repair: It is put back into its queue.\n" in done.out
    assert sum(handle.id in done.out for handle in handles) == 5
    assert "and 2 more" in done.out
    done = await orc(terminal, "keys", "check", "--repair")
    assert done.code == 4
    assert "add --yes" in done.err
    assert not redis_client.exists(team.services.keys.queue("skill:nobody"))
    done = await orc(terminal, "keys", "check", "-o", "json")
    (row, *_) = [row for row in done.json()["items"] if row["code"] == "lost-ready"]
    assert (row["count"], row["repaired"], row["harmless"]) == (7, False, False)
    assert len(row["examples"]) == 5
    done = await orc(terminal, "keys", "check", "--repair", "--yes")
    assert done.code == 0
    assert "  repaired: It is put back into its queue.\n" in done.out
    assert redis_client.zcard(team.services.keys.queue("skill:nobody")) == 7
    assert (await orc(terminal, "keys", "check", "-o", "id")).code == 0


async def test_what_cannot_be_repaired(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """A key that guards stays, is named without harm to the terminal, and the exit code stays 1."""
    key = f"{team.services.keys.root}:nonce:\x1b[31m"
    redis_client.rpush(key, "x")
    redis_client.expire(key, 60)
    done = await orc(terminal, "keys", "check", "--repair", "--yes")
    assert done.code == 1
    assert "guarded-type  1" in done.out
    assert "\x1b" not in done.out
    assert redis_client.exists(key)
    done = await orc(terminal, "keys", "check", "-o", "id")
    assert done.out == "guarded-type\n"


async def test_harmless_leftovers(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """What is left behind in the ordinary course of things is shown, and is no failure."""
    handle = await team.orc.submit("nobody")
    redis_client.delete(team.services.keys.task(handle.id))
    done = await orc(terminal, "keys", "check", "-o", "jsonl")
    assert done.code == 0
    assert '"code":"gone"' in done.out
    assert '"harmless":true' in done.out


async def test_report(team: LocalTeam, terminal: Terminal) -> None:
    """Keys, memory, the biggest and the oldest of each kind."""
    for _ in range(3):
        await team.orc.submit("nobody", {"text": "x" * 5000}, key="k")
    await team.orc.submit("nobody")
    rows = {row["kind"]: row for row in (await orc(terminal, "keys", "report", "-o", "json")).json()["items"]}
    assert rows["task:ID"]["keys"] == 2
    assert rows["task:ID"]["bytes"] > rows["task:ID"]["biggest_bytes"] > 5000
    assert rows["task:ID"]["oldest"] is not None
    assert rows["idem:KEY"]["keys"] == 1
    assert rows["queues"]["biggest"] == team.services.keys.queues
    done = await orc(terminal, "keys", "report")
    assert done.code == 0
    assert "KiB" in done.out
    assert (await orc(terminal, "keys", "report", "-o", "id")).out.split() == list(rows)


async def test_report_of_scopes(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """Sessions and agents by size; what needs a look is said on standard error."""
    async with team.orc.workspace("large").edit() as shared:
        await shared.set("plan", "x" * 5000)
    await team.orc.agents.set_state("ada", {"status": "busy"})
    done = await orc(terminal, "keys", "report", "--by", "scope", "-o", "json")
    rows = done.json()["items"]
    assert [row["scope"] for row in rows] == ["session:large", "agent:ada"]
    assert rows[0]["bytes"] > 5000
    assert done.err == ""
    key = ScopeKeys(team.settings.prefix, "agent", "ada").key("state")
    redis_client.persist(key)
    done = await orc(terminal, "keys", "report")
    assert "have no lifetime" in done.err
    redis_client.expire(key, 100)


@pytest.mark.denied
async def test_report_of_nothing(terminal: Terminal, redis_client: redis.Redis, team: LocalTeam) -> None:
    """An empty pool is no failure."""
    redis_client.delete(team.services.keys.format)
    done = await orc(terminal, "keys", "report", "--pool", "empty", "-o", "json")
    assert done.code == 0


async def test_rebuild(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """What it would do is shown, and done when confirmed; another scope is left alone."""
    for session in ("a b", "other"):
        async with team.orc.workspace(session).edit() as shared:
            await shared.append("log", 1, 2)
        redis_client.delete(ScopeKeys(team.settings.prefix, "session", session).key("ws:parts"))
    done = await orc(terminal, "keys", "rebuild", "--scope", "session:a b")
    assert done.code == 4
    assert "unlisted-part  1" in done.out
    done = await orc(terminal, "keys", "rebuild", "--scope", "session:a b", "--yes")
    assert (done.code, done.err) == (0, "1 repaired\n")
    done = await orc(terminal, "keys", "rebuild", "-o", "json", "--yes")
    assert [(row["code"], row["count"], row["repaired"]) for row in done.json()["items"]] == [
        ("unlisted-part", 1, True)
    ]
    assert (await orc(terminal, "keys", "rebuild")).err == "no damage found\n"
    done = await orc(terminal, "keys", "rebuild", "--scope", "team:x")
    assert done.code == 2
    assert "no kind of scope" in done.err
