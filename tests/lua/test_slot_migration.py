"""Slots of Redis Cluster that move: the server refuses every script before it starts (protocol rule 26)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pytest
import redis
from redis.exceptions import AskError, MovedError, TryAgainError

from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.store.keys import PoolKeys
from orchestrator.store.script_files import all_scripts
from orchestrator.store.store import Endpoint, Store, SyncStore
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import FinishStatus, Verdict, VerdictKind
from orchestrator.testing.waiting import wait_for
from tests.faultkit.slot_moves import slot_moves
from tests.helpers.end_state import find_violations
from tests.helpers.server_matrix import REDIS_SERVERS, binary_of
from tests.lua.locks.test_slots import play as use_locks
from tests.lua.memory.records import Records, use_every_script
from tests.lua.pool import DEAD_TTL_S, MAX_WAIT_S, Pool, row
from tests.lua.scenario import every_script, play
from tests.lua.scope import Scope
from tests.lua.test_cluster import OTHER_SCOPES, OneScope
from tests.lua.workspace.space import Space
from tests.lua.workspace.test_keys import use as use_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.store.calls import Call
    from tests.faultkit.servers import RedisServer
    from tests.faultkit.slot_moves import SlotMoves

T = TypeVar("T")

SHEBANG = "#!lua flags=allow-oom\n"
ROOT = "p:m:t:{pool:x}"
"""Declared by the scripts of these tests, as by those of the project: no key has this name."""


@pytest.fixture(scope="module", params=REDIS_SERVERS)
def cluster(request: pytest.FixtureRequest) -> Iterator[SlotMoves]:
    """Two servers in cluster mode."""
    with slot_moves(binary_of(request.param)) as running:
        yield running


@pytest.fixture
def moves(cluster: SlotMoves) -> Iterator[SlotMoves]:
    """The same servers, empty afterwards, and no slot moves."""
    yield cluster
    cluster.clear()


def send(moves: SlotMoves, number: int, *command: str | int, asking: bool = False) -> Any:
    """Send a command to a node; answer its reply, or the code of its error. `asking`: as clients that follow ASK do."""
    with moves.nodes[number].client() as client, client.pipeline(transaction=False) as pipeline:
        if asking:
            pipeline.execute_command("ASKING")
        pipeline.execute_command(*command)
        reply = pipeline.execute(raise_on_error=False)[-1]
    if not isinstance(reply, Exception):
        return reply
    names: dict[type[Exception], str] = {AskError: "ASK", MovedError: "MOVED", TryAgainError: "TRYAGAIN"}
    return names.get(type(reply)) or str(reply).partition(" script:")[0]


def pool_at_owner(moves: SlotMoves, prefix: str) -> Pool:
    """A pool on the node that has its slot."""
    return Pool(moves.nodes[moves.owner(PoolKeys(prefix, "p").root)].url, prefix)


# ------------------------------------------------------------------------------------------------ what the servers do

MISSING = "Script attempted to access a non local key in a cluster node"
SOME = "Unable to execute command 'exists' in script because undeclared keys were accessed during rehashing of the slot"
"""Redis 8 about a command with several keys, of which some are missing; Redis 7.0 says `MISSING`."""


@pytest.fixture
def halfway(moves: SlotMoves) -> SlotMoves:
    """A slot that moves: `here` has not moved yet, `moved` has; `none` exists on no node."""
    for name in ("here", "moved"):
        send(moves, moves.owner(ROOT), "SET", f"{ROOT}:{name}", 1)
    moves.begin(ROOT)
    moves.move(ROOT, [f"{ROOT}:moved"])
    return moves


def test_what_decides_is_the_declared_key(halfway: SlotMoves) -> None:
    """A node that a slot leaves starts a script whose declared key it holds; the other node only for ASKING clients."""
    source = halfway.owner(ROOT)
    for declared, at_source, at_target in [("", "ASK", 1), (":here", 1, 1), (":moved", "ASK", 1), (":none", "ASK", 1)]:
        call = ("EVAL", f"{SHEBANG}return 1", 1, f"{ROOT}{declared}")
        assert send(halfway, source, *call) == at_source, declared
        assert send(halfway, source, *call, asking=True) == at_source, declared
        assert send(halfway, 1 - source, *call) == "MOVED", declared
        assert send(halfway, 1 - source, *call, asking=True) == at_target, declared
    # An unknown script too, so that no client loads scripts because of a move.
    assert send(halfway, source, "EVALSHA", "f" * 40, 1, ROOT) == "ASK"


def test_inside_of_a_script_that_starts(halfway: SlotMoves) -> None:
    """Where the slot leaves, each command fails that meets a missing key; where it arrives, missing keys are empty."""
    source = halfway.owner(ROOT)
    some = MISSING if halfway.nodes[0].version.startswith("7.") else SOME
    for command, at_source, at_target in [
        ("'GET', r .. ':here'", b"1", None),
        ("'GET', r .. ':moved'", MISSING, b"1"),
        ("'GET', r .. ':none'", MISSING, None),
        ("'EXISTS', r .. ':none'", MISSING, 0),
        ("'EXISTS', r .. ':here', r .. ':moved'", some, some),
        ("'EXISTS', r .. ':none', r .. ':nor'", MISSING, some),
        ("'UNLINK', r .. ':none'", MISSING, 0),
        ("'HSET', r .. ':none', 'a', 1", MISSING, 1),
    ]:
        text = f"{SHEBANG}local r = '{ROOT}'\nreturn redis.call({command})"
        assert send(halfway, source, "EVAL", text, 1, f"{ROOT}:here") == at_source, command
        assert send(halfway, 1 - source, "EVAL", text, 1, f"{ROOT}:here", asking=True) == at_target, command


def test_scripts_with_a_key_that_exists_tear(moves: SlotMoves) -> None:
    """The twin: if the declared key existed, `finish` would stop in the middle and keep what it wrote before."""
    pool = pool_at_owner(moves, "torn:m:t")
    pool.register()
    (id_,) = pool.put()
    (delivery,) = pool.deliver()
    pool.execute("SET", pool.keys.format, 2)
    moves.begin(pool.keys.root)
    verdict = (delivery, Verdict(VerdictKind.SUCCEEDED, b"1"))
    call = task_scripts.finish(pool.keys, rows=[verdict], worker="w1", dead_ttl_s=DEAD_TTL_S, max_wait_s=MAX_WAIT_S)
    text = all_scripts()[call.script].text.replace("KEYS[1]", "string.match(KEYS[1], '^(.*):format$')")
    _, _, count, _, *args = call.command()
    with pytest.raises(ServerUnavailable, match="interrupted") as torn:
        pool.execute("EVAL", text, count, pool.keys.format, *args)
    assert torn.value.outcome_unknown
    with pytest.raises(ServerUnavailable, match="was not run"):
        pool.call(call)
    moves.undo(pool.keys.root)
    # The task has ended, but no counter, event or reply tells of it, and the repeat adds none.
    assert pool.state(id_) == "succeeded"
    assert pool.call(call).statuses == [FinishStatus.ALREADY]
    assert pool.events() == []
    pool.close()


def test_clients_that_follow_ask_divide_a_slot(moves: SlotMoves) -> None:
    """Why no client sends ASKING before a script: it would find an empty pool at the new node and fill it."""
    pool = pool_at_owner(moves, "asking:m:t")
    target = 1 - moves.owner(pool.keys.root)
    call = task_scripts.count_durable(pool.keys, counts={"fsync:asked": 1})
    assert [pool.call(call), pool.call(call)] == [1, 2]
    moves.begin(pool.keys.root)
    _, _, *arguments = call.command()
    command: Any = ("EVAL", all_scripts()[call.script].text, *arguments)
    assert call.parse(send(moves, target, *command, asking=True)) == 1
    with pytest.raises(redis.ResponseError, match="BUSYKEY"):
        moves.end(pool.keys.root)
    pool.close()


# ----------------------------------------------------------------------------------------------- scripts of the project


class Mover:
    """Moves the slot of a namespace before the first call of each script, which must change nothing meanwhile.

    Attributes:
        refused: the scripts that were called while their slot moved.
    """

    def __init__(self, moves: SlotMoves, user: Any) -> None:
        self._moves, self._user, self._root = moves, user, user.keys.root
        user.store.close()
        self._pools = [Pool(node.url, user.keys.prefix) for node in moves.nodes]
        self._use(moves.owner(self._root))
        self._random = Random(self._root)
        self.refused: set[str] = set()
        call = user.call

        def moved(made: Call[Any]) -> Any:
            if made.script not in self.refused:
                self.refused.add(made.script)
                self._refuse(made, call)
            return call(made)

        user.call = moved

    def close(self) -> None:
        """Close the connections."""
        for pool in self._pools:
            pool.close()

    def _use(self, number: int) -> None:
        self._user.store, self._user.link = self._pools[number].store, self._pools[number].link

    def _refuse(self, made: Call[Any], call: Callable[[Call[Any]], Any]) -> None:
        """Call a script while none, some and all keys have moved, then let the move end.

        Every fortieth move ends at the other node; the others are undone, which takes less time.
        """
        moves, root = self._moves, self._root
        source = moves.owner(root)
        keys = moves.keys(root, source)
        self._random.shuffle(keys)
        step = max(1, len(keys) // 9)
        moves.begin(root)
        for first in range(-step, len(keys), step):
            moves.move(root, keys[max(first, 0) : first + step])
            before = moves.changes()
            with pytest.raises(ServerUnavailable, match="was not run") as refused:
                call(made)
            assert not refused.value.outcome_unknown
            assert moves.changes() == before, made.script
        self._use(1 - source)
        before = moves.changes()
        with pytest.raises(StoreError):
            call(made)
        assert moves.changes() == before, made.script
        if len(self.refused) % 40 == 1:
            moves.end(root)
        else:
            moves.undo(root)
        self._use(moves.owner(root))


def end_of(pool: Pool, client: redis.Redis) -> object:
    """What a pool has in the end, without ids: counters, ends of tasks, violations."""
    violations = [found.partition(" is ")[2] for found in find_violations(client, pool.keys)]
    return pool.stats(), Counter(letter for _, letter in pool.events()), sorted(violations)


def test_no_script_of_a_pool_starts(
    moves: SlotMoves, redis_server: RedisServer, redis_client: redis.Redis, prefix: str
) -> None:
    """Each script is called while its slot moves: it changes nothing. Repeated, the calls lead to their usual end."""
    pool, still = Pool(moves.nodes[0].url, "pool:m:t"), Pool(redis_server.url, prefix)
    mover = Mover(moves, pool)
    assert play(pool) == every_script() == mover.refused
    assert pool.execute("EXISTS", pool.keys.root) == 0
    play(still)
    assert end_of(pool, moves.clients[moves.owner(pool.keys.root)]) == end_of(still, redis_client)
    still.close()
    mover.close()


def test_no_script_of_a_scope_starts(moves: SlotMoves) -> None:
    """The same for locks and shared state, which have slots of their own."""
    refused: set[str] = set()

    def run(use: Callable[[Any], object], make: Callable[..., Any], prefix: str, **options: str) -> None:
        user = make(moves.nodes[0].url, prefix, **options)
        mover = Mover(moves, user)
        use(user)
        refused.update(mover.refused)
        mover.close()

    run(use_locks, Scope, "locks:m:t")
    run(use_workspace, Space, "space:m:t")
    run(use_every_script, Records, "memories:m:t")
    for folder, (kind, use) in OTHER_SCOPES.items():
        run(use, OneScope, f"{folder}:m:t", kind=kind, id_="ed")
    assert refused >= all_scripts().keys() - every_script()


# ---------------------------------------------------------------------------------------------------------- both stores


@pytest.mark.parametrize("kind", ["asyncio", "thread"])
async def test_stores_wait_for_the_end_of_a_move(moves: SlotMoves, kind: str) -> None:
    """A call that meets a moving slot is repeated until the move ends; no store sends ASKING before it."""
    keys = PoolKeys("stores:m:t", "p")
    source = moves.owner(keys.root)
    endpoint = Endpoint.at(moves.nodes[source].url)
    call = task_scripts.submit(keys, rows=[row().sent()], max_tasks=9, max_wait_s=99)
    for number in (0, 1):
        moves.ask(number, "CONFIG", "RESETSTAT")
    moves.begin(keys.root)
    answers: list[task_scripts.SubmitAnswer] = []

    async def submit() -> None:
        if kind == "asyncio":
            async with Store(endpoint, keys) as store:
                answer = await store.call(call, retry_for_s=20)
        else:
            sync_store = SyncStore(endpoint, keys, name="test")
            answer = await anyio.to_thread.run_sync(partial(sync_store.call, call, retry_for_s=20))
            sync_store.close()
        answers.extend(answer)

    def refused() -> int:
        found: Any = moves.clients[source].info("commandstats")
        return int(found.get("cmdstat_evalsha", {}).get("rejected_calls", 0))

    async with anyio.create_task_group() as group:
        group.start_soon(submit)
        await wait_for(lambda: refused() > 1, "a second try")
        assert answers == []
        moves.undo(keys.root)
    assert [answer.status for answer in answers] == ["created"]
    for client in moves.clients:
        assert "cmdstat_asking" not in client.info("commandstats")
