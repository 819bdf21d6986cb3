"""Waits for tasks through outages of Redis of up to half a minute."""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.cli.terminal.failures import DONE, FAILED, NOT_FOUND, TIMED_OUT
from orchestrator.cli.terminal.output import hint, say
from orchestrator.core.errors import NotFound, OrchestratorError, ServerUnavailable, StoreError, TaskError
from orchestrator.why.model import Cause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from orchestrator.payloads.payloads import Payloads
    from orchestrator.tasks.model import TaskState

OUTAGE_MAX_S: Final = 30.0
"""How long Redis may be unavailable during a wait. A restart takes less."""
POLL_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of the wait for one task; without a state it is unknown or has not ended."""

    id: str
    state: TaskState | None
    reason: str = ""
    result: bytes | None = None
    timed_out: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code of this task."""
        if self.timed_out:
            return TIMED_OUT
        if self.state is None:
            return NOT_FOUND
        return DONE if self.state == "succeeded" else FAILED


@asynccontextmanager
async def wait_through_outages(orc: Orchestrator, *, of: TaskHandle[Any] | None = None) -> AsyncIterator[None]:
    """Keep the block waiting while Redis answers at least every half minute.

    Args:
        orc: an open client.
        of: the task, if the wait is for one; a terminal shows what it waits for.

    Raises:
        ServerUnavailable: Redis has not answered for half a minute.
    """
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, orc, of)
        with _quiet_client():
            yield
        group.cancel_scope.cancel()


async def _watch(orc: Orchestrator, of: TaskHandle[Any] | None) -> None:
    from orchestrator.views.server import ping

    answered_s, reported = time.monotonic(), False
    causes: set[Cause] = set()
    while True:
        await anyio.sleep(POLL_EVERY_S)
        try:
            await ping(orc.services)
            answered_s, reported = time.monotonic(), False
            if of is not None:
                await _say_why(of, causes)
        except StoreError as silent:
            if time.monotonic() - answered_s > OUTAGE_MAX_S:
                raise ServerUnavailable(
                    f"Redis has not answered for {OUTAGE_MAX_S:g} s ({silent}); "
                    "the tasks are kept, wait again with `orc tasks wait`"
                ) from None
            if not reported:
                say(f"still waiting: {silent}")
                reported = True


async def _say_why(handle: TaskHandle[Any], said: set[Cause]) -> None:
    """Print each new cause of the wait, so that a misspelt skill does not go unnoticed."""
    try:
        status = await handle.status()
    except NotFound:
        return  # the wait itself reports it
    cause = status.detail.cause
    if cause not in said and cause not in {Cause.RUNNING, Cause.CANCELLING, Cause.ENDED}:
        hint(f"it is {status.state}: {status.why}")
    said.add(cause)


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Silence the logs of the client about outages, because `_watch` reports an outage once. --debug keeps them."""
    loggers = [logging.getLogger(name) for name in ("orchestrator.client", "orchestrator.store")]
    before = [logger.level for logger in loggers]
    if logging.getLogger().level > logging.DEBUG:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


async def wait_for_end(handle: TaskHandle[Any], timeout_s: float | None, *, loads: Payloads | None = None) -> Ended:
    """Wait for one task and return its outcome; a large result is only loaded from a payload store that is given."""
    reason, result = "", None
    try:
        result = await handle.stored_result(timeout=timeout_s)
    except TimeoutError:
        return Ended(handle.id, None, await _whereabouts(handle), timed_out=True)
    except TaskError as without_result:
        reason = str(without_result).removeprefix(f"task {handle.id} ")
    outcome = handle.outcome
    assert outcome is not None
    if outcome.state is None:
        return Ended(handle.id, None, "does not exist, or its retention has passed")
    return Ended(handle.id, outcome.state, outcome.reason or reason, await _loaded(handle.id, result, loads))


async def _loaded(id_: str, result: bytes | None, payloads: Payloads | None) -> bytes | None:
    return result if result is None or payloads is None else await payloads.load(id_, result)


async def _whereabouts(handle: TaskHandle[Any]) -> str:
    """Return the state of a task that has not ended, as text."""
    try:
        status = await handle.status()
    except OrchestratorError:  # it is deleted, or Redis does not answer
        return ""
    return f"it is {status.state}: {status.why}" if status.why else f"it is {status.state}"


async def wait_for_all(handles: Sequence[TaskHandle[Any]], timeout_s: float | None) -> list[Ended]:
    """Wait for several tasks at once and return the outcomes in the order of the handles."""
    found: dict[str, Ended] = {}

    async def one(handle: TaskHandle[Any]) -> None:
        found[handle.id] = await wait_for_end(handle, timeout_s)

    async with anyio.create_task_group() as group:
        for handle in handles:
            group.start_soon(one, handle)
    return [found[handle.id] for handle in handles]
