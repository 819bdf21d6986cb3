"""The scan of the scopes of a prefix: what is sound stays as it is, and the loss of any key is repaired or named."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from orchestrator import Message, Record
from orchestrator.repair import key_report
from orchestrator.repair.scope_scan import ScopeScan
from orchestrator.store.found_keys import sort_key
from orchestrator.store.key_kinds import Loss
from orchestrator.store.keys import ScopeKeys
from orchestrator.supervisor import reconciler
from orchestrator.testing.waiting import wait_for
from orchestrator.views.keys import check_keys, check_scopes, count_keys
from tests.helpers import vectors
from tests.helpers.guards import keys_of
from tests.helpers.local_team import run_local_team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import redis

    from orchestrator import Chat, Memory
    from orchestrator.core.settings import Settings
    from orchestrator.repair.findings import RepairFinding
    from orchestrator.store.key_kinds import KeyKind
    from tests.helpers.local_team import LocalTeam

SESSION = "S {1}:é"


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A client, and no supervisor that repairs meanwhile."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


async def fill(team: LocalTeam) -> None:
    """Use each kind of scope."""
    async with team.orc.workspace(SESSION).edit() as shared:
        await shared.set("plan", {"a": 1})
        await shared.append("log", 1, 2, 3)
        await shared.add("set", "x", "y")
        await shared.transition("t", to="open")
        await shared.direct("bob", "STOP")
    await team.orc.agents.set_state("ada", {"status": "busy"})
    await team.orc.limits.check("calls", 5, 60)
    await team.orc.board("wins").add("ada")


async def converse(team: LocalTeam, count: int = 30, source: str = "main") -> Chat:
    """Fill a chat, in calls of 10 messages."""
    chat = team.orc.chat(SESSION, source)
    for first in range(0, count, 10):
        await chat.append([{"role": "user", "content": str(first + number)} for number in range(10)])
    await chat.set_meta({"title": "t"})
    return chat


async def remember(team: LocalTeam, agent: str = "ada", count: int = 30) -> Memory:
    """Store records in both tiers."""
    memory = team.orc.memory(agent)
    for tier in ("stm", "im"):
        await memory.store_many(
            [
                Record(
                    id=f"{tier}{number}",
                    step=number,
                    kind="a b" if number % 2 else "plan",
                    content={"n": number},
                    importance=number / 10,
                    action="look",
                    position=(number, 1.0),
                    subject="eve",
                )
                for number in range(count)
            ],
            tier=tier,
        )
    return memory


async def scan(team: LocalTeam, *, repair: bool = True, only: str = "") -> list[RepairFinding]:
    """Scan once, without rests."""
    steps = ScopeScan(team.services, repair=repair, only=only).steps()
    return [finding async for found in steps for finding in found]


def codes(found: list[RepairFinding]) -> set[tuple[str, bool]]:
    """Return what was found, and whether it was repaired."""
    return {(finding.code, finding.repaired) for finding in found}


@pytest.mark.every_server
async def test_sound_scopes(team: LocalTeam) -> None:
    """Data in use is no damage, and a scan changes nothing."""
    await fill(team)
    async with team.orc.locks().hold("n"):
        assert await scan(team) == []
        assert await check_keys(team.services) == []


@pytest.mark.every_server
async def test_keys_as_such(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A lost lifetime comes back; foreign keys, and keys of another type, are named and stay."""
    await fill(team)
    prefix = team.settings.prefix
    shared = ScopeKeys(prefix, "session", SESSION)
    redis_client.persist(shared.key("ws:doc"))
    state = ScopeKeys(prefix, "agent", "ada").key("state")
    redis_client.delete(state)
    redis_client.set(state, "x", ex=100)
    foreign = [f"{prefix}:{{nothing:x}}:y", shared.key("nothing"), f"{prefix}:{{session:a b}}:meta"]
    for name in foreign:
        redis_client.set(name, "x", ex=100)
    other_pool = [f"{prefix}:{{pool:other}}:nothing", f"{prefix}:{{locks:other}}:nothing"]
    for name in other_pool:
        redis_client.set(name, "x", ex=100)
    found = await scan(team, repair=False)
    assert sorted(finding.subject for finding in found if finding.code == "foreign") == sorted(foreign)
    assert codes(found) == {("foreign", False), ("wrong-type", False), ("no-lifetime", False)}
    assert redis_client.ttl(shared.key("ws:doc")) == -1
    assert ("no-lifetime", True) in codes(await scan(team))
    assert 0 < redis_client.ttl(shared.key("ws:doc")) <= team.settings.workspace.ttl_s
    assert codes(await scan(team)) == {("foreign", False), ("wrong-type", False)}


async def test_lost_parts_are_listed_before_they_are_counted(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A workspace that has lost its list and its counts gets both back, whatever the order of the scan."""
    await fill(team)
    shared = ScopeKeys(team.settings.prefix, "session", SESSION)
    items = redis_client.hget(shared.key("meta"), "items")
    redis_client.delete(shared.key("ws:parts"), shared.key("meta"))
    assert codes(await scan(team)) == {("unlisted-part", True), ("lost-counts", True)}
    assert await scan(team) == []
    assert redis_client.hget(shared.key("meta"), "items") == items
    assert (await team.orc.workspace(SESSION).snapshot()).logs["log"][-1].value == 3


@pytest.mark.every_server
async def test_chats(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Ids, counts and the list of chats are made again from the messages; gaps and lost chats are named."""
    shared = ScopeKeys(team.settings.prefix, "session", SESSION)
    chat = await converse(team)
    other = await converse(team, source="a b")
    assert await scan(team) == []
    before = await chat.hydrate()

    redis_client.delete(shared.key(shared.chat_part("main", "id")), shared.key("chats"))
    assert codes(await scan(team, repair=False)) == {("unlisted-message", False), ("unlisted-chat", False)}
    found = await scan(team)
    assert [finding.code for finding in found].count("unlisted-message") == 30
    assert await scan(team) == []
    assert sorted(await team.orc.chat(SESSION).sources()) == ["a b", "main"]
    known = await chat.append([Message({"role": "user", "content": "x"}, id=before.messages[3].id)])
    assert known.added == 0

    redis_client.delete(shared.key(shared.chat_part("main", "meta")))
    assert codes(await scan(team)) == {("lost-counts", True)}
    assert await scan(team) == []
    after = await chat.hydrate()
    assert (after.messages, after.seq, after.gap) == (before.messages, before.seq, 0)
    assert after.rev > before.rev

    redis_client.delete(shared.key(shared.chat_part("a b", "q")))
    (gap,) = await scan(team)
    assert (gap.code, gap.place, gap.repaired) == ("chat-gap", "a%20b", False)
    assert (await other.hydrate()).gap == 30
    await other.append([{"role": "user", "content": "new"}])
    assert await scan(team) == []

    for part in ("q", "meta", "id"):
        redis_client.delete(shared.key(shared.chat_part("a b", part)))
    (lost,) = await scan(team)
    assert (lost.code, lost.place, lost.repaired) == ("lost-chat", "a%20b", True)
    assert await scan(team) == []


async def test_a_chat_of_a_shortened_lifetime(settings: Settings, redis_client: redis.Redis) -> None:
    """A chat that ends earlier, because the settings were changed, is not lost."""
    async with run_local_team(settings, supervised=False) as team:
        await converse(team, count=1)
    shorter = settings.model_copy(update={"chat": settings.chat.model_copy(update={"ttl_s": 0.2})})
    async with run_local_team(shorter, supervised=False) as team:
        chat = await converse(team, count=1)
        meta = ScopeKeys(settings.prefix, "session", SESSION).key("chat:main:meta")
        # A change moves the end when an eighth of the lifetime has passed since the last move.
        while int(redis_client.pttl(meta)) > 1000:
            await chat.append([{"role": "user", "content": "again"}])
        await wait_for(lambda: not redis_client.exists(meta), "the end of the chat", 20)
        assert await scan(team, repair=False) == []
        assert (await chat.hydrate()).messages == ()


@pytest.mark.every_server
async def test_lost_indices_of_memory(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Each index comes back as it was, with its order and a lifetime, when any part of it is lost."""
    own = ScopeKeys(team.settings.prefix, "agent", "ada")
    await remember(team)
    assert await scan(team) == []
    parts = ["time", "imp", "exp", "kind:plan", "kind:a%20b", "act:look", "subj:eve", "cell:0_0", "cell:1_0"]
    indices = [own.key(own.tier_part(tier, part)) for tier in ("stm", "im") for part in parts]
    stored = {key: redis_client.zrange(key, 0, -1, withscores=True) for key in indices}
    assert all(stored.values())
    for key in indices:
        redis_client.delete(key)
        found = await scan(team, repair=False)
        assert codes(found) == {("unlisted-record", False)}, key
        assert len(found) == len(stored[key]), key
        assert codes(await scan(team)) == {("unlisted-record", True)}, key
        assert await scan(team) == [], key
        assert redis_client.zrange(key, 0, -1, withscores=True) == stored[key]
        tier = key.partition("}:")[2].partition(":")[0]
        assert 0 < redis_client.pexpiretime(key) <= redis_client.pexpiretime(own.key(f"{tier}:hdr"))
    redis_client.delete(*indices)
    assert codes(await scan(team)) == {("unlisted-record", True)}
    assert {key: redis_client.zrange(key, 0, -1, withscores=True) for key in indices} == stored


@pytest.mark.every_server
@pytest.mark.parametrize("fields", [(), ("ada-9",)])
async def test_headers_that_were_lost_before_a_store(
    team: LocalTeam, redis_client: redis.Redis, fields: tuple[str, ...]
) -> None:
    """The scan of the supervisor removes what lost headers left, and recalls return what was stored since."""
    memory = team.orc.memory("ada")
    states = memory.states()
    for number in range(10):
        await states.store_agent_state({"v": number}, number)
    headers = memory.scope.keys.key("stm:hdr")
    assert redis_client.hdel(headers, *fields) if fields else redis_client.delete(headers)
    await states.store_agent_state({"v": 0}, 0)
    scans = [ScopeScan(team.services, repair=True, upkeep=True, deep=False) for _ in range(2)]
    first, second = [[one async for found in each.steps() for one in found] for each in scans]
    assert {finding.code for finding in first} == {"lost-header", "orphan-entry"}
    assert second == []
    assert await scan(team) == []
    current = await states.get_current_state()
    assert current is not None
    assert current["v"] == (8 if fields else 0)
    assert len(await memory.recent(20)) == (9 if fields else 1)


@pytest.mark.every_server
async def test_lost_indices_of_a_simulation(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Each index of a simulation comes back from the records of its agents, when any of them is lost."""
    memory = team.orc.memory("ada")
    await memory.store_many(
        [
            Record(id=f"r {n}", step=n, kind="state", content=n, simulation="s 1", agent_type="wolf", position=(n, 1.0))
            for n in range(150)
        ]
    )
    own = ScopeKeys(team.settings.prefix, "sim", "s 1")
    parts = ["states", "agents", "of", "type:wolf:states", "type:wolf:agents", own.place_part("0_0")]
    assert values(redis_client, team.settings.prefix).keys() >= {own.key(part) for part in parts}
    before = {part: values(redis_client, team.settings.prefix)[own.key(part)] for part in parts}
    assert await scan(team) == []
    for part in parts:
        redis_client.delete(own.key(part))
        assert codes(await scan(team, repair=False)) == {("unlisted-state", False)}, part
        assert codes(await scan(team)) == {("unlisted-state", True)}, part
        assert await scan(team) == [], part
        if part != "of":
            assert values(redis_client, team.settings.prefix)[own.key(part)] == before[part]
    assert len(await team.orc.simulation("s 1").states()) == 150


async def test_a_sweep_finds_all_indices(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A sweep by a program removes lost records from each index that lists another record."""
    memory = await remember(team)
    own = ScopeKeys(team.settings.prefix, "agent", "ada")
    lost = [f"stm{number}" for number in range(30) if number not in {8, 9}]
    redis_client.hdel(own.key("stm:hdr"), *lost)
    report = await memory.sweep(budget=10_000)
    assert report.cursor == 0
    parts = ["time", "imp", "exp", "kind:plan", "kind:a%20b", "act:look", "subj:eve", "cell:0_0"]
    left = {id_ for part in parts for id_ in redis_client.zrange(own.key(f"stm:{part}"), 0, -1)}
    assert left == {b"stm8", b"stm9"}
    assert redis_client.hkeys(own.key("stm:rec")) == [b"stm8", b"stm9"]


@pytest.mark.every_server
async def test_lost_records_of_memory(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Lost contents, headers and counts are named; no entry stays without a record, and the other tier is as before."""
    own = ScopeKeys(team.settings.prefix, "agent", "ada")
    memory = await remember(team)
    size = redis_client.hget(own.key("stm:meta"), "bytes")
    redis_client.delete(own.key("stm:meta"))
    assert codes(await scan(team)) == {("lost-counts", True)}
    assert redis_client.hget(own.key("stm:meta"), "bytes") == size
    redis_client.hdel(own.key("stm:rec"), "stm3")
    redis_client.zadd(own.key("stm:kind:plan"), {"nothing": 1, "stm5": 5})
    assert codes(await scan(team)) == {("lost-record", True), ("orphan-entry", True)}
    assert await scan(team) == []
    assert await memory.get("stm3") == [None]

    redis_client.delete(own.key("stm:rec"))
    found = await scan(team)
    assert [finding.code for finding in found] == ["lost-record"] * 29
    assert set(keys_of(redis_client, f"{own.root}:stm:")) <= {own.key("stm:meta")}
    redis_client.delete(own.key("im:hdr"))
    found = await scan(team)
    assert codes(found) == {("lost-header", True), ("orphan-entry", True)}
    assert await scan(team) == []
    assert [record.id for record in await memory.recent()] == []
    await remember(team)
    assert await scan(team) == []


async def test_a_long_chat_is_checked_in_parts(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Each call of the script looks at 500 messages."""
    shared = ScopeKeys(team.settings.prefix, "session", SESSION)
    chat = team.orc.chat(SESSION)
    for _ in range(3):
        await chat.append([{"role": "user", "content": "x"}] * 500)
    ids = shared.key(shared.chat_part("main", "id"))
    stored = redis_client.hgetall(ids)
    redis_client.delete(ids)
    assert len(await scan(team)) == 1500
    assert redis_client.hgetall(ids) == stored
    assert 0 < redis_client.ttl(ids) <= redis_client.ttl(shared.key(shared.chat_part("main", "q")))


async def test_report(team: LocalTeam, redis_client: redis.Redis) -> None:
    """All kinds are counted and measured; what is far above the others, near its cap or without lifetime is named."""
    await fill(team)
    for number in range(30):
        async with team.orc.workspace(f"s{number}").edit() as shared:
            await shared.set("plan", 1)
    async with team.orc.workspace("large").edit() as shared:
        for number in range(10):
            await shared.set(f"p{number}", "x" * 200_000)
    redis_client.persist(ScopeKeys(team.settings.prefix, "agent", "ada").key("state"))
    redis_client.set(f"{team.settings.prefix}:{{nothing:x}}:y", "x", ex=100)
    counts = await count_keys(team.services)
    kinds = {(row.scope, row.kind): row for row in counts.kinds}
    assert kinds["session", "ws:doc"].keys == 32
    assert kinds["session", "ws:doc"].lifetimes == {"week": 32}
    assert (kinds["session", "ws:doc"].bytes or 0) > 2_000_000
    assert (kinds["agent", "state"].keys, kinds["agent", "state"].immortal) == (1, 1)
    assert kinds["(none of ours)", "(none of ours)"].keys == 1
    assert {"limit", "board", "pool"} <= {scope for scope, _ in kinds}
    assert counts.scopes[0].scope == "session:large"
    assert "times the median of 32 sessions" in counts.scopes[0].alarm
    assert len([row for row in counts.scopes if row.scope.startswith("session:")]) == 10
    assert [alarm for alarm in counts.alarms if "state" in alarm]
    assert [alarm for alarm in counts.alarms if alarm.startswith("session:large: ")]
    redis_client.expire(ScopeKeys(team.settings.prefix, "agent", "ada").key("state"), 100)


async def test_a_spike_and_a_cap_are_named(
    team: LocalTeam, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many keys that end within the hour are named; so is a scope near its cap. Twin: neither without them."""
    await fill(team)
    assert (await count_keys(team.services)).alarms == []
    monkeypatch.setattr(key_report, "SPIKE_KEYS", 100)
    locks = ScopeKeys(team.settings.prefix, "locks", "default")
    for number in range(100):
        redis_client.set(locks.key(locks.lock(str(number))), "x", ex=60)
    (alarm,) = (await count_keys(team.services)).alarms
    assert "'lock:N'" in alarm
    assert "end within the hour" in alarm
    monkeypatch.setattr(key_report, "NEAR_CAP", 0.0)
    assert any("near its cap" in row.alarm for row in (await count_keys(team.services)).scopes)


async def test_one_scope(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A check of one scope repairs nothing else."""
    await fill(team)
    async with team.orc.workspace("other").edit() as shared:
        await shared.set("plan", 1)
    for session in (SESSION, "other"):
        redis_client.delete(ScopeKeys(team.settings.prefix, "session", session).key("ws:doc"))
    (group,) = await check_scopes(team.services, scope="session:other", repair=True)
    assert (group.code, group.count, group.repaired) == ("lost-items", 1, True)
    (group,) = await check_keys(team.services)
    assert (group.code, group.count, group.repaired) == ("lost-items", 1, False)
    assert SESSION.encode("ascii", "backslashreplace") not in group.examples[0].encode()


async def test_the_supervisor_repairs(
    settings: Settings, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader scans the scopes in the background, soon after it begins to lead."""
    async with run_local_team(settings, supervised=False) as team:
        await fill(team)
        meta = ScopeKeys(settings.prefix, "session", SESSION).key("meta")
        redis_client.delete(meta)
        assert not redis_client.exists(meta)
        await team.start_supervisor()
        await wait_for(lambda: redis_client.exists(meta), "the counts", 20)
        assert len(keys_of(redis_client, settings.prefix)) > 10


UNSEEN = {
    **dict.fromkeys(["fence", "exec:fence", "ops", "ops:before", "usage:MS", "usage:MS:ops", "sim:pending"], "a guard"),
    **dict.fromkeys(["state", "day:DATE", "chat:SRC:sum", "places", "inbox:A"], "no other key counts it"),
    **dict.fromkeys(
        ["of", "agents", "states", "type:T:agents", "type:T:states", "place:C", "buf:E"], "no other counts"
    ),
}
"""Kinds of scopes whose loss no other key tells. The supervisor logs that Redis has evicted keys, or was restarted."""


async def populate(team: LocalTeam) -> None:
    """Use all shared state."""
    await fill(team)
    await converse(team)
    await team.orc.chat(SESSION).set_summary("what was", upto=3, version=1)
    await remember(team)
    await team.orc.memory("bob").store_many([vectors.note(seed) for seed in range(30)])


def text(reply: object) -> str:
    """Decode a word of Redis."""
    assert isinstance(reply, bytes)
    return reply.decode()


def values(client: redis.Redis, prefix: str) -> dict[str, object]:
    """Read every key of the scopes of a prefix, in a form without order."""
    read: dict[str, Callable[[str], object]] = {
        "string": client.get,
        "hash": client.hgetall,
        "zset": lambda key: sorted(client.zrange(key, 0, -1, withscores=True)),
        "set": client.smembers,
        "list": lambda key: client.lrange(key, 0, -1),
        "stream": client.xrange,
        "vectorset": lambda key: set(vectors.run(client, "VRANDMEMBER", key, 1000)),
    }
    return {key: read[text(client.type(key))](key) for key in keys_of(client, prefix) if "{pool:" not in key}


@pytest.mark.every_server
async def test_drill_of_each_kind(team: LocalTeam, redis_client: redis.Redis) -> None:
    """One key of each kind is lost: it is made again as it was, or named. Kinds without either are listed."""
    await populate(team)
    prefix = team.settings.prefix
    kinds: dict[str, tuple[str, KeyKind]] = {}
    for key in keys_of(redis_client, prefix):
        found = sort_key(key.encode(), prefix=prefix, pool="default")
        if found is not None and found.scope and found.kind is not None:
            kinds.setdefault(found.kind.suffix, (key, found.kind))
    assert len(kinds) > 35
    unseen, seen = set[str](), set[str]()
    for suffix, (key, kind) in kinds.items():
        if kind.loss in {Loss.RENEWED, Loss.PASSING}:
            continue
        before, saved, left_ms = values(redis_client, prefix), redis_client.dump(key), redis_client.pttl(key)
        if saved is None:
            continue  # it lives for a few seconds
        seen.add(suffix)
        redis_client.delete(key)
        named = await scan(team, repair=False)
        assert all(finding.subject for finding in named)
        if not named:
            unseen.add(suffix)
        elif kind.loss is Loss.RECONSTRUCTIBLE:
            assert all(finding.repaired for finding in await scan(team)), suffix
            assert await scan(team) == [], suffix
            after = values(redis_client, prefix)
            # A time that follows from a lifetime is a millisecond off.
            differing = {name for name in before if before[name] != after.get(name)}
            assert differing <= ({key} if suffix == "chats" else set()), suffix
        else:
            await scan(team)
            assert [each for each in await scan(team) if each.damage.repair] == [], suffix
            for name in set(keys_of(redis_client, prefix)):
                if "{pool:" not in name:
                    redis_client.delete(name)
            await populate(team)
            continue
        redis_client.restore(key, left_ms, saved, replace=True)
    assert unseen == UNSEEN.keys() & seen
    assert len(seen) > 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_drill_of_many_keys(team: LocalTeam, redis_client: redis.Redis, seed: int) -> None:
    """A third of all keys is lost at once: the loss is named, one repair is enough, and all shared state goes on."""
    await populate(team)
    prefix, chosen = team.settings.prefix, random.Random(seed)
    keys = [key for key in keys_of(redis_client, prefix) if "{pool:" not in key]
    lost = chosen.sample(keys, len(keys) // 3)
    redis_client.delete(*lost)
    assert await scan(team, repair=False)
    await scan(team)
    left = await scan(team)
    assert [finding for finding in left if finding.damage.repair] == []
    await populate(team)
    assert await scan(team) == []
    assert len((await team.orc.chat(SESSION).hydrate()).messages) >= 30
    assert len(await team.orc.memory("ada").recent(100)) == 60
    assert (await team.orc.workspace(SESSION).snapshot()).paths["plan"].value == {"a": 1}


async def test_the_supervisor_keeps_memories(
    settings: Settings, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expired records of an idle agent go, and old ones move to the intermediate tier, without a call by a program."""
    monkeypatch.setattr(reconciler, "QUIET_REST_S", 0.0)
    changed = settings.model_copy(
        update={
            "memory": settings.memory.model_copy(update={"stm_age_s": 0.001}),
            "supervisor": settings.supervisor.model_copy(update={"sweep_s": 0.1}),
        }
    )
    async with run_local_team(changed, supervised=False) as team:
        memory = team.orc.memory("ada")
        await memory.store(Record(id="old", step=1, kind="plan", content=1))
        await memory.store(Record(id="short", step=2, kind="plan", content=2, ttl=0.001))
        own = ScopeKeys(settings.prefix, "agent", "ada")
        assert redis_client.hkeys(own.key("stm:hdr"))
        await team.start_supervisor()
        await wait_for(lambda: redis_client.hkeys(own.key("im:hdr")) == [b"old"], "the record to move", 20)
        assert redis_client.hkeys(own.key("stm:hdr")) == []
