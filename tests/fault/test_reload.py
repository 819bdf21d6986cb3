"""SIGHUP makes supervisor and workers read their settings again: real processes, files, signals and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from orchestrator import Orchestrator
from orchestrator.core.settings import ControlSettings, RedisSettings, Settings
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for, wait_until
from tests.faultkit.processes import ActorProcess
from tests.helpers import subprocesses
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.servers import RedisServer

ROOT = Path(__file__).parents[2]
AGENTS = ("tests.fault.reload_agents:agent", "tests.fault.reload_agents:free")
FILE = """
[limits]
shared = "1/d"

[worker]
processes = 2
heartbeat_s = 0.3
drain_s = 30

[supervisor]
sweep_s = 60
"""
TIMEOUT_S = 15.0


class Deployment:
    """A settings file and a directory of secrets, and what the processes that read them say."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self.url, self.prefix, self.folder = url, prefix, folder
        self.file, self.secrets = folder / "orchestrator.toml", folder / "secrets"
        self.secrets.mkdir()
        self.write(FILE)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ORC_")},
            "CREDENTIALS_DIRECTORY": str(self.secrets),
            "ORC_REDIS__URL": url,
            "ORC_PREFIX": prefix,
            "ORC_LOGGING__FORMAT": "json",
        }
        self.settings = Settings(prefix=prefix, redis=RedisSettings(url=SecretStr(url)))
        self.keys = pool_keys(self.settings)

    def write(self, text: str) -> None:
        """Write the settings file."""
        self.file.write_text(text, encoding="utf-8")

    def change(self, *pairs: tuple[str, str]) -> None:
        """Replace text in the settings file."""
        text = self.file.read_text(encoding="utf-8")
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        self.write(text)

    def write_secret(self, name: str, text: str) -> None:
        """Write a secret file."""
        (self.secrets / name).write_text(text, encoding="utf-8")

    def supervisor(self) -> ActorProcess:
        """Describe a supervisor."""
        return self._actor([ORC, "supervisor", "run", "--config", str(self.file)], "supervisor")

    def host(self, *agents: str) -> ActorProcess:
        """Describe a worker host."""
        command = [sys.executable, "-P", "-m", "orchestrator.workers", "--config", str(self.file), *(agents or AGENTS)]
        return self._actor(command, "host")

    def program(self, *arguments: str) -> ActorProcess:
        """Describe a program that finds the settings file in its environment."""
        self.environ["ORC_CONFIG"] = str(self.file)
        return self._actor([sys.executable, *arguments], "program")

    def _actor(self, command: list[str], name: str) -> ActorProcess:
        actor = ActorProcess(command, name=name, cwd=ROOT)
        actor._env = {**self.environ, "PYTHONUNBUFFERED": "1"}
        return actor


def scores(client: redis.Redis, keys: PoolKeys) -> dict[str, float]:
    """The live workers with the times of their heartbeats."""
    found: Any = client.zrange(keys.workers, 0, -1, withscores=True)
    return {id_.decode(): at_ms for id_, at_ms in found}


def about(client: redis.Redis, keys: PoolKeys, worker: str, name: str) -> str:
    """A field of the registration of a worker."""
    value: Any = client.hget(keys.worker(worker), name)
    return str(value.decode())


def events(actor: ActorProcess, name: str) -> list[dict[str, Any]]:
    """The log lines of an event."""
    lines = [json.loads(line) for line in actor.output.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


async def said(actor: ActorProcess, name: str, count: int = 1) -> dict[str, Any]:
    """Wait until a process has logged an event this many times, and return the last one."""
    await wait_for(lambda: len(events(actor, name)) >= count, lambda: actor.describe(f"{count} {name}"), TIMEOUT_S)
    return events(actor, name)[count - 1]


async def hang_up(actor: ActorProcess, count: int = 1) -> dict[str, Any]:
    """Send SIGHUP and return what the reload said."""
    actor.signal(signal.SIGHUP)
    return await said(actor, "settings_reloaded", count)


@pytest.fixture
def deployment(redis_server: RedisServer, prefix: str, tmp_path: Path) -> Deployment:
    """Settings for the processes of one test."""
    return Deployment(redis_server.url, prefix, tmp_path)


async def test_limit(deployment: Deployment, redis_client: redis.Redis) -> None:
    """A changed limit applies to tasks that wait for it, in all workers, without a restart; not without the signal."""
    keys = deployment.keys
    with deployment.supervisor() as supervisor, deployment.host() as host:
        async with Orchestrator(settings=deployment.settings) as orc:
            await said(host, "worker_started", 2)
            await said(supervisor, "leadership_acquired")
            handles = [await orc.submit("stamp") for _ in range(4)]
            await wait_for(lambda: redis_client.hget(keys.stats("TOTAL"), "succeeded") == b"1", "the first task")
            deployment.change(('"1/d"', '"1000/s"'))
            # The twin: two heartbeats of each worker change nothing.
            before = scores(redis_client, keys)
            await wait_for(
                lambda: all(at_ms > before[id_] + 600 for id_, at_ms in scores(redis_client, keys).items()),
                "two heartbeats of each worker",
            )
            assert redis_client.hget(keys.limits, "shared") == b"1 86400000000"

            report = await hang_up(host)
            assert [await handle.result(timeout=TIMEOUT_S) for handle in handles] == ["done"] * 4
            assert report["changed"] == ["limits.shared = 1000/s (was 1/d)"]
            assert (report["generation"], report["needs_restart"]) == (2, [])
            await said(host, "settings_applied", 2)
            assert redis_client.hget(keys.limits, "shared") == b"1000 1000000"

            def both_tell() -> bool:
                """Whether the workers tell their new settings; each does with its next heartbeat."""
                told = {about(redis_client, keys, id_, "settings") for id_ in before}
                return len(told) == 1 and re.fullmatch(r"2 [0-9a-f]{8}", told.pop()) is not None

            await wait_for(both_tell, "the new settings of both workers")

            # A worker that is forked later has the new settings, too.
            os.kill(int(about(redis_client, keys, next(iter(before)), "pid")), signal.SIGKILL)
            await said(host, "worker_started", 3)
            assert redis_client.hget(keys.limits, "shared") == b"1000 1000000"
            host.terminate()
            await wait_for(lambda: host.returncode == 0, lambda: host.describe("its end"), TIMEOUT_S)


def test_workers_with_other_settings(deployment: Deployment, tmp_path: Path) -> None:
    """`orc config diff --workers` tells which workers run with other settings than the file has."""
    variables = {"ORC_REDIS__URL": deployment.url, "ORC_PREFIX": deployment.prefix, "ORC_CONFIG": str(deployment.file)}
    terminal = Terminal(tmp_path, CREDENTIALS_DIRECTORY=str(deployment.secrets), **variables)

    def workers() -> list[tuple[int, str]]:
        found = terminal.orc("config", "diff", "--workers", "-o", "jsonl").out.splitlines()
        return [(line["generation"], line["settings"]) for line in map(json.loads, found)]

    with deployment.host() as host:
        wait_until(lambda: len(events(host, "worker_started")) == 2, lambda: host.describe("workers"), TIMEOUT_S)
        assert workers() == [(1, "same")] * 2
        deployment.change(('"1/d"', '"2/d"'))
        assert workers() == [(1, "other")] * 2
        host.signal(signal.SIGHUP)
        wait_until(lambda: workers() == [(2, "same")] * 2, lambda: host.describe(str(workers())))


async def test_what_needs_a_restart(deployment: Deployment, redis_client: redis.Redis) -> None:
    """Cold settings are reported, not applied, also not in a worker that is forked later; live ones beside them are."""
    keys = deployment.keys
    with deployment.host() as host:
        await said(host, "worker_started", 2)
        deployment.change(("heartbeat_s = 0.3", "heartbeat_s = 2"), ("processes = 2", "processes = 3"))
        report = await hang_up(host)
        assert (report["changed"], report["generation"]) == ([], 1)
        assert report["needs_restart"] == ["worker.processes", "worker.heartbeat_s"]
        deployment.change(("drain_s = 30", "drain_s = 20"))
        report = await hang_up(host, 2)
        assert (report["changed"], report["generation"]) == (["worker.drain_s = 20.0 (was 30.0)"], 2)
        os.kill(int(about(redis_client, keys, next(iter(scores(redis_client, keys))), "pid")), signal.SIGKILL)
        await said(host, "worker_started", 3)
        assert {about(redis_client, keys, id_, "alive_s") for id_ in scores(redis_client, keys)} == {"1"}


async def test_refused(deployment: Deployment) -> None:
    """Settings that are invalid, half written, in a pipe or gone change nothing, and the log says why."""
    with deployment.host() as host:
        await said(host, "worker_started", 2)
        good = deployment.file.read_text()
        faults: dict[str, Callable[[], object]] = {
            "is not valid TOML": lambda: deployment.write(good + '[results]\nttl_s = "'),
            "unknown setting worker.drain in": lambda: deployment.write(good.replace("drain_s", "drain")),
            "base_s must not be greater": lambda: deployment.write(good + "[retry]\nbase_s = 50\ncap_s = 5\n"),
            "cannot be read: No such file": deployment.file.unlink,
            "is no regular file": lambda: os.mkfifo(deployment.file),
        }
        for count, (reason, cause) in enumerate(faults.items(), 1):
            cause()
            host.signal(signal.SIGHUP)
            refused = await said(host, "settings_reload_refused", count)
            assert reason in refused["problems"][0]
            assert refused["generation"] == 1
        deployment.file.unlink()
        deployment.write(good)
        secret = deployment.secrets / "ORC_CONTROL__SECRET"
        secret.write_bytes(b"marker-\xff-0123456789abcdef")
        host.signal(signal.SIGHUP)
        refused = await said(host, "settings_reload_refused", len(faults) + 1)
        assert refused["problems"] == [f"secret file {secret} is not UTF-8 text"]
        secret.unlink()
        secret.symlink_to("nowhere")
        host.signal(signal.SIGHUP)
        refused = await said(host, "settings_reload_refused", len(faults) + 2)
        assert refused["problems"] == [f"secret file {secret} cannot be read: No such file or directory"]
        assert "marker" not in host.output
        secret.unlink()
        assert (await hang_up(host))["changed"] == []
        assert not events(host, "settings_applied")


async def test_secret_changes(deployment: Deployment) -> None:
    """Workers and supervisor obey commands of the new secret, and of the old one while it is the previous one.

    No log has either, and a secret that vanishes is no permission to obey unsigned commands.
    """
    old, new = "marker-old-0123456789abcdef", "marker-new-0123456789abcdef"

    def client(secret: str) -> Orchestrator:
        control = ControlSettings(secret=SecretStr(secret))
        return Orchestrator(settings=deployment.settings.model_copy(update={"control": control}))

    async def command(secret: str) -> None:
        """Give a command and wait until supervisor and workers have received it."""
        async with client(secret) as orc:
            sent = await orc.admin.set_log_level("info", reason="a test")
            await wait_for(
                lambda: len([line for one in (supervisor, host) for line in events(one, "command_received")
                             if line["command"] == sent.id]) == 3,
                lambda: host.describe("the command"),
            )  # fmt: skip

    deployment.write_secret("ORC_CONTROL__SECRET", old)
    deployment.change(("sweep_s = 60", "sweep_s = 0.2"))
    with deployment.supervisor() as supervisor, deployment.host() as host:
        await said(host, "worker_started", 2)
        await said(supervisor, "leadership_acquired")
        await command(old)
        deployment.write_secret("ORC_CONTROL__SECRET", new)
        deployment.write_secret("ORC_CONTROL__PREVIOUS_SECRET", old)
        for actor in (supervisor, host):
            report = await hang_up(actor)
            assert report["changed"] == ["control.secret changed", "control.previous_secret changed"]
        await said(host, "settings_applied", 2)
        await command(new)
        await command(old)
        (deployment.secrets / "ORC_CONTROL__PREVIOUS_SECRET").unlink()
        for actor in (supervisor, host):
            await hang_up(actor, 2)
        await said(host, "settings_applied", 4)
        async with client(old) as orc:
            await orc.admin.set_log_level("info", reason="a test")
            for actor in (supervisor, host):
                await said(actor, "commands_refused")
        (deployment.secrets / "ORC_CONTROL__SECRET").unlink()
        host.signal(signal.SIGHUP)
        assert "control.secret is gone" in (await said(host, "settings_reload_refused"))["problems"][0]
        assert "marker" not in host.output + supervisor.output


async def test_processes_of_handlers_mask_new_secrets(deployment: Deployment) -> None:
    """A process that runs handlers masks a secret that came with a reload after its start."""
    secret = "marker-new-0123456789abcdef"
    deployment.change(("processes = 2", "processes = 1"))
    deployment.write_secret("ORC_CONTROL__SECRET", "marker-old-0123456789abcdef")
    with deployment.supervisor() as supervisor, deployment.host() as host:
        await said(supervisor, "leadership_acquired")
        async with Orchestrator(settings=deployment.settings) as orc:
            process = await (await orc.submit("show", {"text": "before"})).result(timeout=TIMEOUT_S)
            deployment.write_secret("ORC_CONTROL__SECRET", secret)
            await hang_up(host)
            await said(host, "settings_applied")
            assert await (await orc.submit("show", {"text": secret})).result(timeout=TIMEOUT_S) == process
        assert [line["text"] for line in events(host, "shown")] == ["before", "********"]
        assert "marker" not in host.output


async def test_log_level(deployment: Deployment, redis_client: redis.Redis) -> None:
    """The level changes in the supervisor and in the workers; that of an operator has precedence until it is reset."""
    with deployment.supervisor() as supervisor, deployment.host() as host:
        async with Orchestrator(settings=deployment.settings) as orc:
            await said(host, "worker_started", 2)
            await said(supervisor, "leadership_acquired")
            sent = await orc.admin.set_log_level("warning", reason="a test")
            receipts = deployment.keys.receipts(sent.id)
            await wait_for(lambda: redis_client.hlen(receipts) == 3, "three receipts", TIMEOUT_S)
            deployment.write(FILE.replace('"1/d"', '"1000/s"') + '[logging]\nlevel = "debug"\n')
            host.signal(signal.SIGHUP)
            supervisor.signal(signal.SIGHUP)
            await (await orc.submit("stamp")).result(timeout=TIMEOUT_S)
            assert not events(host, "stamped")
            await orc.admin.reset_log_level(reason="a test")
            await said(host, "log_level_changed", 2)
            await (await orc.submit("stamp")).result(timeout=TIMEOUT_S)
            await said(host, "stamped")


async def test_programs_of_handlers_get_the_signal(deployment: Deployment) -> None:
    """A program that a handler starts neither blocks nor ignores SIGHUP, although its worker does nothing on it."""
    with deployment.supervisor(), deployment.host() as host:
        await said(host, "worker_started", 2)
        async with Orchestrator(settings=deployment.settings) as orc:
            masks = await (await orc.submit("masks")).result(timeout=TIMEOUT_S)
        assert [int(mask, 16) & 1 for mask in masks] == [0, 0]


async def test_worker_without_host(deployment: Deployment, redis_client: redis.Redis) -> None:
    """`orchestrator.run(agent)` reloads, too."""
    program = "import orchestrator; from tests.fault.reload_agents import agent; orchestrator.run(agent)"
    worker = deployment.program("-c", program)
    with worker:
        await wait_for(lambda: scores(redis_client, deployment.keys), lambda: worker.describe("a worker"), TIMEOUT_S)
        deployment.change(('"1/d"', '"1000/s"'))
        worker.signal(signal.SIGHUP)
        await wait_for(
            lambda: redis_client.hget(deployment.keys.limits, "shared") == b"1000 1000000",
            lambda: worker.describe("the limit"),
        )
        worker.terminate()
        await wait_for(lambda: worker.returncode == 0, lambda: worker.describe("its end"), TIMEOUT_S)


SENDS = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"
"""Sends SIGHUP to its own process: at a step of its start, in place of an outside signal that comes at this moment."""


async def test_signal_in_the_start_of_a_worker_without_host(
    deployment: Deployment, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """A signal before `orchestrator.run` has settings or an event loop is a reload; at the end it does nothing."""
    script = tmp_path / "own_worker.py"
    for step in ("orchestrator.workers.run.SettingsSources.load", "orchestrator.workers.runtime.worker.Notifier"):
        script.write_text(
            "import pkgutil, signal\nfrom unittest import mock\n"
            "from orchestrator import run\n"
            "runs = __import__('sys').modules['orchestrator.workers.run']\n"
            "from orchestrator.core.log import configure_logging\n"
            "from tests.fault.reload_agents import agent\nconfigure_logging('info', 'json')\n"
            f"real = pkgutil.resolve_name({step!r})\n"
            f"sent = []\ndef step(*arguments):\n    if not sent:\n        sent.append(1)\n        {SENDS}\n"
            "    return real(*arguments)\n"
            f"loop = runs.run_loop\ndef close(*arguments):\n    loop(*arguments)\n    {SENDS}\n"
            f"with mock.patch({step!r}, step), mock.patch.object(runs, 'run_loop', close):\n    run(agent)\n"
            "assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL\n"
        )
        with deployment.program(str(script)) as worker:
            await said(worker, "settings_reloaded")
            await wait_for(partial(scores, redis_client, deployment.keys), partial(worker.describe, "it"), TIMEOUT_S)
            worker.terminate()
            await wait_for(lambda: worker.returncode is not None, partial(worker.describe, "its end"), TIMEOUT_S)
            assert worker.returncode == 0, worker.output


async def test_signal_between_import_and_run(deployment: Deployment, tmp_path: Path) -> None:
    """A signal that comes after the import of the agents, before the host waits for signals, is a reload."""
    (tmp_path / "late_agents.py").write_text(
        "from orchestrator.workers.runtime.host import Host\nfrom tests.fault.reload_agents import free\n"
        f"real = Host.run\ndef run(*given):\n    {SENDS}\n    return real(*given)\nHost.run = run\n"
    )
    deployment.environ["PYTHONPATH"] = str(tmp_path)
    with deployment.host("late_agents:free") as host:
        await said(host, "settings_reloaded")
        await said(host, "worker_started", 2)


async def test_signal_as_soon_as_orc_runs(deployment: Deployment) -> None:
    """`orc worker run` and `orc supervisor run` keep a signal that comes before they have imported a command."""
    orc = f"import {SENDS.partition(';')[0].removeprefix('import ')}, sys\nfrom orchestrator.core import hangup\n"
    orc += "real = hangup.block_hangup\ndef block():\n    real()\n    heavy = {'cyclopts', 'pydantic', 'structlog'}\n"
    orc += "    assert not heavy & set(sys.modules)\n    os.kill(os.getpid(), signal.SIGHUP)\n"
    orc += "hangup.block_hangup = block\nfrom orchestrator.cli.app import main\nsys.exit(main())\n"
    for arguments, started in (
        (["--debug", "supervisor", "run"], "leadership_acquired"),
        (["worker", "run", *AGENTS], "worker_started"),
    ):
        with deployment.program("-c", orc, *arguments) as actor:
            await said(actor, "settings_reloaded")
            await said(actor, started)
            assert len(events(actor, "settings_reloaded")) == 1


async def test_many_signals(deployment: Deployment, redis_client: redis.Redis) -> None:
    """A burst of signals during the start, while it works and while it drains ends no process and loses no change."""
    with deployment.host() as host:
        async with Orchestrator(settings=deployment.settings) as orc:
            # As soon as the program has its handler, which the log does not tell: bit 1 of the mask of caught signals.
            caught = f"/proc/{host.pid}/status"
            await wait_for(lambda: _mask(caught, "SigCgt") & 1 or _mask(caught, "SigBlk") & 1, "the handler")
            host.signal(signal.SIGHUP)
            await said(host, "worker_started", 2)
            await said(host, "settings_reloaded")
            with deployment.supervisor() as supervisor:
                await said(supervisor, "leadership_acquired")
                held = await orc.submit("hold", {"seconds": 1.0})
                await wait_for(lambda: _is_running(held), "the task")
                for number in range(20):
                    deployment.write(FILE.replace("drain_s = 30", f"drain_s = {30 + number}"))
                    host.signal(signal.SIGHUP)
                    supervisor.signal(signal.SIGHUP)
                for worker in scores(redis_client, deployment.keys):
                    os.kill(int(about(redis_client, deployment.keys, worker, "pid")), signal.SIGHUP)
                for actor in (host, supervisor):
                    await wait_for(partial(_says, actor, "drain_s = 49.0"), partial(actor.describe, "the last change"))
                host.terminate()
                await wait_for(partial(_ended, host), lambda: host.describe("its end"), TIMEOUT_S)
                assert await held.result(timeout=TIMEOUT_S) is None
                supervisor.terminate()
                await wait_for(partial(_ended, supervisor), lambda: supervisor.describe("its end"), TIMEOUT_S)
                assert (host.returncode, supervisor.returncode) == (0, 0), supervisor.describe("an orderly end")
                assert (await held.info()).attempts == 1
                assert not events(host, "worker_died")


async def test_host_with_threads(deployment: Deployment) -> None:
    """The module of an agent has started a thread, whose mask has no signal: the host reloads, drains and ends."""
    with deployment.supervisor(), deployment.host("tests.fault.threaded_agents:threaded") as host:
        await said(host, "worker_started", 2)
        assert len(os.listdir(f"/proc/{host.pid}/task")) > 1  # noqa: PTH208
        async with Orchestrator(settings=deployment.settings) as orc:
            for count in range(1, 4):
                deployment.write(FILE.replace("drain_s = 30", f"drain_s = {30 + count}"))
                await hang_up(host, count)
            held = await orc.submit("hold", {"seconds": 0.5})
            await said(host, "holding")
            host.terminate()
            await wait_for(lambda: host.returncode is not None, lambda: host.describe("its end"), TIMEOUT_S)
            assert host.returncode == 0, host.describe("an orderly end")
            assert await held.result(timeout=TIMEOUT_S) == "held"
            assert (await held.info()).attempts == 1


async def test_handler_processes_live_on(deployment: Deployment) -> None:
    """A SIGHUP to all processes of a host ends no process of a handler, and no attempt."""
    with deployment.supervisor(), deployment.host() as host:
        await said(host, "worker_started", 2)
        async with Orchestrator(settings=deployment.settings) as orc:
            masks = await (await orc.submit("masks_apart")).result(timeout=TIMEOUT_S)
            assert [int(mask, 16) & 1 for mask in masks] == [0, 0]
            held = await orc.submit("hold_apart", {"seconds": 1.0})
            await wait_for(lambda: _is_running(held), "the task")
            handlers = _descendants(host.pid)
            deployment.change(("drain_s = 30", "drain_s = 31"))
            for pid in handlers:
                os.kill(pid, signal.SIGHUP)
            await hang_up(host)
            assert await held.result(timeout=TIMEOUT_S) is None
            assert (await held.info()).attempts == 1
            assert len(handlers) >= 3
            assert not events(host, "worker_died")


def _descendants(pid: int) -> list[int]:
    children = subprocesses.children_of(pid)
    return [*children, *(one for child in children for one in _descendants(child))]


async def _is_running(handle: Any) -> bool:
    return str((await handle.info()).state) == "running"


def _ended(actor: ActorProcess) -> bool:
    """Send another SIGHUP, unless the process has ended."""
    actor.signal(signal.SIGHUP)
    return actor.returncode is not None


def _says(actor: ActorProcess, text: str) -> bool:
    return text in actor.output


def _mask(status: str, name: str) -> int:
    (found,) = re.findall(rf"^{name}:\s*(\w+)$", Path(status).read_text(), re.MULTILINE)
    return int(found, 16)


@pytest.mark.parametrize("program", ["supervisor", "host"])
def test_closed_terminal(deployment: Deployment, program: str) -> None:
    """A SIGHUP of a terminal that was closed ends the program in order; one of `kill` before does not."""
    actor = deployment.supervisor() if program == "supervisor" else deployment.host()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        actor._command, cwd=ROOT, env=actor._env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - the terminal must control the process
    )  # fmt: skip
    os.close(theirs)
    try:
        screen = b""
        while (b"leadership_acquired" if program == "supervisor" else b"worker_started") not in screen:
            screen += os.read(ours, 4096)
        process.send_signal(signal.SIGHUP)
        while b"settings_reloaded" not in screen:
            screen += os.read(ours, 4096)
        assert process.poll() is None
        os.close(ours)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
