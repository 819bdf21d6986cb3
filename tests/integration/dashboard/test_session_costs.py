"""Pages of sessions read a bounded part of a pool, however many sessions and events it has."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
import pytest

from orchestrator.store.scoped import bind_scope
from orchestrator.workspace import kept_states
from orchestrator.workspace.kept_states import KeptStates, read_event_log
from orchestrator.workspace.model import DELETE, Snapshot
from tests.helpers.counted_reads import counted_reads
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest, WebPage
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.workspace.kept_states import EventLog, PastState
    from orchestrator.workspace.workspace import WorkspaceView
    from tests.helpers.counted_reads import CountedReads
    from tests.helpers.local_team import LocalTeam

SESSIONS, EVENTS = 2_000, 20_000
MOST_TRIPS, MOST_COMMANDS, MOST_BYTES = 5, 300, 200_000


def _address(page: str, session: str, **query: object) -> str:
    return f"/sessions/{page}?" + urlencode({"id": session, **query})


async def _write_sessions(team: LocalTeam, number: int) -> None:
    store, keys = team.services.store, team.services.keys
    id_ = (await team.orc.submit("later", session="first")).id
    for first in range(0, number, 500):
        names = [f"session-{n:05}" for n in range(first, first + 500)]
        await store.pipeline(
            [
                ("ZADD", keys.sessions, *[part for n, name in enumerate(names, first) for part in (n // 50, name)]),
                *(("RPUSH", keys.session(name), *[id_] * 20) for name in names),
                *(("EXPIRE", keys.session(name), 600) for name in names),
            ]
        )


async def _write_events(scope: ScopedStore, number: int) -> None:
    """Write events as the script `patch` does: one of 300 paths each, with its value before."""
    key, last = scope.keys.key("ws:ev"), dict[str, tuple[int, str]]()
    commands = []
    for n in range(1, number + 1):
        path, text = f"part/{n % 300}", json.dumps({"n": n, "text": "x" * 40})
        version, before = last.get(path, (0, ""))
        last[path] = version + 1, text
        packed = msgspec.msgpack.encode([[path, version + 1, text, before or False]])
        commands.append(
            ("XADD", key, f"{n + 1_700_000_000_000}-0", "k", "patch", "r", n, "a", f"a{n % 7}", "c", packed)
        )
    for first in range(0, number, 2000):
        await scope.store.pipeline(commands[first : first + 2000])
    document = [part for path, (version, text) in last.items() for part in (path, f"{version} ada {text}")]
    await scope.store.execute("HSET", scope.keys.key("ws:doc"), *document)
    await scope.store.execute("HSET", scope.keys.key("meta"), "rev", number, "born", 1, "items", 300, "bytes", 20_000)
    await scope.store.pipeline([("EXPIRE", scope.keys.key(part), 600) for part in ("ws:ev", "ws:doc", "meta")])


async def _count(web: WebClient, address: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, CountedReads]:
    """Get a page; count what its own function reads, without the login and the frame."""
    dashboard = web.dashboard
    dashboard.forget_reads()
    counts: list[CountedReads] = []
    read = dashboard.read

    async def counted_read(page: WebPage, asked: PageRequest) -> Mapping[str, object]:
        with counted_reads(dashboard.services.store, monkeypatch) as counted:
            counts.append(counted)
            return await read(page, asked)

    with monkeypatch.context() as patch:
        patch.setattr(dashboard, "read", counted_read)
        answer = await web.get(address)
    assert answer.status_code == 200, (address, answer.text)
    assert len(answer.content) <= MOST_BYTES, (address, len(answer.content))
    (counted,) = counts
    return answer.text, counted


async def _check(web: WebClient, address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Get a page within the bounds of all pages."""
    text, counted = await _count(web, address, monkeypatch)
    assert counted.trips <= MOST_TRIPS, (address, counted)
    assert len(counted.commands) <= MOST_COMMANDS, (address, counted)
    assert not {"SCAN", "KEYS"} & set(counted.commands)
    return text


@pytest.mark.parametrize("settings", [{"workspace__max_events": 1_000_000}], indirect=True)
async def test_pages_are_bounded(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page sends more than 5 round trips and 300 commands, or answers more than 200 KB."""
    orc = await team.client()
    web = WebClient(orc)
    await web.log_in()
    await _write_sessions(team, SESSIONS)
    session = f"session-{SESSIONS - 1:05}"
    scope = bind_scope(team.services.store, team.settings, "session", session)
    await _write_events(scope, EVENTS)
    for address in (
        "/sessions",
        "/sessions?contains=9",
        "/sessions?contains=nothing",
        *(_address(page, session) for page in ("one", "workspace", "events", "chat", "memory")),
        _address("workspace", session, contains="part/29"),
        _address("events", session, agent="a3", name="part/2"),
        _address("events", session, kind="clear"),
        _address("path", session, path="part/1"),
    ):
        await _check(web, address, monkeypatch)
    at = _address("replay", session, at=EVENTS - 700, **{"from": EVENTS - 5000})
    text = await _check(web, at, monkeypatch)
    for _ in range(EVENTS // 7_000):
        if "were read so far" in text:
            text = await _check(web, at, monkeypatch)
    assert f"Difference between revision {EVENTS - 5000:,} and revision {EVENTS - 700:,}" in text
    found = re.findall(r"<h3>path part/(\d+) <small>changed: version (\d+)", text)
    assert len(found) == 40
    # A step reads the events since the last state that is kept, and no others.
    text, counted = await _count(web, _address("replay", session, at=EVENTS - 701), monkeypatch)
    assert counted.commands.count("XRANGE") == 3  # the first event, the events since the state, the event itself
    assert f"Revision {EVENTS - 701:,} of 0 to {EVENTS:,}" in text
    assert 0 < orc.services.past_states.bytes <= kept_states.KEPT_BYTES


def _content(snapshot: Snapshot) -> object:
    logs = {log: [(one.number, one.value) for one in entries] for log, entries in snapshot.logs.items()}
    return snapshot.revision, snapshot.event, snapshot.paths, logs, snapshot.sets, snapshot.states


async def _change(view: WorkspaceView, order: random.Random, number: int) -> None:
    async with view.edit(agent="ada") as ws:
        for n in range(number):
            match n % 6:
                case 0 | 1:
                    await ws.patch({f"p{order.randrange(5)}": order.choice([n, DELETE])})
                case 2:
                    await ws.append("log", n, cap=4)
                case 3:
                    await ws.add("set", f"m{order.randrange(4)}")
                case 4:
                    await ws.remove("set", f"m{order.randrange(4)}")
                case _:
                    await ws.transition("t", to=f"s{n}", data=n)


async def _reach(kept: KeptStates, scope: ScopedStore, log: EventLog, points: list[int | str]) -> list[PastState]:
    """Ask again until every point is reached, as a person does who goes on."""
    found = await kept.reach(scope, log, points)
    for _ in range(12):
        if not all(one.reached for one in found):
            found = await kept.reach(scope, log, points)
    return found


async def test_kept_states(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any point, in any order, has the state that a replay from the beginning has, with little room to keep states."""
    for name, value in (("EVERY", 5), ("MOST_EVENTS", 7), ("KEPT_BYTES", 6000)):
        monkeypatch.setattr(kept_states, name, value)
    order = random.Random(7)
    view = team.orc.workspace("s")
    await _change(view, order, 60)
    ids = [event.id async for event in view.events("0-0", block=0)]
    wanted = {at: (await view.replay(until=at)).snapshot for at in ids}
    scope = bind_scope(team.services.store, team.settings, "session", "s")
    log = await read_event_log(scope)
    assert log is not None
    assert (log.first.id, log.last.id, log.count) == (ids[0], ids[-1], len(ids))
    kept = KeptStates()
    for _ in range(120):
        points: list[int | str] = order.choices(ids, k=order.choice([1, 2]))
        if order.random() < 0.5:
            points = [wanted[str(at)].revision for at in points]
        found = await _reach(kept, scope, log, points)
        for at, one in zip(points, found, strict=True):
            expected = wanted[at] if isinstance(at, str) else wanted[ids[at - 1]]
            assert _content(one.state.snapshot()) == _content(expected)
            assert one.state.complete
        assert kept.bytes <= 12_000  # two states where it goes on may need more than the others have room for
    # A state behind which events were trimmed is not the beginning of a later one.
    early = KeptStates()
    await _reach(early, scope, log, [ids[12]])
    await scope.store.execute("XTRIM", scope.keys.key("ws:ev"), "MINID", ids[30])
    trimmed = await read_event_log(scope)
    assert trimmed is not None
    (late,) = await _reach(early, scope, trimmed, [ids[-1]])
    (alone,) = await _reach(KeptStates(), scope, trimmed, [ids[-1]])
    assert not late.state.complete
    assert _content(late.state.snapshot()) == _content(alone.state.snapshot())


async def test_damaged_events(team: LocalTeam) -> None:
    """A replay and a list go on behind an event that no script has written, and say that something is missing."""
    web = WebClient(team.orc)
    await web.log_in()
    async with team.orc.workspace("s").edit() as ws:
        await ws.patch({"before": 1})
    scope = bind_scope(team.services.store, team.settings, "session", "s")
    key = scope.keys.key("ws:ev")
    for fields in (
        ("x", "y"),
        ("k", "nope", "r", "2", "a", "", "c", b"\x90"),
        ("k", "patch", "r", b"\xff", "a", b"\xff", "c", msgspec.msgpack.encode([["p", 1]])),
        ("k", "add", "r", "3", "a", "", "c", msgspec.msgpack.encode(["s", ["list"]])),
        ("k", "patch", "r", "4", "a", "", "c", msgspec.msgpack.encode([["deep", 1, "[" * 50_000, False]])),
    ):
        await scope.store.execute("XADD", key, "*", *fields)
    async with team.orc.workspace("s").edit() as ws:
        await ws.patch({"after": 2})
    events = (await web.get(_address("events", "s"))).text
    assert events.count('aria-label="unreadable') >= 3
    replay = (await web.get(_address("replay", "s"))).text
    assert "what did not change since is missing" in replay
    assert '<th scope="row">after</th>' in replay
    assert '<th scope="row">before</th>' in replay


async def test_hostile_workspace(team: LocalTeam) -> None:
    """What other programs wrote into the keys of a session is text on its pages, and no page grows with it."""
    web = WebClient(team.orc)
    await web.log_in()
    async with team.orc.workspace("s").edit(agent="ada") as ws:
        await ws.patch({"p": 1})
    store, keys = team.services.store, team.services.keys.scope("session", "s")
    bad = "<script>alert(1)</script>\u202e\0\x1b[2J"
    long = bad + "<" * 10_000
    deep = "[" * 5000 + "]" * 5000
    entries = [f"3 {bad} {text}" for text in (json.dumps(long), deep, "{", "")]
    for name in (bad, long, *(f"{long}{n}" for n in range(60))):
        await store.execute("HSET", keys.key("ws:doc"), name, entries[len(name) % 2], name + "x", entries[3])
        await store.execute("HSET", keys.key("ws:task"), name, f"1 {bad} {bad[:9]} {json.dumps(long)}")
        for part in (f"ws:log:{name}", f"ws:set:{name}", f"inbox:{name}", f"agent:{name}:kv"):
            await store.execute("HSET", keys.key("ws:parts"), part, 1)
    await store.execute(
        "RPUSH", keys.key(f"ws:log:{bad}"), f"1 1 {bad} {json.dumps(long)}", f"2 1 a {deep}", b"\xff\xfe"
    )
    await store.execute("SADD", keys.key(f"ws:set:{bad}"), *(f"{long}{n}" for n in range(300)), b"\xff")
    await store.execute("XADD", keys.key(f"inbox:{bad}"), "*", "k", long, "a", long, "d", json.dumps(long))
    await store.execute("XADD", keys.key(f"inbox:{bad}"), "*", "x", "y")
    for n in range(40):
        change = [[f"{long}{m}", 1, json.dumps(long), json.dumps([long])] for m in range(5)]
        fields = ("k", "patch", "r", n + 2, "a", long, "c", msgspec.msgpack.encode(change))
        await store.execute("XADD", keys.key("ws:ev"), "*", *fields)
    await store.execute("ZADD", keys.key("dir"), 10**12, long, "inf", bad)
    await store.pipeline(
        [
            ("EXPIRE", keys.key(part), 600)
            for part in (f"ws:log:{bad}", f"ws:set:{bad}", f"inbox:{bad}", "dir", "ws:task", "ws:parts")
        ]
    )
    for address in (
        *(_address(page, "s") for page in ("one", "workspace", "events", "replay", "chat", "memory")),
        _address("workspace", "s", states=1),
        _address("workspace", "s", contains="script"),
        *(_address("workspace", "s", **{kind: bad}) for kind in ("log", "set", "inbox")),
        _address("path", "s", path=bad),
        _address("replay", "s", at=41, **{"from": 1}),
        _address("replay", "s", contains="SCRIPT"),
        _address("events", "s", name="script"),
    ):
        answer = await web.get(address)
        assert answer.status_code in {200, 409}, (address, answer.text)
        assert "<script>alert" not in answer.text, address
        assert not {"\u202e", "\0", "\x1b"} & set(answer.text), address
        assert len(answer.content) <= MOST_BYTES, (address, len(answer.content))
