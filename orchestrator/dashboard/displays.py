"""Shows values through the `display` functions of agents.

Each call is a process of its own, so that a function that hangs, or that holds the interpreter, costs its value a few
seconds and the dashboard nothing. A value never changes, so that each is shown once and kept.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.core.redaction import NO_DISPLAY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.views.task_values import StoredPart

LIMIT_S: Final = 5.0
"""How long a call may take, with the import of the agents."""
AGAIN_S: Final = 60.0
"""How long a failure stands before the function is called again."""
MOST_BYTES: Final = 1 << 20
"""Size of a value above which its function is not called."""
AT_ONCE: Final = 2
_KEPT: Final = 128
_MODULE: Final = "orchestrator.workers.runtime.display_process"
_log = get_logger(__name__)


class DisplayedValue(NamedTuple):
    """Result of a `display` function, or the reason why there is none."""

    text: str | None
    problem: str = ""
    until_s: float = float("inf")


class Displays:
    """The `display` functions of agents.

    Args:
        targets: agents as MODULE:AGENT.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = tuple(targets)
        self._kept: OrderedDict[tuple[str, bytes], DisplayedValue] = OrderedDict()
        self._without: set[str] = set()
        self._room = anyio.Semaphore(AT_ONCE)

    async def show(self, skill: str, value: StoredPart, load: Callable[[], Awaitable[bytes]]) -> DisplayedValue | None:
        """Return what operators see of a value; None if no agent here has a function for the skill.

        Args:
            skill: of the task.
            value: where the value is.
            load: reads it.
        """
        if not self._targets or skill in self._without:
            return None
        if value.size > MOST_BYTES:
            return DisplayedValue(None, "It is too large for the display function of its agent.")
        key = (f"{value.task_id} {value.part}", value.stored)
        async with self._room:
            shown = self._kept.get(key)
            if shown is None or time.monotonic() > shown.until_s:
                shown = await self._call(skill, value.part, await load())
                if shown is None:
                    self._without.add(skill)
                    return None
                self._kept[key] = shown
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        return shown

    async def _call(self, skill: str, part: str, data: bytes) -> DisplayedValue | None:
        command = [sys.executable, "-P", "-m", _MODULE, skill, part, *self._targets]
        with anyio.move_on_after(LIMIT_S):
            ended = await anyio.run_process(command, input=data, check=False, stderr=subprocess.PIPE)
            if ended.returncode == NO_DISPLAY:
                return None
            if ended.returncode == 0:
                return DisplayedValue(read_text(ended.stdout))
            _log.warning("display_failed", skill=skill, part=part, error=read_text(ended.stderr)[-2000:])
            return self._failed("failed; the log of the dashboard has the error")
        _log.warning("display_failed", skill=skill, part=part, error=f"took longer than {LIMIT_S:g} s")
        return self._failed(f"took longer than {LIMIT_S:g} s")

    @staticmethod
    def _failed(how: str) -> DisplayedValue:
        return DisplayedValue(None, f"The display function of its agent {how}.", time.monotonic() + AGAIN_S)
