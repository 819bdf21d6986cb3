"""The users of config/acl.conf: what each role needs is allowed, and nothing that it does not need."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from orchestrator import Message, Orchestrator, Record
from orchestrator.core.errors import ServerRefused
from orchestrator.core.settings_sources import load_settings
from orchestrator.doctor.acl import ROLES, acl_file
from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer, find_binary_of_line
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    binary = find_server_binary() if request.param == "newest" else find_binary_of_line("7.")
    if binary is None:
        pytest.skip("needs a redis-server 7.x on the PATH")
    # With a port, for replicas.
    with RedisServer(binary, port=0, options={"include": str(_file(tmp_path_factory.mktemp("acl")))}) as running:
        yield running


def _file(folder: Path) -> Path:
    text = re.sub(r"^(user \w+ on) ", r"\1 >pw ", acl_file(PREFIX), flags=re.MULTILINE)
    file = folder / "acl.conf"
    file.write_text(text.replace("user default off resetchannels -@all", "user default on nopass ~* &* +@all"))
    return file


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


@pytest.mark.parametrize("role", [role.name for role in ROLES])
def test_denied(server: RedisServer, role: str) -> None:
    """No role may administer the server, read other prefixes or search all keys; a viewer changes nothing."""
    keys = pool_keys(load_settings(os.devnull, {"prefix": PREFIX}, {"CREDENTIALS_DIRECTORY": os.devnull}))
    key = keys.task("1")
    denied = [*DENIED, *([*WRITING, "SCRIPT LOAD return"] if role == "viewer" else ())]
    if role in {"client", "operator", "viewer"}:
        denied += ["XREADGROUP GROUP workers me STREAMS KEY >", "XCLAIM KEY workers me 0 1-1"]
    if role in {"client", "viewer"}:
        denied += [f"XADD {keys.control} * c x", f"HSET {keys.desired} a b", f"DEL {keys.desired_revisions}"]
    with server.client() as admin:
        for command in denied:
            words = [word if word != "KEY" else key for word in command.split(" ")]
            reply: Any = admin.execute_command("ACL", "DRYRUN", role, *words)
            assert b"has no permissions" in reply, f"{role} may run {command}: {reply}"
        allowed = [
            f"HGETALL {key}",
            f"HGETALL {keys.desired}",
            f"EVALSHA x 1 {keys.root}",
            *(["WAIT 0 0"] if role != "viewer" else []),
        ]
        for command in allowed:
            assert admin.execute_command("ACL", "DRYRUN", role, *command.split(" ")) == b"OK", command


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
    """The commands in the file's heading give each user the commands of vector sets, which a newer server takes."""
    file = _file(tmp_path)
    typed = re.findall(r"^#\s+(sed .*vsim.*)$", file.read_text(), flags=re.MULTILINE)
    assert len(typed) == 2
    for command in typed:
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    with RedisServer(find_server_binary(), port=0, options={"include": str(file)}) as server:
        for role in ROLES:
            with redis.Redis.from_url(url_of(server, role.name)) as client:
                assert client.execute_command("VCARD", f"{PREFIX}:{{agent:a}}:vec") == 0
                if role.reads_only:
                    with pytest.raises(redis.ResponseError, match="no permissions"):
                        client.execute_command("VREM", f"{PREFIX}:{{agent:a}}:vec", "e")
