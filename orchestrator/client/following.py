"""Follows the output of tasks for all readers of one process, by the hints that the process shares.

A hint says that a task's stream has grown. A hinted reader reads on from its own position, over the shared connection,
one page at a time and only when its user asks for more. So a slow reader blocks no other reader and buffers nothing,
and entries are neither lost nor repeated after a broken connection. Because hints may be lost, silent tasks are polled.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import NotFound, OrchestratorError, ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.model import WatchStatus
from orchestrator.tasks.output import final_entry, read_page, read_place

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from orchestrator.services import Services
    from orchestrator.tasks.output import Place, StreamEntry

POLL_EVERY_S: Final = 5.0
REFRESH_CHUNK: Final = 500
PAGE_ENTRIES: Final = 32
"""Entries that a reader holds at a time; with the largest chunks, 2 MiB."""

T = TypeVar("T")
UntilNews: TypeAlias = "Callable[[], AbstractAsyncContextManager[None]]"
"""Runs a block that waits for the next entry."""

_log = get_logger(__name__)


class Reader:
    """A reader of a task's stream.

    Attributes:
        place: last position it has read.
        status: status of the task; None until the first reply.
        failure: why it cannot go on.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._generation = 0
        self.status: WatchStatus | None = None
        self.failure: BaseException | None = None
        self._news = anyio.Event()

    def wake(self) -> None:
        """Wake the reader: there may be new entries, or a new status."""
        self._news.set()

    def take(self, page: Sequence[StreamEntry]) -> list[StreamEntry]:
        """Advance over a page; returns the entries to show."""
        shown: list[StreamEntry] = []
        for entry in page:
            self.place = entry.place
            # A lower generation is of an attempt that no longer owned the task (protocol rule 20).
            if entry.generation >= self._generation:
                self._generation = entry.generation
                shown.append(entry)
        return shown

    async def wait_for_news(self, until_news: UntilNews) -> WatchStatus:
        """Wait for new entries or a new status; returns the status. Waits inside `until_news` if none is there."""
        while True:
            # The first status is a round trip away.
            async with nullcontext() if self.status is None or self._news.is_set() else until_news():
                await self._news.wait()
            self._news = anyio.Event()
            if self.failure is not None:
                raise self.failure
            if self.status is not None:  # else a hint arrived before the first status
                return self.status


@dataclass(slots=True)
class _Followed:
    """A task and its readers. `subscribed`: hints arrive; `updated_s`: time of the last hint or reply."""

    readers: set[Reader] = field(default_factory=set)
    subscribed: bool = False
    updated_s: float = 0.0


class Following:
    """Wakes readers when their tasks have new entries."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._poll_every_s = min(POLL_EVERY_S, services.settings.redis.command_timeout_s)
        self._hints = services.store.hints
        self._channel_stem = services.keys.out("")
        self._tasks: dict[str, _Followed] = {}
        self._outdated: dict[str, None] = {}
        self._dropped: set[str] = set()
        self._wake, self._any_reader = anyio.Event(), anyio.Event()
        self._may_subscribe = True
        self._closed = False

    async def entries(self, id_: str, after: Place, until_news: UntilNews = nullcontext) -> AsyncGenerator[StreamEntry]:
        """Yield the entries of a task behind a position, live, until its end.

        Runs each wait for an entry that is not there yet inside `until_news`.

        Raises:
            NotFound: no such task, or no longer.
            OrchestratorError: the client is closed.
        """
        reader, status = self._join(id_, after), WatchStatus.LIVE
        try:
            while status is WatchStatus.LIVE:
                status, more, ended = await reader.wait_for_news(until_news), True, False
                if status is WatchStatus.UNKNOWN:
                    raise NotFound(f"task {id_} does not exist, or its retention has passed")
                while more:
                    page = await self._page(id_, reader.place)
                    more = len(page) == PAGE_ENTRIES
                    for entry in reader.take(page):
                        yield entry
                        # Entries behind an end belong to a requeued task.
                        ended = entry.final
                if ended:
                    return
            end = await self._end(id_) if status is WatchStatus.SILENT else None
            if end is not None and end.place > reader.place:
                yield end
        finally:
            self._leave(id_, reader)

    def _join(self, id_: str, place: Place) -> Reader:
        if self._closed:
            raise OrchestratorError(f"the client that made this handle is closed; ask an open one for task {id_}")
        reader = Reader(place)
        followed = self._tasks.setdefault(id_, _Followed(subscribed=id_ in self._dropped))
        self._dropped.discard(id_)
        followed.readers.add(reader)
        self._mark_outdated(id_)
        self._any_reader.set()
        return reader

    def _leave(self, id_: str, reader: Reader) -> None:
        # Must not await: it also runs when a reader is dropped between entries.
        followed = self._tasks.get(id_)
        if followed is None:
            return
        followed.readers.discard(reader)
        if not followed.readers:
            del self._tasks[id_]
            self._outdated.pop(id_, None)
            if followed.subscribed:
                self._dropped.add(id_)
                self._wake.set()

    async def _page(self, id_: str, place: Place) -> list[StreamEntry]:
        return await self._read_with_retries(lambda: read_page(self._services.store, id_, place, limit=PAGE_ENTRIES))

    async def _end(self, id_: str) -> StreamEntry | None:
        return await self._read_with_retries(lambda: final_entry(self._services.store, id_))

    async def _read_with_retries(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read, and retry until Redis answers."""
        pauses = Pauses()
        while True:
            try:
                return await read()
            except ServerUnavailable:
                if self._closed:
                    raise
                await anyio.sleep(pauses.next_s())

    # ------------------------------------------------------------------------------------------- what hints say

    def received(self, channel: str, entry: str) -> None:
        """Wake the readers of a task whose stream has a new entry."""
        followed = self._tasks.get(channel.removeprefix(self._channel_stem))
        if followed is None:
            return
        followed.updated_s, place = time.monotonic(), read_place(entry)
        for reader in followed.readers:
            if place > reader.place:
                reader.wake()

    def interrupted(self) -> None:
        """Poll every task, because hints may have been lost with the connection."""
        self._dropped.clear()
        for id_, followed in self._tasks.items():
            followed.subscribed = False
            self._mark_outdated(id_)

    def _mark_outdated(self, id_: str) -> None:
        self._outdated[id_] = None
        self._wake.set()

    # ------------------------------------------------------------------------------------------------- the one loop

    async def run(self) -> None:
        """Keep readers informed until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._poll_silent)
            await self._refresh_and_subscribe()

    async def _refresh_and_subscribe(self) -> None:
        pauses = Pauses()
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._outdated or self._dropped:
                try:
                    await self._unsubscribe()
                    await self._refresh(list(self._outdated)[:REFRESH_CHUNK])
                    pauses.reset()
                except ServerUnavailable as failure:
                    _log.failure("following_interrupted", error=failure)
                    await anyio.sleep(pauses.next_s())

    async def _unsubscribe(self) -> None:
        left = list(self._dropped)[:REFRESH_CHUNK]
        if left:
            self._dropped.difference_update(left)
            await self._hints.unsubscribe([self._services.keys.out(id_) for id_ in left])

    async def _refresh(self, ids: Sequence[str]) -> None:
        """Read the status of tasks and subscribe to the live ones, then wake their readers."""
        if not ids:
            return
        try:
            answers = await self._services.store.call(scripts.watch(self._services.keys, ids=ids))
            by_id = dict(zip(ids, answers, strict=True))
            fresh = await self._subscribe([id_ for id_, (status, _) in by_id.items() if status is WatchStatus.LIVE])
        except ServerUnavailable:
            raise
        except StoreError as failure:
            self._fail(ids, failure)
            return
        now_s = time.monotonic()
        for id_, (status, last) in by_id.items():
            self._outdated.pop(id_, None)
            followed = self._tasks.get(id_)
            if followed is None:
                continue
            followed.updated_s = now_s
            for reader in followed.readers:
                changed = reader.status is not status
                reader.status = status
                if changed or id_ in fresh or read_place(last or "0-0") > reader.place:
                    reader.wake()

    async def _subscribe(self, ids: Sequence[str]) -> set[str]:
        fresh = {id_ for id_ in ids if (task := self._tasks.get(id_)) is not None and not task.subscribed}
        if not self._may_subscribe:
            return set()
        if fresh:
            try:
                await self._hints.subscribe([self._services.keys.out(id_) for id_ in fresh], self)
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
                    self._dropped.add(id_)
        return fresh

    async def _poll_silent(self) -> None:
        while True:
            await self._any_reader.wait()
            await anyio.sleep(self._poll_every_s)
            if not self._tasks:
                self._any_reader = anyio.Event()
                continue
            try:
                await self._hints.check()
            except StoreError as failure:
                _log.failure("following_interrupted", error=failure)
            silent_since_s = time.monotonic() - self._poll_every_s
            for id_, followed in self._tasks.items():
                if followed.updated_s <= silent_since_s:
                    self._mark_outdated(id_)

    def fail_all(self, failure: BaseException) -> None:
        """Fail all readers, now and later, because the client has closed."""
        self._closed = True
        self._fail(list(self._tasks), failure)

    def _fail(self, ids: Sequence[str], failure: BaseException) -> None:
        for id_ in ids:
            self._outdated.pop(id_, None)
            for reader in self._tasks[id_].readers if id_ in self._tasks else ():
                reader.failure = failure
                reader.wake()
