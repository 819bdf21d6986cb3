"""What all programs share, typed beside a pool: who has done the most, who lives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread
import pytest

from orchestrator import Agent
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


class Orc(Protocol):
    """Types `orc …` and answers what it did."""

    async def __call__(self, *arguments: str) -> Done:
        """Run it."""


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Orc:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


async def test_stats(team: LocalTeam, orc: Orc) -> None:
    """`orc stats` shows attempts with their times, per agent and skill."""
    none = await orc("stats")
    assert (none.code, none.out) == (0, "")
    assert "no attempt ended" in none.err
    agent = Agent("ed")

    @agent.skill
    async def write() -> None:
        """Write."""

    worker = await team.work(agent)
    await (await team.orc.submit(write)).result(TIMEOUT_S)
    await team.stop(worker)
    shown = await orc("stats", "--by", "skill", "--within", "1m")
    assert shown.out.split()[:2] == ["SKILL", "/MIN"]
    assert "write" in shown.out
    assert "≤1 ms" in shown.out
    (row,) = (await orc("stats", "-o", "json")).json()["items"]
    assert (row["agent"], row["skill"], row["outcomes"]) == ("ed", "write", {"succeeded": 1})
    assert row["ran"]["count"] == sum(row["ran"]["below_ms"].values()) == 1
    assert (await orc("stats", "--by", "queue")).code == 2
    assert (await orc("stats", "--within", "2d")).code == 2


async def test_skills(team: LocalTeam, orc: Orc) -> None:
    """`orc skills` lists the skills of live agents, and shows what one takes and returns."""
    assert "no skills" in (await orc("skills", "list")).err
    agent = Agent("ed")

    @agent.skill
    async def write(topic: str) -> str:
        """Write about a topic."""
        return topic

    await team.work(agent)

    async def described() -> bool:
        return (await team.orc.skill("write")).description is not None

    await wait_for(described, "the description")
    listed = await orc("skills", "list")
    assert listed.out.splitlines()[1].split(maxsplit=2) == ["write", "1", "Write about a topic."]
    shown = await orc("skills", "show", "write")
    assert "Write about a topic." in shown.out
    assert '"topic"' in shown.out
    record = (await orc("skills", "show", "write", "-o", "json")).json()
    assert record["description"]["arguments"]["required"] == ["topic"]
    assert record["description"]["result"] == {"type": "string"}
    assert (await orc("skills", "list", "-o", "id")).out == "write\n"
    assert (await orc("skills", "show", "reed")).code == 3


async def test_config(team: LocalTeam, orc: Orc) -> None:
    """A value is published, listed, kept on record and withdrawn; what is no key or no value is a mistake of usage."""
    done = await orc("config", "publish", "routing", '{"model": "large"}', "--reason", "slow", "-o", "json")
    assert (done.code, done.json()["kind"]) == (0, "publish-config")
    assert [row["word"] for row in done.json()["answered"]] == ["done"]
    assert (await orc("config", "publish", "greeting", "hello")).code == 0
    listed = (await orc("config", "published", "-o", "json")).json()["items"]
    assert listed == [{"key": "greeting", "value": "hello"}, {"key": "routing", "value": {"model": "large"}}]
    assert await team.orc.config.get("greeting") == "hello"
    (record, *_) = (await orc("control", "list", "-o", "json")).json()["items"]
    assert (record["words"], record["state"]) == ('publish-config key=greeting value="hello"', "active")
    for key in ("greeting", "routing"):
        assert (await orc("config", "withdraw", key)).code == 0
    none = await orc("config", "published")
    assert (none.code, none.out) == (0, "")
    assert "no published values" in none.err
    assert (await orc("config", "publish", "a b", "1")).code == 2
    assert (await orc("config", "publish", "a", "x" * 9000)).code == 2


async def test_within(team: LocalTeam, orc: Orc) -> None:
    """Only agents that sent a heartbeat lately, when that is asked for."""
    agent = Agent("ed")
    agent.skill(name="work")(_nothing)
    await team.work(agent)
    assert (await orc("agents", "list", "--within", "1m", "-o", "id")).out == "ed\n"
    none = await orc("agents", "list", "--within", "0s")
    assert (none.code, none.out) == (0, "")
    assert "no agent with a heartbeat" in none.err
    assert (await orc("agents", "list", "--within", "soon")).code == 2


async def _nothing() -> None:
    pass


async def test_top(team: LocalTeam, orc: Orc) -> None:
    """The agents by what they have done on a day; a day that is none is a mistake of usage."""
    agent = Agent("ed")

    @agent.skill
    async def work() -> None:
        pass

    await team.work(agent)
    for _ in range(2):
        await (await team.orc.submit("work")).result(TIMEOUT_S)
    done = await orc("agents", "top", "-o", "json")
    assert done.json()["items"] == [{"place": 1, "member": "ed", "count": 2}]
    assert (await orc("agents", "top", "-n", "1", "-o", "id")).out == "ed\n"
    nothing = await orc("agents", "top", "--date", "2001-01-31")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no task succeeded" in nothing.err
    assert (await orc("agents", "top", "--date", "yesterday")).code == 2
    assert (await orc("agents", "top", "-n", "0")).code == 2
