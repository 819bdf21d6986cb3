"""Receives results for all handles of one process over one stream and one connection.

A reply is a hint (protocol rule 23). Awaited tasks are also read after a connection error and every few seconds, so a
lost or trimmed reply costs time, never a result.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast
from weakref import WeakValueDictionary, ref

import anyio
from anyio.lowlevel import checkpoint

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import OrchestratorError, StoreError
from orchestrator.core.ids import task_ms
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.tasks import queries
from orchestrator.tasks.model import STATE_OF_LETTER
from orchestrator.tasks.queries import TaskOutcome
from orchestrator.tasks.values import is_apart, read_values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from orchestrator.services import Services

POLL_EVERY_S: Final = 5.0
FOREIGN_POLL_EVERY_S: Final = 0.25
"""The reply of a task from another process goes to that process, so this client polls `POLL_CHUNK` tasks in turn."""
FRESH_S: Final = 1.0
"""An awaited task that is older than this is read at once."""
POLL_CHUNK: Final = 500
SWEEP_AT: Final = 1000
"""Entries of dropped handles that are tolerated before a sweep."""

_log = get_logger(__name__)


class Awaited(Protocol):
    """A handle."""

    @property
    def id(self) -> str:
        """The task's id."""
        ...

    outcome: TaskOutcome | None
    requeued: bool


class Waiter(Protocol):
    """Waits for the ends of tasks."""

    def settled(self, id_: str, failure: StoreError | None) -> None:
        """The task has ended and its handle has the outcome, or Redis refuses to read it (`failure`). Called once."""
        ...

    def failed(self, failure: OrchestratorError) -> None:
        """The client has closed."""
        ...


H = TypeVar("H", bound=Awaited)


class _OneEnd:
    """Waits for the end of one task."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(self, id_: str, failure: StoreError | None) -> None:  # noqa: ARG002 - there is only one
        if failure is not None:
            self.failed(failure)
        elif not self.woken.done():
            self.woken.set_result(None)

    def failed(self, failure: OrchestratorError) -> None:
        if not self.woken.done():
            self.woken.set_exception(failure)


def _age_s(id_: str) -> float:
    return time.time() - task_ms(id_) / 1000


class Replies:
    """Settles handles when their tasks end.

    Attributes:
        last_failure: the last read failure, None after a success.
    """

    def __init__(self, services: Services, *, client: str) -> None:
        self._services, self._client = services, client
        self._loop = asyncio.get_running_loop()
        self._block_s = min(POLL_EVERY_S, services.settings.redis.command_timeout_s)
        # Every submit adds an entry. The callbacks of a WeakValueDictionary would take a fifth of the client's time.
        self._own: dict[str, ref[Awaited]] = {}
        self._sweep_at = SWEEP_AT
        self._foreign: WeakValueDictionary[str, Awaited] = WeakValueDictionary()
        self._waiting: dict[str, list[Waiter]] = {}
        self._waiting_own: set[str] = set()
        self._waiting_foreign: dict[str, None] = {}  # whose turn it is comes first
        self._unpolled: set[str] = set()
        self._closed = False
        self._own_wait = anyio.Event()
        self._poll_now = anyio.Event()
        self._poller_rests = True
        """No poll is scheduled. A client that awaits one task after another wakes the poller every few seconds only."""
        self._cursor = "0"
        self.last_failure: StoreError | None = None

    # --------------------------------------------------------------------------------------------------- handles

    def track_own(self, handles: Iterable[Awaited]) -> None:
        """Track handles of tasks that this client is about to submit: their ids are new, their replies come here."""
        if len(self._own) >= self._sweep_at:
            self._sweep()
        for handle in handles:
            self._own[handle.id] = ref(handle)

    def track(self, handle: H) -> H:
        """Track a new handle of any task; returns the existing handle of the same task, if any."""
        known = self._known(handle.id)
        if known is None:
            self._foreign[handle.id] = known = handle
        return cast("H", known)

    def _sweep(self) -> None:
        # The threshold doubles, so the cost per entry is constant.
        self._own = {id_: handle for id_, handle in self._own.items() if handle() is not None}
        self._sweep_at = max(SWEEP_AT, 2 * len(self._own))

    def tracks(self, handle: Awaited) -> bool:
        """Return whether a handle belongs to this client."""
        return self._known(handle.id) is handle

    def _known(self, id_: str) -> Awaited | None:
        return self._known_own(id_) or self._foreign.get(id_)

    def _known_own(self, id_: str) -> Awaited | None:
        found = self._own.get(id_)
        return None if found is None else found()

    # --------------------------------------------------------------------------------------------------- waiting

    @property
    def awaited(self) -> Collection[str]:
        """The awaited tasks."""
        return self._waiting.keys()

    async def wait(self, handle: Awaited) -> None:
        """Wait until the task of `handle` has ended.

        Raises:
            OrchestratorError: the client has closed.
            StoreError: Redis refuses to read the task.
        """
        while handle.outcome is None:
            end = _OneEnd()
            self.listen({handle.id: handle}, end)
            try:
                await end.woken
            finally:
                self.forget([handle.id], end)

    def listen(self, handles: Mapping[str, Awaited], waiter: Waiter) -> None:
        """Notify `waiter` of the end of each of these tasks, by id, until `forget`; the caller keeps the handles alive.

        Raises:
            OrchestratorError: the client has closed, or runs in another event loop.
        """
        self._check_open(handles)
        if asyncio.get_running_loop() is not self._loop:
            raise OrchestratorError(
                "this client was opened in another event loop; open one in each, or use orchestrator.sync"
            )
        polls = self._poller_rests  # else a poll is already scheduled
        for id_, handle in handles.items():
            self._waiting.setdefault(id_, []).append(waiter)
            own = self._known_own(id_) is not None
            if own:
                self._waiting_own.add(id_)
            else:
                self._waiting_foreign.setdefault(id_)
            if not own or handle.requeued or _age_s(id_) > FRESH_S:
                # It may have ended already: another client got its reply, or the reply was trimmed, or it came while
                # the end before was still known here.
                self._unpolled.add(id_)
                polls = True
        if self._waiting_own:
            self._own_wait.set()
        if polls:
            self._poll_now.set()

    def _check_open(self, ids: Collection[str]) -> None:
        if self._closed:
            raise OrchestratorError(
                f"the client that made this handle is closed; ask an open one for task {next(iter(ids))}"
            )

    def forget(self, ids: Collection[str], waiter: Waiter) -> None:
        """Stop notifying `waiter` of these tasks."""
        for id_ in ids:
            waiters = self._waiting.get(id_)
            if waiters and waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    self._drop(id_)

    def _drop(self, id_: str) -> None:
        self._waiting.pop(id_, None)
        self._waiting_own.discard(id_)
        self._waiting_foreign.pop(id_, None)
        self._unpolled.discard(id_)

    def fail_all(self, failure: OrchestratorError) -> None:
        """Fail all waiters, now and later, because the client has closed."""
        self._closed = True
        for waiter in [waiter for waiters in self._waiting.values() for waiter in waiters]:
            waiter.failed(failure)

    # --------------------------------------------------------------------------------------------------- replies

    async def run(self) -> None:
        """Read replies and poll awaited tasks, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._poll_waiting)
            await self._read()

    async def _read(self) -> None:
        link = self._services.store.blocking_link(self._block_s, name="replies")
        pauses = Pauses()
        replies_key = self._services.keys.replies(self._client)
        # After a reply that was awaited, the next read is sent before the next submit: it is not in the way of its
        # result. Replies that no caller awaits end this.
        reads_on = False
        try:
            while True:
                if not self._waiting_own and not reads_on:
                    self._own_wait = anyio.Event()
                    await self._own_wait.wait()
                    continue
                try:
                    reply = await link.execute(
                        "XREAD", "COUNT", 200, "BLOCK", int(self._block_s * 1000), "STREAMS", replies_key, self._cursor
                    )
                except StoreError as failure:
                    _log.failure("replies_interrupted", error=failure)
                    reads_on = False
                    await anyio.sleep(pauses.next_s(failure))
                    await self._try_poll(list(self._waiting))
                    continue
                pauses.reset()
                self.last_failure = None
                reads_on = bool(reply and self._waiting_own)
                entries = reply[0][1] if reply else ()
                if entries:
                    self._cursor = read_text(entries[-1][0])
                    await self._take([word for _, fields in entries for word in fields])
                    # Callers get their results before the next read is prepared.
                    await checkpoint()
        finally:
            await link.close()

    async def _take(self, fields: list[bytes]) -> None:
        unread: list[str] = []
        apart: list[tuple[str, bytes]] = []
        for raw_id, value in zip(fields[::2], fields[1::2], strict=True):
            id_, letter = read_text(raw_id), value[:1]
            if self._known(id_) is None:
                continue
            if letter == b"s" and is_apart(value[1:]):
                apart.append((id_, value[1:]))
            elif letter == b"s":
                self._settle(id_, TaskOutcome(STATE_OF_LETTER["s"], value[1:]))
            else:
                unread.append(id_)
        if apart:
            unread += await self._try_read(apart)
        if unread:
            await self._try_poll(unread)

    async def _try_read(self, apart: Sequence[tuple[str, bytes]]) -> list[str]:
        """Read results that are fields of their own; returns the tasks that were not read."""
        try:
            values = await read_values(self._services.store, apart)
        except StoreError:
            return [id_ for id_, _ in apart]
        for (id_, _), value in zip(apart, values, strict=True):
            if isinstance(value, bytes):
                self._settle(id_, TaskOutcome(STATE_OF_LETTER["s"], value))
        return [id_ for (id_, _), value in zip(apart, values, strict=True) if not isinstance(value, bytes)]

    # ----------------------------------------------------------------------------------------------------- polls

    async def poll(self, ids: Sequence[str]) -> None:
        """Read these tasks now and settle the ended ones.

        Raises:
            StoreError: Redis does not answer, or refuses to read one of them; the others are settled.
            OrchestratorError: the client has closed.
        """
        if not ids:
            return
        self._check_open(ids)
        refusals: list[StoreError] = []
        for start in range(0, len(ids), POLL_CHUNK):
            found = await queries.outcomes(self._services.store, ids[start : start + POLL_CHUNK])
            self.last_failure = None
            for id_, outcome in found.items():
                self._settle(id_, outcome)
            refusals += [outcome for outcome in found.values() if isinstance(outcome, StoreError)]
        if refusals:
            raise refusals[0]

    async def _try_poll(self, ids: Sequence[str]) -> bool:
        """Poll; returns whether Redis answered."""
        try:
            await self.poll(ids)
        except StoreError as failure:
            _log.debug("results_not_read", error=str(failure))
            self.last_failure = failure
            return False
        return True

    async def _poll_waiting(self) -> None:
        polled_s = time.monotonic()
        while True:
            pause_s = self._pause_s(polled_s)
            self._poller_rests = pause_s is None
            with anyio.move_on_after(pause_s):
                await self._poll_now.wait()
            self._poll_now, self._poller_rests = anyio.Event(), False
            now_s = time.monotonic()
            if pause_s is None:
                polled_s = now_s  # no task was awaited until now
            unpolled, self._unpolled = self._unpolled, set()
            turn = list(islice(self._waiting_foreign, POLL_CHUNK))
            if now_s - polled_s >= self._block_s:
                polled_s = now_s
                ids = list(self._waiting)
            else:
                ids = list({*unpolled, *turn})
            if not await self._try_poll(ids):
                self._unpolled |= unpolled & self._waiting.keys()
            for id_ in [id_ for id_ in turn if id_ in self._waiting_foreign]:
                del self._waiting_foreign[id_]
                self._waiting_foreign[id_] = None

    def _pause_s(self, polled_s: float) -> float | None:
        """Return the seconds until the next poll; `polled_s` is the time of the last full one."""
        if not self._waiting:
            return None
        rest_s = max(0.0, polled_s + self._block_s - time.monotonic())
        return min(rest_s, FOREIGN_POLL_EVERY_S) if self._unpolled or self._waiting_foreign else rest_s

    def _settle(self, id_: str, outcome: TaskOutcome | StoreError) -> None:
        handle = self._known(id_)
        if handle is None or handle.outcome is not None:
            return
        failure = outcome if isinstance(outcome, StoreError) else None
        if not isinstance(outcome, StoreError):
            handle.outcome = outcome
        waiters = self._waiting.get(id_, [])
        self._drop(id_)
        for waiter in waiters:
            waiter.settled(id_, failure)
