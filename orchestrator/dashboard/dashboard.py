"""Holds what all requests of a dashboard share: the client, the feed, templates, files, and what was read just now."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.core.ids import new_task_id
from orchestrator.dashboard import assets
from orchestrator.dashboard.feed import Feed
from orchestrator.dashboard.navigation import navigation
from orchestrator.dashboard.rendering import make_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.client.client import Orchestrator
    from orchestrator.dashboard.identity import Identity
    from orchestrator.dashboard.page import PageRequest, WebPage

KEPT_S: Final = 1.0
"""How long equal requests share what one of them read."""

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
    """

    orc: Orchestrator
    base: str = ""
    read_only: bool = False
    secure: bool = False
    stopping: anyio.Event = field(default_factory=anyio.Event)
    downloads: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(DOWNLOADS))

    def __post_init__(self) -> None:
        """Prepare what belongs to the pool."""
        self.services = self.orc.services
        self.accounts = self.services.accounts
        self.feed = Feed(self.services)
        self.templates = make_environment()
        self.assets = assets.load()
        self._reads: dict[Any, tuple[float, Mapping[str, Any]]] = {}

    @property
    def cookie(self) -> str:
        """Name of the session cookie."""
        return "__Host-orc" if self.secure and not self.base else "orc"

    @property
    def can_send(self) -> bool:
        """True if this process gives commands."""
        return not self.read_only

    def url(self, path: str) -> str:
        """Return the address of a path of the dashboard."""
        return self.base + path

    async def read(self, page: WebPage, asked: PageRequest) -> Mapping[str, Any]:
        """Read what a page shows; equal requests within a second share it."""
        key = (page.path, tuple(asked.path.items()), tuple(sorted(asked.query.items())))
        now_s = time.monotonic()
        kept = self._reads.get(key)
        if kept is not None and now_s - kept[0] < KEPT_S:
            return kept[1]
        found = await page.read(asked)
        self._reads = {name: one for name, one in self._reads.items() if now_s - one[0] < KEPT_S}
        self._reads[key] = (time.monotonic(), found)
        return found

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
            "here": path,
            "live": self.url("/live" + path) + (f"?{query}" if query else ""),
            "new_id": new_task_id,
        }
