"""Results for all handles of one process: one stream, one connection, however many wait.

A reply is a hint (protocol rule 23): those who wait are also looked up after a connection error and every few seconds,
so a lost or trimmed reply costs time, never a result.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

import anyio

from orchestrator.core.errors import OrchestratorError, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.pauses import Pauses
from orchestrator.tasks import queries
from orchestrator.tasks.model import STATE_OF_LETTER
from orchestrator.tasks.queries import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.services import Services

LOOK_EVERY_S: Final = 5.0
FOREIGN_LOOK_EVERY_S: Final = 0.25
"""A task that another process submitted replies to that process; we look."""
FRESH_S: Final = 1.0
"""A task that was submitted longer ago than this is looked up at once when somebody begins to wait for it."""
LOOK_CHUNK: Final = 500

_log = get_logger(__name__)


class Awaited(Protocol):
    """What can be settled: a handle."""

    @property
    def id(self) -> str:
        """The task's id."""
        ...

    outcome: Outcome | None


H = TypeVar("H", bound=Awaited)


def _age_s(id_: str) -> float:
    """How long ago a task id was made: its first 48 bits are milliseconds."""
    return time.time() - int(id_[:8] + id_[9:13], 16) / 1000


class Replies:
    """Settles handles as their tasks end."""

    def __init__(self, services: Services, *, client: str) -> None:
        self._services, self._client = services, client
        self._block_s = min(LOOK_EVERY_S, services.settings.redis.command_timeout_s)
        self._handles: WeakValueDictionary[str, Awaited] = WeakValueDictionary()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._own: set[str] = set()
        self._someone_waits = anyio.Event()
        self._unlooked: set[str] = set()
        self._closed = False
        self._look_now = anyio.Event()
        self._cursor = "0"

    def track(self, handle: H) -> H:
        """Let replies reach a handle; whoever asks for a task again gets the handle that is there."""
        return cast("H", self._handles.setdefault(handle.id, handle))

    async def wait(self, handle: Awaited, *, own: bool) -> Outcome:
        """Wait until the task of `handle` has ended."""
        id_ = handle.id
        if not own:
            await self._look([id_])  # it may have ended long ago
        while handle.outcome is None:
            if self._closed:
                raise OrchestratorError(f"the client that made this handle is closed; ask an open one for task {id_}")
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(id_, []).append(woken)
            if own:
                self._own.add(id_)
            if not own or _age_s(id_) > FRESH_S:
                # It may have ended before anybody listened: another client's reply, or one that was trimmed since.
                self._unlooked.add(id_)
                self._look_now.set()
            self._someone_waits.set()
            try:
                await woken
            finally:
                self._forget(id_, woken)
        return handle.outcome

    def _forget(self, id_: str, woken: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(id_)
        if waiters and woken in waiters:
            waiters.remove(woken)
            if not waiters:
                del self._waiting[id_]
                self._own.discard(id_)

    async def run(self) -> None:
        """Read replies and look after those who wait, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._look_after_waiting)
            await self._read()

    async def _read(self) -> None:
        link = self._services.store.blocking_link(self._block_s, name="replies")
        pauses = Pauses()
        replies_key = self._services.keys.replies(self._client)
        try:
            while True:
                if not self._own:
                    self._someone_waits = anyio.Event()
                    await self._someone_waits.wait()
                    continue
                try:
                    reply = await link.execute(
                        "XREAD", "COUNT", 200, "BLOCK", int(self._block_s * 1000), "STREAMS", replies_key, self._cursor
                    )
                except StoreError as failure:
                    _log.warning("replies_interrupted", error=str(failure))
                    await anyio.sleep(pauses.next_s())
                    await self._look(list(self._waiting))
                    continue
                pauses.reset()
                for entry, fields in reply[0][1] if reply else ():
                    self._cursor = entry.decode()
                    await self._settle(fields)
        finally:
            await link.close()

    async def _settle(self, fields: list[bytes]) -> None:
        unread: list[str] = []
        for raw_id, value in zip(fields[::2], fields[1::2], strict=True):
            id_, letter = raw_id.decode(), value[:1]
            if id_ not in self._handles:
                continue
            if letter == b"s":
                self._deliver(id_, Outcome(STATE_OF_LETTER["s"], value[1:]))
            else:
                unread.append(id_)
        if unread:
            await self._look(unread)

    async def _look_after_waiting(self) -> None:
        all_looked_s = foreign_looked_s = time.monotonic()
        while True:
            with anyio.move_on_after(FOREIGN_LOOK_EVERY_S):
                await self._look_now.wait()
            self._look_now = anyio.Event()
            unlooked, self._unlooked = self._unlooked, set()
            now_s = time.monotonic()
            everyone = now_s - all_looked_s >= self._block_s
            foreign = now_s - foreign_looked_s >= FOREIGN_LOOK_EVERY_S
            all_looked_s = now_s if everyone else all_looked_s
            foreign_looked_s = now_s if foreign else foreign_looked_s
            await self._look(
                [id_ for id_ in self._waiting if everyone or id_ in unlooked or (foreign and id_ not in self._own)]
            )

    async def _look(self, ids: list[str]) -> None:
        for start in range(0, len(ids), LOOK_CHUNK):
            try:
                found = await queries.outcomes(self._services.store, ids[start : start + LOOK_CHUNK])
            except StoreError as failure:
                _log.debug("results_not_read", error=str(failure))
                return
            for id_, outcome in found.items():
                self._deliver(id_, outcome)

    def _deliver(self, id_: str, outcome: Outcome) -> None:
        handle = self._handles.get(id_)
        if handle is None or handle.outcome is not None:
            return
        handle.outcome = outcome
        for woken in self._waiting.get(id_, ()):
            if not woken.done():
                woken.set_result(None)

    def fail_all(self, failure: BaseException) -> None:
        """Let nobody wait for a client that has closed, now or later."""
        self._closed = True
        waiters: Iterable[list[asyncio.Future[None]]] = list(self._waiting.values())
        for woken in [one for many in waiters for one in many]:
            if not woken.done():
                woken.set_exception(failure)
