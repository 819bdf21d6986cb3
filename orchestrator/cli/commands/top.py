"""`orc top`: live lists of the pool on the terminal."""

from __future__ import annotations

import logging
import os
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands
from orchestrator.core.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from orchestrator.cli.top.app import TopApp

commands = Commands("top", "orc top", "orc top --pool research")


@commands.itself
def top(*, common: Globals = DEFAULTS) -> None:
    """Show queues, agents, workers, rates, dead letters and commands, live, and give control commands.

    `?` lists the keys. Each action asks first. `orc status` prints the same once.
    """
    if find_spec("textual") is None:
        raise ConfigError("`orc top` needs the extra `top`: pip install 'redis-orchestrator[top]'")
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(map(output.is_terminal, streams)) or os.environ.get("TERM") == "dumb":
        raise InvalidInput("`orc top` needs a terminal that moves its cursor; `orc status` prints the state once")
    from orchestrator.cli.top.app import TopApp
    from orchestrator.core.event_loop import run_loop

    client = common.client()
    logging.disable()  # the screen is standard error, and a line of a log would spoil it

    async def run() -> None:
        async with client as orc, anyio.create_task_group() as group:
            app = TopApp(orc)
            group.start_soon(_end_on_signal, app)
            await app.run_async()
            group.cancel_scope.cancel()

    run_loop(run)


async def _end_on_signal(app: TopApp) -> None:
    """Give the terminal back before the program ends."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
        async for _ in signals:
            app.exit()
