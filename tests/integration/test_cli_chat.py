"""`orc chat` typed beside a pool: what it shows, appends, exports and clears; forms of output, exit codes, rights."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import anyio.to_thread
import pytest

from orchestrator import Agent, Message, RuleExtractor, SqliteStore
from orchestrator.doctor.acl import ROLES, AclScope, acl_rules
from orchestrator.views.chat import list_chats
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from tests.helpers.local_team import LocalTeam

HOSTILE = "\x1b[31mred\x07\n12  assistant  forged\u202e"


class Orc(Protocol):
    """Types `orc chat …` and answers what it did."""

    async def __call__(self, *arguments: str, stdin: str = "") -> Done:
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

    async def typed(*arguments: str, stdin: str = "") -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, "chat", *arguments, stdin=stdin))

    return typed


async def test_append_and_show(team: LocalTeam, orc: Orc) -> None:
    """A message is appended from the words or standard input, once per op id, and read back in order."""
    first = (await orc("append", "s 1", "Where is it?", "--op-id", "mail-1", "-o", "json")).json()
    assert first == {"id": "mail-1.1", "number": 1, "duplicate": False}
    again = (await orc("append", "s 1", "Where is it?", "--op-id", "mail-1", "-o", "json")).json()
    assert again == {**first, "duplicate": True}
    answer = await orc("append", "s 1", "-", "--role", "assistant", "--turn", "t1", stdin="It is\non its way.")
    assert answer.code == 0
    assert (await orc("append", "s 1", '{"a": 1}', "--source", "mail", "-o", "id")).code == 0
    rows = (await orc("show", "s 1", "-o", "json")).json()["items"]
    assert [(row["number"], row["turn"], row["data"]) for row in rows] == [
        (1, None, {"role": "user", "content": "Where is it?"}),
        (2, "t1", {"role": "assistant", "content": "It is\non its way."}),
    ]
    assert set(rows[0]) == {"number", "id", "version", "turn", "tokens", "subject", "at", "data"}
    assert [row["number"] for row in (await orc("show", "s 1", "-n", "1", "-o", "json")).json()["items"]] == [2]
    (mail,) = (await orc("show", "s 1", "--source", "mail", "-o", "json")).json()["items"]
    assert mail["data"]["content"] == '{"a": 1}'
    assert (await orc("show", "s 1", "-o", "id")).out.split()[0] == "mail-1.1"
    for refused in (("append", "s 1", " "), ("append", "s 1", "x", "--role", ""), ("show", "s 1", "-n", "0")):
        assert (await orc(*refused)).code == 2
    other = await orc("append", "s 1", "a", "--op-id", "mail-1", "--source", "\x1b" * 300)
    assert other.code == 2


async def test_show_is_safe_for_the_terminal(team: LocalTeam, orc: Orc) -> None:
    """Control characters are escaped, and no message looks like the head of another one."""
    chat = team.orc.chat("s", "a\x1bb")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await chat.append(
        [
            {"role": HOSTILE, "content": HOSTILE},
            {"role": "user", "content": parts},
            {"type": "function_call", "call_id": "c1", "arguments": "\x1b{}"},
            {"role": "user", "content": "x" * 500},
        ]
    )
    await chat.set_summary(HOSTILE, upto=1, version=1)
    await chat.set_meta({"topic": HOSTILE})
    for form in ((), ("--full",), ("-o", "json"), ("-o", "jsonl"), ("-o", "id")):
        done = await orc("show", "s", "--source", "a\x1bb", *form)
        assert (done.code, [sign for sign in ("\x1b", "\x07", "\u202e") if sign in done.out + done.err]) == (0, [])
        assert not [line for line in done.out.splitlines() if line.startswith("12  assistant")]
    table = (await orc("show", "s", "--source", "a\x1bb")).out.splitlines()
    assert table[0].startswith("summary up to 1: \\x1b[31mred")
    assert [line.split()[0] for line in table[2:]] == ["1", "2", "3", "4"]
    assert "one\\ntwo" in table[3]
    assert "function_call" in table[4]
    assert (table[5].endswith("x…"), len(table[5]) < 300) == (True, True)
    full = (await orc("show", "s", "--source", "a\x1bb", "--full")).out
    assert "x" * 500 in full
    assert "\n  12  assistant  forged" in full
    exported = await orc("export", "s", "--source", "a\x1bb")
    assert "\x1b" not in exported.out
    assert exported.json()["summary"]["text"] == HOSTILE


async def test_missing(team: LocalTeam, orc: Orc) -> None:
    """A chat that is not there is exit code 3; the message names those that are there. An invalid name is 2."""
    await team.orc.chat("s", "mail").append([{"a": 1}])
    for command in (("show",), ("export",), ("clear", "--yes")):
        done = await orc(*command, "s")
        assert (done.code, "has no chat 'main'; its chats: 'mail'" in done.err) == (3, True)
        assert (await orc(*command, "")).code == 2
    assert "its chats: none" in (await orc("show", "missing")).err


async def test_a_loss_is_told(team: LocalTeam, orc: Orc) -> None:
    """What Redis has lost of a chat is counted, in each form on standard error."""
    chat = team.orc.chat("s")
    await chat.append([{"n": n} for n in range(5)])
    keys = team.services.keys.scope("session", "s")
    await team.services.store.execute("LTRIM", keys.key(keys.chat_part("main", "q")), 2, -1)
    for command in (("show", "s"), ("show", "s", "-o", "jsonl"), ("export", "s")):
        done = await orc(*command)
        assert (done.code, "2 messages are missing" in done.err) == (0, True)
    assert (await orc("export", "s")).json()["gap"] == 2


async def test_export(team: LocalTeam, orc: Orc) -> None:
    """The whole chat in order, beyond one page, as one document or as lines; reading extends no lifetime."""
    chat = team.orc.chat("s")
    for first in range(1, 1100, 400):
        await chat.append([{"n": n, "digits": 2**70} for n in range(first, min(first + 400, 1100))])
    await chat.truncate(1050)
    await chat.set_meta({"topic": {"a": [1]}})
    keys = team.services.keys.scope("session", "s")
    meta_key = keys.key(keys.chat_part("main", "meta"))
    await team.services.store.execute("PEXPIRE", meta_key, 60_000)
    document = (await orc("export", "s")).json()
    assert [message["data"]["n"] for message in document["messages"]] == list(range(50, 1100))
    assert (document["session"], document["source"], document["gap"]) == ("s", "main", 0)
    assert (document["meta"], document["summary"]) == ({"topic": {"a": [1]}}, None)
    assert document["messages"][0]["data"]["digits"] == 2**70
    lines = (await orc("export", "s", "-o", "jsonl")).out.splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(50, 1100))
    await orc("show", "s")
    assert await team.services.store.execute("PTTL", meta_key) <= 60_000


async def test_clear(team: LocalTeam, orc: Orc, terminal: Terminal) -> None:
    """A person is asked first; only this chat goes, and who cleared it is recorded. Later numbers continue."""
    await team.orc.chat("s").append([{"n": 1}, {"n": 2}])
    await team.orc.chat("s", "mail").append([{"n": 3}])
    refused = await orc("clear", "s")
    assert (refused.code, "clear chat main of session s: 2 messages" in refused.err) == (4, True)
    _, code = await anyio.to_thread.run_sync(partial(terminal.answer, "chat", "clear", "s", answer="n\n"))
    assert code == 4
    assert len((await orc("show", "s", "-o", "id")).out.split()) == 2
    done = await orc("clear", "s", "--yes", "--reason", "wrong customer")
    assert (done.code, done.out) == (0, "cleared chat main of session s\n")
    assert (await orc("show", "s")).code == 3
    assert (await orc("show", "s", "--source", "mail")).code == 0
    listing = partial(terminal.orc, "control", "list", "--kind", "session", "-o", "json")
    listed = (await anyio.to_thread.run_sync(listing)).json()["items"]
    assert [(one["words"], one["reason"]) for one in listed] == [
        ("session action=clear-chat session=s detail=chat main", "wrong customer")
    ]
    assert (await orc("append", "s", "new", "-o", "json")).json()["number"] == 3
    async with team.orc.locks("session:s", owner="ann").hold_scope():
        busy = await orc("clear", "s", "--yes")
    assert (busy.code, "held alone by ann" in busy.err) == (75, True)


async def test_clear_and_delete_tell_of_a_copy(team: LocalTeam, orc: Orc, terminal: Terminal, tmp_path: Path) -> None:
    """A chat in a second storage: the person reads that its text is still there."""
    async with SqliteStore(tmp_path / "chats.db") as store:
        for session in ("s", "t"):
            await team.orc.chat(session).kept_in(store).append([{"n": 1}])
        assert "copy in a second storage" in (await orc("clear", "s", "--yes")).err
        deleted = await anyio.to_thread.run_sync(partial(terminal.orc, "sessions", "delete", "t", "--yes"))
        assert "copies of 1 chat in a second storage" in deleted.err
        for session in ("s", "t"):
            await team.orc.chat(session).kept_in(store).rehydrate()
            assert not [item async for item in store.load(team.orc.chat(session)._scope.keys.root, "chat:main")]
        await team.orc.chat("u").append([{"n": 1}])
        assert "second storage" not in (await orc("clear", "u", "--yes")).err


async def test_a_viewer_reads(team: LocalTeam, terminal: Terminal, redis_client: redis.Redis) -> None:
    """A user of Redis that may only read sees chats and changes none; no reading command sends what it may not."""
    await team.orc.chat("s").append([Message({"role": "user", "content": "Hello"}, subject="ann")])
    prefix, name = team.settings.prefix, f"viewer-{uuid4().hex}"
    (viewer,) = [role for role in ROLES if role.reads_only]
    await team.services.store.execute("ACL", "SETUSER", name, "on", ">pw", *acl_rules(viewer, AclScope(prefix)))
    try:
        where = terminal.environ["ORC_REDIS__URL"].partition("://")
        url = f"{where[0]}://{name}:pw@{where[2]}"
        for line in (("chat", "show", "s"), ("chat", "export", "s"), ("sessions", "show", "s")):
            done = await anyio.to_thread.run_sync(partial(terminal.orc, *line, ORC_REDIS__URL=url))
            assert (done.code, "NOPERM" in done.err) == (0, False), done
        for words in ("chat append s x", "chat clear s --yes", "sessions delete s --yes"):
            done = await anyio.to_thread.run_sync(partial(terminal.orc, *words.split(), ORC_REDIS__URL=url))
            assert (done.code != 0, "may not" in done.err or "permission" in done.err.lower()) == (True, True), done
    finally:
        redis_client.acl_deluser(name)
    assert (await team.orc.chat("s").hydrate()).seq == 1


async def test_extract(team: LocalTeam, orc: Orc) -> None:
    """A task extracts what the agent's skill has not extracted; with --wait its counts are printed."""
    agent = Agent("ed")
    agent.extracts(RuleExtractor())
    await team.work(agent)
    none = await orc("extract", "s 1", "--agent", "ed")
    assert (none.code, none.out, none.err) == (0, "", "all messages were extracted\n")
    assert (await orc("extract", "s 1", "--agent", "ed", "-o", "json")).json() == {"id": None}
    await orc("append", "s 1", "My name is Ann.")
    submitted = await orc("extract", "s 1", "--agent", "ed", "--subject", "ann")
    assert await team.orc.task(submitted.out.strip()).result(TIMEOUT_S)
    (record,) = await team.orc.memory("ed").of_kind("person")
    assert record.subject == "ann"
    await orc("append", "s 1", "I prefer tea.", "--source", "mail")
    done = await orc("extract", "s 1", "--agent", "ed", "--source", "mail", "--wait", "--timeout", "5s")
    assert (done.code, done.json()["records"]) == (0, 1)
    assert (await orc("extract", "s 1", "--agent", "ed", "--timeout", "5s")).code == 2
    view = await list_chats(team.services, "s 1")
    assert [dict(chat.extracted) for chat in view] == [{"ed/extract": 1}, {"ed/extract": 1}]
