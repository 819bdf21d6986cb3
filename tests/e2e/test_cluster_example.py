"""The compose file with Redis Cluster, its services run as processes of this machine."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis
import yaml
from anyio import to_thread
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator import Orchestrator
from orchestrator.core.settings_sources import load_settings
from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.store.keys import PoolKeys
from orchestrator.store.locator import slot_of
from orchestrator.testing.waiting import wait_for
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "cluster"
PASSWORD: Final = "5e4d7c2a91b8f603"
NODES: Final = tuple(f"redis{number}" for number in range(1, 7))
BUS: Final = 10_000
"""The port of a node's bus is that of the node and this."""
BACK_S: Final = 60.0


def free_port_of_node() -> int:
    """A free port whose bus has one, too."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + BUS))
            except (OSError, OverflowError):
                continue
            return port


class Services:
    """The services of the compose file; each has a port of this machine in place of an address.

    Attributes:
        processes: by service.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._services: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
        self.ports = {name: free_port_of_node() for name in NODES}
        self._places = {f"{self._address(name)}:6379": f"127.0.0.1:{port}" for name, port in self.ports.items()}
        self.processes: dict[str, ActorProcess] = {}
        (directory / "redis-password").write_text(f"{PASSWORD}\n")
        # In seconds of a test.
        script = (EXAMPLE / "start.sh").read_text()
        (directory / "start.sh").write_text(script.replace("node-timeout 5000", "node-timeout 1000"))
        programs = directory / "bin"
        programs.mkdir()
        (programs / "redis-server").symlink_to(find_server_binary().path)
        self._path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.url = self._url()

    def _address(self, name: str) -> str:
        """The address of a node in the file: the others reach it there, and a container that starts again keeps it."""
        service = self._services[name]
        address: str = service["environment"]["HOST"]
        assert service["networks"]["data"]["ipv4_address"] == address
        return address

    def _url(self) -> str:
        """The URL that the first lines of the file write."""
        lines = (EXAMPLE / "compose.yaml").read_text().splitlines()
        (hosts,) = [line.split("hosts=")[1] for line in lines if "hosts=" in line]
        (url,) = [line.split('"')[1] for line in lines if "redis+cluster://" in line]
        return url.replace("$hosts", self._here(hosts)).replace("$pw", PASSWORD)

    def _here(self, text: str) -> str:
        for place, here in self._places.items():
            text = text.replace(place, here)
        return text

    def start(self, name: str) -> None:
        """Start a service with the command and the environment of the file."""
        service = self._services[name]
        environment = {key: self._here(str(value)) for key, value in service.get("environment", {}).items()}
        command = [str(self._directory / "start.sh") if word == "/start.sh" else word for word in service["command"]]
        if "PASSWORD_FILE" in environment:
            environment |= {"PASSWORD_FILE": str(self._directory / "redis-password"), "PATH": self._path}
        else:
            environment |= {"ORC_REDIS__URL": self.url, "ORC_CONFIG": os.devnull, "PYTHONPATH": str(EXAMPLE.parent)}
            command = [sys.executable, "-P", "-m", "orchestrator", *command]
        if name in self.ports:
            data = self._directory / name
            data.mkdir(exist_ok=True)
            base = EXAMPLE.parents[1] / "config" / "redis.conf"
            environment |= {"DATA": str(data), "BASE": str(base)}
            environment |= {"HOST": "127.0.0.1", "PORT": str(self.ports[name])}
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        process = ActorProcess(command, name=name, env=environment, cwd=self._directory)
        self.processes[name] = self._stack.enter_context(process)

    def ask(self, name: str, *command: str) -> Any:
        """Send one command to a node; None if it does not answer."""
        try:
            with redis.Redis(
                port=self.ports[name], password=PASSWORD, decode_responses=True, retry=Retry(NoBackoff(), 0)
            ) as client:
                return client.execute_command(*command)
        except redis.RedisError:
            return None

    def role(self, name: str) -> str:
        """What a node is; empty for a replica that has not all data yet."""
        found = self.ask(name, "ROLE")
        return "" if not found or (found[0] == "slave" and found[3] != "connected") else str(found[0])

    def owner(self, slot: int) -> str:
        """The master of a slot."""
        for name in NODES:
            for first, last, master, *_ in self.ask(name, "CLUSTER", "SLOTS") or ():
                if first <= slot <= last:
                    return next(one for one in NODES if self.ports[one] == master[1])
        return ""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """The services; the nodes run."""
    if shutil.which("redis-cli") is None:
        pytest.skip("needs redis-cli on the PATH")
    with ExitStack() as stack:
        started = Services(tmp_path, stack)
        for name in NODES:
            started.start(name)
        yield started


@pytest.mark.slow
async def test_a_killed_master_is_replaced(services: Services) -> None:
    """A task passes through before and after; the old master starts again as a replica."""
    for _ in range(2):  # the second time there is a cluster
        services.start("create")
        create = services.processes["create"]
        assert await to_thread.run_sync(create.wait_exit, BACK_S) == 0, create.output
    roles = ["master"] * 3 + ["slave"] * 3
    await wait_for(lambda: [services.role(name) for name in NODES] == roles, "three replicas", BACK_S)
    for name in ("supervisor", "worker"):
        services.start(name)
    settings = load_settings(config=os.devnull, overrides={"redis.url": services.url}, environ={})
    slot = slot_of(PoolKeys(settings.prefix, settings.pool).root)
    async with Orchestrator(settings=settings) as orc:
        assert await (await orc.submit("greet", {"name": "Ada"}, durability="replicated")).result(timeout=BACK_S)
        master = services.owner(slot)
        services.processes[master].kill()
        assert await (await orc.submit("greet", {"name": "Bob"})).result(timeout=BACK_S)
        assert services.owner(slot) in NODES[3:]
        services.start(master)
        await wait_for(lambda: services.role(master) == "slave", "the old master as a replica", BACK_S)
        assert await (await orc.submit("greet", {"name": "Eve"}, durability="replicated")).result(timeout=BACK_S)
    assert all(services.processes[name].returncode is None for name in ("supervisor", "worker"))
