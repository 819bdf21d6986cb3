"""Streams of pages: resumption, shared reads, the end; and where the application may be mounted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette

from orchestrator import NotFound
from orchestrator.accounts.model import AccountScope, Role
from orchestrator.dashboard import open_streams, who
from orchestrator.dashboard.identity import Identity
from orchestrator.dashboard.live import patches
from orchestrator.dashboard.page import PageRequest, WebPage
from orchestrator.dashboard.serving import dashboard_app
from orchestrator.testing.waiting import wait_for
from tests.helpers.api_client import ApiClient, api_client
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.helpers.local_team import LocalTeam

ADMIN = Identity("ada", Role.ADMIN)


async def _events(web: WebClient, regions: Mapping[str, str], seen: str) -> list[str]:
    """Return the events of a stream whose server stops at once."""

    async def render() -> Mapping[str, str]:
        return regions

    web.dashboard.stopping.set()
    return [one async for one in patches(web.dashboard.feed, render, stopping=web.dashboard.stopping, seen=seen)]


async def test_a_stream_resumes(team: LocalTeam) -> None:
    """A page that names its last event gets only the regions that changed since, also from another copy."""
    first = await _events(WebClient(team.orc), {"a": "<p>1</p>", "b": "<p>2</p>"}, "")
    found = re.search(r"^id: (.+)$", first[1], re.MULTILINE)
    assert found is not None
    assert "event: bye" in first[-1]
    again = await _events(WebClient(team.orc), {"a": "<p>1</p>", "b": "<p>3</p>"}, found[1])
    assert "<p>3</p>" in again[1]
    assert "#a" not in again[1]
    nothing = await _events(WebClient(team.orc), {"a": "<p>1</p>", "b": "<p>2</p>"}, found[1])
    assert nothing[1].startswith(":")
    for damaged in ("1-0", "a=,b", "=", "a=b=c", "\ud800"):
        assert "<p>1</p>" in (await _events(WebClient(team.orc), {"a": "<p>1</p>"}, damaged))[1]


async def test_equal_reads_share_one(team: LocalTeam) -> None:
    """Fifty pages that show the same read once; another query or other rights read anew."""
    web, reads = WebClient(team.orc), 0
    began, go_on = anyio.Event(), anyio.Event()

    async def read(_: PageRequest) -> Mapping[str, Any]:
        nonlocal reads
        reads += 1
        began.set()
        await go_on.wait()
        return {"reads": reads}

    page, found = WebPage("/x", "x.html", read), []

    async def ask(identity: Identity, **query: str) -> None:
        found.append((await web.dashboard.read(page, PageRequest(team.services, identity, {}, query)))["reads"])

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(ask, ADMIN)
        await began.wait()
        go_on.set()
    assert (reads, found) == (1, [1] * 50)
    await ask(ADMIN, state="dead")
    await ask(Identity("bob", Role.ADMIN, AccountScope(frozenset({"editor"}))))
    await ask(Identity("eve", Role.VIEWER))
    assert reads == 4
    web.dashboard.forget_reads()
    await ask(ADMIN)
    assert reads == 5


async def test_a_cancelled_read_is_done_by_another(team: LocalTeam) -> None:
    """The browser whose request reads goes away: those that wait for it read themselves. A failure is shared."""
    web, reads = WebClient(team.orc), 0
    began = anyio.Event()

    async def read(_: PageRequest) -> Mapping[str, Any]:
        nonlocal reads
        reads += 1
        if reads == 1:
            began.set()
            await anyio.sleep_forever()
        return {"reads": reads}

    async def ask(page: WebPage) -> Any:
        return await web.dashboard.read(page, PageRequest(team.services, ADMIN, {}, {}))

    page, found = WebPage("/x", "x.html", read), []

    async def wait_for_it() -> None:
        found.append((await ask(page))["reads"])

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as gone:
            group.start_soon(_cancelled_by, began, gone)
            await ask(page)
        group.start_soon(wait_for_it)
        group.start_soon(wait_for_it)
    assert found == [2, 2]

    async def fail(_: PageRequest) -> Mapping[str, Any]:
        raise NotFound("no such thing")

    with pytest.raises(NotFound):
        await ask(WebPage("/y", "x.html", fail))


async def _cancelled_by(began: anyio.Event, scope: anyio.CancelScope) -> None:
    await began.wait()
    scope.cancel()


@pytest.mark.parametrize("what", ["page", "output"])
async def test_a_stream_ends_with_its_login(team: LocalTeam, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Who is removed, or gets fewer rights, sees no more changes on a page that is still open."""
    monkeypatch.setattr(who, "CHECK_S", 0.2)
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user("eve", Role.OPERATOR, "correct horse")
    await web.post("/login", {"name": "eve", "password": "correct horse"})
    task = await team.orc.submit("missing")
    path = "/live/tasks" if what == "page" else f"/tasks/{task.id}/output"
    said: list[str] = []

    async def write(text: str) -> None:
        said.append(text)

    async with anyio.create_task_group() as group:
        group.start_soon(web.stream, path, write, anyio.Event())
        await wait_for(lambda: said, "the stream to begin")
        await anyio.sleep(0.5)
        assert "bye" not in "".join(said)
        await web.dashboard.accounts.remove_user("eve")
    assert "log in again" in "".join(said)


@pytest.mark.parametrize("bound", ["MOST", "MOST_OF_LOGIN"])
@pytest.mark.parametrize("path", ["/live/tasks", "/tasks/{task}/output", "/api/v1/tasks/{task}/events"])
async def test_streams_are_limited(team: LocalTeam, monkeypatch: pytest.MonkeyPatch, bound: str, path: str) -> None:
    """A process and a login have a limit of streams of all kinds; the next one is told to come later."""
    monkeypatch.setattr(open_streams, bound, 2)
    web = WebClient(team.orc)
    await web.log_in()
    task = (await team.orc.submit("later")).id
    gone = anyio.Event()
    open_now = web.dashboard.streams

    async def ignore(_: str) -> None: ...

    async with anyio.create_task_group() as group:
        for number, other in enumerate(("/live/queues", "/api/v1/tasks/{task}/events"), start=1):
            group.start_soon(web.stream, other.format(task=task), ignore, gone)
            await wait_for(lambda number=number: open_now.total == number, "the stream to begin")  # type: ignore[misc]
        answer = await web.get(path.format(task=task))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
        if path.startswith("/api"):
            assert answer.json()["error"] == "TooManyStreams"
        gone.set()
    web.dashboard.stopping.set()
    assert (await web.get(path.format(task=task))).status_code == 200


async def test_another_login_has_streams_of_its_own(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that holds all streams that it may leaves those of others."""
    monkeypatch.setattr(open_streams, "MOST_OF_LOGIN", 1)
    api, other = await api_client(team.orc), await api_client(team.orc)
    other.web.dashboard, other.web.app, other.web.http = api.web.dashboard, api.web.app, api.web.http
    task = (await team.orc.submit("later")).id
    done: list[str] = []

    async def follow(one: ApiClient) -> None:
        await one.events(task)
        done.append("ended")

    async with anyio.create_task_group() as group:
        group.start_soon(follow, api)
        await wait_for(lambda: api.web.dashboard.streams.total == 1, "the first stream")
        group.start_soon(follow, other)
        await wait_for(lambda: api.web.dashboard.streams.total == 2, "the second stream")
        assert (await api.get(f"/tasks/{task}/events")).status_code == 429
        await team.orc.task(task).cancel()
    assert len(done) == 2
    assert api.web.dashboard.streams.total == 0


async def test_mounted_in_another_application(team: LocalTeam) -> None:
    """Below the path of its mount, with its own checks; without the path it is not there."""
    orc = await team.client(dashboard__base_path="/ops/orc", dashboard__hosts=("example.org",))
    async with dashboard_app(orc) as app:
        outer = Starlette()
        outer.mount("/ops/orc", app)
        transport = httpx2.ASGITransport(app=outer)
        async with httpx2.AsyncClient(transport=transport, base_url="http://example.org") as http:
            assert (await http.get("/ops/orc/login")).status_code == 200
            answer = await http.get("/ops/orc/commands")
            assert (answer.status_code, answer.headers["location"]) == (303, "/ops/orc/login")
            assert (await http.get("/login")).status_code == 404
            assert (await http.get("/ops/orc/login", headers={"Host": "evil.example"})).status_code == 421
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://example.org") as http:
            assert (await http.get("/ops/orc/login")).status_code == 200
            assert (await http.get("/login")).status_code == 404
            assert (await http.get("/ops/orcs/login")).status_code == 404


async def test_the_clock_of_redis(team: LocalTeam) -> None:
    """Each page has the distance of the two clocks."""
    web = WebClient(team.orc)
    await web.log_in()
    await web.get("/commands")
    assert web.dashboard.skew_s is not None
    assert abs(web.dashboard.skew_s) < 1
