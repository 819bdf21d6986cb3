"""The health server of a supervisor: what it answers, and what a bad client or a silent Redis does to it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.monitoring import server
from orchestrator.monitoring.server import CONNECTIONS, serve_health
from orchestrator.monitoring.supervisor_health import SupervisorHealth
from orchestrator.services import open_services
from tests.faultkit.proxy import FaultProxy
from tests.helpers.http_client import Reply, connect, request, send
from tests.helpers.local_team import local_settings
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orchestrator.core.settings import Settings
    from orchestrator.services import Services
    from tests.faultkit.servers import RedisServer


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A unix socket of the test's own, with a short path."""
    return f"unix:{tmp_path_factory.mktemp('h')}/s"


@asynccontextmanager
async def serving(settings: Settings, address: str) -> AsyncIterator[tuple[Services, SupervisorHealth]]:
    """Serve the health of a supervisor that is connected."""
    async with open_services(settings, name="supervisor") as services, anyio.create_task_group() as group:
        health = SupervisorHealth(settings, address)
        group.start_soon(health.serve)
        health.connected(services, "s")
        await wait_for(lambda: answers(address), "the server to answer")
        yield services, health
        group.cancel_scope.cancel()


async def answers(address: str) -> bool:
    """Whether a server listens."""
    try:
        await request(address, "/livez")
    except OSError:
        return False
    return True


class TestAnswers:
    """What a probe and a scraper get."""

    async def test_health(self, settings: Settings, address: str) -> None:
        """Both questions are answered as text or JSON, with the names of the checks."""
        async with serving(settings, address):
            live, ready = await request(address, "/livez"), await request(address, "/readyz?verbose")
            assert (live.status, live.body) == (200, "loops: ok\n")
            assert (ready.status, ready.body) == (200, "loops: ok\nredis: ok\nlag: ok\n")
            as_json = await request(address, "/readyz", headers="Accept: application/json\r\n")
            checks = {"loops": "ok", "redis": "ok", "lag": "ok"}
            assert json.loads(as_json.body) == {"healthy": True, "checks": checks}
            assert "evil.example" not in str((live, ready, as_json))

    async def test_a_silent_loop(self, settings: Settings, address: str) -> None:
        """A loop beyond its limit makes the process neither live nor ready, while the event loop turns."""
        async with serving(settings, address) as (services, _):
            with services.turns.loop("assigner", silent_after_s=-1.0):
                live, ready = await request(address, "/livez"), await request(address, "/readyz")
                assert (live.status, ready.status) == (503, 503)
                assert live.body == "loops: assigner has not turned for 0 s\n"
            assert (await request(address, "/livez")).status == 200

    async def test_a_late_event_loop(self, settings: Settings, address: str) -> None:
        """A process whose event loop was blocked is not ready for a while, and stays live."""
        async with serving(settings, address) as (_, health):
            health.lag.record(1.5)
            ready = await request(address, "/readyz")
            assert (ready.status, ready.body.splitlines()[-1]) == (503, "lag: the event loop was blocked for 1.5 s")
            assert (await request(address, "/livez")).status == 200

    async def test_redis_is_away(self, redis_server: RedisServer, prefix: str, address: str) -> None:
        """Without Redis the process is live and not ready, and exports its own metrics; then it is ready again."""
        async with FaultProxy(redis_server.url) as proxy:
            settings = local_settings(proxy.url, prefix)
            labels = f'{{prefix="{prefix}",pool="default"}}'
            async with serving(settings, address):
                assert (await request(address, "/readyz")).status == 200
                proxy.refuse()
                proxy.cut()
                await wait_for(lambda: has_status(address, "/readyz", 503), "the check to fail")
                assert (await request(address, "/livez")).status == 200
                scrape = await request(address, "/metrics")
                assert scrape.status == 200
                assert f"orc_redis_up{labels} 0\n" in scrape.body
                assert "orc_loop_lag_seconds_count" in scrape.body
                proxy.heal()
                await wait_for(lambda: has_status(address, "/readyz", 200), "the check to pass")
                await wait_for(lambda: has_text(address, f"orc_redis_up{labels} 1\n"), "a scrape")
                assert f"orc_redis_reconnects_total{labels} 0\n" not in (await request(address, "/metrics")).body

    async def test_before_redis_answers(self, settings: Settings, address: str) -> None:
        """A supervisor that waits for Redis is live, and not ready."""
        async with anyio.create_task_group() as group:
            group.start_soon(SupervisorHealth(settings, address).serve)
            await wait_for(lambda: answers(address), "the server to answer")
            assert (await request(address, "/livez")).status == 200
            ready = await request(address, "/readyz")
            assert (ready.status, ready.body.splitlines()[1]) == (503, "redis: has not answered since the start")
            group.cancel_scope.cancel()

    async def test_probe(self, settings: Settings, address: str) -> None:
        """The probe command exits with 0 for a live process, and with 1 and the reason for one that hangs."""
        async with serving(settings, address) as (services, _):
            command = [sys.executable, "-P", "-m", "orchestrator.monitoring.probe", "live", "--address", address]
            live = await anyio.run_process(command, check=False)
            assert (live.returncode, live.stdout) == (0, b"loops: ok\n")
            with services.turns.loop("assigner", silent_after_s=-1.0):
                hung = await anyio.run_process(command, check=False)
            assert (hung.returncode, hung.stderr[:30]) == (1, b"loops: assigner has not turned")


async def has_status(address: str, path: str, status: int) -> bool:
    """Whether a request is answered with this status."""
    return (await request(address, path)).status == status


async def has_text(address: str, text: str) -> bool:
    """Whether a scrape has this text."""
    return text in (await request(address, "/metrics")).body


class TestServer:
    """What bad clients get, and that they harm no other."""

    async def test_refusals(self, settings: Settings, address: str) -> None:
        """Other methods and paths are refused; HEAD has no body."""
        async with serving(settings, address):
            posted = await request(address, "/livez", method="POST")
            assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")
            assert (await request(address, "/")).status == 404
            head = await request(address, "/metrics", method="HEAD")
            assert (head.status, head.body) == (200, "")
            assert int(head.headers["content-length"]) > 1000

    async def test_invalid_requests(self, settings: Settings, address: str) -> None:
        """What is no HTTP is refused, and so is a head of more than 8 KiB."""
        async with serving(settings, address):
            for data, status in (
                (b"\x16\x03\x01 hello\r\n\r\n", 400),
                (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000, 431),
            ):
                async with connect(address) as stream:
                    assert (await send(stream, data)).status == status

    async def test_slow_clients(self, settings: Settings, address: str) -> None:
        """Clients that send nothing hold no place: the oldest gives way."""
        async with serving(settings, address), AsyncExitStack() as opened:
            slow = [await opened.enter_async_context(connect(address)) for _ in range(CONNECTIONS)]
            await slow[0].send(b"GET /live")
            replies = list[Reply]()
            for _ in range(CONNECTIONS + 1):
                replies.append(await request(address, "/livez"))
            assert {reply.status for reply in replies} == {200}
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(4):
                await slow[0].receive()

    async def test_time_limit(self, settings: Settings, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request that does not arrive in time is closed."""
        monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.05)
        async with serving(settings, address), connect(address) as stream:
            await stream.send(b"GET /livez HTTP/1.1\r\n")
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(4):
                await stream.receive()

    async def test_a_port_that_is_taken(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The process goes on without a server, and serves when the port is free."""
        monkeypatch.setattr(server, "RETRY_S", 0.05)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = str(taken.getsockname()[1])
            async with anyio.create_task_group() as group:
                group.start_soon(SupervisorHealth(settings, address).serve)
                await anyio.sleep(0.2)
                taken.close()
                await wait_for(lambda: answers(address), "the server to answer")
                group.cancel_scope.cancel()

    async def test_a_socket_that_was_left(self, settings: Settings, address: str) -> None:
        """A socket file of a killed process is replaced; that of a living one, and other files, are not."""
        path = address.removeprefix("unix:")
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        async with anyio.create_task_group() as group:
            group.start_soon(SupervisorHealth(settings, address).serve)
            await wait_for(lambda: answers(address), "the server to answer")
            with pytest.raises(OSError, match="Address already in use"):
                server._listen(path)
            group.cancel_scope.cancel()
        with open(path, "w", encoding="utf-8"), pytest.raises(OSError, match="no socket"):  # noqa: ASYNC230, PTH123
            server._listen(path)

    async def test_a_defect_of_an_answer(self, address: str) -> None:
        """An exception in an answer closes that connection alone."""

        class Broken:
            def live(self) -> Any:
                raise ZeroDivisionError

            async def ready(self) -> Any:
                return []

            async def metrics(self) -> bytes:
                return b""

        async with anyio.create_task_group() as group:
            group.start_soon(serve_health, address, Broken())
            await wait_for(lambda: has_status_of_ready(address), "the server to answer")
            async with connect(address) as stream:
                with pytest.raises(ConnectionResetError):
                    await send(stream, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await has_status_of_ready(address)
            group.cancel_scope.cancel()


async def has_status_of_ready(address: str) -> bool:
    """Whether a server answers that it is ready."""
    try:
        return (await request(address, "/readyz")).status == 200
    except OSError:
        return False


def test_missing_libraries(tmp_path: Path) -> None:
    """Without the extra, one line has the command to type, and the exit code is that of a wrong setting."""
    for name in ("h11", "prometheus_client"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    command = [sys.executable, "-m", "orchestrator", "supervisor", "run"]
    environ = {"ORC_SUPERVISOR__HEALTH": "9471", "PYTHONPATH": str(tmp_path), "ORC_REDIS__URL": "unix:///nonexistent"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == ConfigError.exit_code
    assert "pip install 'redis-orchestrator[monitoring]'" in done.stderr
    assert "Traceback" not in done.stderr
