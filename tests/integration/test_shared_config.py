"""Values that are published while programs run: who knows them when, what is told of them, what does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, ConfigChange, InvalidInput, TaskContext
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

VALUE: dict[str, Any] = {"model": "large", "sizes": [1.0, 2, {}], "é": None}


def asking() -> Agent:
    """An agent that tells what it knows."""
    agent = Agent("ed")

    @agent.skill
    async def known(ctx: TaskContext, key: str) -> Any:
        return [await ctx.config.get(key, "nothing"), len(await ctx.config.all())]

    return agent


async def known(team: LocalTeam, key: str) -> Any:
    """What a handler knows of a key."""
    return await (await team.orc.submit("known", {"key": key})).result(TIMEOUT_S)


async def test_everybody_knows(team: LocalTeam) -> None:
    """A worker that has answered knows the value; one that starts later knows it from its start."""
    await team.work(asking())
    assert await known(team, "routing") == ["nothing", 0]
    sent = await team.orc.admin.publish_config("routing", VALUE, reason="a test")
    assert not (await sent.receipts(timeout=TIMEOUT_S)).missing
    assert await known(team, "routing") == [VALUE, 1]
    assert await team.orc.config.get("routing") == VALUE
    await team.stop_workers()
    await team.work(asking())
    assert await known(team, "routing") == [VALUE, 1]
    withdrawn = await team.orc.admin.withdraw_config("routing")
    assert not (await withdrawn.receipts(timeout=TIMEOUT_S)).missing
    assert await known(team, "routing") == ["nothing", 0]
    assert await team.orc.config.all() == {}
    assert await team.orc.config.get("routing", 7) == 7


async def changes(team: LocalTeam, count: int, after: str) -> list[ConfigChange]:
    """So many changes behind one."""
    found = []
    with anyio.fail_after(TIMEOUT_S):
        async for change in team.orc.config.changes(after):
            found.append(change)
            if len(found) == count:
                break
    return found


async def test_changes(team: LocalTeam) -> None:
    """Each change is told once, in order, with who and why, to whoever asks later too; from any of them it goes on."""
    admin = team.orc.admin
    await admin.publish_config("a", 1, reason="first", actor="ann")
    await admin.pause_agent("ed")
    await admin.publish_config("b", None)
    await admin.publish_config("a", [1.0])
    await admin.withdraw_config("a")
    found = await changes(team, 4, "0-0")
    told = [(change.key, change.value, change.withdrawn) for change in found]
    assert told == [("a", 1, False), ("b", None, False), ("a", [1.0], False), ("a", None, True)]
    assert (found[0].actor, found[0].reason) == ("ann", "first")
    assert await changes(team, 2, found[1].id) == found[2:]
    assert [change async for change in team.orc.config.changes(found[3].id, block=0.05)] == []
    assert await team.orc.config.all() == {"b": None}
    with pytest.raises(InvalidInput, match="no id of a change"):
        await changes(team, 1, "yesterday")


async def test_news(team: LocalTeam) -> None:
    """A change is heard by those who wait for it, and by them alone who began before it."""
    heard: list[ConfigChange] = []
    await team.orc.admin.publish_config("old", 1)

    async def listen() -> None:
        async for change in team.orc.config.changes():
            heard.append(change)
            return

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        with anyio.fail_after(TIMEOUT_S):
            while not heard:
                await team.orc.admin.publish_config("new", 2)
                await anyio.sleep(0.05)
    assert [change.key for change in heard] == ["new"]


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 9000])
async def test_refused(team: LocalTeam, value: Any) -> None:
    """What JSON cannot hold, or is too large, is refused; so is a name that is none."""
    with pytest.raises(InvalidInput):
        await team.orc.admin.publish_config("k", value)
    with pytest.raises(InvalidInput):
        await team.orc.admin.publish_config("a b", 1)
    assert await team.orc.config.all() == {}


@pytest.mark.parametrize("secret", ["s3cret-s3cret-s3cret-s3cret-s3cret", None])
async def test_forged(team: LocalTeam, secret: str | None) -> None:
    """With a secret a value that somebody publishes without it does not count; twin: without one it does."""
    signed = await team.client(**{"control__secret": secret} if secret else {})
    await team.orc.admin.publish_config("k", "unsigned")
    assert await signed.config.get("k", "nothing") == ("nothing" if secret else "unsigned")
    heard = [change.value async for change in signed.config.changes("0-0", block=0.05)]
    assert heard == ([] if secret else ["unsigned"])
