"""`orc tasks submit --lane --on-busy`, and what other commands show of who waits for a turn: output, exit codes."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Callable[..., Awaitable[Done]]:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


async def test_submit_into_a_lane(orc: Callable[..., Awaitable[Done]]) -> None:
    """The second one waits for the first; why, show and list say so."""
    first, second = [(await orc("tasks", "submit", "later", "--lane", "chat 7")).out.strip() for _ in range(2)]
    why = await orc("tasks", "why", second)
    assert why.out == f"ready: lane 'chat 7' is busy with task {first}, which is ready\n"
    said = json.loads((await orc("tasks", "why", second, "-o", "json")).out)
    assert (said["cause"], said["lane"], said["task"], said["ahead"]) == ("lane", "chat 7", first, 1)
    assert json.loads((await orc("tasks", "show", second, "-o", "json")).out)["lane"] == "chat 7"
    assert "chat 7" in (await orc("tasks", "show", second)).out
    listed = await orc("tasks", "list", "--state", "ready", "-o", "id")
    assert listed.out.split() == [first, second]


async def test_busy_lane(orc: Callable[..., Awaitable[Done]]) -> None:
    """A refusal has its own exit code and names the task; the others say which new one ended the old one."""
    first = (await orc("tasks", "submit", "later", "--lane", "x")).out.strip()
    refused = await orc("tasks", "submit", "later", "--lane", "x", "--on-busy", "reject")
    assert (refused.code, refused.out) == (4, "")
    assert f"lane 'x' is busy with task {first}" in refused.err
    second = (await orc("tasks", "submit", "later", "--lane", "x", "--on-busy", "interrupt")).out.strip()
    third = (await orc("tasks", "submit", "later", "--lane", "x", "--on-busy", "replace")).out.strip()
    assert f"interrupted by task {second}" in (await orc("tasks", "show", first)).out
    assert f"replaced by task {third}" in (await orc("tasks", "show", second)).out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on-busy", "reject"], "needs a lane"),
        (["--lane", "x", "--on-busy", "drop"], "--on-busy"),
        (["--lane", "x", "--on-busy", "replace", "--delay", "5s"], "leave out on_busy"),
        (["--lane", ""], "lane '' is refused"),
    ],
)
async def test_usage(orc: Callable[..., Awaitable[Done]], options: list[str], words: str) -> None:
    """What cannot be meant is a usage error; nothing is submitted."""
    done = await orc("tasks", "submit", "later", *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert (await orc("tasks", "list", "-o", "id")).out == ""
