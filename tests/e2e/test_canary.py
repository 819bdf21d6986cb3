"""One secret, wherever the settings take it from, is in nothing that the programs print, store, export or start.

Handlers read the settings and raise, log and reject with the secrets in the text, in the event loop, in threads and in
processes. A word beside the secrets shows that each place that is searched has the text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio
import pytest
import redis

from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer
from tests.helpers.canary_agents import PLAIN
from tests.helpers.http_client import request
from tests.helpers.subprocesses import ROOT
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD: Final = "c4n4ry"
PASSWORD: Final = f"{WORD}/#@%:?é+ &"
SECRET: Final = f"{WORD}-signs-the-commands"
PREFIX: Final = "canary:e2e:t"
HOWS: Final = ("raise", "reject", "retry", "snooze", "log", "environ")
BAD: Final = (
    "redis://:{0}/x@h", "redis://:{0}#x@h:1/0", "redis://:{0}%x@h", "redis://:1/{0}@h", "redis://:{0}?x@h",
    "redis://h/{0}", "redis://:{0}@h:x", "{0}", "http://u:{0}@h", "redis://h?pass={0}",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis with a password."""
    with RedisServer(port=0) as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        yield server


def _settings_from(source: str, server: RedisServer, folder: Path) -> dict[str, str]:
    """Give the address and the signing secret by a source; return the variables that programs need for it."""
    password, place = quote(PASSWORD, safe=""), f"127.0.0.1:{server.port}/0"
    in_login, in_query = f"redis://:{password}@{place}", f"redis://{place}?password={password}"
    match source:
        case "environment":
            return {"ORC_REDIS__URL": in_login, "ORC_CONTROL__SECRET": SECRET}
        case "section":
            return {"ORC_REDIS": json.dumps({"url": in_query}), "ORC_CONTROL": json.dumps({"secret": SECRET})}
        case "file":
            file = folder / "orchestrator.toml"
            file.write_text(f'[redis]\nurl = "{in_query}"\n[control]\nsecret = "{SECRET}"\n')
            return {"ORC_CONFIG": str(file)}
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "ORC_REDIS__URL").write_text(in_login)
    (secrets / "ORC_CONTROL__SECRET").write_text(SECRET)
    return {"CREDENTIALS_DIRECTORY": str(secrets)}


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _descendants(int(child))


def _known_of(pid: int) -> str:
    """Return what other processes see of one: its command line and its environment."""
    found = b"\n".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    return found.decode(errors="replace")


def _stored(server: RedisServer) -> str:
    """Return the names and contents of all keys of the pool."""
    with redis.Redis(port=server.port or 0, password=PASSWORD) as client:
        connected: Any = client
        return "\n".join(f"{key!r} {_contents(connected, key)!r}" for key in connected.scan_iter(f"{PREFIX}:*"))


def _contents(client: Any, key: bytes) -> object:
    match client.type(key):
        case b"string":
            return client.get(key)
        case b"hash":
            return client.hgetall(key)
        case b"set":
            return client.smembers(key)
        case b"zset":
            return client.zrange(key, 0, -1)
        case b"list":
            return client.lrange(key, 0, -1)
        case b"stream":
            return client.xrange(key)
    return None


async def _scrape(folder: Path) -> str:
    return (await request(f"unix:{folder}/supervisor.sock", "/metrics")).body


@pytest.mark.slow
@pytest.mark.parametrize("source", ["environment", "section", "file", "secrets"])
def test_no_place_has_the_secret(source: str, server: RedisServer, tmp_path: Path) -> None:
    """Log, exceptions, command lines, environments, keys, views, backup, metrics and spans of a whole pool."""
    terminal = Terminal(
        tmp_path,
        **_settings_from(source, server, tmp_path),
        ORC_PREFIX=PREFIX,
        ORC_LOGGING__LEVEL="debug",
        ORC_LOGGING__FORMAT="json",
        ORC_WORKER__DRAIN_S="1",
        ORC_SUPERVISOR__HEALTH=f"unix:{tmp_path}/supervisor.sock",
        OTEL_TRACES_EXPORTER="console",
        PYTHONPATH=str(ROOT),
    )
    texts: dict[str, str] = {}
    command = [ORC, "up", "tests.helpers.canary_agents:agent"]
    with ActorProcess(command, name="up", env=terminal.environ, cwd=tmp_path) as up:
        up.wait_output("worker_started", timeout_s=40)
        up.wait_output("leadership_acquired", timeout_s=40)
        tasks = _work(terminal)
        pids = list(_descendants(up.pid))
        assert len(pids) >= 5  # itself, supervisor, host, worker, the process of handlers
        texts |= {f"process {pid}": _known_of(pid) for pid in pids}
        texts |= _views(terminal, tasks) | {"keys": _stored(server), "metrics": anyio.run(_scrape, tmp_path)}
        backup = tmp_path / "pool.orc"
        assert terminal.orc("backup", str(backup), "--plain").code == 0
        texts["backup"] = backup.read_text(errors="replace")
        up.terminate()
        up.wait_exit(30)
        texts["log"] = up.output
    leaks = [f"{place}: {line[:400]}" for place, text in texts.items() for line in text.splitlines() if WORD in line]
    assert leaks == []
    dead = f"dead show {tasks['in_process raise']} -o json"
    for place in ("log", "keys", "backup", dead, "dead export --all -o json", "control list -o json"):
        assert PLAIN in texts[place], place
    assert '"span_id": "' in texts["log"], "spans"


def _work(terminal: Terminal) -> dict[str, str]:
    """Let a task of each kind leak in each way; return their ids."""
    tasks = {}
    for skill in ("in_loop", "in_thread", "in_process"):
        for how in (*HOWS, *(("hold",) if skill == "in_loop" else ())):
            done = terminal.orc("tasks", "submit", skill, "-a", f"how={how}")
            assert done.code == 0, done
            tasks[f"{skill} {how}"] = done.out.strip()
    for name, task in tasks.items():
        if name.endswith("snooze"):
            wait_until(lambda task=task: "scheduled" in terminal.orc("tasks", "show", task).out, name, 20)  # type: ignore[misc]
        else:
            ended = terminal.orc("tasks", "wait", task, "--timeout", "40s")
            assert ended.code in {0, 1}, (name, ended)
        if name.endswith("environ"):
            assert terminal.orc("tasks", "result", task).json() == {"canary": False, "path": True}, name
    return tasks


def _views(terminal: Terminal, tasks: dict[str, str]) -> dict[str, str]:
    typed = [("status",), ("doctor", "--all"), ("config", "show", "--sources"), ("config", "diff"), ("events",)]
    typed += [("control", "list"), ("dead", "list"), ("dead", "list", "--group", "reason"), ("dead", "export", "--all")]
    typed += [("tasks", "list", "--debug"), ("tasks", "list", "--reason-contains", PLAIN), ("keys", "report")]
    typed += [("tasks", one, task) for task in tasks.values() for one in ("show", "why")]
    typed += [("dead", "show", tasks[f"{skill} raise"]) for skill in ("in_loop", "in_thread", "in_process")]
    found = {}
    for words in typed:
        done = terminal.orc(*words, "-o", "json")
        found[" ".join((*words, "-o json"))] = done.out + done.err
    return found


def test_a_wrong_address_is_refused_without_its_text(tmp_path: Path) -> None:
    """By every program at its start, wherever the address stands, with the exit code of a wrong configuration."""
    terminal = Terminal(tmp_path, ORC_LOGGING__FORMAT="json")
    file = tmp_path / "orchestrator.toml"
    for form in BAD:
        url = form.format(WORD)
        file.write_text(f"[redis]\nurl = {json.dumps(url)}\n")
        given: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
            (("config", "validate"), {"ORC_REDIS__URL": url}),
            (("config", "validate", str(file)), {}),
            (("config", "validate"), {"ORC_REDIS": json.dumps({"url": url})}),
            (("status", "--debug", "--url", url), {}),
            (("doctor",), {"ORC_REDIS__URL": url}),
            (("tasks", "submit", "x", "--debug"), {"ORC_REDIS__URL": url}),
        )
        for words, variables in given:
            done = terminal.orc(*words, **variables)
            assert WORD not in done.out + done.err, (words, form, done)
            # The doctor goes on with its other checks.
            assert done.code == (1 if words == ("doctor",) else 78), (words, form, done)
    for words in (("worker", "run", "my_agents:agent"), ("supervisor", "run"), ("up", "my_agents:agent")):
        done = terminal.process(*words, "--debug", ORC_REDIS__URL=BAD[0].format(WORD))
        assert (done.code, WORD in done.out + done.err) == (78, False), (words, done)
