"""Supervisor and worker host as process 1 of a container: the kernel treats that process unlike all others.

It drops a signal that process 1 has no handler for, and makes process 1 the parent of every orphan.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Self

import pytest

from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.helpers import subprocesses
from tests.helpers.subprocesses import children_of
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.faultkit.servers import RedisServer

ORC: Final = str(Path(sys.executable).with_name("orc"))
AGENTS: Final = "tests.fault.slow_agents:importing"
PID_NAMESPACE: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("unshare")
        or subprocess.run([*PID_NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
        reason="this user may not make a PID namespace with unshare",
    ),
]


class ProcessOne:
    """A command as process 1 of a PID namespace."""

    def __init__(self, *command: str, env: Mapping[str, str], cwd: Path = subprocesses.ROOT) -> None:
        self.actor = ActorProcess([*PID_NAMESPACE, *command], name="process-one", env=env, cwd=cwd)

    def __enter__(self) -> Self:
        self.actor.start()
        self.pid = wait_until(lambda: sum(children_of(self.actor.pid)), lambda: self.actor.describe("process 1"))
        return self

    def __exit__(self, *_: object) -> None:
        self.actor.close()

    def run(self, script: str) -> None:
        """Run a shell script beside process 1, as `docker exec` does."""
        subprocess.run(["nsenter", "--target", str(self.pid), "--pid", "sh", "-c", script], check=True, timeout=10)

    def terminate(self) -> int:
        """Send SIGTERM from outside of the namespace, as a container engine does; return the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.actor.wait_exit(5)


@pytest.mark.parametrize(
    ("command", "ready"),
    [
        pytest.param(("supervisor", "run"), "leadership_acquired", id="supervisor"),
        pytest.param(("worker", "run", "tests.fault.parent_agents:parent"), "worker_started", id="worker"),
    ],
)
def test_orphans_are_reaped(
    redis_server: RedisServer, prefix: str, tmp_path: Path, command: tuple[str, ...], ready: str
) -> None:
    """A process that has lost its parent becomes a child of process 1, and no zombie of it stays."""
    variables = subprocesses.environment(make_settings(redis_server.url, prefix))
    gate = tmp_path / "gate"
    with ProcessOne(ORC, *command, env=variables) as one:
        one.actor.wait_output(ready, timeout_s=20)
        before = set(children_of(one.pid))
        one.run(f"(while [ ! -e {gate} ]; do sleep 0.01; done) >/dev/null 2>&1 &")
        wait_until(lambda: set(children_of(one.pid)) - before, lambda: one.actor.describe("the orphan"))
        gate.touch()
        wait_until(lambda: set(children_of(one.pid)) == before, lambda: one.actor.describe("its zombie to go"))
        assert one.terminate() == 0, one.actor.output


@pytest.mark.parametrize("role", ["supervisor", "worker"])
def test_sigterm_while_starting(tmp_path: Path, role: str) -> None:
    """SIGTERM ends a program that reads its settings or imports agents, as process 1 and as any other process."""
    (tmp_path / "sleeping.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    settings = tmp_path / "settings"
    os.mkfifo(settings)
    command = {
        "supervisor": (ORC, "supervisor", "run", "--config", str(settings)),
        "worker": (ORC, "worker", "run", "sleeping:agent"),
    }[role]

    @contextlib.contextmanager
    def started(actor: ActorProcess) -> Iterator[None]:
        if role == "worker":
            actor.wait_output("importing")
            yield
        else:
            pipe = wait_until(lambda: _opened(settings), lambda: actor.describe("to read its settings"))
            assert pipe is not None
            with pipe:
                yield

    with ProcessOne(*command, env={}, cwd=tmp_path) as one, started(one.actor):
        assert one.terminate() == 128 + signal.SIGTERM, one.actor.output
    with ActorProcess(command, name="any", cwd=tmp_path) as actor, started(actor):
        actor.terminate()
        assert actor.wait_exit(5) == -signal.SIGTERM, actor.output


def _opened(pipe: Path) -> IO[bytes] | None:
    """The writing end of a pipe that a process has opened to read it."""
    try:
        return os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "wb")
    except OSError:
        return None
