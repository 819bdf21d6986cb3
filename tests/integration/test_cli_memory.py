"""`orc memory` typed beside a pool: conditions, forms of output, hostile content, exit codes, rights."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import anyio.to_thread
import pytest

from orchestrator import Agent, Record, TaskContext
from orchestrator.doctor.acl import ROLES, AclScope, acl_rules
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from tests.helpers.local_team import LocalTeam

HOSTILE = "\x1b[31mred\x07\nforged\u202e"


class Orc(Protocol):
    """Types `orc memory …` and answers what it did."""

    async def __call__(self, *arguments: str) -> Done:
        """Run it."""


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal in which the pool of the team is named."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


@pytest.fixture
def orc(terminal: Terminal) -> Orc:
    """Runs a command in a thread, while the team goes on."""

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, "memory", *arguments))

    return typed


async def _fill(team: LocalTeam) -> None:
    memory = team.orc.memory("ada")
    await memory.store_many(
        [
            Record(id="a", step=1, kind="observation", content={"n": 2**70}, importance=0.2, action="look"),
            Record(id="b", step=2, kind="observation", content="seen", importance=0.9, subject="ann"),
            Record(id="c", step=3, kind="plan", content=[1.0], importance=0.5, meta={"why": "x"}, position=(1, 2)),
        ]
    )
    await memory.store(Record(id="d", step=0, kind="plan", content=None, importance=0.1), tier="im")


async def test_list(team: LocalTeam, orc: Orc) -> None:
    """The latest steps first; each condition narrows the list, and importance orders it."""
    await _fill(team)
    for typed, expected in (
        ((), ["c", "b", "a", "d"]),
        (("--kind", "plan"), ["c", "d"]),
        (("--kind", "plan", "--kind", "observation", "--to", "2"), ["b", "a", "d"]),
        (("--action", "look"), ["a"]),
        (("--subject", "ann"), ["b"]),
        (("--from", "2"), ["c", "b"]),
        (("--from=-5", "--to", "0"), ["d"]),
        (("--important", "0.4"), ["b", "c"]),
        (("--tier", "im"), ["d"]),
        (("--limit", "2"), ["c", "b"]),
    ):
        assert (await orc("list", "ada", *typed, "-o", "id")).out.split() == expected, typed
    rows = (await orc("list", "ada", "-o", "json")).json()["items"]
    assert set(rows[0]) == {
        "id", "tier", "step", "kind", "content", "version", "importance", "action", "position", "subject", "simulation",
        "agent_type", "meta", "stored", "expires", "superseded_by", "has_vector",
    }  # fmt: skip
    assert (rows[0]["content"], rows[0]["meta"], rows[0]["position"]) == ([1.0], {"why": "x"}, [1.0, 2.0])
    assert rows[2]["content"] == {"n": 2**70}
    assert rows[0]["stored"] < rows[0]["expires"]
    assert "seen" in (await orc("list", "ada")).out
    empty = await orc("list", "missing")
    assert (empty.code, empty.out, "agent 'missing' has no record that matches" in empty.err) == (0, "", True)
    for wrong in (("list", "a b"), ("list", "ada", "--limit", "0"), ("list", "ada", "--tier", "ltm")):
        assert (await orc(*wrong)).code == 2, wrong


async def test_show(team: LocalTeam, orc: Orc) -> None:
    """A record with its accesses; the reading itself counts as none. A missing one is exit code 3."""
    await _fill(team)
    await team.orc.memory("ada").touch("b")
    for _ in range(2):
        shown = (await orc("show", "ada", "b", "-o", "json")).json()
        assert (shown["content"], shown["subject"], shown["accesses"]) == ("seen", "ann", 1)
        assert shown["accessed"] is not None
    assert "seen" in (await orc("show", "ada", "b")).out
    missing = await orc("show", "ada", "nothing")
    assert (missing.code, "agent 'ada' has no record 'nothing'" in missing.err) == (3, True)


async def test_hostile_content(team: LocalTeam, orc: Orc) -> None:
    """Names and content cannot control the terminal or forge a line, in any form of output."""
    await team.orc.memory("ada").store(
        Record(id="x", step=1, kind=HOSTILE, content=HOSTILE, action=HOSTILE, subject=HOSTILE, meta={"m": HOSTILE})
    )
    for line in (("list", "ada"), ("show", "ada", "x"), ("export", "ada")):
        for form in ("table", "json", "jsonl", "id"):
            done = await orc(*line, "-o", form)
            assert (done.code, [sign for sign in ("\x1b", "\x07", "\u202e") if sign in done.out + done.err]) == (0, [])
            assert not [text for text in done.out.splitlines() if text.startswith("forged")]
    assert (await orc("show", "ada", "x", "-o", "json")).json()["content"] == HOSTILE


async def test_export(team: LocalTeam, orc: Orc) -> None:
    """Every record once, beyond one page, also many that end in the same millisecond."""
    await _fill(team)
    many = [Record(id=f"m{n}", step=n % 7, kind="plan", content=n, ttl=600) for n in range(1200)]
    await team.orc.memory("ada").store_many(many)
    keys = team.services.keys.scope("agent", "ada")
    pairs = [str(part) for record in many for part in (9_999_999_999_999, record.id)]
    await team.services.store.execute("ZADD", keys.key(keys.tier_part("stm", "exp")), *pairs)
    lines = [json.loads(line) for line in (await orc("export", "ada")).out.splitlines()]
    assert sorted(line["id"] for line in lines) == sorted([*"abcd", *[str(record.id) for record in many]])
    assert [line["tier"] for line in lines] == ["stm"] * 1203 + ["im"]
    assert (await orc("export", "nobody")).out == ""


async def test_sessions_name_the_agents_that_remember(team: LocalTeam, terminal: Terminal) -> None:
    """`orc sessions show` has the number of records of each agent that a task of the session had."""
    agent = Agent("ada")

    @agent.skill
    async def learn(ctx: TaskContext) -> None:
        await ctx.memory.store(Record(step=1, kind="plan", content=ctx.task_id))

    await team.work(agent, Agent("bob"))
    await (await team.orc.submit("learn", session="s")).result(5)
    shown = (await anyio.to_thread.run_sync(partial(terminal.orc, "sessions", "show", "s", "-o", "json"))).json()
    assert shown["memories"] == {"ada": {"stm": 1, "im": 0}}
    table = (await anyio.to_thread.run_sync(partial(terminal.orc, "sessions", "show", "s"))).out.splitlines()
    assert [line.split() for line in table[-2:]] == [["AGENT", "STM", "IM"], ["ada", "1", "0"]]


async def test_a_viewer_reads(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """A user of Redis that may only read sees the records, and sends nothing that it may not."""
    await _fill(team)
    prefix, name = team.settings.prefix, f"viewer-{uuid4().hex}"
    (viewer,) = [role for role in ROLES if role.reads_only]
    await team.services.store.execute("ACL", "SETUSER", name, "on", ">pw", *acl_rules(viewer, AclScope(prefix)))
    try:
        where = terminal.environ["ORC_REDIS__URL"].partition("://")
        url = f"{where[0]}://{name}:pw@{where[2]}"
        for line in (("list", "ada"), ("show", "ada", "b"), ("export", "ada")):
            done = await anyio.to_thread.run_sync(partial(terminal.orc, "memory", *line, ORC_REDIS__URL=url))
            assert (done.code, "NOPERM" in done.err, "seen" in done.out) == (0, False, True), done
    finally:
        redis_client.acl_deluser(name)


OWNERS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "user": (("--user", "Ann é"), {"user": "Ann é"}, "user 'Ann é'"),
    "domain": (("--domain", "billing"), {"domain": "billing"}, "domain 'billing'"),
    "global": (("--global",), {"global_": True}, "the global scope"),
}


@pytest.mark.parametrize("kind", OWNERS)
async def test_memories_of_other_owners(team: LocalTeam, orc: Orc, kind: str) -> None:
    """Each command reads and changes the memory that an option names, and names it in what it says."""
    typed, owner, words = OWNERS[kind]
    memory = team.orc.memory(**owner)
    await memory.store_many([Record(id=f"r{n}", step=n, kind="note", content=f"seen {n}") for n in range(4)])
    assert (await orc("list", *typed, "--from", "2", "-o", "id")).out.split() == ["r3", "r2"]
    assert words in (await orc("list", *typed, "--kind", "plan")).err
    assert (await orc("show", "r1", *typed, "-o", "json")).json()["content"] == "seen 1"
    missing = await orc("show", "r9", *typed)
    assert (missing.code, f"{words} has no record 'r9'" in missing.err) == (3, True)
    assert len((await orc("export", *typed)).out.splitlines()) == 4
    done = await orc("forget", *typed, "--id", "r1", "--id", "r2", "--yes")
    assert (done.code, done.out) == (0, f"removed 2 records of {words}\n")
    done = await orc("forget", *typed, "--all", "--yes", "-o", "json")
    assert (done.json()["removed"], done.json()[kind]) == (2, memory.id)
    assert await memory.recent() == []


async def test_one_owner(orc: Orc) -> None:
    """No owner, two of them, or a record without an id: exit code 2, with what to give."""
    for typed in (
        ("list",), ("export",), ("show",), ("show", "ada"), ("show", "--global"), ("list", "ada", "--user", "x"),
        ("list", "--user", "x", "--domain", "y"), ("forget", "--all", "--yes"), ("show", "ada", "b", "--global"),
        ("list", "--user", ""),
    ):  # fmt: skip
        done = await orc(*typed)
        assert (done.code, "give" in done.err) == (2, True), (typed, done.err)
