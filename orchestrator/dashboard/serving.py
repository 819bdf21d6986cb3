"""Serves the dashboard with uvicorn until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import ConfigError
from orchestrator.dashboard.app import LOOPBACK, make_app
from orchestrator.dashboard.dashboard import Dashboard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import FrameType

    from starlette.types import ASGIApp

    from orchestrator.core.settings import DashboardSettings, Settings

BACKSTOP_S: Final = 3
"""How long open requests may take at the end; streams end by themselves before."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Addresses of a dashboard that serves.

    Attributes:
        url: for a browser of this machine.
        link: one-time login; None when users log in by their passwords.
    """

    url: str
    link: str | None


class _DashboardServer(uvicorn.Server):
    """Ends open streams as soon as a signal asks it to stop; uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal; called between two steps of the loop's thread."""
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._dashboard.stopping.set)


async def serve(settings: Settings, *, started: Callable[[Serving], None], any_port: bool = False) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: of the pool and the dashboard.
        started: called when it listens.
        any_port: takes a free port when that of the settings is taken, at an address of its own machine alone.

    Raises:
        ConfigError: the address is not free, or others can reach it and it has no users.
        StoreError: Redis does not answer.
    """
    chosen = settings.dashboard
    async with Orchestrator(settings=settings) as orc:
        dashboard = new_dashboard(orc)
        loopback = is_loopback(chosen.host)
        users = bool(await dashboard.accounts.users())
        if not loopback and not users:
            raise ConfigError(
                f"the dashboard would listen at {chosen.host}, where others can reach it, and it has no users; add one "
                "with `orc web user add NAME --role admin`, or listen at 127.0.0.1"
            )
        listener = _listen(chosen, any_port=any_port and loopback)
        port = listener.getsockname()[1]
        url = f"http://{_host_of_url(chosen.host)}:{port}{dashboard.base}/"
        link = None if users else f"{url}login?link={await dashboard.accounts.make_link()}"
        app = make_app(dashboard, hosts=allowed_hosts(chosen))
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=BACKSTOP_S,
            server_header=False, proxy_headers=False, log_level=logging.WARNING,
        )  # fmt: skip
        server = _DashboardServer(config, dashboard)
        async with dashboard.following():
            started(Serving(url, link))
            await server.serve(sockets=[listener])


@asynccontextmanager
async def dashboard_app(orc: Orchestrator) -> AsyncIterator[ASGIApp]:
    """Open the dashboard as an ASGI application, to be mounted in another one or served by any ASGI server.

    It follows the settings `dashboard` of the client. Set `dashboard.base_path` to the path of its mount, and
    `dashboard.hosts` to the names by which browsers reach it.

    Args:
        orc: open client of the pool; it must stay open as long.
    """
    dashboard = new_dashboard(orc)
    async with dashboard.following():
        yield make_app(dashboard, hosts=allowed_hosts(orc.services.settings.dashboard))


def new_dashboard(orc: Orchestrator) -> Dashboard:
    """Return the dashboard that the settings of a client describe."""
    chosen = orc.services.settings.dashboard
    return Dashboard(
        orc,
        base=chosen.base_path or "",
        read_only=chosen.read_only,
        secure=chosen.https,
        proxy_header=chosen.proxy_header or "",
        proxies=frozenset(chosen.proxies),
    )


def allowed_hosts(chosen: DashboardSettings) -> frozenset[str]:
    """Return the names that requests may ask for in `Host`."""
    return frozenset({*LOOPBACK, _host_of_url(chosen.host), *chosen.hosts})


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(chosen: DashboardSettings, *, any_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in chosen.host else socket.AF_INET
    try:
        return socket.create_server((chosen.host, chosen.port), family=family, backlog=128)
    except OSError as failure:
        if any_port and failure.errno == errno.EADDRINUSE:
            return socket.create_server((chosen.host, 0), family=family, backlog=128)
        raise ConfigError(
            f"the dashboard cannot listen at {chosen.host} port {chosen.port}: {failure.strerror}; choose another port "
            "with --port, or 0 for a free one"
        ) from None


def _host_of_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
