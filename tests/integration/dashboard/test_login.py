"""Who may see the dashboard: one-time links, users, tokens; and what the browser's headers must say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import InvalidInput, Orchestrator
from orchestrator.accounts.model import Role
from orchestrator.dashboard.login import TRIES
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


async def test_without_a_login(team: LocalTeam) -> None:
    """Every page leads to the login; streams and commands are refused."""
    web = WebClient(team.orc)
    for path in ("/", "/queues", "/tasks", "/control"):
        answer = await web.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert (await web.get("/live/")).status_code == 401
    assert (await web.post("/commands/stop")).status_code == 401


async def test_a_link_logs_in_once(team: LocalTeam) -> None:
    """The page of the link uses nothing; the button does, once."""
    web = WebClient(team.orc)
    secret = await web.dashboard.accounts.make_link()
    for _ in range(2):
        assert (await web.get(f"/login?link={secret}")).status_code == 200
    answer = await web.post("/login", {"link": secret})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "local (admin)" in (await web.get("/")).text
    again = await WebClient(team.orc).post("/login", {"link": secret})
    assert again.status_code == 403
    assert "used before" in again.text


async def test_two_pools_at_one_host(team: LocalTeam) -> None:
    """A login at the dashboard of another pool, at another port of the host, ends none: each has a cookie."""
    other = team.settings.model_copy(update={"pool": "other"})
    async with Orchestrator(settings=other) as orc:
        first, second = WebClient(team.orc), WebClient(orc)
        second.http.cookies = first.http.cookies
        await first.log_in()
        await second.log_in()
        assert (await first.get("/")).status_code == (await second.get("/")).status_code == 200


async def test_a_user_logs_in_and_out(team: LocalTeam) -> None:
    """By name and password, with the role of the user; a new password ends the session."""
    web = WebClient(team.orc)
    accounts = web.dashboard.accounts
    await accounts.put_user("ada", Role.VIEWER, "correct horse")
    for name, password in (("ada", "wrong horse"), ("bob", "correct horse"), ("ada", "")):
        assert (await web.post("/login", {"name": name, "password": password})).status_code == 403
    assert (await web.post("/login", {"name": "ada", "password": "correct horse"})).status_code == 303
    assert "ada (viewer)" in (await web.get("/")).text
    assert (await web.post("/commands/stop", await _id())).status_code == 403
    await accounts.put_user("ada", Role.OPERATOR, "battery staple")
    assert (await web.get("/")).status_code == 303
    assert (await web.post("/login", {"name": "ada", "password": "battery staple"})).status_code == 303
    assert "ada (operator)" in (await web.get("/")).text
    await web.post("/logout")
    assert (await web.get("/")).status_code == 303


async def test_a_full_list_of_users(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a further user, and still changes the password of each."""
    accounts = WebClient(team.orc).dashboard.accounts
    monkeypatch.setattr("orchestrator.accounts.accounts.MAX_ACCOUNTS", 1)
    await accounts.put_user("ada", Role.VIEWER, "correct horse")
    await accounts.put_user("ada", Role.VIEWER, "battery staple")
    with pytest.raises(InvalidInput, match="there are 1 users"):
        await accounts.put_user("bob", Role.VIEWER, "correct horse")
    assert await accounts.log_in("ada", "battery staple")


async def test_removed_users_and_ended_sessions(team: LocalTeam) -> None:
    """The sessions of a removed user end, and `end_sessions` ends all."""
    web, accounts = WebClient(team.orc), WebClient(team.orc).dashboard.accounts
    await accounts.put_user("ada", Role.ADMIN, "correct horse")
    await web.post("/login", {"name": "ada", "password": "correct horse"})
    assert (await web.get("/")).status_code == 200
    await accounts.remove_user("ada")
    assert (await web.get("/")).status_code == 303
    await web.log_in()
    await accounts.end_sessions()
    assert (await web.get("/")).status_code == 303


async def test_logins_are_counted(team: LocalTeam) -> None:
    """Too many tries from one address are refused, also with the right password."""
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user("ada", Role.ADMIN, "correct horse")
    for _ in range(TRIES):
        assert (await web.post("/login", {"name": "x", "password": "y"})).status_code == 403
    answer = await web.post("/login", {"name": "ada", "password": "correct horse"})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0


async def test_tokens(team: LocalTeam) -> None:
    """A token reads with its role until it is revoked; a cookie beside a bad token does not help."""
    web = WebClient(team.orc)
    token = await web.dashboard.accounts.make_token("ci", Role.VIEWER, days=1)
    assert (await web.get("/", Authorization=f"Bearer {token}")).status_code == 200
    await web.log_in()
    assert (await web.get("/", Authorization="Bearer orc_wrong")).status_code == 303
    assert await web.dashboard.accounts.revoke("ci") == 1
    assert (await web.get("/", Authorization=f"Bearer {token}")).status_code == 303


async def test_short_passwords_are_refused(team: LocalTeam) -> None:
    """Below eight characters."""
    with pytest.raises(InvalidInput, match="at least 8"):
        await WebClient(team.orc).dashboard.accounts.put_user("ada", Role.ADMIN, "short")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://localhost"}, 303),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, 403),
        ({}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Host": "evil.example"}, 421),
        ({"Sec-Fetch-Site": "same-origin", "Host": "localhost:8470"}, 303),
    ],
)
async def test_where_a_form_comes_from(team: LocalTeam, headers: dict[str, str], status: int) -> None:
    """Only a page of this dashboard may send forms."""
    web = WebClient(team.orc)
    await web.log_in()
    answer = await web.http.post("/logout", headers=headers)
    assert answer.status_code == status


async def test_headers_of_every_answer(team: LocalTeam) -> None:
    """No script but ours, no frame, no guess of types, nothing kept."""
    web = WebClient(team.orc)
    for path in ("/", "/login", "/nothing", "/live/"):
        headers = (await web.get(path)).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


async def _id() -> dict[str, str]:
    return {"id": "01a20b3c-8edb-710f-8780-7ca34f674ff4"}
