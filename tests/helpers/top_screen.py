"""Runs `orc top` in the loop of a test, presses keys, and reads its screen."""

from __future__ import annotations

import io
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from rich.console import Console

from orchestrator import Orchestrator
from orchestrator.cli.top.app import TopApp
from tests.helpers import roles
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store

ROWS = 24
COLUMNS = 80


class TopScreen:
    """A running `orc top`."""

    def __init__(self, app: TopApp) -> None:
        self.app = app

    @property
    def reads(self) -> int:
        """Refreshes so far."""
        return self.app.pool.reads

    def _console(self) -> Console:
        width, height = self.app.size
        console = Console(
            width=width, height=height, file=io.StringIO(), force_terminal=True, record=True, color_system="truecolor",
            legacy_windows=False,
        )  # fmt: skip
        console.print(self.app.screen._compositor.render_update(full=True))
        return console

    def text(self) -> str:
        """The characters of the screen, line by line."""
        return "\n".join(line.rstrip() for line in self._console().export_text().split("\n"))

    def written(self) -> str:
        """The characters of the screen with what sets their styles, as a terminal gets them."""
        return self._console().export_text(styles=True)

    async def press(self, *keys: str) -> None:
        """Press keys; a text of several characters is the name of one."""
        # `Pilot.press` then waits for widgets that a key may have removed.
        await self.app._press_keys(keys)

    async def shows(self, *texts: str, without: str = "\0", within_s: float = 12.0) -> str:
        """Wait until the screen has these texts, and lacks another one; return it.

        It waits less than a list at rest is read again, so that a lost wake-up fails the test.
        """
        text = ""
        with anyio.move_on_after(within_s):
            while True:
                text = self.text()
                if all(each in text for each in texts) and without not in text:
                    return text
                await anyio.sleep(0.02)
        raise AssertionError(f"{texts} did not come, or {without!r} did not go:\n{text}")

    @property
    def store(self) -> Store:
        """What it reads with."""
        return self.app.pool._services.store

    async def rest(self) -> None:
        """Wait until it no longer reads, and let the next refresh read the state of the pool too."""
        seen = -1
        while seen != self.reads:
            seen = self.reads
            await anyio.sleep(0.3)
        self.app.pool._health_s = 0.0

    async def read_again(self) -> None:
        """Press the space bar, and wait for the refresh."""
        before = self.reads
        await self.press("space")
        await wait_for(lambda: self.reads > before, "the refresh", 20)


@asynccontextmanager
async def top_screen(
    settings: Settings, *, size: tuple[int, int] = (COLUMNS, ROWS), role: str = "top"
) -> AsyncIterator[TopScreen]:
    """Run `orc top` with a client of its own.

    Args:
        settings: of the pool.
        size: columns and rows of the terminal.
        role: a command that logs in as the role has to: `top` as an operator, `status` as a viewer.
    """
    with roles.typing((role,)):
        async with Orchestrator(settings=settings) as orc:
            app = TopApp(orc)
            async with app.run_test(size=size):
                yield TopScreen(app)
