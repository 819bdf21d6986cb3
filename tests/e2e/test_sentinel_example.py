"""The compose file with Sentinel, its services run as processes of this machine."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis
import yaml
from anyio import to_thread

from orchestrator import Orchestrator
from orchestrator.core.redis_url import parse_url
from orchestrator.core.settings_sources import load_settings
from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.store.sentinel_locator import ask
from orchestrator.testing.waiting import wait_for
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "sentinel"
PASSWORD: Final = "5e4d7c2a91b8f603"
SERVERS: Final = ("redis1", "redis2", "redis3")
SENTINELS: Final = ("sentinel1", "sentinel2", "sentinel3")
BACK_S: Final = 60.0


class Services:
    """The services of the compose file; each has a port in place of a host.

    Attributes:
        processes: by service.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._services: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
        self.ports = {name: free_port() for name in (*SERVERS, *SENTINELS)}
        self.processes: dict[str, ActorProcess] = {}
        (directory / "redis-password").write_text(f"{PASSWORD}\n")
        # In seconds of a test.
        script = (EXAMPLE / "start.sh").read_text()
        (directory / "start.sh").write_text(script.replace("milliseconds mymaster 5000", "milliseconds mymaster 700"))
        programs = directory / "bin"
        programs.mkdir()
        (programs / "redis-server").symlink_to(find_server_binary().path)
        self._path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.url = self._url()

    def _url(self) -> str:
        """The URL that the first lines of the file write, with the ports in place of the hosts."""
        lines = (EXAMPLE / "compose.yaml").read_text().splitlines()
        (hosts,) = [line.split("hosts=")[1] for line in lines if "hosts=" in line]
        (url,) = [line.split('"')[1] for line in lines if "redis+sentinel://" in line]
        for name in SENTINELS:
            hosts = hosts.replace(f"{name}:26379", f"127.0.0.1:{self.ports[name]}")
        return url.replace("$hosts", hosts).replace("$pw", PASSWORD)

    def start(self, name: str) -> None:
        """Start a service with the command and the environment of the file."""
        service = self._services[name]
        environment = {key: str(value) for key, value in service.get("environment", {}).items()}
        if name in self.ports:
            data = self._directory / name
            data.mkdir(exist_ok=True)
            first_host, first_port = environment["FIRST"].split()
            assert (environment["HOST"], first_port) == (name, "6379")
            environment |= {
                "DATA": str(data),
                "HOST": "127.0.0.1",
                "PORT": str(self.ports[name]),
                "FIRST": f"127.0.0.1 {self.ports[first_host]}",
                "PASSWORD_FILE": str(self._directory / "redis-password"),
                "BASE": str(EXAMPLE.parents[1] / "config" / "redis.conf"),
                "PATH": self._path,
            }
            command = [
                str(self._directory / "start.sh") if word == "/start.sh" else word for word in service["command"]
            ]
        else:
            environment |= {"ORC_REDIS__URL": self.url, "ORC_CONFIG": os.devnull, "PYTHONPATH": str(EXAMPLE.parent)}
            command = [sys.executable, "-P", "-m", "orchestrator", *service["command"]]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        process = ActorProcess(command, name=name, env=environment, cwd=self._directory)
        self.processes[name] = self._stack.enter_context(process)

    def config(self, name: str) -> str:
        """The configuration that a server keeps beside its data."""
        return (self._directory / name / "server.conf").read_text()

    def master(self) -> str:
        """The service that the sentinels take for the master, empty while they know none."""
        place = parse_url(self.url)
        for node in place.nodes:
            if isinstance(answers := ask(place, node, "GET-MASTER-ADDR-BY-NAME"), list) and isinstance(
                answers[0], list
            ):
                return next(name for name in SERVERS if self.ports[name] == int(answers[0][1]))
        return ""

    def role(self, name: str) -> tuple[str, int]:
        """Role of a server, and the number of replicas that answer it in time."""
        try:
            with redis.Redis(port=self.ports[name], password=PASSWORD) as client:
                found: Any = client.info("replication")
        except redis.RedisError:
            return "", 0
        return found["role"], found.get("min_slaves_good_slaves", 0)

    def agree(self) -> bool:
        """Whether each sentinel knows the others, and the replicas, for which it asks the master each ten seconds."""
        place = parse_url(self.url)
        return all(
            "OK 3 usable" in str(ask(place, node, "CKQUORUM"))
            and str(ask(place, node, "REPLICAS")).count("'runid'") == 2
            for node in place.nodes
        )


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """The services; servers and sentinels run."""
    with ExitStack() as stack:
        started = Services(tmp_path, stack)
        for name in (*SERVERS, *SENTINELS):
            started.start(name)
        yield started


@pytest.mark.slow
async def test_a_killed_master_is_replaced(services: Services) -> None:
    """A task passes through before and after; the promoted server and the sentinels remember who the master is."""
    await wait_for(lambda: services.role("redis1") == ("master", 2), "two replicas", BACK_S)
    await wait_for(lambda: to_thread.run_sync(services.agree), "sentinels that know all", BACK_S)
    for name in ("supervisor", "worker"):
        services.start(name)
    # A busy machine needs longer for a failover than a client repeats a submit by default.
    patient = {"redis.url": services.url, "redis.command_timeout_s": BACK_S}
    settings = load_settings(config=os.devnull, overrides=patient, environ={})
    async with Orchestrator(settings=settings) as orc:
        assert await (await orc.submit("greet", {"name": "Ada"}, durability="replicated")).result(timeout=BACK_S)
        services.processes["redis1"].kill()
        assert await (await orc.submit("greet", {"name": "Bob"})).result(timeout=BACK_S)
    promoted = services.master()
    assert promoted in {"redis2", "redis3"}
    await wait_for(lambda: "\nreplicaof" not in services.config(promoted), "a server that remembers it", BACK_S)
    assert all(services.processes[name].returncode is None for name in ("supervisor", "worker"))
