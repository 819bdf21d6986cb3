"""Each kind of key with each kind of damage, written by a client or by hand: no program ends, and tasks go on."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import pytest
import redis
from msgspec import msgpack

from orchestrator import Agent
from orchestrator.core.errors import OrchestratorError
from orchestrator.store.key_kinds import POOL_KEYS, SCOPE_KEYS, KeyKind, Writers, kind_of
from orchestrator.store.keys import ScopeKeys
from orchestrator.store.script_files import all_scripts
from tests.contract.sample_calls import SAMPLES
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.roles import LOGINS, url_of
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.store.calls import Call
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam


@pytest.fixture(autouse=True)
def _forget_damage(prefix: str, redis_client: redis.Redis) -> Iterator[None]:
    """Delete what the test wrote: unlike the keys of programs, it has no time to live."""
    yield
    if keys := keys_with(redis_client, prefix):
        redis_client.unlink(*keys)


def keys_with(client: Any, prefix: str) -> list[bytes]:
    """Return all keys of a namespace."""
    found: list[bytes] = client.keys(f"{prefix}:*")
    return found


pytestmark = [pytest.mark.denied, pytest.mark.every_server(alone=True), pytest.mark.timeout(240)]

GARBAGE: Final = {
    "not UTF-8": b"\xff\xfe\x00",
    "infinite": b"inf",
    "minus infinite": b"-inf",
    "NaN": b"nan",
    "no number": b"x",
    "too large": b"1e300",
    "deep": b"\x91" * 5_000,
    "deep JSON": b"[" * 10_000,
    "1 MB": b"a" * 1_000_000,
}
WITHIN_S: Final = 15.0
"""Less than the sweeps of a program that waits for its next look; a task that a lost entry held needs one of them."""
IN_EACH_RUN: Final = frozenset({"task:ID", "desired", "leader", "supervisors", "queues:bytes"})
NAMES: Final = {
    "A": "ada", "S": "echo", "QUEUE": "skill:echo", "C": "x", "W": "w", "SCOPE": "stop:session:s",
    "FLOW": "agent:ada k 1", "LINE": "agent:ada 1", "MS": "1", "DATE": "2026-01-01",
}  # fmt: skip
"""Names in keys of which the pool has none yet."""
COMMANDS: Final = (
    "status", "doctor --all", "tasks list", "events", "agents list", "agents show ada", "skills list", "workers list",
    "queues list", "limits list", "schedules list", "sessions list", "sessions show s", "dead list", "control list",
    "control list --refused", "shares list", "stats", "keys check", "upgrade status", "config published",
)  # fmt: skip
OF_SCOPES: Final = (
    "status", "sessions show s", "sessions events s", "chat show s", "workspace get s", "workspace log s findings",
    "workspace events s", "memory list ada", "memory export ada", "locks list session:s", "keys check", "keys report",
)  # fmt: skip
SCOPES: Final = (("session", "s"), ("agent", "ada"), ("locks", "a"))
PIECES: Final = 6


class Damager:
    """Writes what no program writes, as a client if that may write the kind of key, else by hand."""

    def __init__(self, server: RedisServer, *, as_client: bool) -> None:
        url = url_of(server, "client") if as_client else server.url
        self._redis: Any = redis.Redis.from_url(url, driver_info=None)

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def spoil(self, key: bytes | str, type_: str, garbage: bytes) -> None:
        """Put garbage into a key, beside what is there and in its place."""
        found = self._redis.type(key).decode()
        for write in self._writes(key, type_ if found == "none" else found, garbage):
            # The type of the key may have been repaired in between, and a number may be none for Redis.
            with suppress(redis.ResponseError):
                self._redis.execute_command(*write)

    def retype(self, key: bytes | str, type_: str) -> None:
        """Put a key of another type in place of one."""
        self._redis.delete(key)
        self._redis.rpush(key, "x") if type_ == "string" else self._redis.set(key, "x")

    def _writes(self, key: bytes | str, type_: str, garbage: bytes) -> Iterator[tuple[Any, ...]]:
        if type_ == "zset":
            members = self._redis.zrange(key, 0, 2)
            for score in ("1", "inf", "-inf"):
                yield from (("ZADD", key, score, member) for member in (garbage + score.encode(), *members))
        elif type_ == "set":
            yield ("SADD", key, garbage)
        elif type_ == "string":
            yield ("SET", key, garbage)
        elif type_ == "list":
            yield ("RPUSH", key, garbage)
            yield ("LPUSH", key, garbage)
        elif type_ == "hash":
            yield from (("HSET", key, field, garbage) for field in (*self._redis.hkeys(key)[:50], garbage))
        elif type_.startswith("stream"):
            known = [
                word for _, fields in self._redis.xrange(key, count=3) for name in fields for word in (name, garbage)
            ]
            yield from (("XADD", key, "*", *words) for words in ((garbage, garbage), known, "abcdef") if words)


def keys_of(client: Any, root: str, kind: KeyKind) -> list[bytes | str]:
    """Return the keys of a pool that are of a kind; else one that could be."""
    stem = f"{root}:"
    names: list[bytes] = client.keys(f"{stem}*")
    found = []
    for name in names:
        with suppress(UnicodeDecodeError):
            if (of := kind_of(name.decode().removeprefix(stem))) is not None and of[0] is kind:
                found.append(name)
    named = re.sub(r"\b[A-Z]+\b", lambda word: "TOTAL" if word[0] == "TOTAL" else NAMES.get(word[0], "k"), kind.suffix)
    return [*found[:10]] or [f"{stem}{named}"]


async def live_through(team: LocalTeam) -> None:
    """Leave a trace of most kinds behind."""
    orc = team.orc
    task = await orc.submit("echo", {"n": 0}, session="s", tags=["t"], key="k", lane="l")
    await task.result(timeout=WITHIN_S)
    await orc.submit("echo", {"n": 0}, delay=3600)
    await orc.submit("fail", {})
    await orc.submit("missing", {}, agent="ada", fair="k")
    await orc.admin.schedules.add("nightly", "echo", {"n": 1}, every=3600)
    await orc.admin.stop(session="held")
    await orc.submit("echo", {"n": 0}, session="held")


async def end_task(team: LocalTeam, n: int) -> None:
    """Submit tasks until one ends, because Redis may refuse the first ones or lose them with the key."""
    with anyio.fail_after(WITHIN_S):
        while True:
            with suppress(OrchestratorError, TimeoutError):
                assert await (await team.orc.submit("echo", {"n": n})).result(timeout=2.0) == n
                return
            await anyio.sleep(0.05)


async def check_commands(team: LocalTeam, folder: Path, commands: tuple[str, ...]) -> None:
    """Every command ends with what it found or with a sentence."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(folder, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)
    wrong = []
    for command in commands:
        done = await anyio.to_thread.run_sync(partial(terminal.orc, *command.split(" ")))
        said = done.err + done.out
        if "this is a bug" in said or "Traceback" in said or len(done.err) > 100_000:
            wrong.append(f"orc {command}: {done.err[-600:]}")
    assert not wrong, "\n".join(wrong)


def make_agent() -> Agent:
    """An agent whose skill ends at once."""
    agent = Agent("ada", rate="1000/s")

    @agent.skill
    async def echo(n: int) -> int:
        return n

    @agent.skill
    async def fail() -> None:
        raise ValueError

    return agent


def _kinds() -> list[Any]:
    return [
        pytest.param(kind, id=kind.suffix, marks=() if kind.suffix in IN_EACH_RUN else pytest.mark.slow)
        for kind in POOL_KEYS
    ]


@pytest.mark.parametrize("kind", _kinds())
async def test_a_key_of_the_pool(redis_server: RedisServer, prefix: str, tmp_path: Path, kind: KeyKind) -> None:
    """Whatever a key holds, and whatever its type is, tasks end soon and commands end with a sentence.

    A key that guards, such as that of the stops, may hold tasks back until a person deletes it; no program ends by it.
    """
    settings = local_settings(redis_server.url, prefix, supervisor__sweep_s=0.2, worker__heartbeat_s=0.2)
    type_ = "hash" if kind.type == "any" else kind.type
    async with run_local_team(settings) as team:
        await team.work(make_agent())
        await live_through(team)
        damager = Damager(redis_server, as_client=bool(LOGINS.prefix) and kind.writers is Writers.CLIENTS)
        try:
            with redis_server.client() as client:
                for n, garbage in enumerate(GARBAGE.values()):
                    for key in keys_of(client, team.services.keys.root, kind):
                        damager.spoil(key, type_, garbage)
                    await end_task(team, n)
                await check_commands(team, tmp_path, COMMANDS)
                keys = keys_of(client, team.services.keys.root, kind)
                for key in keys:
                    damager.retype(key, type_)
                if kind.guards:
                    await check_commands(team, tmp_path, COMMANDS)
                    client.delete(*keys)
                await end_task(team, -1)
                await check_commands(team, tmp_path, COMMANDS)
        finally:
            damager.close()


HELD: Final[dict[str, dict[str, Any]]] = {
    "session:s": {"session": "s"},
    "skill:fail": {"agent": "ada"},
    "budget:b": {"budget": "b"},
}
"""Scopes that hold tasks back, and how a task comes into one: two stops, and a budget of nothing."""


@pytest.mark.parametrize("scope", HELD)
async def test_a_list_of_held_tasks(redis_server: RedisServer, prefix: str, scope: str) -> None:
    """A key that a client puts in place of held tasks keeps no other task of the agent from its start.

    The supervisor sweeps rarely here: nothing but the assignment itself finds the key in time.
    """
    settings = local_settings(redis_server.url, prefix, supervisor__sweep_s=60)
    async with run_local_team(settings) as team:
        await team.work(make_agent())
        await team.orc.admin.stop(session="s")
        await team.orc.admin.stop(skill="fail")
        await team.orc.admin.set_budget("b", usd=0)
        damager = Damager(redis_server, as_client=bool(LOGINS.prefix))
        try:
            damager.retype(team.services.keys.held(scope), "zset")
            skill, arguments = ("fail", {}) if scope == "skill:fail" else ("echo", {"n": 0})
            held = await team.orc.submit(skill, arguments, **HELD[scope])
            for n in range(3):
                assert await (await team.orc.submit("echo", {"n": n})).result(timeout=WITHIN_S) == n
            with redis_server.client() as client:
                assert client.zrange(team.services.keys.held(scope), 0, -1) == [held.id.encode()]
        finally:
            damager.close()


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
async def test_keys_of_scopes(redis_server: RedisServer, prefix: str, tmp_path: Path, piece: int) -> None:
    """Damaged shared state of a session, an agent and its locks ends no program, and a task of the session ends."""
    settings = local_settings(redis_server.url, prefix, supervisor__sweep_s=0.2, worker__heartbeat_s=0.2)
    async with run_local_team(settings) as team:
        await team.work(make_agent())
        await live_through(team)
        damager = Damager(redis_server, as_client=bool(LOGINS.prefix))
        try:
            for n, kind in enumerate(SCOPE_KEYS[piece::PIECES]):
                named = re.sub(r"\b[A-Z]+\b", lambda word: NAMES.get(word[0], "k"), kind.suffix)
                keys = [ScopeKeys(prefix, scope, name).key(named) for scope, name in SCOPES]
                for key in keys:
                    for garbage in GARBAGE.values() if kind.type not in {"vectorset", "ReJSON-RL"} else ():
                        damager.spoil(key, kind.type, garbage)
                await end_task(team, n)
                if n % 2:
                    for key in keys:
                        damager.retype(key, kind.type)
                    await end_task(team, n)
            await check_commands(team, tmp_path, OF_SCOPES)
        finally:
            damager.close()


COLUMN_VALUES: Final[tuple[Any, ...]] = (
    *(None, b"", b"\xff\xfe", b"inf", b"nan", b"-1", b"1e300", b"x" * 100_000, [[[]]], {"a": 1}, 1e300),
)
"""What a column of a row may hold: MessagePack has no type that is not here."""


def calls_with(call: Call[Any], root: str, prefix: str) -> Iterator[list[Any]]:
    """Return a script's command with one bad value in each argument, and in each column of its rows, in turn."""
    script = all_scripts()[call.script]
    places = {"a:b:c:{pool:p}": root, "a:b:c": prefix}
    own: dict[str, Any] = dict(call.args)
    for sample, place in places.items():
        own |= {name: value.replace(sample, place) for name, value in own.items() if isinstance(value, str)}
    for arg in script.args:
        bad: list[Any] = [*GARBAGE.values(), b"", b"-1"]
        if arg.type in {"row", "rows"}:
            # Samples have bytes that are no text, and the decoder reads texts.
            held = msgpack.decode(own[arg.name].replace(b"\xff", b"x"))
            rows = [held] if arg.type == "row" else held
            for row in rows[:1]:
                changed = ([*row[:n], value, *row[n + 1 :]] for n in range(len(row)) for value in COLUMN_VALUES)
                bad += [msgpack.encode(one if arg.type == "row" else [one]) for one in changed]
        for value in bad:
            yield replace(call, args={**own, arg.name: value}).command()


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
async def test_columns_of_scripts(redis_server: RedisServer, prefix: str, tmp_path: Path, piece: int) -> None:
    """A client that sends a bad value in any argument or column of any script ends no program and keeps no task."""
    settings = local_settings(redis_server.url, prefix, supervisor__sweep_s=0.2, worker__heartbeat_s=0.2)
    client: Any = redis.Redis.from_url(url_of(redis_server, "client"), driver_info=None)
    async with run_local_team(settings) as team:
        await team.work(make_agent())
        await live_through(team)
        answered = 0
        try:
            for name in sorted(SAMPLES)[piece::PIECES]:
                for command in calls_with(SAMPLES[name], team.services.keys.root, prefix):
                    # In a thread, because the team goes on meanwhile.
                    with suppress(redis.ResponseError):
                        await anyio.to_thread.run_sync(partial(client.execute_command, *command))
                        answered += 1
                await end_task(team, answered)
        finally:
            client.close()
        assert answered
        await check_commands(team, tmp_path, (*COMMANDS, *OF_SCOPES))
        await end_task(team, -1)


def test_the_score_of_a_member_is_never_nan(redis_client: redis.Redis, prefix: str) -> None:
    """Redis refuses it, so that the matrix has none."""
    with pytest.raises(redis.ResponseError):
        redis_client.zadd(f"{prefix}:z", {"a": math.nan})
