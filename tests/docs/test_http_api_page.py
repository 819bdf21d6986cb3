"""The guide about the HTTP API: its commands are typed, and print what it shows."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.accounts.model import Role
from tests.docs.following import check_output, steps, type_command
from tests.helpers.api_client import served
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.servers import RedisServer

PAGE: Final = "docs/guides/http-api.md"


@pytest.mark.timeout(120)
async def test_followed(redis_server: RedisServer, prefix: str, tmp_path: Path) -> None:
    """The requests of the page get the answers that it shows."""
    agent = Agent("crier")

    @agent.skill
    async def shout(ctx: TaskContext, text: str) -> dict[str, str]:
        await ctx.emit(text.upper())
        return {"shouted": text.upper()}

    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        await team.work(agent)
        web = WebClient(team.orc)
        token = await web.dashboard.accounts.make_token("ci", Role.OPERATOR, days=1)
        environment = {**os.environ, "TOKEN": token}
        typed = 0
        async with served(web) as port:
            for command, shown in steps(PAGE):
                if not command.startswith("curl "):
                    continue
                here = command.replace("localhost:8470", f"localhost:{port}")
                printed = await anyio.to_thread.run_sync(
                    partial(type_command, here, folder=tmp_path, environment=environment)
                )
                check_output(here, shown, printed)
                if printed.startswith('{"task"'):
                    environment["TASK"] = json.loads(printed)["task"]
                typed += 1
        assert typed == 8
