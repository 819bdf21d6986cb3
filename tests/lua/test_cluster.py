"""On a server in cluster mode: one slot per pool, every key of a script in it, and no id that could change that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from orchestrator.agent_state import scripts as agent_state_scripts
from orchestrator.agent_state.scripts import FieldRow
from orchestrator.agents.model import AgentSpec
from orchestrator.boards import scripts as board_scripts
from orchestrator.chat import scripts as chat_scripts
from orchestrator.chat.scripts import ChatCall, ChatReply, MessageRow
from orchestrator.core.errors import InvalidInput, ServerRefused
from orchestrator.core.ids import check_name, decode_foreign, encode_foreign
from orchestrator.core.settings import Settings, WorkspaceSettings
from orchestrator.limits import scripts as limit_scripts
from orchestrator.limits.providers import ProviderLimit
from orchestrator.locks.fenced_writer import CallerRow
from orchestrator.repair import scripts as repair_scripts
from orchestrator.simulations import scripts as simulation_scripts
from orchestrator.simulations.scripts import ListingRow
from orchestrator.store.calls import Call
from orchestrator.store.key_kinds import POOL_KEYS
from orchestrator.store.keys import PoolKeys
from orchestrator.store.script_files import all_scripts
from orchestrator.subjects import scripts as subject_scripts
from orchestrator.subjects.scripts import PlaceRow
from orchestrator.workspace import scripts as workspace_scripts
from orchestrator.workspace.scripts import ChangeCall, pack_limits
from tests.faultkit.servers import cluster_server
from tests.helpers.cases import each_case
from tests.lua.pool import Pool, row
from tests.lua.scenario import every_script, play
from tests.lua.scope import Scope, task_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faultkit.servers import RedisServer

T = TypeVar("T")

HOSTILE = [
    *[
        "{",
        "}",
        "{}",
        "}:{pool:q}",
        "{pool:q}",
        "a b",
        "a/b",
        "a:b",
        "a\r\nDEL x\r\n",
        "\x00",
        "\t",
        "%7D",
        "*",
        "[a-z]",
    ],
    *["~", "naïve", "日本語", "\u202e", "🙂", "'", '"', "\\", "$(id)", "a" * 256, " ", "task", "..", "limit:@ed"],
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """One server that is a whole cluster."""
    with cluster_server() as server:
        yield server


@pytest.fixture
def cluster_pool(cluster: RedisServer, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """An empty pool on it."""
    pool = Pool(cluster.url, f"{request.node.name.partition('[')[0]}:c:t")
    yield pool
    for name in pool.names():
        pool.execute("UNLINK", name)
    pool.close()


def slots_of(pool: Pool) -> set[int]:
    """Slots of all keys in the pool's namespace."""
    return {pool.execute("CLUSTER", "KEYSLOT", name) for name in pool.names()}


def test_every_script_stays_in_one_slot(cluster_pool: Pool) -> None:
    """The whole life of tasks, in all scripts: no undeclared slot is touched, every key hashes to the pool's slot."""
    assert play(cluster_pool) == every_script()
    assert slots_of(cluster_pool) == {cluster_pool.execute("CLUSTER", "KEYSLOT", cluster_pool.keys.root)}


class OneScope(Scope):
    """A scope that knows which of its scripts have run."""

    ran: frozenset[str] = frozenset()

    def call(self, call: Call[T]) -> T:
        """Run a call and note its script."""
        self.ran |= {call.script}
        return super().call(call)


def use_agent_state(scope: OneScope) -> None:
    """Write and add with a lock, and once more with the same op id."""
    task = task_id()
    value = scope.claim(f"exec:{task}", task).value
    rows = [FieldRow("status", "set", b'"busy"'), FieldRow("done", "bump", b"1")]
    for status in ("ok", "duplicate"):
        caller = CallerRow("op", f"exec:{task}", value, agent="ed")
        assert scope.call(agent_state_scripts.change(scope.keys, caller=caller, rows=rows, most=9)).status == status


def use_boards(scope: OneScope) -> None:
    """Count on two days."""
    for op in ("a", "b"):
        assert scope.call(board_scripts.add(scope.keys, op=op, member="ed", by=1, most=9)).status == "counted"
        scope.sleep(86_400_000)


def use_limits(scope: OneScope) -> None:
    """Fill two windows of one name, and make calls of a provider that pools share."""
    for window_us in (1_000_000, 60_000_000):
        for op, status in (("a", "allowed"), ("a", "duplicate"), ("b", "refused")):
            checked = limit_scripts.check(scope.keys, op=op, most=1, window_us=window_us, cost=1, sums=True)
            assert scope.call(checked).status == status
    keys, name, limit = scope.keys, "x", ProviderLimit(9, 60_000_000, 900, 60_000_000, 3, shared=True)
    for call in "ab":
        taken = limit_scripts.take(keys, name=name, call=call, tokens=9, definition=limit, lease_ms=1000, by="ed")
        assert scope.call(taken).status == "taken"
    scope.call(limit_scripts.renew(keys, name=name, calls=[("a", 3)], lease_ms=1000))
    outcome = limit_scripts.settle(keys, name=name, call="a", used=5, tokens_us=60_000_000, outcome="ok", shared=True)
    assert scope.call(outcome).status == "settled"
    scope.call(limit_scripts.block(keys, name=name, state="quota", told=b"ed"))
    assert scope.call(limit_scripts.clear(keys, name=name))
    on_pools = {script.name for script in all_scripts().values() if script.keys[0].name == "pool"}
    scope.ran -= on_pools


def use_subjects(scope: OneScope) -> None:
    """Note two places, leave one, and refuse more."""
    assert scope.call(subject_scripts.note(scope.keys, rows=[PlaceRow("a", 60_000), PlaceRow("b", 60_000)])) == "ok"
    assert scope.call(subject_scripts.leave(scope.keys, places=["a"])) == 1
    assert scope.call(subject_scripts.refuse(scope.keys, for_ms=60_000)) == 1


def use_simulations(scope: OneScope) -> None:
    """List a state, move it to another type and cell, remove it, and fill a buffer."""
    rows = [
        ListingRow("ed", "a", 1, 1, 5, "%7Bwolf%7D", "0_0", 1.0, 2.0, 1000),
        ListingRow("ed", "a", 2, 1, 6, "sheep", "1_0", 11.0, 2.0, 1000),
        ListingRow("ed", "b", 3, 0, 6, "", "", 0.0, 0.0, 0),
    ]
    assert scope.call(simulation_scripts.index(scope.keys, rows=rows, ttl_ms=60_000)) == 3
    for status in ("ok", "duplicate"):
        call = simulation_scripts.push(scope.keys, op="o", entity="%7Be", texts=[b"1", b"2"], cap=1, ttl_ms=60_000)
        assert scope.call(call).status == status


def use_chats(scope: OneScope) -> None:
    """Make every change of a chat with a hostile name, and read it."""
    source = encode_foreign("source", "}:{pool:q} ä")

    def change(wrapper: Callable[..., Call[ChatReply]], **args: Any) -> ChatReply:
        head = ChatCall(
            scope.keys, CallerRow(wrapper.__name__, "", "", "ed"), chat_scripts.pack_limits(Settings()), source
        )
        reply = scope.call(wrapper(head, **args))
        assert reply.status == "ok"
        return reply

    message = MessageRow("a", 1, "null", "-", "-", "null,null", b"{}")
    rev = change(chat_scripts.append, rows=[message, message._replace(id="b")]).rev
    assert len(scope.call(chat_scripts.page(scope.keys, source=source, before=3, limit=9))) == 2
    nobody = CallerRow("", "", "", "")
    noted = chat_scripts.extracted(scope.keys, caller=nobody, source=source, name="ed/x", upto=2, rev=rev)
    assert scope.call(noted).rest == (2,)
    assert change(chat_scripts.pop, number=2, revision=rev).rest == (2,)
    change(chat_scripts.put, row=message._replace(version=2), mode="newer")
    change(chat_scripts.meta, fields=[("f", b"1")], version=0, most=9)
    change(chat_scripts.summarize, text=b'"s"', upto=1, version=1)
    row = chat_scripts.RestoredRow(1, 1, 1, "c", *message[1:])
    assert change(chat_scripts.restore, rows=[row], base=0, shift=1, trimmed=0).rest == (1, 0)
    assert scope.call(chat_scripts.account(scope.keys, rows=[chat_scripts.SizeRow("a", 5, 1, 10**14)])) == (5, 1, 1)
    assert scope.call(chat_scripts.saved(scope.keys, source=source, upto=rev))
    assert change(chat_scripts.erase, subject="ann", for_ms=1, after=0).rest[2:] == (0, 1)
    change(chat_scripts.truncate, keep=1)
    assert scope.call(chat_scripts.since(scope.keys, source=source, rev=rev, seq=2, last=9)).word == "all"
    assert scope.call(chat_scripts.touch(scope.keys, source=source, ttl_ms=10**9, life_ms=10**10)) > 0
    change(chat_scripts.clear)


def use_repair(scope: OneScope) -> None:
    """Repair a workspace and a list of locks whose keys are lost."""
    value = scope.claim("exec", task_id()).value
    limits = pack_limits(WorkspaceSettings())
    for number in range(2):
        change = ChangeCall(scope.keys, CallerRow(f"op{number}", "exec", value, "ed"), limits)
        scope.call(workspace_scripts.append(change, log="l", texts=[b"1"], cap=9))
    for suffix in ("meta", "ws:parts", "locks"):
        scope.store.execute("UNLINK", scope.keys.key(suffix))
    scope.call(repair_scripts.check_parts(scope.keys, rows=[(b"ws:log:l", "list")], repair=True))
    scope.call(repair_scripts.check_workspace(scope.keys, ttl_ms=1000, repair=True))
    scope.call(repair_scripts.check_locks(scope.keys, rows=[b"exec"], repair=True))
    scope.call(repair_scripts.check_chat(scope.keys, source="a", first=0, repair=True))
    scope.call(repair_scripts.check_chats(scope.keys, rows=[b"a"], repair=True))
    scope.call(repair_scripts.check_records(scope.keys, tier="stm", part="hdr", rows=[b"a"], repair=True))
    scope.ran = frozenset(name for name in scope.ran if not name.startswith("workspace/"))


OTHER_SCOPES = {
    "chat": ("session", use_chats),
    "agent_state": ("agent", use_agent_state),
    "boards": ("board", use_boards),
    "limits": ("limit", use_limits),
    "subjects": ("subject", use_subjects),
    "simulations": ("sim", use_simulations),
    "repair": ("session", use_repair),
}


@each_case("folder", OTHER_SCOPES)
def test_scripts_of_other_scopes_stay_in_one_slot(cluster: RedisServer, folder: str) -> None:
    """Each script of a folder runs, and every key that it writes hashes to the slot of its scope."""
    kind, use = OTHER_SCOPES[folder]
    id_ = "ed" if kind == "agent" else "}:{pool:q} ä"
    scope = OneScope(cluster.url, f"{folder}:c:t", kind, id_)
    use(scope)
    # The others of this folder change keys of a pool.
    scripts = {script.name for script in all_scripts().values() if script.keys[0].name == "scope"}
    assert {name for name in scope.ran if not name.startswith("locks/")} == {
        name for name in scripts if name.startswith(f"{folder}/")
    }
    slot = scope.store.execute("CLUSTER", "KEYSLOT", scope.keys.root)
    assert scope.names()
    assert {scope.store.execute("CLUSTER", "KEYSLOT", name) for name in scope.names()} == {slot}
    for name in scope.names():
        scope.store.execute("UNLINK", name)
    scope.close()


def test_no_folder_is_left_out() -> None:
    """Every script runs in cluster mode: those of pools and of `OTHER_SCOPES` here, the others in their own folders."""
    own_tests = {
        "locks": "locks/test_slots.py",
        "memory": "memory/test_keys.py",
        "workspace": "workspace/test_keys.py",
    }
    assert all((Path(__file__).parent / test).exists() for test in own_tests.values())
    folders = {name.partition("/")[0] for name in all_scripts().keys() - every_script()}
    assert folders == OTHER_SCOPES.keys() | own_tests.keys()


def test_pools_have_slots_of_their_own(cluster: RedisServer) -> None:
    """Two pools of one prefix may live on different servers; one pool with two prefixes shares its slot."""
    pool = Pool(cluster.url, "p:q:r")
    slots = [pool.execute("CLUSTER", "KEYSLOT", PoolKeys("p:q:r", name).root) for name in ("a", "b")]
    assert slots[0] != slots[1]
    pool.close()


def test_another_slot_is_refused(cluster_pool: Pool) -> None:
    """The shebang makes the server itself refuse a script that leaves its slot."""
    text = "#!lua\nreturn redis.call('SET', KEYS[1] .. 'x', 1)"
    sha = cluster_pool.execute("SCRIPT", "LOAD", text)
    with pytest.raises(ServerRefused, match=r"non local key|undeclared key|Script attempted to access"):
        cluster_pool.execute("EVALSHA", sha, 1, "elsewhere")


@each_case("foreign", HOSTILE, fresh="cluster_pool")
def test_hostile_ids_do_no_harm(cluster_pool: Pool, foreign: str) -> None:
    """Any text as idempotency key: encoded reversibly, in the pool's slot, in a key of its own."""
    pool = cluster_pool
    encoded = encode_foreign("key", foreign)
    assert decode_foreign(encoded) == foreign
    pool.register()
    first, second = (
        row(idem=encoded, digest="d", reply="c1"),
        row(idem=encode_foreign("key", foreign[:255] + "b"), digest="d"),
    )
    assert [status for status, _ in pool.submit(first, second)] == ["created", "created"]
    assert pool.submit(row(idem=encoded, digest="d"), row(idem=encoded, digest="e")) == [
        ("duplicate", first.id),
        ("conflict", first.id),
    ]
    for delivery in pool.deliver():
        pool.end(delivery, payload=b"1")
    assert pool.replies() == [(first.id, "s1")]
    assert slots_of(pool) == {pool.execute("CLUSTER", "KEYSLOT", pool.keys.root)}
    stems = {kind.suffix.split(":")[0] for kind in POOL_KEYS}
    assert {name.removeprefix(f"{pool.keys.root}:").split(":")[0] for name in pool.names()} <= stems


@each_case("name", [text for text in HOSTILE if text not in {"a:b", "task", "limit:@ed"}])
def test_hostile_names_are_refused(name: str) -> None:
    """Names that we hand out are refused with a clear error when they could change a key."""
    with pytest.raises(InvalidInput, match="is not a valid name"):
        check_name("agent", name)
    with pytest.raises(InvalidInput):
        PoolKeys("a:b:c", name)


def test_no_agent_shares_a_key_with_another() -> None:
    """A name that reads like a part of another agent's keys is refused."""
    assert PoolKeys("a:b:c", "p").agent("ed:workers") == PoolKeys("a:b:c", "p").agent_workers("ed")
    with pytest.raises(InvalidInput, match="share a key with another agent"):
        AgentSpec("ed:workers", frozenset())


def test_scripts_fit_the_servers_language(cluster_pool: Pool) -> None:
    """Every script compiles under the hash that the loader computed."""
    for script in all_scripts().values():
        assert cluster_pool.execute("SCRIPT", "LOAD", script.text).decode() == script.sha
    assert Call("tasks/submit", {}, lambda reply: reply).sha == all_scripts()["tasks/submit"].sha
