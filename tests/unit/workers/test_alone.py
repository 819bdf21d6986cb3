"""Tasks with a death behind them: apart from each other, but never in each other's way for ever."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from workers.runtime.alone import Alone


async def test_tasks_of_one_depth_run_one_after_another() -> None:
    """Two tasks of the same depth are never in at once, whatever their order."""
    alone, most, within = Alone(), 0, 0

    async def attempt() -> None:
        nonlocal most, within
        async with alone.hold(0):
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
    alone, log = Alone(), list[str]()

    async def latecomer() -> None:
        async with alone.hold(0):
            log.append("latecomer")

    async with anyio.create_task_group() as group, alone.hold(0):
        group.start_soon(latecomer)
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(1):
            async with alone.hold(1), alone.hold(2):
                log.append("children")
        log.append("parent")
    assert log == ["children", "parent", "latecomer"]


async def test_one_that_never_ends_may_be_left_behind() -> None:
    """Whoever waits is let in when that is said, once; the end of the block changes nothing any more."""
    alone = Alone()
    async with alone.hold(0) as let_next_in:
        let_next_in()
        let_next_in()
        with anyio.fail_after(1):
            async with alone.hold(0):
                pass
    async with alone.hold(0):
        pass
