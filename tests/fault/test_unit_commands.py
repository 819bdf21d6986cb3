"""Supervisor, two worker groups and the embedded Redis run under the exact command lines of the systemd units."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.service_units import find_unit, unit_text
from orchestrator.core.settings import Settings
from orchestrator.services import pool_keys
from orchestrator.sync import Orchestrator
from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.helpers.end_state import find_violations
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE
from tests.helpers.service_manager import ServiceManager
from tests.helpers.subprocesses import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

WATCHDOG_S = 0.9
DRAIN_S = 30.0
"""Longer than the tasks take on a loaded machine, so that no running task is interrupted."""


def unit_command(unit: str, *, instance: str = "") -> list[str]:
    """The ExecStart line of a unit, as `orc service` installs it on this machine."""
    (line,) = re.findall(r"^ExecStart=(.*)$", unit_text(find_unit(unit)), re.MULTILINE)
    return shlex.split(line.replace("%i", instance))


def start(command: list[str], manager: ServiceManager, config: Path) -> ActorProcess:
    """Start a command as systemd does: the shell becomes the main process, whose id the watchdog names."""
    guarded = ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", *command]
    environ = manager.environment(watchdog_s=WATCHDOG_S) | {"ORC_CONFIG": str(config)}
    return ActorProcess(guarded, name="unit", env=environ, cwd=ROOT)


def settings_file(path: Path, server: RedisServer, prefix: str, attempt_log: AttemptLog) -> Path:
    """Write the settings with two worker groups."""
    environment = {ATTEMPT_LOG_VARIABLE: str(attempt_log.path), LEASE_VARIABLE: "2", SLOTS_VARIABLE: "4"}
    table = ", ".join(f'{name} = "{value}"' for name, value in environment.items())
    group = f'agents = ["tests.helpers.logging_agents:agents"]\nenvironment = {{ {table} }}\n'
    path.write_text(
        f'prefix = "{prefix}"\n[redis]\nurl = "{server.url}"\n'
        f"[worker]\ndrain_s = {DRAIN_S}\nheartbeat_s = 0.3\n"
        "[supervisor]\nsweep_s = 0.5\nleader_lease_s = 1.0\n"
        f"[workers.writers]\nprocesses = 2\n{group}[workers.editors]\n{group}",
        encoding="utf-8",
    )
    return path


@pytest.mark.slow
def test_supervisor_and_workers_run_under_the_units(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, tmp_path: Path
) -> None:
    """All become ready, say what they do and feed their watchdogs; SIGTERM under load drains in time and loses nothing.

    A blocked supervisor sends no ping, while the workers, which are not blocked, go on.
    """
    config = settings_file(tmp_path / "orchestrator.toml", redis_server, prefix, attempt_log)
    with ExitStack() as stack, redis_server.client() as direct:
        managers = {name: stack.enter_context(ServiceManager()) for name in ("supervisor", "writers", "editors")}
        supervisor = stack.enter_context(start(unit_command("supervisor"), managers["supervisor"], config))
        hosts = {
            name: stack.enter_context(start(unit_command("worker", instance=name), managers[name], config))
            for name in ("writers", "editors")
        }
        managers["supervisor"].wait_status("leads")
        managers["writers"].wait_status("runs 0 tasks in 2 workers")
        managers["editors"].wait_status("runs 0 tasks in 1 worker")
        for name, manager in managers.items():
            assert manager.count("READY") == 1, name
            assert {message.pid for message in manager.messages} == {{"supervisor": supervisor, **hosts}[name].pid}

        supervisor.freeze()
        before = {name: manager.count("WATCHDOG") for name, manager in managers.items()}
        wait_until(lambda: managers["writers"].count("WATCHDOG") > before["writers"] + 3, "pings of the workers")
        assert managers["supervisor"].count("WATCHDOG") == before["supervisor"]
        supervisor.thaw()
        wait_until(lambda: managers["supervisor"].count("WATCHDOG") > before["supervisor"], "pings of the supervisor")

        with Orchestrator(url=redis_server.url, prefix=prefix) as orc:
            handles = [orc.submit("pause", {"seconds": 1.0}) for _ in range(24)]
            wait_until(lambda: len(attempt_log.notes("begun")) >= 12, "all slots to be taken")
            hosts["writers"].signal(signal.SIGTERM)
            managers["writers"].wait_status("drains")
            assert hosts["writers"].wait_exit(DRAIN_S) == 0, hosts["writers"].output
            drained = [message.fields for message in managers["writers"].messages]
            assert sum("STOPPING" in fields for fields in drained) == 1
            assert any(
                re.fullmatch(r"drains [1-8] tasks? in 2 workers", fields.get("STATUS", "")) for fields in drained
            )
            assert any("EXTEND_TIMEOUT_USEC" in fields for fields in drained)

            supervisor.signal(signal.SIGTERM)
            assert supervisor.wait_exit() == 0, supervisor.output
            again = stack.enter_context(start(unit_command("supervisor"), managers["supervisor"], config))
            assert all(handle.result(20) for handle in handles)
            assert set(attempt_log.runs().values()) == {1}, "a running task was interrupted"
            again.wait_output("leadership_acquired", timeout_s=20)
            again.terminate()
            hosts["editors"].terminate()
            assert (again.wait_exit(), hosts["editors"].wait_exit(DRAIN_S)) == (0, 0)
        assert find_violations(direct, pool_keys(Settings(prefix=prefix))) == []


@pytest.mark.slow
def test_embedded_redis_runs_under_its_unit(tmp_path: Path) -> None:
    """READY comes when it answers, and SIGTERM to all its processes stops it in order."""
    command = [word.replace("/var/lib/orchestrator", str(tmp_path)) for word in unit_command("redis")]
    (tmp_path / "run").mkdir()
    with ServiceManager() as manager:
        environ = manager.environment() | {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
        with ActorProcess(command, name="redis", env=environ, cwd=tmp_path) as running:
            manager.wait_status("runs Redis")
            assert manager.count("READY") == 1
            assert {message.pid for message in manager.messages} == {running.pid}
            running.terminate()
            assert running.wait_exit(20) == 0, running.output


def allowed_calls(unit: str) -> set[str]:
    """The system calls that the filter of a unit admits."""
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True
    ).stdout
    sets: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=@)", listed):
        name, *lines = block.strip().splitlines()
        sets[name] = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]

    def members(name: str) -> set[str]:
        return {each for one in sets[name] for each in (members(one) if one.startswith("@") else {one})}

    allowed = members("@default")
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit_text(find_unit(unit)), re.MULTILINE):
        calls = set[str]().union(*[members(name) for name in line.lstrip("~").split()])
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("strace") is None or shutil.which("systemd-analyze") is None, reason="needs strace and systemd-analyze"
)
def test_sandbox_admits_every_system_call(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, tmp_path: Path
) -> None:
    """Supervisor, workers with handlers of every kind, and the embedded Redis make no call that their filter denies."""
    config = settings_file(tmp_path / "orchestrator.toml", redis_server, prefix, attempt_log)
    config.write_text(config.read_text().replace("logging_agents:agents", "handlers_of_every_kind:agent"))
    (tmp_path / "run").mkdir()
    redis = [word.replace("/var/lib/orchestrator", str(tmp_path)) for word in unit_command("redis")]
    commands = {"supervisor": unit_command("supervisor"), "worker": unit_command("worker", instance="editors")}
    traces = {unit: tmp_path / f"{unit}.trace" for unit in (*commands, "redis")}
    actors: list[ActorProcess] = []
    with ExitStack() as stack:
        managers = {unit: stack.enter_context(ServiceManager()) for unit in traces}
        for unit, command in {**commands, "redis": redis}.items():
            environ = managers[unit].environment() | {
                "ORC_CONFIG": str(config),
                "XDG_RUNTIME_DIR": str(tmp_path / "run"),
            }
            traced = ["strace", "-f", "-qq", "-o", str(traces[unit]), *command]
            actors.append(stack.enter_context(ActorProcess(traced, name=unit, env=environ, cwd=ROOT)))
        for unit, status in {"supervisor": "leads", "worker": "in 1 worker", "redis": "runs Redis"}.items():
            managers[unit].wait_status(status, 60.0)
        with Orchestrator(url=redis_server.url, prefix=prefix) as orc:
            assert orc.submit("in_loop").result(30) == "in_loop"
            assert "uid=" in orc.submit("in_thread").result(30)
            assert orc.submit("in_process").result(30) == "in_process"
        for manager in managers.values():
            os.kill(manager.messages[0].pid, signal.SIGTERM)
        assert [actor.wait_exit(30.0) for actor in actors] == [0, 0, 0]
    for unit, trace in traces.items():
        calls = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(), re.MULTILINE))
        assert len(calls) > 30, "the trace is empty"
        assert calls - allowed_calls(unit) == set(), unit
