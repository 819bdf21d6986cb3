"""Requests of the HTTP API whose first try failed half-way are repeated with their key, also on a full server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import pytest

from orchestrator.control.scripts import REMEMBERED_S
from orchestrator.core.ids import new_task_id
from orchestrator.dashboard.api.kept_answers import KEPT_S
from orchestrator.store.script_files import all_scripts
from tests.faultkit.commands import script
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.api_client import ApiClient, api_client
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from orchestrator.embedded.server_binary import ServerBinary

SHORT_S: Final = 0.3


async def _state(api: ApiClient, task: str) -> str:
    return str((await api.read(f"/tasks/{task}"))["info"]["state"])


@pytest.mark.parametrize("loss", ["command", "reply"])
async def test_a_repeat_does_the_work(redis_server: RedisServer, prefix: str, loss: str) -> None:
    """Cancel, retry and delete are recorded and then fail: a repeat does what was not done, without another record."""
    settings = partial(local_settings, prefix=prefix, redis__command_timeout_s=SHORT_S)
    async with FaultProxy(redis_server.url) as proxy, run_local_team(settings(proxy.url), supervised=False) as team:
        api = await api_client(team.orc)
        task = (await team.orc.submit("later")).id
        done = {"cancel": ("ended", "cancelled"), "retry": ("requeued", "ready"), "delete": ("deleted", "")}
        for action, (status, state) in done.items():
            if action == "delete":
                await team.orc.task(task).cancel()
            body = {"reason": f"to {action}"}
            post = partial(api.post, f"/tasks/{task}/{action}", body, key=action)
            fail = proxy.fail_command if loss == "command" else proxy.fail_reply
            fault = fail(script(all_scripts()[f"tasks/{action}"].sha), nth="every")
            assert (await post()).status_code == 503
            fault.stop()
            answer = await post()
            expected = "already" if (action, loss) == ("cancel", "reply") else status
            assert answer.json() == {"status": expected}, answer.text
            assert (await post()).content == answer.content
            assert state == "" or await _state(api, task) == state
        records = [one for one in (await api.read("/control", kind="tasks"))["records"] if one["state"] != "refused"]
        assert sorted(one["reason"] for one in records if one["reason"]) == ["to cancel", "to delete", "to retry"]


async def test_another_action_under_a_known_id(redis_server: RedisServer, prefix: str) -> None:
    """An id of a record that was made for another task does not let an action pass without a record."""
    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        web = WebClient(team.orc)
        await web.log_in()
        first, other = (await team.orc.submit("later")).id, (await team.orc.submit("later")).id
        form = {"id": new_task_id()}
        assert (await web.post(f"/tasks/{first}/cancel", form)).status_code == 303
        assert (await web.post(f"/tasks/{other}/cancel", form)).status_code == 409
        assert (await team.orc.task(other).status()).state == "ready"


async def test_a_full_server_takes_what_makes_room(binary: ServerBinary, prefix: str) -> None:
    """Cancel, delete, stops, answers and the like are done and repeated once; what would add work is refused."""
    with RedisServer(binary) as server, server.client() as direct:
        async with run_local_team(local_settings(server.url, prefix)) as team:
            api = await api_client(team.orc)
            first, other = (await team.orc.submit("later")).id, (await team.orc.submit("later")).id
            await team.orc.admin.schedules.add("nightly", "later", every=86_400)
            await api.post("/commands/resume-queue", {"queue": "skill:none"})  # loads the scripts
            direct.config_set("maxmemory", "1")
            for path, body, wanted in (
                (f"/tasks/{first}/cancel", {}, {"status": "ended"}),
                (f"/tasks/{first}/delete", {"reason": "full"}, {"status": "deleted"}),
                ("/schedules/nightly/pause", {}, {"schedule": "nightly", "task": None}),
                ("/schedules/nightly/delete", {"reason": "full"}, {"schedule": "nightly", "task": None}),
            ):
                answer = await api.post(path, body)
                assert (answer.status_code, answer.json()) == (200, wanted)
            stops = [await api.post("/commands/stop", {"reason": "full"}, key="stop") for _ in range(2)]
            assert [one.status_code for one in stops] == [200, 200]
            assert [one.json()["new"] for one in stops] == [True, False]
            assert stops[0].json()["command"] == stops[1].json()["command"]
            job = await api.post("/bulk/cancel", {"skill": "later", "tasks": [other], "reason": "full"})
            assert job.status_code == 200, job.text
            for path, body in (("/tasks", {"skill": "later"}), (f"/tasks/{other}/retry", {})):
                refused = await api.post(path, body)
                assert refused.json()["error"] == "ServerFull"
            assert len(direct.keys(team.services.keys.web_request("*"))) == 2, "of the request before it was full"
            direct.config_set("maxmemory", "0")


async def test_lifetimes_agree(redis_server: RedisServer, prefix: str) -> None:
    """Redis refuses the repeat of a command for longer than a request without an answer keeps its id."""
    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        api = await api_client(team.orc)
        command = (await api.post("/commands/stop", {"reason": "a test"})).json()["command"]
        task = (await team.orc.submit("later")).id
        assert (await api.post(f"/tasks/{task}/cancel")).status_code == 200
        store, keys = team.services.store, team.services.keys
        records = await store.execute("KEYS", keys.record_nonce("*"))
        assert len(records) == 1
        for nonce in (keys.nonce(command), *records):
            assert await store.execute("TTL", nonce) >= REMEMBERED_S
        kept = [await store.execute("TTL", place) for place in await store.execute("KEYS", keys.web_request("*"))]
        assert sorted(-(-left // 100) * 100 for left in kept) == [REMEMBERED_S] * 2 + [KEPT_S] * 2


async def test_equal_requests_at_a_time(redis_server: RedisServer, prefix: str) -> None:
    """Both get the answer that was stored first, and it stays."""
    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        api = await api_client(team.orc)
        task = (await team.orc.submit("later")).id
        answers: list[bytes] = []

        async def cancel() -> None:
            answers.append((await api.post(f"/tasks/{task}/cancel", {"reason": "both"}, key="both")).content)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(cancel)
        await cancel()
        assert len(answers) == 9
        assert len(set(answers)) == 1


async def test_schedules_are_changed_once(redis_server: RedisServer, prefix: str) -> None:
    """A repeat whose first answer was lost finds the schedule paused, resumed, triggered or deleted, by one record."""
    async with run_local_team(local_settings(redis_server.url, prefix), supervised=False) as team:
        api = await api_client(team.orc)
        store, keys = team.services.store, team.services.keys
        await team.orc.admin.schedules.add("nightly", "later", every=86_400)
        for action in ("pause", "resume", "trigger", "delete"):
            body = {"reason": f"to {action}"}
            first = await api.post(f"/schedules/nightly/{action}", body, key=action)
            for place in await store.execute("KEYS", keys.web_request("*")):
                if b'"answer"' in await store.execute("GET", place):
                    await store.execute("DEL", place)
            if action == "trigger":
                assert (await api.post(f"/schedules/nightly/{action}", body, key=action)).content == first.content
                continue
            again = await api.post(f"/schedules/nightly/{action}", body, key=action)
            assert (again.status_code, again.content) == (200, first.content)
        assert (await api.post("/schedules/nightly/delete", {"reason": "x"})).status_code == 404
        assert (await api.post("/schedules/other/delete", {"reason": "to delete"}, key="other")).status_code == 404
        records = [one for one in (await api.read("/control", kind="schedule"))["records"] if one["state"] != "refused"]
        done = sorted(one["reason"] for one in records if one["reason"])
        assert done == ["to delete", "to pause", "to resume", "to trigger"]


async def test_a_purge_is_given_once(redis_server: RedisServer, prefix: str) -> None:
    """A repeat whose first answer was lost selects fewer tasks, and gives no other job."""
    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        api = await api_client(team.orc)
        store, keys = team.services.store, team.services.keys
        tasks = [await team.orc.submit("later") for _ in range(3)]
        seconds, micros = await store.execute("TIME")
        until_ms = int(seconds) * 1000 + int(micros) // 1000 + 1
        body = {"queue": "skill:later", "until_ms": until_ms, "typed": "skill:later", "reason": "all of them"}
        first = (await api.post("/bulk/purge", body, key="purge")).json()
        assert first["new"]

        async def ended() -> bool:
            return all([(await task.status()).state == "cancelled" for task in tasks])

        await wait_for(ended, "the end of the job")
        for place in await store.execute("KEYS", keys.web_request("*")):
            if b'"answer"' in await store.execute("GET", place):
                await store.execute("DEL", place)
        again = await api.post("/bulk/purge", body, key="purge")
        assert again.json() == {"command": first["command"], "new": False}
