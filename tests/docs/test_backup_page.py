"""The page about backups, followed to the letter: each command is typed and prints what the page shows."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.testing.waiting import wait_for
from tests.docs.following import check_output, steps, type_command
from tests.docs.pages import blocks
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = "docs/guides/backup.md"
SUPERVISOR: Final = Path(__file__).parents[2] / "systemd" / "orchestrator-supervisor.service"
PREFIX, COPY = "app:env:tenant", "app:drill:tenant"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server whose prefixes are those of the page."""
    with RedisServer() as running:
        yield running


@pytest.mark.slow
async def test_followed(server: RedisServer, tmp_path: Path) -> None:
    """A pool is saved, listed, restored, checked and started; the task that ran ends in the copy too."""
    gate = anyio.Event()
    agent = Agent("ada", concurrency=1)

    @agent.skill
    async def work(ctx: TaskContext, *, hold: bool = False) -> int:
        await ctx.workspace.set("n", 1)
        if hold:
            await gate.wait()
        return 1

    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORC_")}
    environment |= {"ORC_REDIS__URL": server.url, "ORC_PREFIX": PREFIX}
    async with run_local_team(local_settings(server.url, PREFIX)) as team:
        await team.work(agent)
        await (await team.orc.submit("work", session="s")).result(TIMEOUT_S)
        running = await team.orc.submit("work", {"hold": True}, session="s")

        async def runs() -> bool:
            return (await running.status()).state == "running"

        await wait_for(runs, "the task that runs")
        await team.orc.submit("work", session="s")
        await team.orc.admin.schedules.add("nightly", "work", cron="0 3 * * *")
        typed = 0
        for command, shown in steps(PAGE):
            printed = await anyio.to_thread.run_sync(
                partial(type_command, command, folder=tmp_path, environment=environment)
            )
            check_output(command, shown, printed)
            typed += 1
        assert typed >= 9
        gate.set()
    async with run_local_team(local_settings(server.url, COPY)) as copy:
        await copy.work(agent)
        assert await copy.orc.task(running.id).result(TIMEOUT_S) == 1


def test_the_unit_has_the_settings_of_the_supervisor() -> None:
    """User, program, credentials and environment are those of the supervisor's unit, which the guide installs."""
    service = next(block.text for block in blocks(PAGE) if block.language == "ini").splitlines()
    supervisor = SUPERVISOR.read_text(encoding="utf-8").splitlines()
    shared = [line for line in supervisor if line.startswith(("User=", "LoadCredential=", "EnvironmentFile="))]
    assert len(shared) >= 4
    assert [line for line in shared if line not in service] == []
    (program,) = [line.split()[0] for line in supervisor if line.startswith("ExecStart=")]
    assert f"{program} backup" in service
    assert not [line for line in service if line.startswith("EnvironmentFile=/")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_timer(tmp_path: Path) -> None:
    """The two files for systemd pass its checks."""
    service, timer = (block.text for block in blocks(PAGE) if block.language == "ini")
    for name, text in (("service", service), ("timer", timer)):
        (tmp_path / f"orc-backup.{name}").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "orc-backup.timer")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "orc-backup" in line]) == (0, [])
    assert "[Timer]" in timer


def test_a_wrong_page_is_found() -> None:
    """The twin: other output, a missing line and a further one are differences."""
    check_output("c", "a … c\n…\n", "a b c\nd\ne\n")
    for printed in ("a b d\n", "a b c\nd\n", ""):
        with pytest.raises(AssertionError, match="the page shows"):
            check_output("c", "a … c\n", printed)
