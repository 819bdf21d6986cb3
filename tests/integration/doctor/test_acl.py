"""The users of config/acl.conf: what each role needs is allowed, and nothing that it does not need."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from anyio import to_thread

from orchestrator import Agent, Message, Orchestrator, Record
from orchestrator.core.errors import ServerRefused, ServerUnavailable
from orchestrator.core.settings_sources import load_settings
from orchestrator.doctor.acl import ROLES, AclRole, AclScope, acl_file
from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.services import pool_keys
from orchestrator.store.key_kinds import POOL_KEYS, KeyKind, Writers
from orchestrator.store.script_files import all_scripts
from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer, find_binary_of_line
from tests.helpers import roles
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.server_matrix import CLUSTER
from tests.helpers.terminal import ORC, Done, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.core.settings import Settings
    from tests.helpers.server_matrix import Topology

ROOT = Path(__file__).parents[3]
PREFIX = "shop:prod:acme"
READING = (
    "status", "agents list", "agents show free", "agents top", "workers list", "queues list", "limits list",
    "tasks list", "tasks list --state succeeded", "tasks show TASK", "tasks show WAITING", "tasks result TASK",
    "tasks wait TASK", "dead list", "events", "stats", "schedules list", "sessions list", "sessions show order-1",
    "skills list", "skills show size", "locks list", "keys check", "keys report", "control list", "config published",
    "upgrade status", "workspace events order-1", "workspace log order-1 notes", "chat show order-1",
    "chat export order-1", "memory list free", "memory show free r1", "memory export free",
)  # fmt: skip
DENIED = (
    "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET *", "CONFIG SET save x", "SHUTDOWN", "DEBUG SLEEP 0", "SAVE",
    "BGSAVE", "ACL SETUSER x on", "ACL LIST", "CLIENT KILL ID 1", "MONITOR", "EVAL return 0", "FUNCTION LIST",
    "SWAPDB 0 1", "REPLICAOF NO ONE", "MODULE LIST", "CLUSTER RESET", "SCRIPT FLUSH", "SCRIPT KILL", "SORT KEY",
    "MIGRATE h 1 k 0 1", "RESTORE KEY 0 x", "SLOWLOG GET", "LATENCY RESET", "GET other:prod:acme:x", "SELECT 1",
    "SET other:prod:acme:x 1", "PUBLISH c m", "XGROUP DESTROY KEY g", "XAUTOCLAIM KEY g c 0 0", "XSETID KEY 1-1",
)  # fmt: skip
"""What no role may do, on keys of the prefix (KEY) or elsewhere."""
CLOSED = (
    "inbox:A", "agents", "agent:A", "agent:A:workers", "workers", "worker:W", "leases:A", "offers:A", "lent:A",
    "room:S", "skills:S", "versions", "versions:S", "desired", "desired:revisions", "control", "receipts:CMD", "leader",
    "supervisors", "limits", "selection:CMD",
)  # fmt: skip
"""What clients must not write."""
WRITING = (
    "SET KEY 1",
    "DEL KEY",
    "HSET KEY f v",
    "XADD KEY * f v",
    "ZADD KEY 0 m",
    "EXPIRE KEY 1",
    "SCRIPT LOAD return",
)


@pytest.fixture(scope="module", params=["newest", pytest.param("redis7", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with the file, a password for each user, and a default user for the test."""
    with _run_server(request.param, tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module", params=["newest", "redis7"])
def each_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The same, for quick tests: also the older server in each run."""
    with _run_server(request.param, tmp_path_factory) as running:
        yield running


@contextmanager
def _run_server(which: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    binary = find_server_binary() if which == "newest" else find_binary_of_line("7.")
    if binary is None:
        pytest.skip("needs a redis-server 7.x on the PATH")
    # With a port, for replicas.
    with RedisServer(binary, port=0, options={"include": str(_file(tmp_path_factory.mktemp("acl")))}) as running:
        yield running


def _file(folder: Path, *, vector_sets: bool = False) -> Path:
    text = re.sub(
        r"^(user \w+ on) ", r"\1 >pw ", acl_file(AclScope(PREFIX, vector_sets=vector_sets)), flags=re.MULTILINE
    )
    file = folder / "acl.conf"
    file.write_text(text.replace("user default off resetchannels -@all", "user default on nopass ~* &* +@all"))
    return file


def _is_refused(user: redis.Redis, *words: str) -> bool:
    try:
        user.execute_command(*words)  # type: ignore[no-untyped-call]
    except redis.exceptions.NoPermissionError:
        return True
    except redis.ResponseError:
        return False
    return False


def _example(kind: KeyKind) -> str:
    """Return the suffix of a key of a kind."""
    return re.sub(r"[A-Z]+", "x1", kind.suffix.replace("MINUTE", "29924730"))


def url_of(server: RedisServer, role: str) -> str:
    """The URL with the login of a role."""
    return f"unix://{role}:pw@{server.directory}/redis.sock"


def denials(client: redis.Redis) -> list[dict[str, Any]]:
    """What the server has refused."""
    log: Any = client.acl_log()
    return [{name: entry[name] for name in ("reason", "object", "username", "context")} for entry in log]


def test_each_role_can_do_its_work(server: RedisServer, tmp_path: Path) -> None:
    """Supervisor, worker, client, operator and viewer work side by side, and the server denies nothing."""
    environ = {
        **os.environ,
        "ORC_PREFIX": PREFIX,
        "ORC_LIMITS": '{"shared": "100/s"}',
        "ORC_SUPERVISOR__SWEEP_S": "0.2",
    }
    environ |= {"ORC_WORKER__HEARTBEAT_S": "0.3", "ORC_LOGGING__FORMAT": "json"}
    agents = "tests.fault.reload_agents"
    commands = {
        "supervisor": [ORC, "supervisor", "run"],
        "worker": [sys.executable, "-P", "-m", "orchestrator.workers", f"{agents}:agent", f"{agents}:free"],
    }
    with ExitStack() as stack:
        admin = stack.enter_context(server.client())
        admin.acl_log_reset()
        actors: dict[str, ActorProcess] = {}
        for role, command in commands.items():
            variables = {**environ, "ORC_REDIS__URL": url_of(server, role)}
            actors[role] = stack.enter_context(ActorProcess(command, name=role, env=variables, cwd=ROOT))
        actors["worker"].wait_output("worker_started", 20)
        actors["supervisor"].wait_output("leadership_acquired", 20)
        operator = Terminal(tmp_path, ORC_REDIS__URL=url_of(server, "operator"), ORC_PREFIX=PREFIX)
        client = Terminal(tmp_path, ORC_REDIS__URL=url_of(server, "client"), ORC_PREFIX=PREFIX)
        viewer = Terminal(tmp_path, ORC_REDIS__URL=url_of(server, "viewer"), ORC_PREFIX=PREFIX)

        def run(terminal: Terminal, line: str) -> str:
            done = terminal.orc(*line.split(" "))
            assert done.code in {0, 1}, f"orc {line}: {done}"
            assert "NOPERM" not in done.out + done.err, f"orc {line}: {done}"
            assert denials(admin) == [], line
            return done.out.strip()

        done = run(client, "tasks submit size -a length=3 --session order-1 -o id")
        run(client, f"tasks wait {done}")
        run(client, "tasks submit stamp -o id --wait")
        waiting = run(client, "tasks submit size -a length=3 --delay 1h -o id")
        failing = run(client, "tasks submit fail -o id")
        wait_until(lambda: "retry" in actors["worker"].output, actors["worker"].output, 10)
        run(client, f"tasks cancel {failing} --yes")
        run(client, "chat append order-1 hello --turn t1")
        asyncio.run(_share(url_of(server, "client")))
        assert denials(admin) == []
        for line in READING:
            run(viewer, line.replace("TASK", done).replace("WAITING", waiting))
            run(operator, line.replace("TASK", done).replace("WAITING", waiting))
        for line in (
            "agents pause free --reason test", "agents resume free --reason test",
            "control log-level info --reason test", "limits set shared 5/s --reason test",
            "limits reset shared --reason test", "stop --reason test", "start --reason test",
            f"tasks cancel {waiting} --reason test", "config publish a.b 1 --reason test",
        ):  # fmt: skip
            run(operator, line)
        run(client, "chat append order-2 hello")
        run(operator, "chat clear order-2 --yes --reason test")
        run(operator, "sessions delete order-1 --yes --reason test")
        # The doctor tries commands that it can do without, such as CONFIG GET, and knows the roles.
        for terminal in (operator, viewer):
            found = {
                line["code"]: line for line in map(json.loads, terminal.orc("doctor", "-o", "jsonl").out.splitlines())
            }
            assert found["rights"]["severity"] == "ok", found["rights"]
            assert "has the rights of its role" in found["rights"]["found"]
        admin.acl_log_reset()
        for actor in (actors["worker"], actors["supervisor"]):
            actor.terminate()
            assert actor.wait_exit(20) == 0, actor.output
        assert denials(admin) == []
        assert "NOPERM" not in actors["worker"].output + actors["supervisor"].output


async def _share(url: str) -> None:
    """Use every kind of shared state from a program that submits."""
    settings = load_settings(overrides={"redis.url": url, "prefix": PREFIX})
    async with Orchestrator(settings=settings) as orc:
        await orc.limits.check("shared", limit=2, window=60)
        await orc.board("points").add("ann")
        await orc.agents.set_state("free", {"status": "busy"})
        await orc.chat("order-1").append([Message({"role": "user", "content": "Hello"}, subject="ann")])
        record = Record(id="r1", step=1, kind="plan", content="x", subject="ann", simulation="run-1")
        await orc.memory("free").store(record)
        async with orc.workspace("order-1").edit() as ws:
            await ws.set("title", "x")


def test_a_replica_follows(server: RedisServer) -> None:
    """A server that logs in as `replica` is in step; the user may do nothing else."""
    options = {"masteruser": "replica", "masterauth": "pw"}
    with server.client() as admin, RedisServer(port=0, options=options) as replica, replica.client() as follower:
        admin.config_set("repl-diskless-sync-delay", "0")
        admin.acl_log_reset()
        follower.config_set("masteruser", "client")
        follower.replicaof("127.0.0.1", str(server.port))
        # The twin: another user may not.
        wait_until(lambda: any(entry["username"] == "client" for entry in denials(admin)), "a denial", 10)
        follower.config_set("masteruser", "replica")
        follower.replicaof("NO", "ONE")
        follower.replicaof("127.0.0.1", str(server.port))
        wait_until(lambda: follower.info("replication")["master_link_status"] == "up", "a replica in step", 10)
        assert not any(entry["username"] == "replica" for entry in denials(admin))
        follower.replicaof("NO", "ONE")
        admin.acl_log_reset()
    with redis.Redis.from_url(url_of(server, "replica")) as limited:
        for command in ("GET x", "INFO", "KEYS *", "CONFIG GET *"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                limited.execute_command(*command.split(" "))


@pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])
def test_denied(each_server: RedisServer, role: AclRole) -> None:
    """No role may administer the server, read other prefixes or search all keys; sent, not dry-run."""
    keys = pool_keys(load_settings(os.devnull, {"prefix": PREFIX}, {"CREDENTIALS_DIRECTORY": os.devnull}))
    denied = [*DENIED, *(WRITING if role.writes is None else ())]
    denied = [command for command in denied if not (role.loads_only and command.startswith("SCRIPT LOAD"))]
    if not role.takes_tasks:
        denied += ["XREADGROUP GROUP workers me STREAMS INBOX >", "XCLAIM INBOX workers me 0 1-1"]
    if role.writes == Writers.CLIENTS:
        denied += ["XADD INBOX * t x", "XTRIM INBOX MAXLEN 0", "XGROUP CREATE INBOX g 0", "DEL INBOX"]
    if role.loads_only:
        denied += [f"EVALSHA {'0' * 40} 1 {keys.root}", "GET KEY", "HGETALL KEY", f"GET {keys.format}", "SCAN 0"]
    words = {"KEY": keys.task("1"), "INBOX": keys.inbox("ed")}
    with redis.Redis.from_url(url_of(each_server, role.name)) as user:
        for command in denied:
            assert _is_refused(user, *(words.get(word, word) for word in command.split(" "))), command
        if not role.loads_only:
            assert user.hgetall(keys.task("1")) == {}
            assert user.hgetall(keys.desired) == {}
            with pytest.raises(redis.exceptions.NoScriptError):
                user.evalsha("0" * 40, 1, keys.root)


@pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])
def test_written_keys(each_server: RedisServer, role: AclRole) -> None:
    """Each role may write the kinds of keys of its level, and Redis refuses all others."""
    root = pool_keys(load_settings(os.devnull, {"prefix": PREFIX}, {"CREDENTIALS_DIRECTORY": os.devnull})).root
    writes = {"hash": "HSET KEY f v", "list": "RPUSH KEY v", "set": "SADD KEY m", "string": "SET KEY 1"}
    writes |= {"zset": "ZADD KEY 0 m", "stream": "XADD KEY * f v", "any": "SET KEY 1"}
    allowed = set()
    with each_server.client() as admin, redis.Redis.from_url(url_of(each_server, role.name)) as user:
        for kind in POOL_KEYS:
            key = f"{root}:{_example(kind)}"
            command = writes[kind.type.partition(",")[0]].replace("KEY", key)
            try:
                user.execute_command(*command.split(" "))
            except redis.exceptions.NoPermissionError:
                continue
            allowed.add(kind.suffix)
        admin.flushall()
    assert allowed == {kind.suffix for kind in POOL_KEYS if role.writes is not None and kind.writers <= role.writes}
    # The table itself: what each role must not write, whatever it says.
    closed = set(CLOSED)
    if role.name in {"operator", "supervisor"}:
        closed = set()
    elif role.name != "client" and role.writes is not None:
        closed = {"desired", "desired:revisions", "control", "leader", "supervisors"} - (
            {"desired", "desired:revisions", "control"} if role.name == "pauser" else set()
        )
    assert not closed & allowed


@pytest.mark.every_server(alone=True)
async def test_a_pool_of_its_own(redis_server: RedisServer, redis_client: redis.Redis, settings: Settings) -> None:
    """Users of one pool work in it, and can neither read nor change a key of another pool."""
    mine = local_settings(redis_server.url, settings.prefix, pool="mine")
    theirs = pool_keys(local_settings(redis_server.url, settings.prefix, pool="theirs"))
    roles.set_users(redis_server, settings.prefix, pool="mine")
    agent = Agent("ed")

    @agent.skill
    async def add(a: int, b: int) -> int:
        return a + b

    async with run_local_team(mine) as team:
        await team.work(agent)
        async with team.orc.locks().hold("door"):
            assert await (await team.orc.submit("add", {"a": 1, "b": 2})).result(timeout=TIMEOUT_S) == 3
        await team.orc.board("points").add("ann")
    assert roles.denials() == []
    for role in ROLES:
        with redis.Redis.from_url(roles.url_of(redis_server, role.name)) as user:
            for kind in POOL_KEYS:
                key = f"{theirs.root}:{_example(kind)}"
                for command in ("EXISTS KEY", "DEL KEY", "TYPE KEY", "HGETALL KEY", "XADD KEY * f v"):
                    assert _is_refused(user, *command.replace("KEY", key).split(" ")), (role, command, key)
            for command in (
                f"EVALSHA {'0' * 40} 1 {theirs.root}", f"GET {theirs.prefix}:{{locks:theirs}}:lock:door",
                f"SPUBLISH {theirs.out('1')} x", f"SET {theirs.prefix}:{{pool:mine2}}:x 1",
            ):  # fmt: skip
                assert _is_refused(user, *command.split(" ")), (role, command)
    redis_client.acl_log_reset()


def test_the_loader_loads_at_each_master(
    running_server: Callable[[str], Topology], prefix: str, tmp_path: Path
) -> None:
    """`orc upgrade load` of a cluster loads the scripts at all masters, as a user who may do nothing else."""
    cluster = running_server(CLUSTER)
    for node in cluster.servers:
        roles.set_users(node, prefix, loader_only=True)
        with node.client() as direct:
            direct.script_flush()
    url = cluster.url.replace("://", f"://loader:{roles.PASSWORD}@")
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url, ORC_PREFIX=prefix)
    loaded = len(all_scripts()) * len(cluster.servers)
    assert terminal.orc("upgrade", "load") == Done(0, f"loaded {loaded} scripts\n", "")
    for node in cluster.servers:
        with node.client() as direct:
            assert all(direct.script_exists(*(script.sha for script in all_scripts().values())))


@pytest.mark.every_server(alone=True)
async def test_only_the_loader_loads(
    redis_server: RedisServer, redis_client: redis.Redis, settings: Settings, tmp_path: Path
) -> None:
    """Without the right to load scripts programs work once the loader has loaded them, and say so before."""
    roles.set_users(redis_server, settings.prefix, loader_only=True)
    redis_client.script_flush()
    agent = Agent("ed")

    @agent.skill
    async def hello() -> str:
        return "hello"

    with pytest.raises(ServerUnavailable, match=r"type `orc upgrade load` as a user who may, such as loader"):
        async with Orchestrator(settings=settings) as orc:
            await orc.submit("hello")
    assert roles.denials()
    redis_client.acl_log_reset()
    terminal = Terminal(tmp_path, ORC_REDIS__URL=roles.url_of(redis_server, "loader"), ORC_PREFIX=settings.prefix)
    assert await to_thread.run_sync(terminal.orc, "upgrade", "load") == Done(
        0, f"loaded {len(all_scripts())} scripts\n", ""
    )
    assert (await to_thread.run_sync(terminal.orc, "upgrade", "load")).out == "Redis has all scripts\n"
    async with run_local_team(settings) as team:
        await team.work(agent)
        assert await (await team.orc.submit("hello")).result(timeout=TIMEOUT_S) == "hello"


async def test_client_gives_no_commands(server: RedisServer) -> None:
    """A client that tries to stop an agent is refused by Redis, without a secret, and nothing has changed."""
    settings = load_settings(os.devnull, {"prefix": PREFIX, "redis.url": url_of(server, "client")}, {})
    async with Orchestrator(settings=settings) as orc:
        with pytest.raises(
            ServerRefused, match=r"No permissions to access a key|can't access at least one of the keys"
        ):
            await orc.admin.stop(reason="I may not")
    with server.client() as admin:
        assert b"stop:all" not in json.dumps(str(admin.hgetall(pool_keys(settings).desired))).encode()
        admin.flushall()


def test_rules_for_vector_sets(tmp_path: Path) -> None:
    """With `--vector-sets` each user has the commands of vector sets, which a newer server takes."""
    file = _file(tmp_path, vector_sets=True)
    with RedisServer(find_server_binary(), port=0, options={"include": str(file)}) as server:
        for role in ROLES:
            if role.loads_only:
                continue
            with redis.Redis.from_url(url_of(server, role.name)) as client:
                assert client.execute_command("VCARD", f"{PREFIX}:{{agent:a}}:vec") == 0
                if role.reads_only:
                    with pytest.raises(redis.ResponseError, match="no permissions"):
                        client.execute_command("VREM", f"{PREFIX}:{{agent:a}}:vec", "e")
