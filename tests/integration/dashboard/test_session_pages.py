"""The pages of sessions show what agents left there, as text, and stop and resume a session."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import anyio

from orchestrator import Agent, Record, TaskContext
from orchestrator.accounts.model import AccountScope, Role
from orchestrator.workspace.model import DELETE
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

HOSTILE = "<script>alert(1)</script>\"'\u202e\x1b]0;x\x07"
MARKUP = "<script>alert(1)</script>\"'&amp;" + "x" * 100
PAGES = ("one", "workspace", "events", "replay", "chat", "memory")


def _agent() -> Agent:
    agent = Agent("greeter")

    @agent.skill(lock="session")
    async def greet(ctx: TaskContext, wait_s: float = 0.0) -> str:
        async with ctx.locks.hold("report"):
            await anyio.sleep(wait_s)
        return "hi"

    return agent


def _address(page: str, session: str, **query: object) -> str:
    return f"/sessions/{page}?" + urlencode({"id": session, **query})


async def _fill(team: LocalTeam, session: str, name: str, text: str = "text") -> None:
    """Leave something of each kind in a session, with `name` and `text` wherever they may be."""
    async with team.orc.workspace(session).edit(agent="ada") as ws:
        await ws.patch(
            {name: {"deep": [text]}, "plan": "one\ntwo", "db": {"password": "hunter2"}, "api_key": "hunter2"}
        )
        await ws.patch({"plan": "one\nthree"})
        await ws.patch({"db": {"password": "hunter2", "user": "x"}, "api_key": "hunter2+"})
        await ws.append(name, {"found": text, "token": "hunter2"})
        await ws.add(name, name, "other")
        await ws.transition(name, to="open", data=text)
        await ws.join({"about": text})
        await ws.direct("bob", "STOP", {"why": text})
    await team.orc.chat(session, name).append([{"role": text, "content": text}, {"n": [text], "secret": "hunter2"}])
    await team.orc.memory("greeter").store(
        Record(step=1, kind=name, content={"seen": text, "password": "hunter2"}, embedding=[0.5, 0.25])
    )


async def test_every_page_of_a_session(team: LocalTeam) -> None:
    """Each shows texts of agents as text, has one heading, and names its command."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    await (await team.orc.submit("greet", session=HOSTILE)).result(timeout=TIMEOUT_S)
    await _fill(team, HOSTILE, MARKUP, HOSTILE)
    addresses = [
        "/sessions",
        "/sessions?contains=ALERT",
        *(_address(page, HOSTILE) for page in PAGES),
        _address("replay", HOSTILE, at=1, **{"from": 7}),
        _address("events", HOSTILE, kind="patch", agent="ada", name="script"),
        _address("workspace", HOSTILE, log=MARKUP),
        _address("workspace", HOSTILE, set=MARKUP),
        _address("workspace", HOSTILE, states=1, contains=MARKUP),
        _address("workspace", HOSTILE, inbox="bob"),
        _address("path", HOSTILE, path=MARKUP),
        _address("path", HOSTILE, path="db"),
        _address("path", HOSTILE, path="api_key"),
        _address("chat", HOSTILE, source=MARKUP),
        "/memory?agent=greeter",
        "/memory?" + urlencode({"agent": "greeter", "kind": MARKUP, "tier": "stm"}),
    ]
    for address in addresses:
        answer = await web.get(address)
        assert answer.status_code == 200, (address, answer.text)
        assert "<script>alert" not in answer.text, address
        assert not {"\u202e", "\x1b", "\x07"} & set(answer.text), address
        assert answer.text.count("<h1>") == 1, address
        assert 'As a command</summary><pre tabindex="0">orc ' in answer.text, address
        assert "alert(1)" in answer.text, address
        assert "hunter2" not in answer.text, address
        assert len(answer.content) < 200_000, address
    web.dashboard.stopping.set()  # streams end after their first event
    for address in addresses:
        answer = await web.get("/live" + address)
        assert answer.status_code == 200, (address, answer.text)
        assert 'hx-partial hx-target="#' in answer.text, address
        assert "<script>alert" not in answer.text, address
        assert "does not exist" not in answer.text, address


async def test_what_a_session_holds(team: LocalTeam) -> None:
    """Documents tell version and author, logs, sets and states their entries, locks their fence and holder."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("greet", {"wait_s": 60.0}, session="s 1")
    await _fill(team, "s 2", "x/y")

    pages: list[str] = []
    wanted = ('<th scope="row">report</th>', f"task {handle.id}", '<svg class="lanes"', "1 attempt of 1 agent")

    async def shown() -> bool:
        pages.append((await web.get(_address("one", "s 1"))).text)
        return all(each in pages[-1] for each in wanted)

    await wait_for(shown, "the locks of the task")
    page = pages[-1]
    rows = re.findall(r'<tr><th scope="row">(exec|report)</th>.*?<td class="number">(\d+)</td>', page)
    assert {name for name, _ in rows} == {"exec", "report"}
    document = (await web.get(_address("workspace", "s 2"))).text
    assert re.search(r'plan</a></th><td class="number">2</td><td>ada</td>', document)
    assert "x/y</a>: 1 entry" in document
    assert "x/y</a>: 2 members" in document
    assert "bob</a>: 1" in document
    assert "found" in (await web.get(_address("workspace", "s 2", log="x/y"))).text
    assert "other" in (await web.get(_address("workspace", "s 2", set="x/y"))).text
    assert "open" in (await web.get(_address("workspace", "s 2", states=1))).text
    assert "STOP" in (await web.get(_address("workspace", "s 2", inbox="bob"))).text
    versions = (await web.get(_address("path", "s 2", path="plan"))).text
    assert "- two" in versions
    assert "+ three" in versions
    whole = await web.get(_address("path/download", "s 2", path="plan"))
    assert (whole.json(), whole.headers["content-disposition"]) == ("one\nthree", 'attachment; filename="path.json"')
    assert (await web.get(_address("path/download", "s 2", path="db"))).json() == {"password": "********", "user": "x"}
    assert (await web.get(f"/tasks/{handle.id}")).text.count('href="/sessions/one?id=s+1"') == 1
    messages = (await web.get(_address("chat", "s 2"))).text
    assert "x/y" in messages
    records = (await web.get("/memory?agent=greeter")).text
    assert "has a vector" in records
    assert "0.25" not in records
    await handle.cancel()


async def test_a_session_is_stopped_and_resumed(team: LocalTeam) -> None:
    """The forms of its page stop and resume it once each; a viewer's page has none."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    session = "a b/\u202e"
    await (await team.orc.submit("greet", session=session)).result(timeout=TIMEOUT_S)
    place = _address("one", session)
    for kind, found in (("stop", "Resume this session"), ("start", "Stop this session")):
        page = (await web.get(place)).text
        form = next(
            dict(re.findall(r'name="([a-z]+)" value="([^"]*)"', each))
            for each in re.findall(rf'action="/commands/{kind}">(.*?)</form>', page, re.DOTALL)
            if 'name="session" value=' in each
        )
        fields = {name: html.unescape(value) for name, value in form.items() if name in {"id", "session"}}
        assert fields["session"] == session
        answers = [await web.post(f"/commands/{kind}", fields | {"reason": "because"}) for _ in range(2)]
        assert [answer.headers["location"] for answer in answers] == [
            f"/control/{fields['id']}",
            f"/control/{fields['id']}?replayed=1",
        ]
        page = (await web.get(place)).text
        assert found in page
        assert ("because" in page) == (kind == "stop")
    read_only = WebClient(team.orc, read_only=True)
    await read_only.log_in()
    assert "/commands/" not in (await read_only.get(place)).text


async def test_ids_that_forms_would_change(team: LocalTeam) -> None:
    """A session whose id has a NUL or an end of a line has no form, and a command that is safe to paste."""
    web = WebClient(team.orc)
    await web.log_in()
    await team.orc.submit("later", session="a\0b\nc")
    page = html.unescape((await web.get(_address("one", "a\0b\nc"))).text)
    assert "orc stop --session $'a\\x00b\\nc'" in page
    assert "Stop this session" not in page


async def test_sessions_go_on(team: LocalTeam) -> None:
    """The list has each session once, however many were active in the same millisecond, and finds a part of an id."""
    web = WebClient(team.orc)
    await web.log_in()
    names = [f"s-{n:03}" for n in range(95)]
    for name in names:
        await team.orc.submit("later", session=name)
    keys = team.services.keys
    await team.services.store.execute("ZADD", keys.sessions, *[part for name in names for part in (1000, name)])
    assert await _walk(web, "/sessions") == names[::-1]
    assert await _walk(web, "/sessions?contains=S-01") == [f"s-01{n}" for n in range(9, -1, -1)]
    assert "that were looked at matches" in (await web.get("/sessions?contains=nope")).text


async def _walk(web: WebClient, path: str) -> list[str]:
    shown: list[str] = []
    while True:
        text = (await web.get(path)).text
        shown += re.findall(r'<th scope="row"><a href="/sessions/one\?id=([^"]+)">', text)
        found = re.search(r'rel="next" href="([^"]+)"', text)
        if found is None:
            return shown
        path = html.unescape(found.group(1))


async def test_replay(team: LocalTeam) -> None:
    """Every point shows the workspace as it was then, by revision and by event, and any two points their difference."""
    web = WebClient(team.orc)
    await web.log_in()
    states: list[dict[str, int]] = [{}]
    async with team.orc.workspace("s").edit(agent="ada") as ws:
        for n in range(12):
            name = f"p{n % 4}"
            if n == 9:
                await ws.patch({"p0": DELETE})
                states.append({key: value for key, value in states[-1].items() if key != "p0"})
            else:
                await ws.patch({name: n})
                states.append(states[-1] | {name: n})
    ids = [event.id async for event in team.orc.workspace("s").events("0-0", block=0)]

    async def shown(at: object) -> dict[str, int]:
        page = (await web.get(_address("replay", "s", at=at))).text
        found = re.findall(r"<tr><th scope=\"row\">(p\d)</th>.*?<code>(\d+)</code>", page)
        return {name: int(value) for name, value in found}

    for revision, state in enumerate(states):
        assert await shown(revision) == state
        if revision:
            assert await shown(ids[revision - 1]) == state
    assert 'type="range" name="at" min="0" max="12" value="12"' in (await web.get(_address("replay", "s"))).text
    page = (await web.get(_address("replay", "s", at=10, **{"from": 8}))).text
    assert "Difference between revision 8 and revision 10" in page
    assert re.findall(r"<h3>path (p\d) <small>(\w+)", page) == [("p0", "changed"), ("p0", "removed")][1:]
    async with team.orc.workspace("s").edit() as ws:
        await ws.patch({"p0": "x" * 9000})
    large = (await web.get(_address("replay", "s", **{"from": 12}))).text
    assert large.count("(a value too large for its event)") == 2
    assert "The values are too long to compare here" in large
    same = (await web.get(_address("replay", "s", at=10, **{"from": 10}))).text
    assert "Both points hold the same" in same


async def test_bad_requests(team: LocalTeam) -> None:
    """Each is refused with a sentence."""
    web = WebClient(team.orc)
    await web.log_in()
    await _fill(team, "s", "t")
    for path, status, said in (
        ("/sessions?after=zzz", 400, "cursor"),
        ("/sessions/one", 400, "names no session"),
        ("/sessions/one?id=none", 404, "nothing is stored"),
        ("/sessions/replay?id=none", 404, "no events"),
        ("/sessions/replay?id=s&at=x", 400, "no point"),
        ("/sessions/replay?id=s&at=1&from=1-2-3", 400, "no point"),
        ("/sessions/events?id=s&after=x", 400, "id of an event"),
        ("/sessions/workspace?id=s&log=t&after=x", 400, "number"),
        ("/sessions/path?id=s&path=none", 404, "no path"),
        ("/sessions/chat?id=s&after=x", 400, "number"),
        ("/memory", 400, "names no memory"),
        ("/memory?agent=a&tier=x", 400, "tier"),
        ("/memory?agent=a&after=x", 400, "cursor"),
        ("/sessions/one?id=" + "x" * 300, 400, "session"),
        ("/sessions/one?id=%ff%00", 404, "nothing is stored"),
    ):
        answer = await web.get(path)
        assert answer.status_code == status, (path, answer.text)
        assert said in answer.text, (path, answer.text)


async def test_a_narrowed_user(team: LocalTeam) -> None:
    """It sees its own sessions and memories, and does not learn of others."""
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user(
        "bob", Role.VIEWER, "correct horse", scope=AccountScope(frozenset({"ada"}), sessions=frozenset({"own"}))
    )
    await web.post("/login", {"name": "bob", "password": "correct horse"})
    for session in ("own", "other"):
        await team.orc.submit("later", session=session)
        await _fill(team, session, "x")
    listed = (await web.get("/sessions")).text
    assert "?id=own" in listed
    assert "?id=other" not in listed
    for page in (*PAGES, "path", "path/download"):
        for session, status in (("own", 200), ("other", 404)):
            answer = await web.get(_address(page, session, path="plan"))
            assert answer.status_code == status, (page, session)
    assert (await web.get("/memory?agent=ada")).status_code == 200
    for other in ("agent=greeter", "user=u", "domain=d"):
        assert (await web.get(f"/memory?{other}")).status_code == 404
