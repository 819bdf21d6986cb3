"""The HTTP API: pages as JSON, forms as POST with an idempotency key, events that go on, and refused requests."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import anyio
import pytest

from orchestrator import Agent, LockLost, Record, TaskContext, TaskFailed
from orchestrator.accounts.model import AccountScope, Role
from orchestrator.dashboard.api.operation import OPERATIONS
from orchestrator.dashboard.guard import MAX_BODY
from tests.helpers.api_client import ApiClient, api_client
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import httpx2

    from tests.helpers.local_team import LocalTeam

SECRET = "hunter2"


def _agent(gate: anyio.Event | None = None, *, redact: bool = False) -> Agent:
    agent = Agent("worker")

    @agent.skill(redact=redact)
    async def talk(ctx: TaskContext, lines: int) -> dict[str, Any]:
        for n in range(lines):
            await ctx.emit({"line": n, "token": SECRET})
            await ctx.progress(n, lines, "at a line")
            if gate is not None and n == lines // 2:
                await gate.wait()
        return {"lines": lines, "api_key": SECRET}

    @agent.skill
    async def log_in(token: str, password: str = SECRET) -> None:
        del token, password

    @agent.skill(max_attempts=1)
    async def fail(text: str) -> None:
        raise ValueError(text)

    @agent.skill
    async def ask(ctx: TaskContext) -> Any:
        return await ctx.ask("which?", options=["red", 2])

    @agent.skill(redact=redact)
    async def sign(ctx: TaskContext) -> Any:
        return await ctx.ask("with which password?")

    return agent


def _problem(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["detail"]
    assert "Traceback" not in answer.text
    return found


# -------------------------------------------------------------------------------------------------------------- reading


async def test_a_task_by_the_api_alone(team: LocalTeam) -> None:
    """A program submits, follows, answers and reads the result, and secrets are masked."""
    await team.work(_agent())
    api = await api_client(team.orc)
    answer = await api.post("/tasks", {"skill": "talk", "args": {"lines": 3}, "session": "s", "tags": ["a"]})
    assert answer.status_code == 200, answer.text
    task = answer.json()["task"]
    events = await api.events(task)
    assert [one["data"]["line"] for one in events if one["kind"] == "output"] == [0, 1, 2]
    assert events[-1]["kind"] == "succeeded"
    assert SECRET not in json.dumps(events)
    told = await api.read(f"/tasks/{task}")
    assert (told["info"]["state"], told["info"]["session"], told["info"]["tags"]) == ("succeeded", "s", ["a"])
    assert "result" not in told["info"]
    assert told["result"]["size"] > 0
    assert await api.read(f"/tasks/{task}/result") == {"lines": 3, "api_key": "********"}
    asked = (await api.post("/tasks", {"skill": "ask"})).json()["task"]
    await wait_for(lambda: _asks(api), "the question")
    (question,) = (await api.read("/questions"))["questions"]
    assert (question["task"]["id"], question["question"]["question"]) == (asked, "which?")
    refused = _problem(await api.post(f"/tasks/{asked}/answer", {"value": "blue", "question": 1}), 400)
    assert "none of the options" in refused["detail"]
    given = await api.post(f"/tasks/{asked}/answer", {"value": 2, "question": 1})
    assert given.json() == {"status": "answered", "question": 1}
    await api.events(asked)
    assert await api.read(f"/tasks/{asked}/result") == 2
    assert [row["id"] for row in (await api.read("/tasks", session="s"))["tasks"]] == [task]
    assert [row["session"] for row in (await api.read("/sessions"))["sessions"]] == ["s"]
    assert (await api.read("/sessions/one", id="s"))["total"] == 1


async def _asks(api: ApiClient) -> bool:
    return bool((await api.read("/questions"))["questions"])


async def test_events_go_on(team: LocalTeam) -> None:
    """A stream that was cut goes on behind the last event, and repeats none."""
    gate = anyio.Event()
    await team.work(_agent(gate))
    api = await api_client(team.orc)
    task = (await api.post("/tasks", {"skill": "talk", "args": {"lines": 6}})).json()["task"]
    first = await api.events(task, until='"line": 3')
    gate.set()
    rest = await api.events(task, after=first[-1]["id"])
    lines = [one["data"]["line"] for one in (*first, *rest) if one["kind"] == "output"]
    assert lines == list(range(6))
    assert len({one["id"] for one in (*first, *rest)}) == len(first) + len(rest)
    assert [one["id"] for one in await api.events(task, after=rest[-1]["id"])] == []
    _problem(await api.get(f"/tasks/{task}/events", after="yesterday"), 400)


async def test_redacted_values(team: LocalTeam) -> None:
    """The values of a redacted skill do not leave by any address of its task."""
    await team.work(_agent(redact=True))
    api = await api_client(team.orc)
    task = (await api.post("/tasks", {"skill": "talk", "args": {"lines": 2}})).json()["task"]
    events = await api.events(task)
    assert {one["data"] for one in events if one["kind"] == "output"} == {"(redacted)"}
    for part in ("args", "result"):
        assert "redacted" in _problem(await api.get(f"/tasks/{task}/{part}"), 404)["detail"]
    told = await api.read(f"/tasks/{task}")
    assert told["redacted"] is True
    assert told["info"]["progress"]["message"] == "(redacted)"


async def test_redacted_schedules_and_questions(team: LocalTeam) -> None:
    """Neither the arguments of a schedule, nor the default and the options of an earlier question are sent."""
    agent = Agent("clerk")

    @agent.skill(redact=True)
    async def sign(ctx: TaskContext, name: str) -> Any:
        first = await ctx.ask(f"{name}?", options=[SECRET, "no"], deadline=timedelta(hours=1), default="Ada")
        return await ctx.ask(f"really {first}?", options=["yes", "no"])

    await team.work(agent)
    api = await api_client(team.orc, Role.OPERATOR)
    await team.orc.admin.schedules.add("nightly", "sign", {"name": "Ada Lovelace"}, every=86_400)
    assert (await api.read("/schedules"))["schedules"][0]["schedule"]["args"] == "(redacted)"
    task = (await team.orc.submit("sign", {"name": "x"})).id
    await wait_for(lambda: _asks(api), "the question")
    (question,) = (await api.read(f"/tasks/{task}"))["info"]["questions"]
    assert (question["options"], question["default"]) == ([SECRET, "no"], "(redacted)")
    await team.orc.task(task).answer(SECRET)

    async def asks_again() -> bool:
        return len((await api.read(f"/tasks/{task}"))["info"]["questions"]) == 2

    await wait_for(asks_again, "the second question")
    first, second = (await api.read(f"/tasks/{task}"))["info"]["questions"]
    assert (first["options"], first["answer"], second["options"]) == ([], "(redacted)", ["yes", "no"])


@pytest.mark.parametrize("redact", [True, False], ids=["redacted", "shown"])
async def test_an_earlier_answer(team: LocalTeam, *, redact: bool) -> None:
    """The refusal of a second answer tells the first one without secrets, and nothing of it for a redacted skill."""
    await team.work(_agent(redact=redact))
    api = await api_client(team.orc)
    task = (await api.post("/tasks", {"skill": "sign"})).json()["task"]
    await wait_for(lambda: _asks(api), "the question")
    body = {"value": {"name": "Ada", "password": SECRET}, "question": 1}
    assert (await api.post(f"/tasks/{task}/answer", body)).status_code == 200
    text = (await api.post(f"/tasks/{task}/answer", {"value": "other", "question": 1})).text
    assert "was answered by web:program-" in text
    assert SECRET not in text
    assert ("Ada" in text) is not redact
    assert ("(redacted)" in text) is redact


async def test_a_session(team: LocalTeam) -> None:
    """Document, events, chats and memories of a session are read with masked secrets."""
    await team.work(_agent())
    api = await api_client(team.orc)
    await (await team.orc.submit("talk", {"lines": 1}, session="s")).result(timeout=TIMEOUT_S)
    async with team.orc.workspace("s").edit(agent="ada") as ws:
        await ws.patch({"plan": {"n": 1, "password": SECRET}, "api_key": SECRET, "mail/authToken": SECRET})
    await team.orc.chat("s", "main").append([{"role": "user", "content": "hello", "secret": SECRET}])
    await team.orc.memory("worker").store(Record(step=1, kind="note", content={"text": "seen", "token": SECRET}))
    assert (await api.read("/sessions/workspace", id="s"))["paths"] == 3
    paths = ["api_key", "mail/authToken", "plan"]
    assert [one["path"] for one in (await api.read("/sessions/document", id="s"))["paths"]] == paths
    plan = await api.read("/sessions/path", id="s", path="plan")
    assert (plan["version"], plan["agent"], plan["value"]["n"]) == (1, "ada", 1)
    (event,) = (await api.read("/sessions/events", id="s", kind="patch"))["events"]
    chat = await api.read("/sessions/chat", id="s")
    assert (chat["source"], chat["messages"][0]["data"]["content"]) == ("main", "hello")
    assert (await api.read("/sessions/memory", id="s"))["counts"]["worker"]["stm"] == 1
    (record,) = (await api.read("/memory", agent="worker"))["records"]
    assert record["content"]["text"] == "seen"
    keys = [await api.read("/sessions/path", id="s", path=path) for path in ("api_key", "mail/authToken")]
    assert SECRET not in json.dumps([plan, keys, event, chat, record])
    async with team.orc.workspace("s").edit(agent="bob") as ws:
        await ws.patch({"plan": {"n": 2, "password": SECRET}})
    past = await api.read("/sessions/replay", id="s", at=2, **{"from": 1})
    assert (past["revision"], past["last"], past["reached"], past["totals"]["paths"]) == (2, 2, True, 3)
    assert [(one["path"], one["version"], one["agent"]) for one in past["paths"]] == [
        ("api_key", 1, "ada"),
        ("mail/authToken", 1, "ada"),
        ("plan", 2, "bob"),
    ]
    assert [one["name"] for one in past["differences"]] == ["plan"]
    first = await api.read("/sessions/replay", id="s", at=1, contains="pl")
    assert (first["revision"], first["differences"], len(first["paths"])) == (1, None, 1)
    assert SECRET not in json.dumps([past, first])
    _problem(await api.get("/sessions/replay", id="s", at="yesterday"), 400)
    _problem(await api.get("/sessions/replay", id="none"), 404)
    for query in (
        {},
        {"agent": "a", "user": "b"},
        {"agent": "worker", "tier": "long"},
        {"agent": "worker", "after": "x"},
    ):
        _problem(await api.get("/memory", **query), 400)


async def test_pages_of_lists(team: LocalTeam) -> None:
    """A list has at most as many entries as asked, says how far it looked, and goes on with its cursor."""
    ids = [(await team.orc.submit("later", session="one")).id for _ in range(7)]
    api = await api_client(team.orc)
    found: list[str] = []
    after: dict[str, str] = {}
    for _ in range(9):
        page = await api.read("/tasks", state="ready", limit=3, **after)
        assert len(page["tasks"]) <= 3
        assert page["looked"] >= len(page["tasks"])
        found += [row["id"] for row in page["tasks"]]
        if page["cursor"] is None:
            break
        after = {"after": page["cursor"]}
    assert sorted(found) == sorted(ids)
    for path, query in (
        ("/tasks", {"limit": "51"}),
        ("/tasks", {"limit": "-1"}),
        ("/tasks", {"state": "gone"}),
        ("/tasks", {"colour": "red"}),
        ("/tasks", {"after": "x"}),
        ("/sessions/one", {}),
        ("/tasks/x", {}),
    ):
        _problem(await api.get(path, **query), 400)
    assert _problem(await api.get("/agents/none"), 404)["error"] == "NotFound"
    assert (await api.get("/tasks?limit=1&limit=2")).status_code == 400


async def test_what_pages_show(team: LocalTeam) -> None:
    """Each page of the navigation has an address of the API."""
    await team.work(_agent())
    api = await api_client(team.orc)
    with pytest.raises(TaskFailed):
        await (await team.orc.submit("fail", {"text": "no 17"})).result(timeout=TIMEOUT_S)
    await team.orc.admin.schedules.add("nightly", "talk", {"lines": 1, "token": SECRET}, every=86_400)
    await team.orc.submit("later")
    assert (await api.read("/overview"))["workers"] == 1
    assert [row["name"] for row in (await api.read("/agents"))["agents"]] == ["worker"]
    assert (await api.read("/agents/worker"))["row"]["skills"] == ["ask", "fail", "log_in", "sign", "talk"]
    (worker,) = (await api.read("/workers"))["workers"]
    assert (await api.read(f"/workers/{worker['worker']['id']}"))["tasks"] == []
    assert (await api.read("/skills/talk"))["skill"]["versions"][0]["description"]["arguments"]["required"] == ["lines"]
    described = (await api.read("/skills/log_in"))["skill"]["versions"][0]["description"]["arguments"]
    assert described["properties"]["token"]["type"] == "string"
    assert described["properties"]["password"]["type"] == "string"
    assert SECRET not in json.dumps(described)
    (queue,) = [row for row in (await api.read("/queues"))["queues"] if row["queue"] == "skill:later"]
    assert queue["status"]["detail"]["cause"] == "no_agent"
    assert (await api.read("/queues/skill:later"))["row"]["tasks"] == 1
    (group,) = (await api.read("/dead"))["groups"]
    assert (group["skill"], group["tasks"]) == ("fail", 1)
    (schedule,) = (await api.read("/schedules"))["schedules"]
    assert schedule["schedule"]["name"] == "nightly"
    assert SECRET not in json.dumps(schedule)
    assert (await api.read("/limits"))["limits"] == []
    assert (await api.read("/locks"))["locks"] == []
    assert (await api.read("/control"))["records"]
    assert (await api.read("/doctor"))["findings"]


# ------------------------------------------------------------------------------------------------------------- changing


async def test_a_key_acts_once(team: LocalTeam) -> None:
    """The same request with the same key gets the same answer and does nothing more; another request is refused."""
    api = await api_client(team.orc)
    first = await api.post("/tasks", {"skill": "later"}, key="k1")
    again = await api.post("/tasks", {"skill": "later"}, key="k1")
    assert first.content == again.content
    assert (first.headers.get("idempotent-replayed"), again.headers["idempotent-replayed"]) == (None, "true")
    for path, body in (("/tasks", {"skill": "other"}), ("/commands/stop", {})):
        assert _problem(await api.post(path, body, key="k1"), 422)["error"] == "KeyReused"
    another = await api.post("/tasks", {"skill": "later"}, key="k2")
    assert another.json() != first.json()
    assert (await api.read("/queues/skill:later"))["row"]["tasks"] == 2
    stranger = await api_client(team.orc)
    assert (await stranger.post("/tasks", {"skill": "later"}, key="k1")).json() != first.json()
    stop = await api.post("/commands/pause-queue", {"queue": "skill:later"}, key="k3")
    assert (await api.post("/commands/pause-queue", {"queue": "skill:later"}, key="k3")).json() == stop.json()
    assert len((await api.read("/control", kind="pause-queue"))["records"]) == 1
    answer = await api.web.http.post("/api/v1/tasks", content=b'{"skill": "later"}', headers=api.headers)
    assert "Idempotency-Key" in _problem(answer, 400)["detail"]


async def test_a_lost_answer(team: LocalTeam) -> None:
    """A repeat of a request whose answer was not kept goes on with the same id, so that it acts once."""
    api = await api_client(team.orc)
    store, keys = team.services.store, team.services.keys
    requests = {
        "/tasks": {"skill": "later"},
        "/commands/pause-queue": {"queue": "skill:later"},
    }
    answers = {path: (await api.post(path, body, key=path)).json() for path, body in requests.items()}
    task = answers["/tasks"]["task"]
    requests[f"/tasks/{task}/cancel"] = {"reason": "twice"}
    await api.post(f"/tasks/{task}/cancel", {"reason": "twice"}, key=f"/tasks/{task}/cancel")
    for place in await store.execute("KEYS", keys.web_request("*")):
        assert await store.execute("TTL", place) > 0
        if "answer" in json.loads(await store.execute("GET", place)):
            await store.execute("DEL", place)
    again = {path: (await api.post(path, body, key=path)).json() for path, body in requests.items()}
    assert again["/tasks"] == answers["/tasks"]
    assert again["/commands/pause-queue"] == {**answers["/commands/pause-queue"], "new": False}
    assert again[f"/tasks/{task}/cancel"] == {"status": "already"}
    given = [one for one in (await api.read("/control"))["records"] if one["state"] != "refused"]
    assert sorted(one["kind"] for one in given) == ["pause-queue", "tasks"]


async def test_actions(team: LocalTeam) -> None:
    """Tasks, schedules, locks and jobs are acted on as by forms, with actor and reason."""
    api = await api_client(team.orc)
    task = (await team.orc.submit("later")).id
    assert (await api.post(f"/tasks/{task}/cancel", {"reason": "old"})).json() == {"status": "ended"}
    assert (await api.post(f"/tasks/{task}/retry")).json() == {"status": "requeued"}
    assert (await api.post(f"/tasks/{task}/cancel")).json() == {"status": "ended"}
    _problem(await api.post(f"/tasks/{task}/delete"), 400)
    assert (await api.post(f"/tasks/{task}/delete", {"reason": "done"})).json() == {"status": "deleted"}
    _problem(await api.get(f"/tasks/{task}"), 404)
    newest = (await api.read("/control"))["records"][0]
    assert newest["actor"].startswith("web:program-")
    assert newest["reason"] == "done"
    ids = [(await team.orc.submit("later")).id for _ in range(3)]
    job = await api.post("/bulk/cancel", {"skill": "later", "tasks": ids, "reason": "many"})
    assert job.status_code == 200, job.text
    command = job.json()["command"]
    await wait_for(lambda: _is_done(api, command), "the end of the job")
    assert (await api.read(f"/control/{command}"))["record"]["reason"] == "many"
    _problem(await api.post("/bulk/delete", {"skill": "later", "tasks": ids, "reason": "x"}), 400)  # not typed
    await team.orc.admin.schedules.add("nightly", "later", every=86_400)
    assert (await api.post("/schedules/nightly/pause")).json() == {"schedule": "nightly", "task": None}
    triggered = (await api.post("/schedules/nightly/trigger", key="t")).json()["task"]
    assert (await api.read(f"/tasks/{triggered}"))["info"]["state"] == "ready"
    assert (await api.post("/schedules/nightly/delete", {"reason": "no longer"})).status_code == 200
    with pytest.raises(LockLost):
        await _hold_and_release(team, api)


async def _is_done(api: ApiClient, command: str) -> bool:
    return bool((await api.read(f"/control/{command}"))["job"]["word"] == "done")


async def _hold_and_release(team: LocalTeam, api: ApiClient) -> None:
    async with team.orc.locks("pool").hold("deploy"):
        (lock,) = (await api.read("/locks"))["locks"]
        body = {"scope": "pool", "at": lock["at"], "nonce": lock["nonce"], "reason": "stuck"}
        assert (await api.post("/locks/release", body)).json() == {"released": True}


async def test_roles(team: LocalTeam) -> None:
    """A viewer changes nothing, an operator nothing of class C, and a read-only dashboard nothing at all."""
    viewer, operator = await api_client(team.orc, Role.VIEWER), await api_client(team.orc, Role.OPERATOR)
    frozen = await api_client(team.orc, read_only=True)
    for one in OPERATIONS:
        if one.danger is not None:
            path = one.path.replace("{id}", "x").replace("{schedule}", "x")
            _problem(await viewer.post(path), 403)
            assert "read-only" in _problem(await frozen.post(path), 403)["detail"]
            if one.danger == "C":
                _problem(await operator.post(path), 403)
    assert (await operator.post("/commands/stop")).status_code == 200
    assert (await frozen.get("/tasks")).status_code == 200
    nobody = ApiClient(viewer.web, "orc_wrong")
    answer = await nobody.get("/tasks")
    assert answer.headers["www-authenticate"] == "Bearer"
    _problem(answer, 401)
    _problem(await viewer.web.http.get("/api/v1/tasks", headers={**viewer.headers, "Host": "evil.example"}), 421)


async def test_a_narrowed_token(team: LocalTeam) -> None:
    """It reads and changes its own sessions and queues only, and does not learn of the rest."""
    api = await api_client(team.orc, scope=AccountScope(queues=frozenset({"skill:own"}), sessions=frozenset({"s"})))
    own, other = await team.orc.submit("own", session="s"), await team.orc.submit("other", session="t")
    assert (await api.get(f"/tasks/{own.id}")).status_code == 200
    for part in ("", "/args", "/result", "/events", "/tree"):
        _problem(await api.get(f"/tasks/{other.id}{part}"), 404)
    assert [row["session"] for row in (await api.read("/sessions"))["sessions"]] == ["s"]
    for path in ("one", "events", "workspace", "document", "path", "replay", "chat", "memory"):
        _problem(await api.get(f"/sessions/{path}", id="t", **({"path": "x"} if path == "path" else {})), 404)
    for path in ("/tasks", "/overview", "/agents", "/control", "/questions", "/dead", "/locks"):
        _problem(await api.get(path), 403)
    _problem(await api.post(f"/tasks/{other.id}/cancel"), 404)
    _problem(await api.post("/tasks", {"skill": "other"}), 403)
    _problem(await api.post("/commands/stop"), 403)
    _problem(await api.post("/commands/stop", {"session": "t"}), 403)
    assert (await api.post("/commands/stop", {"session": "s"})).status_code == 200
    assert (await api.post(f"/tasks/{own.id}/cancel")).status_code == 200


# -------------------------------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"skill": "later", "args": ' + b"[" * 100_000,
        b'{"skill": "later", "args": ' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}",
        b'{"skill": "later", "args": {"a": NaN}}',
        b'{"skill": "later", "args": {"a": 1e999}}',
        b'{"skill": "later", "args": {"a": ' + b"9" * 5000 + b"}}",
        b'{"skill": "later", "args": {"a": "\\ud800"}}',
        b'{"skill": "later", "session": "\\ud800"}',
        b'{"skill": "later\xff"}',
        b'{"skill": "la ter"}',
        b'{"skill": "later", "unknown": 1}',
        b'{"skill": 1}',
        b'{"skill": "later", "priority": "urgent"}',
        b'{"skill": "later", "delay": NaN}',
        b'{"skill": "later", "delay": 1e300}',
        b'{"skill": "later", "timeout": -1}',
    ],
    ids=lambda body: body[:40].decode("latin-1") + str(len(body)),
)
async def test_hostile_bodies(team: LocalTeam, body: bytes) -> None:
    """What is no task is refused with a reason, and submits nothing."""
    api = await api_client(team.orc)
    _problem(await api.post("/tasks", body), 400)
    assert not await team.services.store.execute("EXISTS", team.services.keys.queue("skill:later"))


async def test_hostile_requests(team: LocalTeam) -> None:
    """Large bodies, other types, odd names and methods are refused with a reason."""
    api = await api_client(team.orc)
    _problem(await api.post("/tasks", b" " * (MAX_BODY + 1)), 413)
    headers = {**api.headers, "Idempotency-Key": "k", "Content-Type": "text/plain"}
    _problem(await api.web.http.post("/api/v1/tasks", content=b"{}", headers=headers), 400)
    _problem(await api.web.http.request("DELETE", "/api/v1/tasks", headers=api.headers), 405)
    _problem(await api.get("/nothing"), 404)
    for name in ("%00", "%ff", "a%0ab", "%F0%9F%92%A9", "x" * 3000, "%ED%A0%80"):
        for path in (f"/agents/{name}", f"/workers/{name}", f"/queues/{name}", f"/tasks/{name}", f"/control/{name}"):
            _problem(await api.get(path), (await api.get(path)).status_code)
        for query in (
            f"/tasks?skill={name}",
            f"/sessions/one?id={name}",
            f"/locks?scope={name}",
            f"/queues?after={name}",
        ):
            assert (await api.get(query)).status_code in {200, 400, 404}, query
    _problem(await api.post("/tasks", {"skill": "later"}, key="x" * 256), 400)


async def test_hostile_stored_data(team: LocalTeam) -> None:
    """Half a character, deep JSON and numbers that JSON lacks are stored by other programs, and come as valid JSON."""
    api = await api_client(team.orc)
    store, keys = team.services.store, team.services.keys
    task = (await team.orc.submit("later", {"a": 1}, session="s")).id
    entries = ('{"a": "\\ud800"}', "[" * 3000 + "]" * 3000, "NaN", '{"b": 1e999, "api_key": "hunter2"}', "\x00 no JSON")
    for data in entries:
        await store.execute("XADD", keys.out(task), "*", "k", "output", "a", "1", "n", "1", "d", data)
    page = await api.get(f"/tasks/{task}")
    assert page.status_code == 200, page.text
    await store.execute("EXPIRE", keys.out(task), 600)
    api.web.dashboard.stopping.set()
    stream = await api.get(f"/tasks/{task}/events")
    assert stream.status_code == 200
    assert SECRET not in stream.text


@pytest.mark.parametrize("base", ["", "/ops/orc"])
async def test_clients_find_the_server(team: LocalTeam, base: str) -> None:
    """The address of the server, resolved against that of the document, leads to the operations."""
    api = await api_client(team.orc, Role.VIEWER, base=base)
    address = f"http://localhost{base}/api/v1/openapi.json"
    document = (await api.web.http.get(address, headers=api.headers)).json()
    server = urljoin(address, document["servers"][0]["url"])
    assert server == f"http://localhost{base}/api/v1"
    for path in ("/overview", "/tasks"):
        assert path in document["paths"]
        assert (await api.web.http.get(server + path, headers=api.headers)).status_code == 200


async def test_the_document_is_served(team: LocalTeam) -> None:
    """A token reads the OpenAPI document, which names each operation."""
    api = await api_client(team.orc, Role.VIEWER)
    document = await api.read("/openapi.json")
    assert document["openapi"] == "3.1.0"
    declared = {(one.method.lower(), one.path) for one in OPERATIONS}
    assert {(method, path) for path, methods in document["paths"].items() for method in methods} == declared
