"""Tasks with a death behind them: apart from each other, but never in each other's way for ever."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from orchestrator.workers.runtime.crash_isolation import CrashIsolation


async def test_tasks_of_one_depth_run_one_after_another() -> None:
    """Two tasks of the same depth are never in at once, whatever their order."""
    crash_isolation, most, within = CrashIsolation(), 0, 0

    async def attempt() -> None:
        nonlocal most, within
        async with crash_isolation.hold(0):
            within += 1
            most = max(most, within)
            await anyio.lowlevel.checkpoint()
            within -= 1

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(attempt)
    assert most == 1


async def test_a_child_is_let_in_beside_the_parent_that_waits_for_it() -> None:
    """A deeper task comes in at once; a higher one waits until all that are deeper have left."""
    crash_isolation, log = CrashIsolation(), list[str]()

    async def latecomer() -> None:
        async with crash_isolation.hold(0):
            log.append("latecomer")

    async with anyio.create_task_group() as group, crash_isolation.hold(0):
        group.start_soon(latecomer)
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(1):
            async with crash_isolation.hold(1), crash_isolation.hold(2):
                log.append("children")
        log.append("parent")
    assert log == ["children", "parent", "latecomer"]


async def test_one_that_never_ends_may_be_left_behind() -> None:
    """Whoever waits is let in when that is said, once; the end of the block changes nothing any more."""
    crash_isolation = CrashIsolation()
    async with crash_isolation.hold(0) as admit_next:
        admit_next()
        admit_next()
        with anyio.fail_after(1):
            async with crash_isolation.hold(0):
                pass
    async with crash_isolation.hold(0):
        pass
