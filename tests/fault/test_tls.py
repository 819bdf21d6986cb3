"""Connections over TLS to a real server: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
import trustme

from orchestrator import Agent
from orchestrator.core.errors import ConfigError, StoreError, TlsRefused
from orchestrator.core.settings_sources import load_settings
from orchestrator.services import configured_server, pool_keys
from orchestrator.store.store import Store, SyncStore
from orchestrator.testing.waiting import wait_for
from tests.faultkit.clusters import run_cluster
from tests.faultkit.sentinels import Sentinel
from tests.faultkit.servers import RedisServer, free_port
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.server_matrix import REDIS_7, binary_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.core.settings import Settings


def tls_options(directory: Path, port: int) -> dict[str, str]:
    """Return the options of a server, or of a sentinel, with the certificate in a folder and this port for TLS."""
    return {
        "tls-port": str(port),
        "tls-cert-file": str(directory / "server.pem"),
        "tls-key-file": str(directory / "server.key"),
        "tls-ca-cert-file": str(directory / "ca.pem"),
        "tls-auth-clients": "no",
    }


class TlsServer:
    """A server with a certificate of its own authority, at a port for TLS.

    Attributes:
        authority: signs certificates that the server and programs accept.
        server: the process; it has a plain port too.
        port: for TLS.
    """

    def __init__(self, directory: Path, *, name: str = "localhost", asks_programs: bool = False) -> None:
        self.authority, self.port, self._directory = trustme.CA(), free_port(), directory
        self.sign(self.authority, name)
        self.authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        options = tls_options(directory, self.port) | {"tls-auth-clients": "yes" if asks_programs else "no"}
        self.server = RedisServer(binary_of(REDIS_7), port=0, options=options)

    def sign(self, authority: trustme.CA, name: str) -> None:
        """Write a certificate of the server."""
        made = authority.issue_cert(name)
        made.cert_chain_pems[0].write_to_path(str(self._directory / "server.pem"))
        made.private_key_pem.write_to_path(str(self._directory / "server.key"))

    def use_certificate(self, authority: trustme.CA) -> None:
        """Let the server use another certificate from now on, and end its connections."""
        self.sign(authority, "localhost")
        with self.server.client() as client:
            client.config_set("tls-cert-file", str(self._directory / "server.pem"))
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def client_files(self, authority: trustme.CA) -> dict[str, Any]:
        """Write the certificate of a program, and return the settings that name it."""
        made = authority.issue_cert("program")
        made.cert_chain_pems[0].write_to_path(str(self._directory / "client.pem"))
        made.private_key_pem.write_to_path(str(self._directory / "client.key"))
        return {"tls_cert": str(self._directory / "client.pem"), "tls_key": str(self._directory / "client.key")}

    def settings(self, *, known: bool = True, **changed: Any) -> Settings:
        """Return settings that name the server; it is known by its authority, unless told otherwise."""
        given = {f"redis.{name}": value for name, value in changed.items()}
        if known:
            given = {"redis.tls_ca": str(self._directory / "ca.pem"), **given}
        url = f"rediss://localhost:{self.port}/0"
        return load_settings(config=os.devnull, overrides={"redis.url": url, **given}, environ={})


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    """A server that asks programs for no certificate."""
    made = TlsServer(tmp_path)
    with made.server:
        yield made


async def ping(settings: Settings, kind: type[StoreError] = TlsRefused) -> None:
    """Ask the server over an asyncio connection, one of a thread, and one for long reads; all or none are refused."""
    endpoint = configured_server(settings)
    assert endpoint is not None
    outcomes = []

    def ask_in_thread() -> Any:
        store = SyncStore(endpoint, pool_keys(settings), name="test")
        try:
            return store.execute("PING")
        finally:
            store.close()

    def begin() -> Any:
        store = SyncStore(endpoint, pool_keys(settings), name="test")
        read = store.long_read(name="long", connect_timeout_s=5, max_bytes=1000)
        try:
            read.begin("PING")
            while (reply := read.take()) is None:
                pass
            return reply[0]
        finally:
            read.close()
            store.close()

    async with Store(endpoint, pool_keys(settings)) as store:

        async def ask() -> Any:
            return await store.execute("PING")

        for way in (
            ask,
            lambda: anyio.to_thread.run_sync(ask_in_thread),
            lambda: anyio.to_thread.run_sync(begin),
        ):
            try:
                outcomes.append(await way())
            except kind as refused:
                outcomes.append(refused)
    refusals = [outcome for outcome in outcomes if isinstance(outcome, kind)]
    if refusals:
        assert len(refusals) == len(outcomes)
        # Of "PING was not run: REASON" the reason; other texts have no colon.
        raise kind("; ".join(dict.fromkeys(str(refusal).rpartition("not run: ")[2] for refusal in refusals)))
    assert outcomes == [b"PONG"] * 3


async def test_a_team_works_over_tls(tls: TlsServer, prefix: str) -> None:
    """Submits, assignments, results and waits pass; no connection of the team is plain."""
    agent = Agent("ada")

    @agent.skill
    async def double(n: int) -> int:
        return 2 * n

    changed = {"redis__tls_ca": tls.settings().redis.tls_ca}
    settings = local_settings(f"rediss://localhost:{tls.port}/0", prefix, **changed)
    async with run_local_team(settings) as team:
        await team.work(agent)
        assert await (await team.orc.submit("double", {"n": 21})).result(timeout=10) == 42
        with tls.server.client() as client:
            assert len(client.client_list()) > 3
            # The port that a connection came to is not in CLIENT LIST; its address is that of the server.
            plain = [one for one in client.client_list() if one["laddr"].endswith(f":{tls.server.port}")]
            assert len(plain) == 1


async def test_an_unknown_authority(tls: TlsServer) -> None:
    """The server is refused; with `none` everything is accepted, and the doctor warns."""
    with pytest.raises(TlsRefused, match=r"certificate of Redis is not accepted.*redis\.tls_ca"):
        await ping(tls.settings(known=False))
    with pytest.raises(TlsRefused, match="not accepted"):
        await ping(tls.settings(known=False, tls_verify="ca"))
    await ping(tls.settings(known=False, tls_verify="none"))
    await ping(tls.settings())


async def test_a_certificate_of_another_host(tmp_path: Path) -> None:
    """It is refused by the name, unless only the authority is checked."""
    other = TlsServer(tmp_path, name="other.example")
    with other.server:
        with pytest.raises(TlsRefused, match=r"not accepted.*localhost.*the host in redis\.url"):
            await ping(other.settings())
        await ping(other.settings(tls_verify="ca"))


async def test_a_server_that_asks_programs(tmp_path: Path) -> None:
    """A program without a certificate, or with one of an unknown authority, is told so.

    The server ends the connection right after its refusal, so that a write may fail before the refusal is read.
    """
    asking = TlsServer(tmp_path, asks_programs=True)
    with asking.server:
        with pytest.raises(StoreError, match=r"set redis\.tls_cert"):
            await ping(asking.settings(), StoreError)
        with pytest.raises(StoreError, match=r"redis\.tls_cert"):
            await ping(asking.settings(**asking.client_files(trustme.CA())), StoreError)
        await ping(asking.settings(**asking.client_files(asking.authority)))


# ------------------------------------------------------------------------------------------------- sentinels, clusters


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder with an authority, and the certificate of all servers of this machine."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    made.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    return tmp_path


def plain_connections(*servers: RedisServer) -> int:
    """Count the connections of programs that are not over TLS, but for those of the test."""
    found = 0
    for server in servers:
        with server.client() as client:
            plain = [one for one in client.client_list(_type="normal") if one["laddr"].endswith(f":{server.port}")]
            found += len(plain) - 1
    return found


async def works(url: str, prefix: str, certificates: Path, *servers: RedisServer) -> None:
    """A team submits, runs and waits over TLS alone, and refuses an unknown authority."""
    agent = Agent("ada")

    @agent.skill
    async def double(n: int) -> int:
        return 2 * n

    other = local_settings(url, prefix, redis__tls_ca=str(certificates / "other.pem"))
    with pytest.raises(TlsRefused, match=r"certificate of Redis is not accepted.*redis\.tls_ca"):
        async with run_local_team(other):
            pass  # pragma: no cover
    async with run_local_team(local_settings(url, prefix, redis__tls_ca=str(certificates / "ca.pem"))) as team:
        await team.work(agent)
        assert await (await team.orc.submit("double", {"n": 21})).result(timeout=20) == 42
        assert plain_connections(*servers) == 0


@pytest.mark.blocks_loop
async def test_a_sentinel_group(certificates: Path, prefix: str) -> None:
    """Sentinels and their master are asked over TLS."""
    binary, port, own = binary_of(REDIS_7), free_port(), free_port()
    options = tls_options(certificates, port) | {"tls-replication": "yes"}
    lines = [f"{name} {value}" for name, value in (options | {"tls-port": str(own)}).items()]
    with (
        RedisServer(binary, port=0, options=options) as master,
        Sentinel(binary, master=port, quorum=1, options=tuple(lines)) as sentinel,
        sentinel.client() as client,
    ):
        await wait_for(lambda: "s_down" not in client.sentinel_master("mymaster")["flags"], "a master that answers")
        await works(f"rediss+sentinel://localhost:{own}/mymaster/0", prefix, certificates, master)


@pytest.mark.blocks_loop
async def test_a_cluster(certificates: Path, prefix: str) -> None:
    """A program that knows one node finds the master of its slot, over TLS."""
    ports: list[int] = []

    def own_options() -> dict[str, str]:
        ports.append(free_port())
        return tls_options(certificates, ports[-1])

    options = {"tls-cluster": "yes", "tls-replication": "yes"}
    with run_cluster(binary_of(REDIS_7), masters=2, options=options, own_options=own_options) as cluster:
        settings = local_settings("redis://localhost", prefix)
        other = 1 - cluster.nodes.index(cluster.owner(pool_keys(settings).format))
        await works(f"rediss+cluster://localhost:{ports[other]}", prefix, certificates, *cluster.nodes)


class PlainPort(socketserver.BaseRequestHandler):
    """Answers a handshake as a server without TLS does that takes it for a command."""

    def handle(self) -> None:
        """Refuse what comes."""
        self.request.recv(65_536)
        self.request.sendall(b"-ERR unknown command\r\n")


async def test_a_port_without_tls(tls: TlsServer) -> None:
    """The message names the mistake."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), PlainPort) as plain:
        thread = threading.Thread(target=plain.serve_forever)
        thread.start()
        try:
            with pytest.raises(TlsRefused, match="speaks no TLS at this port"):
                await ping(tls.settings(url=f"rediss://localhost:{plain.server_address[1]}/0"))
        finally:
            await anyio.to_thread.run_sync(plain.shutdown)  # waits for the next poll, up to half a second
            thread.join()


async def test_a_wrong_certificate_for_a_while(tls: TlsServer, prefix: str) -> None:
    """A team that runs stays, and goes on when the server has a good certificate again."""
    agent = Agent("ada")

    @agent.skill
    async def double(n: int) -> int:
        return 2 * n

    settings = local_settings(
        f"rediss://localhost:{tls.port}/0",
        prefix,
        redis__tls_ca=tls.settings().redis.tls_ca,
        redis__command_timeout_s=2.0,
    )
    async with run_local_team(settings) as team:
        await team.work(agent)
        assert await (await team.orc.submit("double", {"n": 1})).result(timeout=10) == 2
        await anyio.to_thread.run_sync(tls.use_certificate, trustme.CA())
        with pytest.raises(TlsRefused):
            await team.orc.submit("double", {"n": 2})
        await anyio.to_thread.run_sync(tls.use_certificate, tls.authority)

        async def works() -> bool:
            return bool(await (await team.orc.submit("double", {"n": 3})).result(timeout=10) == 6)

        await wait_for(works, "a result", 20)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tls_ca": "/no/such.pem"}, "redis.tls_ca: /no/such.pem: No such file"),
        ({"tls_ca": "server.key"}, "redis.tls_ca: .*server.key: not in PEM"),
        ({"tls_key": "server.key"}, "redis.tls_key needs redis.tls_cert"),
        ({"tls_cert": "ca.pem", "tls_key": "server.key"}, "do not belong together"),
        ({"url": "redis://localhost/0"}, "no meaning without TLS"),
    ],
)
def test_wrong_settings(tmp_path: Path, changed: dict[str, str], told: str) -> None:
    """They are refused before anything connects, with exit code 78."""
    made = TlsServer(tmp_path)
    given: dict[str, Any] = {
        name: str(tmp_path / path) if name.startswith("tls") else path for name, path in changed.items()
    }
    with pytest.raises(ConfigError, match=told):
        configured_server(made.settings(**given))


def test_the_command_line(tls: TlsServer, tmp_path: Path) -> None:
    """A refused certificate is an error of the configuration, whichever way the files are named."""

    def lists(query: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "ORC_CONFIG": os.devnull, "ORC_REDIS__URL": f"rediss://localhost:{tls.port}/0{query}"}
        return subprocess.run(
            [sys.executable, "-P", "-m", "orchestrator", "tasks", "list"],
            env={**environ, **variables}, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    refused = lists()
    assert (refused.returncode, "redis.tls_ca" in refused.stderr) == (78, True)
    assert lists(ORC_REDIS__TLS_CA=str(tmp_path / "ca.pem")).returncode == 0
    assert lists(f"?ssl_ca_certs={tmp_path / 'ca.pem'}").returncode == 0
