"""Loops that stop turning are reported, and loops that end are not."""

from __future__ import annotations

import subprocess
import sys

from orchestrator.core.turns import LATE_AFTER_S, LoopTurns
from tests.helpers.waiting import wait_until


def test_silent_loop_is_listed_until_it_turns() -> None:
    """A loop beyond its limit is listed, one that turns is not, and a turn takes it off the list."""
    turns = LoopTurns()
    hung = turns.loop("hung", silent_after_s=0.02)
    turns.loop("lively", silent_after_s=60.0)

    wait_until(lambda: turns.silent() == (hung,), "the loop is silent")
    assert hung.silent_s() > hung.silent_after_s

    hung.silent_after_s = 60.0
    hung.record()
    assert turns.silent() == ()


def test_ended_loop_is_not_watched() -> None:
    """A loop that ended, in order or by a failure, is not silent."""
    turns = LoopTurns()
    with turns.loop("short", silent_after_s=0.0):
        wait_until(lambda: len(turns.silent()) == 1, "the loop is silent")
    assert turns.silent() == ()
    closed = turns.loop("closed", silent_after_s=0.0)
    closed.close()
    closed.close()
    assert turns.silent() == ()


def test_pause_of_the_process_is_excused_once() -> None:
    """A late watcher excuses the loops, also for other readers. A watcher that hangs excuses them once."""
    turns = LoopTurns()
    loop = turns.loop("loop", silent_after_s=0.02)
    wait_until(lambda: turns.watch(again_in_s=60.0) == (loop,), "the loop is silent")
    turns.watch(again_in_s=-LATE_AFTER_S - 1.0)
    assert turns.silent() == ()
    wait_until(lambda: turns.silent() == (loop,), "the loop is silent again, and the watcher never came")


def test_module_needs_no_event_loop() -> None:
    """The health probe and the host import the module without an event loop library."""
    code = "import sys; import orchestrator.core.turns; assert not {'anyio', 'asyncio', 'redis'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
