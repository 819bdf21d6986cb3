"""Keeps a loop of the supervisor running when it meets data that it cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import DamagedData, InvalidInput, OrchestratorError
from orchestrator.core.log import get_logger
from orchestrator.core.reading import MISREAD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = get_logger(__name__)


async def keep_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a loop until it is cancelled, and begin again after an exception of code that reads data.

    The loop ends with all other errors: that of a version which the pool no longer admits must end the supervisor.
    """
    pauses = Pauses()
    while True:
        try:
            await run()
        except (InvalidInput, DamagedData):
            _log.exception("loop_failed", loop=name)
        except OrchestratorError:
            raise
        except MISREAD:
            _log.exception("loop_failed", loop=name)
        else:
            return
        await anyio.sleep(pauses.next_s())
