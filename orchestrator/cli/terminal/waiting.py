"""Waits for tasks on behalf of a person: gives up when Redis stays silent, and says that the tasks go on regardless."""

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
    from orchestrator.tasks.model import TaskState

OUTAGE_MAX_S: Final = 30.0
"""How long Redis may be silent while somebody waits: a restart takes less."""
POLL_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of waiting for one task; no state: it is unknown, or had not ended in time."""

    id: str
    state: TaskState | None
    reason: str = ""
    result: bytes | None = None
    timed_out: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code for this task alone."""
        if self.timed_out:
            return TIMED_OUT
        if self.state is None:
            return NOT_FOUND
        return DONE if self.state == "succeeded" else FAILED


@asynccontextmanager
async def wait_through_outages(orc: Orchestrator, *, of: TaskHandle[Any] | None = None) -> AsyncIterator[None]:
    """Let what is inside wait for as long as Redis answers now and then.

    Args:
        orc: an open client.
        of: the one task that is waited for: at a terminal it is said what keeps it from running.

    Raises:
        ServerUnavailable: it has not answered for half a minute.
    """
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, orc, of)
        with _quiet_client():
            yield
        group.cancel_scope.cancel()


async def _watch(orc: Orchestrator, of: TaskHandle[Any] | None) -> None:
    heard_s, told = time.monotonic(), False
    causes: set[Cause] = set()
    while True:
        await anyio.sleep(POLL_EVERY_S)
        try:
            await orc.services.store.execute("PING")
            heard_s, told = time.monotonic(), False
            if of is not None:
                await _say_why(of, causes)
        except StoreError as silent:
            if time.monotonic() - heard_s > OUTAGE_MAX_S:
                raise ServerUnavailable(
                    f"Redis has not answered for {OUTAGE_MAX_S:g} s ({silent}); "
                    "the tasks go on when it is back, ask again with `orc tasks wait`"
                ) from None
            if not told:
                say("Redis does not answer; still waiting")
                told = True


async def _say_why(handle: TaskHandle[Any], said: set[Cause]) -> None:
    """Say what a task waits for, each cause once: a misspelt skill would be waited for in silence, for ever."""
    try:
        status = await handle.status()
    except NotFound:
        return  # the wait itself tells
    cause = status.detail.cause
    if cause not in said and cause not in {Cause.RUNNING, Cause.CANCELLING, Cause.ENDED}:
        hint(f"it is {status.state}: {status.why}")
    said.add(cause)


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Keep the client from logging every attempt to come back; we say it once. With --debug everything is logged."""
    logger = logging.getLogger("orchestrator.client")
    before = logger.level
    if logging.getLogger().level > logging.DEBUG:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


async def wait_for_end(handle: TaskHandle[Any], timeout_s: float | None) -> Ended:
    """Wait for one task, whatever its end."""
    reason = ""
    try:
        await handle.result(timeout=timeout_s)
    except TimeoutError:
        return Ended(handle.id, None, await _whereabouts(handle), timed_out=True)
    except TaskError as without_result:
        reason = str(without_result).removeprefix(f"task {handle.id} ")
    outcome = handle.outcome
    assert outcome is not None
    if outcome.state is None:
        return Ended(handle.id, None, "does not exist, or its retention has passed")
    return Ended(handle.id, outcome.state, outcome.reason or reason, outcome.result)


async def _whereabouts(handle: TaskHandle[Any]) -> str:
    """Say in words where a task is that we stopped waiting for."""
    try:
        status = await handle.status()
    except OrchestratorError:  # gone, or no answer: the time is over anyway
        return ""
    return f"it is {status.state}: {status.why}" if status.why else f"it is {status.state}"


async def wait_for_all(handles: Sequence[TaskHandle[Any]], timeout_s: float | None) -> list[Ended]:
    """Wait for several tasks at once; the answers are in the order of the handles."""
    found: dict[str, Ended] = {}

    async def one(handle: TaskHandle[Any]) -> None:
        found[handle.id] = await wait_for_end(handle, timeout_s)

    async with anyio.create_task_group() as group:
        for handle in handles:
            group.start_soon(one, handle)
    return [found[handle.id] for handle in handles]
