"""`orc erase` is killed at each of its steps; a repeat leaves nothing of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from orchestrator import Message, Record
from orchestrator.control.records import records
from orchestrator.control.signing import signer_of
from orchestrator.store.script_files import all_scripts
from tests.faultkit.commands import script
from tests.faultkit.processes import ActorProcess
from tests.faultkit.proxy import ThreadedProxy
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.text_scan import keys_with

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

PLANTED = "planted7x"
STEPS = (
    "subjects/refuse",
    "memory/erase",
    "memory/erase_outbox",
    "chat/erase",
    "chat/clear",
    "workspace/clear",
    "tasks/delete",
    "subjects/leave",
)


async def _plant(team: LocalTeam) -> None:
    await team.orc.subjects.assign("eve", session="own")
    async with team.orc.workspace("own").edit() as space:
        await space.set("path", PLANTED)
    await team.orc.chat("own").append([{"content": PLANTED}])
    task = await team.orc.submit("unserved", {"text": PLANTED}, session="own")
    await task.cancel()
    for agent in ("ada", "bob"):
        await team.orc.memory(agent).store(Record(step=1, kind="note", content=PLANTED, subject="eve"))
    await team.orc.chat("shared").append([Message({"content": PLANTED}, subject="eve"), {"content": "kept"}])


def _erase_until_killed(url: str, prefix: str, step: str, where: str) -> None:
    with ThreadedProxy(url) as proxy:
        environ = {"ORC_REDIS__URL": proxy.url, "ORC_PREFIX": prefix}
        command = ("-m", "orchestrator", "erase", "eve", "--asked-by", "ticket 7", "--yes")
        with ActorProcess.python(*command, name="erase", env=environ) as process:
            proxy.watch(script(all_scripts()[step].sha), lambda _: process.kill(), nth=1, where=where)  # type: ignore[arg-type]
            assert process.wait_exit(20) == -9, process.output
            assert "erased" not in process.output


@pytest.mark.slow
@pytest.mark.parametrize("where", ["request", "reply"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_kill(redis_server: RedisServer, prefix: str, step: str, where: str) -> None:
    """After the kill there is text; after the repeat there is none, and records name both runs."""
    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        await _plant(team)
        await anyio.to_thread.run_sync(_erase_until_killed, redis_server.url, prefix, step, where)
        # The tasks are the last place.
        assert bool(keys_with(team.settings, PLANTED)) is (step != "tasks/delete")
        report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
        assert (keys_with(team.settings, PLANTED), report.left) == ([], [])
        assert [message.data["content"] for message in (await team.orc.chat("shared").hydrate()).messages] == ["kept"]
        signer = signer_of(team.settings, place=team.services.keys.root)
        words = [one.words for one in await records(team.services.store, signer, limit=9) if one.kind == "erase"][::-1]
        assert [text.split()[1] for text in words] == ["stage=begun", "stage=begun", "stage=ended"]
