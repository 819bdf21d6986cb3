"""Every route answers every login, origin and host as the table of the guide says."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.accounts.model import AccountScope, Role
from orchestrator.control.commands import ResumeAgent
from orchestrator.core.ids import new_task_id
from orchestrator.dashboard.app import declared_routes
from orchestrator.dashboard.cookies import Session, seal
from tests.contract.test_dashboard_routes import read_table
from tests.helpers.web_client import SAME_ORIGIN, WebClient

if TYPE_CHECKING:
    import httpx2

    from tests.helpers.local_team import LocalTeam

SCOPE = AccountScope(frozenset({"editor"}), frozenset({"skill:review"}))
COLUMNS = ("no login", "viewer", "operator", "admin", "narrowed", "foreign page", "foreign host", "neither")


async def _logins(web: WebClient) -> dict[str, dict[str, str]]:
    """The header of each login: cookies for pages, because a token is exempt from the check of origins."""
    accounts = web.dashboard.accounts
    logins: dict[str, dict[str, str]] = {"no login": {}}
    for name, role, scope in (
        ("viewer", Role.VIEWER, AccountScope()),
        ("operator", Role.OPERATOR, AccountScope()),
        ("admin", Role.ADMIN, AccountScope()),
        ("narrowed", Role.ADMIN, SCOPE),
    ):
        await accounts.put_user(name, role, "correct horse", scope=scope)
        user = await accounts.user(name)
        assert user is not None
        session = Session(name, role, int(time.time()) + 600, user.number)
        logins[name] = {"Cookie": f"{web.dashboard.cookie}={seal(session, await accounts.cookie_key())}"}
    return logins


def _headers(column: str, logins: dict[str, dict[str, str]]) -> dict[str, str]:
    match column:
        case "foreign page":
            return logins["admin"] | {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}
        case "foreign host":
            return logins["admin"] | SAME_ORIGIN | {"Host": "evil.example"}
        case "neither":
            return logins["admin"]
        case _:
            return logins[column] | SAME_ORIGIN


def _said(answer: httpx2.Response) -> str:
    assert answer.status_code < 500, (str(answer.request.url), answer.text)
    if answer.status_code == 303 and answer.headers["location"].endswith("/login") and answer.request.method == "GET":
        return "login"
    if "name or password is wrong" in answer.text:
        return "yes"
    return str(answer.status_code) if answer.status_code in {401, 403, 421} else "yes"


async def test_every_route(team: LocalTeam) -> None:
    """The answers are those of the table; a route that refuses changes nothing."""
    web = WebClient(team.orc)
    logins = await _logins(web)
    web.dashboard.stopping.set()  # streams end after their first event
    table, wrong = read_table(), {}
    for route in declared_routes():
        name = f"{route.method} {route.path}"
        path = re.sub(r"\{(\w+)(:path)?\}", lambda part: new_task_id() if part[1] == "id" else "x", route.path)
        found = []
        for column in COLUMNS:
            headers = _headers(column, logins) | {"Content-Type": "application/x-www-form-urlencoded"}
            content = b"skill=review" if route.method == "POST" else b""
            found.append(_said(await web.http.request(route.method, path, headers=headers, content=content)))
        if tuple(found) != table[name]:
            wrong[name] = (tuple(found), table[name])
    assert not wrong
    assert not await team.services.store.execute("EXISTS", team.services.keys.control)


@pytest.mark.parametrize("why", ["read-only", "no secret"])
async def test_a_dashboard_that_gives_no_commands(team: LocalTeam, why: str) -> None:
    """It has no buttons, and refuses an admin each route that changes something."""
    if why == "no secret":
        signing = await team.client(control__secret="x" * 32)
        await signing.admin.give(ResumeAgent(agent="editor"))
    web = WebClient(team.orc, read_only=why == "read-only")
    await web.log_in()
    page = (await web.get("/commands/stop")).text
    assert set(re.findall(r'<form method="post" action="([^"]+)"', page)) == {"/logout"}
    assert "read-only" in page
    for route in declared_routes():
        if route.danger is not None:
            answer = await web.post(route.path.replace("{id}", new_task_id()), {"id": new_task_id()})
            assert answer.status_code == 403, route
            assert "read-only" in answer.text


async def test_a_pool_with_unsigned_commands(team: LocalTeam) -> None:
    """The twin: without signatures there are buttons."""
    await team.orc.admin.give(ResumeAgent(agent="editor"))
    web = WebClient(team.orc)
    await web.log_in()
    assert 'action="/commands/stop"' in (await web.get("/commands/stop")).text


async def test_a_narrowed_user(team: LocalTeam) -> None:
    """It acts on its own agents, queues and sessions only, and does not learn of other tasks."""
    web = WebClient(team.orc)
    logins = await _logins(web)
    headers = logins["narrowed"]
    own = await team.orc.submit("review")
    other = await team.orc.submit("other")
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("/commands/pause-agent", {"agent": "editor"}, 303),
        ("/commands/pause-agent", {"agent": "other"}, 403),
        ("/commands/set-limit", {"limit": "@editor", "rate": "1/s"}, 303),
        ("/commands/set-limit", {"limit": "model", "rate": "1/s"}, 403),
        ("/commands/pause-queue", {"queue": "skill:review"}, 303),
        ("/commands/pause-queue", {"queue": "agent:editor"}, 303),
        ("/commands/pause-queue", {"queue": "skill:other"}, 403),
        ("/commands/stop", {"session": "s"}, 403),
        ("/commands/stop", {}, 403),
        ("/commands/set-log-level", {"level": "debug"}, 403),
        ("/submit", {"skill": "review"}, 303),
        ("/submit", {"skill": "other"}, 403),
        ("/submit", {"skill": "other", "agent": "editor"}, 303),
        (f"/tasks/{other.id}/cancel", {}, 404),
        (f"/tasks/{own.id}/cancel", {}, 303),
        (f"/tasks/{other.id}/delete", {"reason": "x"}, 404),
        (f"/tasks/{other.id}/answer", {"number": "1", "value": "x"}, 404),
    ]
    for path, form, status in asked:
        answer = await web.post(path, form | {"id": new_task_id()}, **headers)
        assert answer.status_code == status, (path, form, answer.text)
    assert (await other.status()).state.value == "ready"


async def test_a_trusted_proxy(team: LocalTeam) -> None:
    """Its header names the user; from another address it means nothing, and an unknown user is nobody."""
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user("ada", Role.VIEWER, "correct horse")
    named = {"X-Forwarded-User": "ada"}
    assert (await web.http.get("/commands", headers=named)).status_code == 303
    web.dashboard.proxy_header = "X-Forwarded-User"
    web.dashboard.proxies = {"10.0.0.1"}
    assert (await web.http.get("/commands", headers=named)).status_code == 303
    web.dashboard.proxies = {"127.0.0.1"}  # the address that the transport of the test reports
    assert "ada (viewer)" in (await web.http.get("/commands", headers=named)).text
    assert (await web.http.get("/commands", headers={"X-Forwarded-User": "bob"})).status_code == 303
    assert (await web.post("/commands/stop", {"id": new_task_id()}, **named)).status_code == 403
