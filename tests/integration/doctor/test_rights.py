"""What `orc doctor` says of a user who may not do all; and that what it asks for is enough, and no more, for a team."""

from __future__ import annotations

import ast
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, Orchestrator, Record, TaskContext
from orchestrator.core.formats import FORMAT
from orchestrator.doctor import compatibility
from orchestrator.doctor.commands import (
    CALLED,
    DURABILITY,
    HINTS,
    INSPECTION,
    LOCATING,
    LOGIN,
    READING,
    SENT,
    TRANSACTION,
    VECTORS,
    acl_name,
    used_commands,
    vector_commands,
)
from orchestrator.doctor.context import CheckContext
from orchestrator.doctor.findings import Severity
from orchestrator.services import pool_keys
from orchestrator.store.script_files import ScriptFile, all_scripts
from orchestrator.store.store import Endpoint, Store
from orchestrator.tasks import queries
from tests.helpers.local_team import local_settings, run_local_team
from tests.integration.doctor.doctor_runs import find_problems, run_doctor, run_fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer

NEWEST = {"xackdel"}
"""Commands that older servers do not know, and that are not used there."""


@pytest.fixture
def user(redis_client: redis.Redis) -> Iterator[str]:
    """The name of a user who may do nothing yet; the test says more."""
    name = f"u{secrets.token_hex(4)}"
    yield name
    redis_client.acl_deluser(name)


def allow(client: redis.Redis, user: str, *rules: str) -> None:
    """Make the user, with a password, all channels and these rules."""
    client.execute_command("ACL", "SETUSER", user, "reset", "on", ">pw", "&*", *rules)  # type: ignore[no-untyped-call]


def as_user(settings: Settings, server: RedisServer, user: str) -> Settings:
    """The same settings, with the login of this user."""
    url = f"unix://{user}:pw@{server.directory}/redis.sock"
    return local_settings(url, settings.prefix)


def needed_rules(settings: Settings, client: redis.Redis) -> list[str]:
    """What the doctor's table asks for, without commands that this server does not know."""
    names = sorted({acl_name(command) for command in used_commands(pool_keys(settings))})
    old = client.info("server")["redis_version"].startswith("7.")
    return [f"+{name}" for name in names if not (old and name in NEWEST)]


@pytest.mark.every_server(alone=True)
@pytest.mark.parametrize("may_ask", [True, False], ids=["dry-run", "transaction"])
async def test_missing_rights_are_named(
    redis_server: RedisServer, redis_client: redis.Redis, settings: Settings, user: str, *, may_ask: bool
) -> None:
    """Commands that are not allowed are named, with and without ACL DRYRUN; the fix allows them, nothing is run."""
    asking = ["+acl|whoami", "+config|get", *(["+acl|dryrun"] if may_ask else ["+multi", "+discard"])]
    rules = [rule for rule in needed_rules(settings, redis_client) if rule not in {"+xgroup|create", "+zadd", "+info"}]
    allow(redis_client, user, f"~{settings.prefix}:*", "-@all", *rules, *asking)
    login = as_user(settings, redis_server, user)
    keys_before = redis_client.dbsize()
    found = await run_doctor(login)
    assert found["rights"].severity is Severity.PROBLEM
    assert "may not run info, xgroup|create, zadd" in found["rights"].found
    assert found["redis-version"].severity is Severity.WARNING
    run_fix(redis_client, found["rights"])
    found = await run_doctor(login)
    assert found["rights"].severity is found["redis-version"].severity is Severity.OK
    assert redis_client.dbsize() == keys_before


@pytest.mark.every_server(alone=True)
@pytest.mark.parametrize("may_ask", [True, False], ids=["dry-run", "transaction"])
async def test_a_key_pattern_that_is_too_narrow(
    redis_server: RedisServer, redis_client: redis.Redis, settings: Settings, user: str, *, may_ask: bool
) -> None:
    """A pattern with a colon behind the root does not reach the root itself, which scripts declare; the fix does."""
    root = pool_keys(settings).root
    asking = ["+acl|whoami", "+acl|dryrun"] if may_ask else ["+multi", "+discard", "+acl|whoami"]
    allow(redis_client, user, f"~{root}:*", "-@all", *needed_rules(settings, redis_client), *asking)
    login = as_user(settings, redis_server, user)
    found = (await run_doctor(login))["rights"]
    assert found.severity is Severity.PROBLEM
    assert f"may not use keys like {root}" in found.found
    run_fix(redis_client, found)
    assert (await run_doctor(login))["rights"].severity is Severity.OK


@pytest.mark.every_server(alone=True)
@pytest.mark.parametrize("may_ask", [True, False], ids=["dry-run", "transaction"])
async def test_hints_may_be_missing(
    redis_server: RedisServer, redis_client: redis.Redis, settings: Settings, user: str, *, may_ask: bool
) -> None:
    """Without a channel pattern everything works, only later: a warning, and the fix ends it."""
    allow(redis_client, user, f"~{settings.prefix}:*", "resetchannels", "+@all", *([] if may_ask else ["-acl|dryrun"]))
    login = as_user(settings, redis_server, user)
    found = (await run_doctor(login))["rights"]
    assert found.severity is Severity.WARNING
    assert "later" in found.found
    run_fix(redis_client, found)
    assert (await run_doctor(login))["rights"].severity is Severity.OK


@pytest.mark.every_server(alone=True)
async def test_vector_sets_may_be_missing(
    redis_server: RedisServer,
    redis_client: redis.Redis,
    settings: Settings,
    user: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A user without vector sets stores, and finds by comparing all vectors; the fix of the doctor allows them."""
    old = redis_client.info("server")["redis_version"].startswith("7.")
    asking = ["+acl|whoami", "+acl|dryrun", "+command|info", "+info", "+multi", "+exec", "+discard"]
    allow(redis_client, user, f"~{settings.prefix}:*", "-@all", *needed_rules(settings, redis_client), *asking)
    login = as_user(settings, redis_server, user)
    async with Orchestrator(settings=login) as orc:
        memory = orc.memory("ed")
        for number in range(3):
            await memory.store(Record(id=f"r{number}", step=1, kind="a", content=1, embedding=[1.0, number]))
            found = await memory.similar([1.0, number], 1)
            assert (found[0].record.id, found.rung, found.complete) == (f"r{number}", "exact", True)
    assert caplog.text.count("vector_sets_refused") == (0 if old else 1)
    finding = (await run_doctor(login))["vectors"]
    if old:
        assert finding.severity is Severity.OK
        return
    assert finding.severity is Severity.WARNING
    run_fix(redis_client, finding)
    assert (await run_doctor(login))["vectors"].severity is Severity.OK
    async with Orchestrator(settings=login) as orc:
        await orc.memory("ed").store(Record(id="r3", step=1, kind="a", content=1, embedding=[1.0, 3.0]))
        found = await orc.memory("ed").similar([1.0, 0.0], 3)
        assert (len(found), found[0].record.id) == (3, "r0")


async def test_removals_that_may_crash_the_server(redis_client: redis.Redis, settings: Settings) -> None:
    """`orc doctor` warns of VREM when an agent has a vector set, unless vectors are hidden."""
    keys = pool_keys(settings)
    assert (await run_doctor(settings))["vectors"].severity is Severity.OK
    async with run_local_team(settings) as team:
        await team.work(Agent("ed"))
        assert (await run_doctor(settings))["vector-deletes"].severity is Severity.OK
        await team.orc.memory("ed").store(Record(id="r", step=1, kind="a", content=1, embedding=[1.0, 2.0]))
        assert redis_client.exists(keys.scope("agent", "ed").key("vec")) == 1
        finding = (await run_doctor(settings))["vector-deletes"]
        assert finding.severity is Severity.WARNING
        assert "memory.vector_delete to mark" in finding.fix
        hiding = settings.model_copy(update={"memory": settings.memory.model_copy(update={"vector_delete": "mark"})})
        assert (await run_doctor(hiding))["vector-deletes"].severity is Severity.OK


async def test_a_user_whom_nothing_can_be_told(
    redis_server: RedisServer, redis_client: redis.Redis, settings: Settings, user: str
) -> None:
    """Without ACL DRYRUN and MULTI nothing is claimed, and no command is run to find out."""
    allow(redis_client, user, f"~{settings.prefix}:*", "+@all", "-multi", "-acl", "-eval_ro", "-config")
    before = redis_client.dbsize()
    found = await run_doctor(as_user(settings, redis_server, user))
    assert found["rights"].found.startswith("unknown")
    assert found["scripts"].found.startswith("unknown")
    assert found["redis-fsync"].found.startswith("unknown")
    assert {
        finding.severity for code, finding in found.items() if code not in {"supervisor", "redis-aof", "server-faults"}
    } == {Severity.OK}
    assert redis_client.dbsize() == before


@pytest.mark.every_server(alone=True)
async def test_the_table_is_enough_for_a_team(
    redis_server: RedisServer, redis_client: redis.Redis, settings: Settings, user: str
) -> None:
    """A user who may run the commands of the table alone submits, supervises, works, retries, follows, cancels."""
    allow(redis_client, user, f"~{settings.prefix}:*", "-@all", *needed_rules(settings, redis_client))
    agent = Agent("modest", rate="1000/s")
    tried: list[int] = []

    @agent.skill(max_attempts=2)
    async def work(ctx: TaskContext, number: int) -> int:
        await ctx.emit({"tried": number})
        tried.append(number)
        if tried.count(number) == 1:
            raise RuntimeError("once")
        return number

    async with run_local_team(as_user(settings, redis_server, user)) as team:
        await team.services.store.check_server(allow_eviction=False)
        await team.work(agent)
        handles = [await team.orc.submit("work", {"number": number}) for number in range(3)]
        assert [chunk.data async for chunk in handles[2].output()] == [{"tried": 2}, {"tried": 2}]
        assert [await handle.result(10) for handle in handles] == [0, 1, 2]
        waiting = await team.orc.submit("nobody", delay=60, key="mine")
        assert await waiting.cancel()
        assert (await waiting.info()).state == "cancelled"
        assert await queries.listing(team.services.store, states=(), limit=10)


def test_the_table_has_every_command_of_the_scripts() -> None:
    """A command that a script calls and the table lacks would be missed by users with few rights: add it there."""
    calls = re.compile(r"redis\.p?call\('(\w+)'(?:, '([A-Z]+)')?")
    keys = pool_keys(local_settings("unix:///x", "a:b:c"))
    table = {acl_name(command) for command in (*used_commands(keys), *vector_commands(keys))}
    called = set()
    for script in all_scripts().values():
        for name, sub in calls.findall(script.text):
            called.add(acl_name([name, sub]))
    assert len(called) > 30
    assert called <= table
    asked = {acl_name(command.split(" ")) for command in CALLED}
    assert asked <= called, "rights are asked for that nothing needs"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda script: ScriptFile(script.name, script.text + "end", script.sha, (), ()), "'end'"),
        (lambda script: ScriptFile(script.name, script.text, "0" * 40, (), ()), "another hash"),
    ],
    ids=["text", "hash"],
)
async def test_a_damaged_script(redis_server: RedisServer, settings: Settings, damage: object, said: str) -> None:
    """A script that the server's Lua does not take, or under another hash, is named; the fix says to install anew."""
    assert callable(damage)
    scripts_ = dict(all_scripts())
    scripts_["tasks/submit"] = damage(scripts_["tasks/submit"])
    async with Store(Endpoint.at(redis_server.url), pool_keys(settings)) as store:
        (found,) = await compatibility.check_scripts(
            CheckContext(settings, store, await store.server_info(), {}), scripts=scripts_
        )
    assert found.severity is Severity.PROBLEM
    assert found.found.startswith("lua/tasks/submit.lua: ")
    assert said in found.found
    assert "install this program anew" in found.fix


async def test_scripts_are_switched_off(
    redis_server: RedisServer, redis_client: redis.Redis, settings: Settings, user: str
) -> None:
    """A user who may call no scripts at all hears it under `rights`."""
    allow(redis_client, user, f"~{settings.prefix}:*", "+@all", "-@scripting")
    found = await run_doctor(as_user(settings, redis_server, user))
    assert "evalsha" in found["rights"].found
    assert "script|load" in found["rights"].found


@pytest.mark.parametrize(
    ("stored", "fix"), [("99", "install the newer version"), ("1", "until the pool has no open tasks")]
)
async def test_data_of_another_format(redis_client: redis.Redis, settings: Settings, stored: str, fix: str) -> None:
    """Data of a newer or an older version is a problem, and the pool is left unread."""
    keys = pool_keys(settings)
    redis_client.set(keys.format, stored)
    redis_client.set(keys.leader, "somebody", ex=60)
    found = await run_doctor(settings)
    assert found["format"].severity is Severity.PROBLEM
    assert fix in found["format"].fix
    assert "supervisor" not in found
    redis_client.set(keys.format, FORMAT)
    assert await find_problems(settings) == {}


def test_the_table_has_every_command_of_the_program(redis_client: redis.Redis) -> None:
    """A command that the program sends and the tables lack would be missed by users with few rights: add it there."""
    root = Path(__file__).parents[3]
    known: Any = redis_client.command()
    commands = {name.upper() for name in known}
    apart = ("testing", "bench", "demo", "embedded", "benchmarks", "tests")
    sent: dict[str, Path] = {}
    for path in (*(root / "orchestrator").rglob("*.py"), *(root / "workers").rglob("*.py")):
        if path.name != "commands.py" and not {*apart} & {*path.relative_to(root).parts}:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                words = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else ()
                name = words[0].value if words and isinstance(words[0], ast.Constant) else None
                if isinstance(name, str) and name in commands:
                    sent[name] = path
    tables = {
        command.split(" ")[0]
        for command in (*SENT, *CALLED, *VECTORS, *HINTS, *TRANSACTION, *LOGIN, *DURABILITY, *LOCATING, *INSPECTION)
    }
    # The doctor tries CONFIG GET and EVAL_RO and can do without; ASKING is for clusters; READONLY is an error;
    # PSUBSCRIBE goes to sentinels.
    tables |= {"CONFIG", "EVAL_RO", "ASKING", "READONLY", "PSUBSCRIBE"}
    assert len(sent) > 20
    assert {name: str(path) for name, path in sent.items() if name not in tables} == {}


def test_reading_commands(redis_client: redis.Redis) -> None:
    """`READING` has each command of the tables that the server takes for reading, and no other."""
    tables = {
        command.split(" ")[0]
        for command in (*SENT, *CALLED, *VECTORS)
        if "KEY" in command or command.startswith("SCAN")
    }
    found: Any = redis_client.command()
    reading = {name.upper() for name, info in found.items() if "readonly" in info["flags"]}
    assert {name for name in tables - {"XINFO"} if name in reading} == (READING & tables) - {"XINFO"}
