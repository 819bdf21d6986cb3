"""No secret of the settings and no data of a redacted skill appears outside of the data itself.

The password of Redis, the signing secrets and the arguments of tasks all contain one word. A whole pool runs, tasks
fail and die, every command that shows something is typed, and the word is searched for in all that came out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio
import pytest

from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer
from tests.helpers.http_client import request
from tests.helpers.subprocesses import ROOT
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

WORD: Final = "canary91ab"
PASSWORD: Final = f"p@ss/{WORD}:ä"
SECRET: Final = f"{WORD}-signing-secret-of-the-pool"
FILE_SECRET: Final = f"{WORD}-former-signing-secret-in-a-file"
DATA: Final = f"{WORD}-data-of-a-task"

SHOWN: Final = (
    ("status",), ("doctor",), ("stats",), ("tasks", "list"), ("tasks", "list", "--session", "s1"), ("dead", "list"),
    ("dead", "list", "--group", "error"), ("dead", "export", "--all"), ("config", "show"), ("config", "diff"),
    ("events",), ("control", "list"), ("redis", "info"), ("schedules", "list"), ("schedules", "show", "nightly"),
    ("agents", "list"), ("agents", "show", "vault"), ("workers", "list"), ("skills", "show", "pay"), ("queues", "list"),
    ("sessions", "show", "s1"), ("keys", "check"), ("upgrade", "status"),
)  # fmt: skip
"""Commands that show something of a pool."""
OF_A_TASK: Final = (("tasks", "show"), ("tasks", "why"), ("tasks", "watch"), ("tasks", "wait"), ("tasks", "result"))
OF_A_DEAD_TASK: Final = (*OF_A_TASK, ("dead", "show"), ("dead", "export"))


@dataclass
class Evidence:
    """What a pool printed, by source, and the ids of its tasks."""

    texts: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)

    @property
    def leaks(self) -> list[str]:
        """The sources in which the word is, each with the line."""
        return [
            f"{source}: {line[:500]}"
            for source, text in self.texts.items()
            for line in text.splitlines()
            if WORD in line
        ]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis with a password."""
    with RedisServer(port=0) as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        yield server


@contextmanager
def _pool(server: RedisServer, folder: Path, *, shows: bool) -> Iterator[tuple[Terminal, Evidence, list[ActorProcess]]]:
    """Run a supervisor and a worker whose settings come from the environment and a directory of secrets."""
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "ORC_CONTROL__PREVIOUS_SECRET").write_text(FILE_SECRET)
    terminal = Terminal(
        folder,
        ORC_REDIS__URL=f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/0",
        ORC_CONTROL__SECRET=SECRET,
        CREDENTIALS_DIRECTORY=str(secrets),
        ORC_PREFIX=f"secrets:{'shown' if shows else 'hidden'}:t",
        ORC_LOGGING__LEVEL="debug",
        ORC_WORKER__DRAIN_S="1",
        ORC_RETRY__BASE_S="0.02",
        ORC_SUPERVISOR__HEALTH=f"unix:{folder}/supervisor.sock",
        OTEL_TRACES_EXPORTER="console",
        VAULT_SHOWS="1" if shows else "0",
        PYTHONPATH=str(ROOT),
    )
    run = [sys.executable, "-P", "-m", "orchestrator"]
    agents = ["worker", "run", "tests.helpers.redacted_agents:agent"]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                ActorProcess(
                    [*run, *command], name=name, env={**terminal.environ, "ORC_LOGGING__FORMAT": format_}, cwd=folder
                )
            )
            for name, format_, command in (
                ("supervisor", "console", ["supervisor", "run"]),
                ("worker", "json", agents),
            )
        ]
        for process, event in zip(processes, ("leadership_acquired", "worker_started"), strict=True):
            process.wait_output(event, timeout_s=30)
        evidence = Evidence()
        yield terminal, evidence, processes
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait_exit(20)
            evidence.texts[process.name] = process.output


def _work(terminal: Terminal, evidence: Evidence) -> None:
    """Let tasks of all kinds end: with a result, after retries, as dead letters."""
    hows = {
        "paid": ("pay", "return"), "dead": ("pay", "chained"), "retried": ("pay", "retry"), "lost": ("pay", "lost"),
        "logged": ("pay", "log"), "emitted": ("pay", "emit"), "rejected": ("pay_in_thread", "reject"),
        "dead in a process": ("pay_in_process", "raise"), "environ": ("pay_in_process", "environ"),
        "client": ("pay_in_process", "client"),
    }  # fmt: skip
    for name, (skill, how) in hows.items():
        body = json.dumps({"secret": DATA, "how": how})
        done = terminal.orc("tasks", "submit", skill, "-", "--session", "s1", stdin=body)
        assert done.code == 0, done
        evidence.tasks[name] = done.out.strip()
    done = terminal.orc("tasks", "submit", "pay", "-", stdin=json.dumps({"secret": [DATA], "how": 1}))
    evidence.tasks["misfit"] = done.out.strip()
    added = terminal.orc(
        "schedules",
        "add",
        "nightly",
        "pay",
        "-",
        "--cron",
        "0 3 * * *",
        stdin=json.dumps({"secret": DATA, "how": "return"}),
    )
    assert added.code == 0, added
    terminal.orc("tasks", "wait", *evidence.tasks.values(), "--timeout", "60s")


def _look(terminal: Terminal, evidence: Evidence) -> None:
    """Type every command that shows something, for people and for programs."""
    typed = [(*command, "-o", form) for command in SHOWN for form in ("table", "json")]
    for name, task in evidence.tasks.items():
        commands = OF_A_TASK if name in {"paid", "emitted", "environ", "client"} else OF_A_DEAD_TASK
        typed += [(*command, task, "-o", form) for command in commands for form in ("table", "json")]
    typed.append(("tasks", "show", evidence.tasks["dead"], "--debug"))
    for command in typed:
        done = terminal.orc(*command)
        evidence.texts[" ".join(command)] = done.out + done.err
    wrong = f"redis://:{WORD}-wrong@127.0.0.1"
    for url in (f"{wrong}:1/0", wrong, f"{wrong}/x", f"{wrong}:port"):
        done = terminal.orc("status", "--debug", ORC_REDIS__URL=url)
        assert done.code != 0
        evidence.texts[f"status at {url[-8:]}"] = done.out + done.err


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _descendants(int(child))


def _files_of(pid: int) -> str:
    return "\n".join(
        Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace") for name in ("cmdline", "environ")
    )


async def _scrape(folder: Path) -> dict[str, str]:
    paths = ("/metrics", "/readyz?verbose")
    return {f"supervisor {path}": (await request(f"unix:{folder}/supervisor.sock", path)).body for path in paths}


@pytest.mark.slow
def test_nothing_shows_a_secret(server: RedisServer, tmp_path: Path) -> None:
    """The word is in no log, display, environment, process list, dead letter, metric or span; `--reveal` shows it."""
    with _pool(server, tmp_path, shows=False) as (terminal, evidence, processes):
        _work(terminal, evidence)
        _look(terminal, evidence)
        evidence.texts |= anyio.run(_scrape, tmp_path)
        pids = [pid for process in processes for pid in _descendants(process.pid)]
        assert len(pids) >= 4  # supervisor, host, worker, the process of handlers
        evidence.texts |= {f"/proc/{pid}": _files_of(pid) for pid in pids}
        # The handlers themselves find no secret, and a client in one finds Redis.
        environ = terminal.orc("tasks", "result", evidence.tasks["environ"], "--reveal")
        evidence.texts["environment of a handler"] = environ.out
        assert "ORC_PREFIX=" in environ.out
        assert terminal.orc("tasks", "result", evidence.tasks["client"], "--reveal").out == "true\n"
        _check_reveal(terminal, evidence)
    assert evidence.leaks == []
    for event in ("pay_failed", "task_failed", "was never retrieved"):
        assert event in evidence.texts["worker"]
    assert '"name": "' in evidence.texts["worker"], "spans"
    assert "orc_" in evidence.texts["supervisor /metrics"]


def _check_reveal(terminal: Terminal, evidence: Evidence) -> None:
    paid, dead = evidence.tasks["paid"], evidence.tasks["dead"]
    refused = terminal.orc("tasks", "result", paid)
    assert (refused.code, refused.out) == (4, "")
    assert "--reveal" in refused.err
    before = terminal.orc("control", "list", "-o", "json").json()
    assert terminal.orc("tasks", "result", paid, "--reveal").out == f'{{"paid":"{DATA}"}}\n'
    emitted = evidence.tasks["emitted"]
    for command in (
        ("tasks", "show", paid),
        ("dead", "show", dead),
        ("dead", "export", dead),
        ("tasks", "watch", emitted),
    ):
        assert DATA in terminal.orc(*command, "--reveal", "-o", "jsonl").out, command
    after = terminal.orc("control", "list", "-o", "json").json()
    assert len(after["items"]) == len(before["items"]) + 5
    assert "reveal" in json.dumps(after["items"])


@pytest.mark.slow
def test_the_search_finds_what_is_shown(server: RedisServer, tmp_path: Path) -> None:
    """The twin: of a skill that is not redacted, each of these sources has the word; so has a child's environment."""
    with _pool(server, tmp_path, shows=True) as (terminal, evidence, _):
        _work(terminal, evidence)
        _look(terminal, evidence)
        environment = {**os.environ, "ORC_CONTROL__SECRET": SECRET}
        with subprocess.Popen(["sleep", "60"], env=environment) as child:
            wait_until(lambda: "sleep" in _files_of(child.pid), "the program to start")
            evidence.texts["/proc"] = _files_of(child.pid)
            child.kill()
    found = {leak.partition(": ")[0] for leak in evidence.leaks}
    paid, dead = evidence.tasks["paid"], evidence.tasks["dead"]
    wanted = {"worker", "/proc", "dead list -o table", "dead export --all -o table"}
    wanted |= {f"tasks show {paid} -o table", f"tasks result {paid} -o json", f"dead show {dead} -o json"}
    wanted |= {f"tasks why {dead} -o table", "schedules show nightly -o table", "events -o json"}
    wanted |= {f"tasks watch {evidence.tasks['emitted']} -o table"}
    assert wanted - found == set()
    lines: Any = [line for line in evidence.texts["worker"].splitlines() if WORD in line]
    assert any("pay_failed" in line for line in lines)
    assert any("was never retrieved" in line for line in lines)
    assert {source for source in found if source.startswith(("config", "status", "doctor", "redis"))} == set()
