"""Shows the progress of the demo on standard error: a live table on a terminal, else a line every two seconds."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.cli.terminal.output import clean, is_terminal, say
from orchestrator.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from orchestrator.agents.model import AgentInfo
    from orchestrator.client.handle import TaskHandle
    from orchestrator.services import Services

POLL_EVERY_S: Final = 0.15
LINE_EVERY_S: Final = 2.0
ENDED: Final = ("succeeded", "dead", "cancelled", "expired")


class ProgressDisplay:
    """Displays the counters of the pool and the stage of the audit."""

    def __init__(self, services: Services, audit: TaskHandle[Any], started_s: float) -> None:
        self._services, self._audit, self._started_s = services, audit, started_s
        self._stage = ""
        self._counts: Mapping[str, int] = {}
        self._agents: list[AgentInfo] = []

    async def run(self) -> None:
        """Display until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow)
            if is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb":
                await self._live()
            else:
                await self._lines()

    async def _follow(self) -> None:
        """Keep the latest progress message of the audit."""
        async for event in self._audit.events():
            if event.progress is not None:
                self._stage = clean(event.progress.message)

    async def _lines(self) -> None:
        shown = ""
        while True:
            await self._refresh()
            text = self._text() + self._staged
            if text != shown:
                say(f"{self._elapsed_s():5.1f} s  {text}")
                shown = text
            await anyio.sleep(LINE_EVERY_S)

    async def _live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, markup=False)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                await self._refresh()
                live.update(self._picture(), refresh=True)
                await anyio.sleep(POLL_EVERY_S)

    async def _refresh(self) -> None:
        from orchestrator.views.agents import list_agents
        from orchestrator.views.status import read_counters

        try:
            self._counts = await read_counters(self._services)
            self._agents = [view.agent for view in (await list_agents(self._services)).agents]
        except StoreError:  # the wait for the result reports it
            return

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def _done(self) -> int:
        return sum(self._counts.get(name, 0) for name in ENDED)

    def _text(self) -> str:
        known = self._counts.get("submitted", 0)
        retried = self._counts.get("retried", 0)
        return f"{self._done} of {known} tasks done" + (f", {retried} retried" if retried else "")

    @property
    def _staged(self) -> str:
        return f"; {self._stage}" if self._stage else ""

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        known = self._counts.get("submitted", 0)
        head: Any = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=max(known, 1), completed=self._done, width=40), self._text())
        head.add_row("", f"{self._elapsed_s():.1f} s{self._staged}")
        team = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("AGENT", "SKILLS", "SLOTS", "IN HAND"):
            team.add_column(column, justify="right" if column in {"SLOTS", "IN HAND"} else "left")
        for agent in self._agents:
            busy = "█" * min(agent.inbox, 24)
            team.add_row(clean(agent.name), clean(", ".join(agent.skills)), str(agent.slots), f"{busy} {agent.inbox}")
        return Group(head, team)
