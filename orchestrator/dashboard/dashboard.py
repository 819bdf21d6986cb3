"""Holds what all requests of a dashboard share: the client, the feed, templates, files, and what was read just now."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.ids import new_task_id
from orchestrator.core.reading import read_whole
from orchestrator.dashboard import assets
from orchestrator.dashboard.displays import Displays
from orchestrator.dashboard.feed import Feed
from orchestrator.dashboard.navigation import navigation
from orchestrator.dashboard.open_streams import OpenStreams
from orchestrator.dashboard.rendering import make_environment
from orchestrator.views.control import lacks_secret

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from orchestrator.client.client import Orchestrator
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.page import PageRequest, WebPage

KEPT_S: Final = 1.0
"""How long equal requests share what one of them read."""
LOOK_EVERY_S: Final = 30.0
"""How often the clock of Redis and the signing of commands are looked at."""


@dataclass(slots=True)
class _SharedRead:
    """One read for all equal requests; `read_s`: when it ended."""

    done: anyio.Event = field(default_factory=anyio.Event)
    read_s: float = 0.0
    found: Mapping[str, Any] | None = None
    failure: OrchestratorError | None = None

    def is_fresh(self) -> bool:
        return not self.done.is_set() or (self.found is not None and time.monotonic() - self.read_s < KEPT_S)


DOWNLOADS: Final = 2
"""Whole values that are read at the same time, because each is held in memory."""


@dataclass(slots=False)
class Dashboard:
    """A dashboard of one pool, for all requests.

    Attributes:
        orc: open client of the pool.
        base: path under which a proxy serves the pages, as `/orc`, or empty.
        read_only: every command is refused.
        secure: browsers reach it over TLS.
        proxy_header: header in which a trusted proxy names the user, or empty.
        proxies: addresses of the trusted proxies.
    """

    orc: Orchestrator
    base: str = ""
    read_only: bool = False
    secure: bool = False
    proxy_header: str = ""
    proxies: Collection[str] = ()
    stopping: anyio.Event = field(default_factory=anyio.Event)
    downloads: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(DOWNLOADS))

    def __post_init__(self) -> None:
        """Prepare what belongs to the pool."""
        self.services = self.orc.services
        self.accounts = self.services.accounts
        self.feed = Feed(self.services)
        self.streams = OpenStreams()
        self.displays = Displays(self.services.settings.dashboard.agents)
        self.templates = make_environment()
        self.assets = assets.load()
        self.skew_s: float | None = None
        """How far the clock of Redis is ahead of this machine's, as of the last look."""
        self._lacks_secret = False
        self._looked_s = -LOOK_EVERY_S
        self._reads: dict[Any, _SharedRead] = {}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the changes of the pool; at the end, open streams are told to end."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.feed.run)
            try:
                yield
            finally:
                self.stopping.set()
                group.cancel_scope.cancel()

    @property
    def cookie(self) -> str:
        """Name of the session cookie: of this pool, because browsers send cookies to all ports of a host."""
        pool = blake2b(self.services.keys.root.encode(), digest_size=4).hexdigest()
        return f"__Host-orc-{pool}" if self.secure and not self.base else f"orc-{pool}"

    @property
    def can_send(self) -> bool:
        """True if this process gives commands."""
        return not self.why_no_commands

    @property
    def why_no_commands(self) -> str:
        """The reason why this process gives no commands; empty if it does."""
        if self.read_only:
            return "this dashboard is read-only"
        if self._lacks_secret:
            return "this dashboard is read-only: the pool's commands are signed, and it has no control.secret"
        return ""

    async def look(self) -> None:
        """Look at the clock of Redis, and whether commands must be signed; twice a minute at most."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._lacks_secret = await lacks_secret(self.services)
        before_s = time.time()
        seconds, micros = await self.services.store.execute("TIME")
        self.skew_s = read_whole(seconds) + read_whole(micros) / 1e6 - (before_s + time.time()) / 2

    def url(self, path: str) -> str:
        """Return the address of a path of the dashboard."""
        return self.base + path

    async def read(self, page: WebPage, asked: PageRequest) -> Mapping[str, Any]:
        """Read what a page shows. Equal requests of users with the same rights share it within a second."""
        who = asked.identity
        key = (page.path, tuple(asked.path.items()), tuple(sorted(asked.query.items())), who.role, who.scope)
        while (shared := self._reads.get(key)) is not None and shared.is_fresh():
            await shared.done.wait()
            if shared.failure is not None:
                raise shared.failure
            if shared.found is not None:
                return shared.found
            # The request that read it was cancelled: one of those that wait reads it.
        self._reads = {name: one for name, one in self._reads.items() if one.is_fresh()}
        shared = self._reads[key] = _SharedRead()
        try:
            shared.found = await page.read(asked)
        except OrchestratorError as failure:
            shared.failure = failure
            raise
        finally:
            shared.read_s = time.monotonic()
            shared.done.set()
        return shared.found

    def forget_reads(self) -> None:
        """Read again from now on, because this process has changed something."""
        self._reads = {}

    def context(self, identity: Identity, path: str, query: str) -> dict[str, Any]:
        """Return the values that every template has."""
        return {
            "url": self.url,
            "asset": partial(assets.address, self.assets, self.base),
            "integrity": partial(assets.integrity, self.assets),
            "who": identity,
            "navigation": navigation(),
            "pool": self.services.settings.pool,
            "can_send": self.can_send,
            "why_no_commands": self.why_no_commands,
            "skew_s": self.skew_s,
            "here": path,
            "live": self.url("/live" + path) + (f"?{query}" if query else ""),
            "new_id": new_task_id,
        }
