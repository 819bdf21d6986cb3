"""docs/guides/deployment.md is followed from its first block to the result of the task, below a root folder.

Where the page calls systemctl, the test starts the ExecStart lines of the installed units as systemd does: with their
credentials, their environment file and a notification socket. It does not run what needs a network (pip).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.docs.pages import blocks
from tests.faultkit.processes import ActorProcess
from tests.helpers.service_manager import ServiceManager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer

PAGE: Final = "docs/guides/deployment.md"
DATA: Final = "/var/lib/orchestrator"
ORC: Final = Path(sys.executable).with_name("orc")
NEEDS_NETWORK: Final = ("python3 -m venv", "/opt/orchestrator/bin/pip")
NEEDS_SYSTEMD: Final = ("systemctl daemon-reload", "/opt/orchestrator/bin/orc service status")
SERVICES: Final = ("orchestrator-supervisor", "orchestrator-worker@greeters")
ROLES: Final = ("supervisor", "worker")
_FILE: Final = re.compile(r"# (/\S+)\n(.*)", re.DOTALL)


@dataclass
class Machine:
    """A machine below a root folder, without systemd."""

    root: Path
    replaced: dict[str, str]
    stack: ExitStack
    variables: dict[str, str] = field(default_factory=dict)
    services: dict[str, ActorProcess] = field(default_factory=dict)
    managers: dict[str, ServiceManager] = field(default_factory=dict)
    drop_ins: dict[str, str] = field(default_factory=dict)
    reloads: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)
    printed: str = ""

    def write(self, path: str, text: str) -> None:
        """Write a file of the page."""
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def do(self, command: str) -> None:
        """Run a command of the page."""
        if command.startswith((*NEEDS_NETWORK, *NEEDS_SYSTEMD)):
            return
        for old, new in self.replaced.items():
            command = command.replace(old, new)
        words = shlex.split(command)
        if words[0] == "export":
            self.variables |= dict(word.split("=", 1) for word in words[1:])
        elif words[:3] == ["systemctl", "enable", "--now"]:
            for unit in words[3:]:
                if unit != "orchestrator.target":
                    self.start(unit)
        else:
            self.run(words)

    def run(self, words: list[str]) -> None:
        """Run a program that ends."""
        if words[0] in {"systemd-sysusers", "systemd-tmpfiles"}:
            words = [*words, f"--root={self.root}", "orchestrator.conf"]
        if words[1:3] == ["service", "install"]:
            words += ["--root", str(self.root)]
        environ = self.environ() | self.variables
        done = subprocess.run(words, env=environ, cwd=self.root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stderr)
        self.printed = done.stdout

    def start(self, unit: str) -> None:
        """Start an installed unit as systemd does, and wait until it is ready."""
        name, _, instance = unit.partition("@")
        path = self.root / f"etc/systemd/system/{name}{'@' if instance else ''}.service"
        lines = path.read_text() + self.drop_ins.get(path.name, "")
        options = [line.partition("=")[::2] for line in lines.splitlines() if re.match(r"\w+=", line)]
        credentials = self.root / "run" / unit
        credentials.mkdir(parents=True)
        environ = self.environ() | {"CREDENTIALS_DIRECTORY": str(credentials)}
        command: list[str] = []
        for option, value in options:
            if option == "LoadCredential":
                id_, _, source = value.partition(":")
                # A later line for the same name takes the place of the earlier one.
                if (found := self.root / "etc/credstore" / source).exists():
                    shutil.copy(found, credentials / id_)
            elif option == "EnvironmentFile":
                if (variables := self.root / value.lstrip("-/")).exists():
                    environ |= dict(line.split("=", 1) for line in variables.read_text().splitlines())
            elif option == "ExecReload" and not value.startswith("/bin/kill"):
                self.reloads[unit] = shlex.split(value), environ
            elif option == "ExecStart":
                command = shlex.split(value.replace("%i", instance).replace(DATA, f"{self.root}{DATA}"))
        manager = self.managers[unit] = self.stack.enter_context(ServiceManager())
        process = ActorProcess(command, name=name, env=environ | manager.environment(watchdog_s=30.0), cwd=self.root)
        self.services[unit] = self.stack.enter_context(process)

    def take(self, text: str, *, left_out: str, users: bool) -> None:
        """Write a file of the page, or a drop-in."""
        file = _FILE.match(text)
        if file is not None and not file[1].endswith(left_out):
            self.write(file[1], file[2])
        if users:
            self.edit(text)

    def edit(self, text: str) -> None:
        """Use a drop-in of the page for credentials, as `systemctl edit` does."""
        if drop_in := re.match(r"# systemctl edit (\S+)\n(.*LoadCredential.*)", text, re.DOTALL):
            self.drop_ins[f"{drop_in[1].removesuffix('.service')}.service"] = f"\n{drop_in[2]}"

    def reload(self, unit: str) -> int:
        """Run what systemd runs before it sends SIGHUP, and return its exit status."""
        command, environ = self.reloads[unit]
        return subprocess.run(command, env=environ, cwd=self.root, capture_output=True, check=False).returncode

    def environ(self) -> dict[str, str]:
        """The environment of a program: the place of the settings is all that differs from the page."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("ORC_")}
        return {**ours, "ORC_CONFIG": str(self.root / "etc/orchestrator/orchestrator.toml")}


def user_of(prefix: str, role: str) -> str:
    """The test's own user of Redis for a role."""
    return f"{prefix.replace(':', '-')}-{role}"


def with_user(url: str, prefix: str, role: str) -> str:
    """The URL of the server for a role."""
    return url.replace("://", f"://{user_of(prefix, role)}:pw@", 1)


@contextmanager
def users_of_roles(server: RedisServer, prefix: str) -> Iterator[None]:
    """Create the users, and delete them."""
    names = [user_of(prefix, role) for role in ROLES]
    with server.client() as direct:
        for name in names:
            direct.execute_command("ACL", "SETUSER", name, "on", ">pw", "~*", "&*", "+@all")
        try:
            yield
        finally:
            direct.execute_command("ACL", "DELUSER", *names)


def check_users(server: RedisServer, prefix: str) -> None:
    """Each service has logged in as the user of its role."""
    with server.client() as direct:
        assert {user_of(prefix, role) for role in ROLES} <= {client["user"] for client in direct.client_list()}


def check_reloads(machine: Machine) -> None:
    """A reload passes with the settings of the page, and fails with broken ones."""
    assert [machine.reload(unit) for unit in SERVICES] == [0, 0]
    settings = machine.root / "etc/orchestrator/orchestrator.toml"
    settings.write_text(settings.read_text().replace("processes = 2", "processes = 0"))
    assert [machine.reload(unit) for unit in SERVICES] == [78, 78]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("embedded", "users"),
    [(False, False), (False, True), (True, False)],
    ids=["own Redis", "own users", "embedded Redis"],
)
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-sysusers") is None, reason="needs root and the tools of systemd"
)
def test_page_leads_to_a_running_task(
    redis_server: RedisServer, prefix: str, tmp_path: Path, *, embedded: bool, users: bool
) -> None:
    """Each file is written and each command is run in the order of the page; the task returns what the page shows.

    With the embedded Redis, the files and the words that the page names for it take the places of others. With users of
    Redis per role, the drop-ins of the page give each unit its own credential.
    """
    units = set(SERVICES)
    replaced = {
        "/opt/orchestrator/bin/orc": str(ORC),
        "redis://:the-password@localhost:6379/0": redis_server.url,
        "redis://supervisor:the-password@localhost:6379/0": with_user(redis_server.url, prefix, "supervisor"),
        "redis://worker:another-password@localhost:6379/0": with_user(redis_server.url, prefix, "worker"),
        "shop:prod:acme": prefix,
        "/srv/agents": str(tmp_path / "srv/agents"),
    }
    if embedded:
        data = f"{tmp_path}{DATA}/redis"
        (tmp_path / DATA.lstrip("/")).mkdir(parents=True)
        replaced |= {
            "ORC_REDIS__URL=redis://:the-password@localhost:6379/0": f"ORC_DATA_DIR={data}",
            "service install": "service install --redis",
            "orchestrator.target orchestrator-supervisor": "orchestrator-redis orchestrator-supervisor",
            f"ORC_DATA_DIR={DATA}/redis": f"ORC_DATA_DIR={data}",
        }
        units |= {"orchestrator-redis"}
        replaced = dict(sorted(replaced.items(), key=lambda pair: -len(pair[0])))
    left_out = ".ORC_REDIS__URL" if embedded else ".env"
    with ExitStack() as stack:
        machine = Machine(tmp_path, replaced, stack)
        if users:
            stack.enter_context(users_of_roles(redis_server, prefix))
        for block in blocks(PAGE):
            if block.language != "console":
                machine.take(block.text, left_out=left_out, users=users)
                continue
            shown: list[str] = []
            for line in block.text.splitlines():
                if line.startswith(("# ", "$ ")):
                    machine.do(line[2:])
                else:
                    shown.append(line)
            if shown:
                assert machine.printed.splitlines() == shown
        assert machine.printed == '"Hello, Ada!"\n'
        assert set(machine.services) == units
        machine.managers["orchestrator-supervisor"].wait_status("leads")
        machine.managers["orchestrator-worker@greeters"].wait_status("in 2 workers")
        if users:
            check_users(redis_server, prefix)
        check_reloads(machine)
        # The server ends last, because the others use it.
        for unit, process in reversed(machine.services.items()):
            process.terminate()
            assert process.wait_exit(20) == 0, (unit, process.output)
