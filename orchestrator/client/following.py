"""Follows the output of tasks for all readers of one process: one connection, however many tasks and readers.

That connection carries hints only: a task's stream has grown. A reader that is hinted at reads on from its own place,
over the connection that all short commands share, a page at a time and only when its user asks for more. So a slow
reader holds up nobody and stores nothing, and nothing is lost or seen twice after a broken connection. Hints may be
lost: whoever has heard nothing for a while is looked up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import NotFound, OrchestratorError, ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.model import WatchStatus
from orchestrator.tasks.output import final_entry, read_page, read_place

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.output import Place, StreamEntry

POLL_EVERY_S: Final = 5.0
ASK_CHUNK: Final = 500
PAGE_ENTRIES: Final = 32
"""A reader holds no more than this at a time; of the largest chunks that is 2 MiB."""

T = TypeVar("T")

_log = get_logger(__name__)


class Reader:
    """One who reads a task's stream.

    Attributes:
        place: how far it has read.
        standing: how the task stands, as far as is known here; None before anybody has asked.
        failure: why reading cannot go on.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._generation = 0
        self.standing: WatchStatus | None = None
        self.failure: BaseException | None = None
        self._news = anyio.Event()

    def wake(self) -> None:
        """There may be more to read, or the standing has changed."""
        self._news.set()

    def take(self, page: Sequence[StreamEntry]) -> list[StreamEntry]:
        """Note that a page was read; answer what is worth showing of it."""
        shown: list[StreamEntry] = []
        for entry in page:
            self.place = entry.place
            # Lower ones are of an attempt that the task was taken from (protocol rule 20).
            if entry.generation >= self._generation:
                self._generation = entry.generation
                shown.append(entry)
        return shown

    async def news(self) -> WatchStatus:
        """Wait until it is worth reading on; answer how the task stood by then."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            if self.failure is not None:
                raise self.failure
            if self.standing is not None:  # else it was hinted at before anybody has answered
                return self.standing


@dataclass(slots=True)
class _Followed:
    """A task and those who read it. `subscribed`: hints come; `heard_s`: when anything of it was last heard."""

    readers: set[Reader] = field(default_factory=set)
    subscribed: bool = False
    heard_s: float = 0.0


class Following:
    """Wakes readers when their tasks have moved on."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._poll_every_s = min(POLL_EVERY_S, services.settings.redis.command_timeout_s)
        self._hints = services.store.hints(name="following", received=self._received, ended=self._unsubscribed)
        self._channel_stem = services.keys.out("")
        self._tasks: dict[str, _Followed] = {}
        self._unasked: dict[str, None] = {}
        self._left: set[str] = set()
        self._wake, self._somebody = anyio.Event(), anyio.Event()
        self._may_subscribe = True
        self._closed = False

    async def entries(self, id_: str, after: Place) -> AsyncGenerator[StreamEntry]:
        """What happens to a task behind a place, live, up to its end.

        Raises:
            NotFound: no such task (any more).
            OrchestratorError: the client is closed.
        """
        reader, standing = self._join(id_, after), WatchStatus.LIVE
        try:
            while standing is WatchStatus.LIVE:
                standing, more, ended = await reader.news(), True, False
                if standing is WatchStatus.UNKNOWN:
                    raise NotFound(f"task {id_} does not exist, or its retention has passed")
                while more:
                    page = await self._page(id_, reader.place)
                    more = len(page) == PAGE_ENTRIES
                    for entry in reader.take(page):
                        yield entry
                        # What stands behind an end is the life of a task that was requeued.
                        ended = entry.final
                if ended:
                    return
            end = await self._end(id_) if standing is WatchStatus.SILENT else None
            if end is not None and end.place > reader.place:
                yield end
        finally:
            self._leave(id_, reader)

    def _join(self, id_: str, place: Place) -> Reader:
        if self._closed:
            raise OrchestratorError(f"the client that made this handle is closed; ask an open one for task {id_}")
        reader = Reader(place)
        followed = self._tasks.setdefault(id_, _Followed(subscribed=id_ in self._left))
        self._left.discard(id_)
        followed.readers.add(reader)
        self._ask_about(id_)
        self._somebody.set()
        return reader

    def _leave(self, id_: str, reader: Reader) -> None:
        # Nothing is awaited here: this also runs when a reader was dropped in the middle.
        followed = self._tasks.get(id_)
        if followed is None:
            return
        followed.readers.discard(reader)
        if not followed.readers:
            del self._tasks[id_]
            self._unasked.pop(id_, None)
            if followed.subscribed:
                self._left.add(id_)
                self._wake.set()

    async def _page(self, id_: str, place: Place) -> list[StreamEntry]:
        return await self._read_with_retries(lambda: read_page(self._services.store, id_, place, limit=PAGE_ENTRIES))

    async def _end(self, id_: str) -> StreamEntry | None:
        return await self._read_with_retries(lambda: final_entry(self._services.store, id_))

    async def _read_with_retries(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read until Redis answers: a reader waits for its task however long that takes."""
        pauses = Pauses()
        while True:
            try:
                return await read()
            except ServerUnavailable:
                if self._closed:
                    raise
                await anyio.sleep(pauses.next_s())

    # ------------------------------------------------------------------------------------------- what hints say

    def _received(self, channel: str, entry: str) -> None:
        followed = self._tasks.get(channel.removeprefix(self._channel_stem))
        if followed is None:
            return
        followed.heard_s, place = time.monotonic(), read_place(entry)
        for reader in followed.readers:
            if place > reader.place:
                reader.wake()

    def _unsubscribed(self) -> None:
        """The connection has ended: who knows what was missed."""
        self._left.clear()
        for id_, followed in self._tasks.items():
            followed.subscribed = False
            self._ask_about(id_)

    def _ask_about(self, id_: str) -> None:
        self._unasked[id_] = None
        self._wake.set()

    # ------------------------------------------------------------------------------------------------- the one loop

    async def run(self) -> None:
        """Keep readers informed, until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._poll_silent)
                await self._ask_and_subscribe()
        finally:
            with anyio.CancelScope(shield=True):
                await self._hints.close()

    async def _ask_and_subscribe(self) -> None:
        pauses = Pauses()
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._unasked or self._left:
                try:
                    await self._unsubscribe()
                    await self._ask(list(self._unasked)[:ASK_CHUNK])
                    pauses.reset()
                except ServerUnavailable as failure:
                    _log.warning("following_interrupted", error=str(failure))
                    await anyio.sleep(pauses.next_s())

    async def _unsubscribe(self) -> None:
        left = list(self._left)[:ASK_CHUNK]
        if left:
            self._left.difference_update(left)
            await self._hints.unsubscribe([self._services.keys.out(id_) for id_ in left])

    async def _ask(self, ids: Sequence[str]) -> None:
        """Ask how tasks stand, and hear of those that live on. Readers are told when both is done."""
        if not ids:
            return
        try:
            answers = await self._services.store.call(scripts.watch(self._services.keys, ids=ids))
            standing = dict(zip(ids, answers, strict=True))
            fresh = await self._subscribe([id_ for id_, (status, _) in standing.items() if status is WatchStatus.LIVE])
        except ServerUnavailable:
            raise
        except StoreError as failure:
            self._fail(ids, failure)
            return
        now_s = time.monotonic()
        for id_, (status, last) in standing.items():
            self._unasked.pop(id_, None)
            followed = self._tasks.get(id_)
            if followed is None:
                continue
            followed.heard_s = now_s
            for reader in followed.readers:
                changed = reader.standing is not status
                reader.standing = status
                if changed or id_ in fresh or read_place(last or "0-0") > reader.place:
                    reader.wake()

    async def _subscribe(self, ids: Sequence[str]) -> set[str]:
        fresh = {id_ for id_ in ids if (task := self._tasks.get(id_)) is not None and not task.subscribed}
        if not self._may_subscribe:
            return set()
        if fresh:
            try:
                await self._hints.subscribe([self._services.keys.out(id_) for id_ in fresh])
            except ServerUnavailable:
                raise
            except StoreError as refused:
                self._may_subscribe = False
                _log.warning("hints_refused", error=str(refused))
                return set()
            for id_ in fresh:
                if (task := self._tasks.get(id_)) is not None:
                    task.subscribed = True
                else:
                    self._left.add(id_)
        return fresh

    async def _poll_silent(self) -> None:
        while True:
            await self._somebody.wait()
            await anyio.sleep(self._poll_every_s)
            if not self._tasks:
                self._somebody = anyio.Event()
                await self._hints.close()
                continue
            try:
                await self._hints.check()
            except StoreError as failure:
                _log.warning("following_interrupted", error=str(failure))
            silent_since_s = time.monotonic() - self._poll_every_s
            for id_, followed in self._tasks.items():
                if followed.heard_s <= silent_since_s:
                    self._ask_about(id_)

    def fail_all(self, failure: BaseException) -> None:
        """Let nobody wait for a client that has closed, now or later."""
        self._closed = True
        self._fail(list(self._tasks), failure)

    def _fail(self, ids: Sequence[str], failure: BaseException) -> None:
        for id_ in ids:
            self._unasked.pop(id_, None)
            for reader in self._tasks[id_].readers if id_ in self._tasks else ():
                reader.failure = failure
                reader.wake()
