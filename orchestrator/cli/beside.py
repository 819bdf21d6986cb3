"""Does something while children run beside it: looks after them, and gives up when a signal asks us to."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, TypeVar

from orchestrator.cli.processes import ChildFailed, end_signals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.cli.processes import Child

T = TypeVar("T")

POLL_EVERY_S: Final = 0.2


async def work_beside(children: Sequence[Child], work: Callable[[], Awaitable[T]]) -> T | signal.Signals:
    """Do the work while the children run; `children` may change meanwhile.

    Returns:
        What the work returned, or the signal that ended it.

    Raises:
        ChildFailed: a child ended in a way that a restart would only repeat.
    """
    import anyio

    received: list[signal.Signals] = []
    done: list[T] = []

    async def stop_on_signal() -> None:
        with anyio.open_signal_receiver(*end_signals()) as signals:
            async for number in signals:
                received.append(signal.Signals(number))
                group.cancel_scope.cancel()

    async def poll_children() -> None:
        while True:
            for child in tuple(children):
                child.poll()
            await anyio.sleep(POLL_EVERY_S)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_on_signal)
            group.start_soon(poll_children)
            done.append(await work())
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        # What the work says of it is only that nobody answers.
        for failure in failures.exceptions:
            if isinstance(failure, ChildFailed):
                raise failure from None
        raise
    return done[0] if done else received[0]
