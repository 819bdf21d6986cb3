"""The pulse: a thread with its own connections that renews leases, beats the registry, and hears commands and notes.

It runs beside the event loop, so that a handler that blocks the loop loses neither the worker's leases nor a STOP; but
when the loop has not turned for `worker.stuck_after_s`, the pulse stops renewing, because then nobody would notice the
end. Whatever it hears it tells the loop, which acts when it turns.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.agents import scripts as registry
from orchestrator.control.desired import read_desired
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.pauses import Pauses
from orchestrator.services import SyncStore
from orchestrator.tasks import scripts
from orchestrator.tasks.model import LeaseStatus
from workers.runtime.answers import Answers
from workers.runtime.hearing import MAX_BYTES, NOTHING, Hearing
from workers.runtime.orders import interrupted

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from orchestrator.locks.keeping import Keeper
    from orchestrator.services import Services
    from workers.agent import Agent
    from workers.runtime.hearing import Note
    from workers.runtime.holdings import Holdings
    from workers.runtime.orders import Orders
    from workers.runtime.tempo import Tempo
    from workers.runtime.turns import Turns

HEAR_BACK_S: Final = 1
"""Hearing begins so much before its first read: nothing falls between the state that was read and the stream."""

_log = get_logger(__name__)


class Pulse:
    """Keeps a worker alive in the eyes of Redis, and its ears open."""

    def __init__(
        self,
        *,
        services: Services,
        agents: Sequence[Agent],
        holdings: Holdings,
        keeper: Keeper,
        tempos: dict[str, Tempo],
        worker: str,
        alive_s: int,
        loop: asyncio.AbstractEventLoop,
        forgotten: Callable[[], None],
        lost_entries: Callable[[str], None],
        orders: Orders,
        ordered: Callable[[], None],
        turns: Turns | None,
    ) -> None:
        self._services, self._agents, self._holdings, self._tempos = services, agents, holdings, tempos
        self._worker, self._alive_s, self._loop = worker, alive_s, loop
        self._keeper = keeper
        keeper.trigger = lambda _: self.look()
        self._locks_s = 0.0
        self._forgotten, self._lost_entries, self._turns = forgotten, lost_entries, turns
        self._orders, self._ordered = orders, ordered
        self._signer = signer_of(services.settings, place=services.keys.root)
        self._answers = Answers(
            keys=services.keys, worker=worker, holdings=holdings, orders=orders, signer=self._signer
        )
        shortest_lease_s = min(agent.lease_ms for agent in agents) / 1000
        self._every_s = min(services.settings.worker.heartbeat_s, shortest_lease_s / 3)
        # One lost answer must not cost the lease: give up on it early enough to ask again.
        self._answer_within_s = min(services.settings.redis.command_timeout_s, shortest_lease_s / 4)
        self._stuck_after_s = services.settings.worker.stuck_after_s
        self._stopping = threading.Event()
        self._triggered = threading.Event()
        self._waker = _Waker()
        self._asked_s: float | None = None
        self._surplus: dict[str, int] = {}
        self._pauses = Pauses(cap_s=self._every_s)
        self._reached = False
        self._hearing: Hearing | None = None
        self._unjudged: list[tuple[str, Sequence[bytes]]] = []
        self._state_unread = True
        self._telling = False
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Start beating."""
        self._waker.open()
        self._thread.start()

    def trigger(self) -> None:
        """Beat now: what the registry should know has changed."""
        self._triggered.set()
        self._waker.wake()

    def stop(self) -> None:
        """Stop beating; blocks until a beat under way has ended."""
        self._stopping.set()
        self._waker.wake()
        self._thread.join()
        self._waker.close()
        if self._turns is not None:
            self._turns.forget()

    def read_state(self) -> None:
        """Read the desired state now: what is known of it may be old."""
        self._state_unread = True
        self._waker.wake()

    def look(self) -> None:
        """See now whether there is something to answer."""
        self._waker.wake()

    def _run(self) -> None:
        endpoint = replace(
            self._services.endpoint,
            connect_timeout_s=min(self._services.endpoint.connect_timeout_s, self._answer_within_s),
            command_timeout_s=self._answer_within_s,
        )
        store = SyncStore(endpoint, self._services.keys, name="pulse")
        due_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                if self._triggered.is_set() or time.monotonic() >= due_s:
                    self._triggered.clear()
                    pause_s = self._every_s if self._stuck() else self._guarded(self._beat, store)
                    due_s = time.monotonic() + pause_s
                self._keep_due_locks(store)
                pause_s = self._guarded(self._hear, store)
                due_s = min(due_s, time.monotonic() + pause_s)
                self._keeper.wakes_s = min(due_s, self._next_lock_s())
                self._wait(self._keeper.wakes_s)
            self._guarded(self._answer, store)
        finally:
            self._holdings.dropped = None
            if self._hearing is not None:
                self._hearing.close()
            store.close()

    def _guarded(self, work: Callable[[SyncStore], object], store: SyncStore) -> float:
        """Do something that asks Redis; answer how long the next beat may wait."""
        try:
            return 0.0 if work(store) is False else self._every_s
        except StoreError as failure:
            self._reached = False
            _log.warning("pulse_missed", worker=self._worker, error=str(failure))
            return self._pauses.next_s()
        except Exception as broken:  # noqa: BLE001 - see below
            # Without a pulse the worker would lose its tasks one by one and never know.
            _log.exception("pulse_broke", worker=self._worker, error=f"{type(broken).__name__}: {broken}")
        return self._every_s

    def _next_lock_s(self) -> float:
        """When a lock that lives shorter than three beats must be renewed."""
        in_s = self._keeper.due_in_s()
        return math.inf if in_s is None else max(self._locks_s, time.monotonic() + in_s)

    def _keep_due_locks(self, store: SyncStore) -> None:
        now_s = time.monotonic()
        if self._next_lock_s() <= now_s and not self._stuck():
            # After a failure not at once again.
            self._locks_s = now_s + self._guarded(self._keep_locks, store)

    def _keep_locks(self, store: SyncStore, early_s: float = 0.01, *, lapsed: bool = False) -> bool:
        batches = self._keeper.batches(early_s=early_s, lapsed=lapsed)
        asked_s = time.monotonic()
        for (_, locks), answers in zip(batches, store.call_all([call for call, _ in batches]), strict=True):
            self._keeper.settle(locks, answers, asked_s)
        return False

    def _wait(self, due_s: float) -> None:
        """Sleep until something is heard, somebody wakes us, or the next beat is due."""
        wait_s = due_s - time.monotonic()
        # By poll: select cannot watch what has a number above 1023.
        poller = select.poll()
        poller.register(self._waker.fileno(), select.POLLIN)
        if self._hearing is not None and (self._hearing.listening or self._reached):
            wait_s = min(wait_s, self._hearing.wait_s())
        if self._hearing is not None and self._hearing.listening:
            poller.register(self._hearing.fileno(), select.POLLIN)
        poller.poll(math.ceil(max(0.0, wait_s) * 1000))
        self._waker.drain()

    def _stuck(self) -> bool:
        stuck_s = time.monotonic() - self._ask_loop_to_turn()
        if stuck_s <= self._stuck_after_s:
            return False
        _log.error("loop_stuck", worker=self._worker, seconds=round(stuck_s), meaning="leases are not renewed")
        return True

    def _ask_loop_to_turn(self) -> float:
        """Ask the loop for a sign, unless it still owes one; answer when it was asked."""

        def turned() -> None:
            self._asked_s = None
            if self._turns is not None and not self._stopping.is_set():
                self._turns.note()

        asked_s = self._asked_s
        if asked_s is None:
            asked_s = self._asked_s = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(turned)
        return asked_s

    # ----------------------------------------------------------------------------------------------------- beats

    def _beat(self, store: SyncStore) -> None:
        # Before the leases: no lock may outlive the lease of its attempt (protocol rule 18).
        self._keep_locks(store, early_s=math.inf)
        for agent in self._agents:
            self._renew(store, agent.name)
        # After the leases: only an attempt that still owns its task gets a lock back whose time is over.
        self._keep_locks(store, lapsed=True)
        backlogs = [(agent.name, self._tempos[agent.name].backlog) for agent in self._agents]
        call = registry.beat(self._services.keys, worker=self._worker, backlogs=backlogs, alive_s=self._alive_s)
        answer = store.call(call)
        if not answer.known:
            self._loop.call_soon_threadsafe(self._forgotten)
        if answer.seq != str(self._orders.desired.seq):
            self._state_unread = True
        self._reached = True
        self._pauses.reset()

    def _renew(self, store: SyncStore, agent: str) -> None:
        held = self._holdings.of(agent)
        if not held and not self._surplus.get(agent):
            # Nothing to renew; entries lost on the way are asked for by the intake's own look.
            return
        rows = [(one.delivery.entry, one.delivery.task_id, one.delivery.generation) for one in held]
        pending, statuses = store.call(scripts.renew(self._services.keys, worker=self._worker, agent=agent, rows=rows))
        for one, status in zip(held, statuses, strict=True):
            if status is LeaseStatus.LOST and self._holdings.get(agent, one.delivery.entry) is one:
                one.disowned = True
                self._loop.call_soon_threadsafe(one.stop, "lost")
            elif status is LeaseStatus.CANCELLED:
                self._loop.call_soon_threadsafe(one.stop, "cancelled")
        # More pending than held, twice running: a read was swallowed (protocol rule 9). Once may be a read under way.
        self._surplus[agent] = self._surplus.get(agent, 0) + 1 if pending > len(held) else 0
        if self._surplus[agent] >= 2:
            self._loop.call_soon_threadsafe(self._lost_entries, agent)

    # --------------------------------------------------------------------------------------------------- hearing

    def _hear(self, store: SyncStore) -> bool:
        """Hear what has come and answer it; False: something was missed, so the next beat is due."""
        heard = NOTHING
        if self._hearing is None and self._reached:
            self._hearing = self._begin(store)
        # Whoever cannot beat does not spend the time of a beat on connecting.
        if self._hearing is not None and (self._hearing.listening or self._reached):
            heard = self._hearing.turn()
        for note in heard.notes:
            self._heed(note)
        self._unjudged += heard.commands
        self._state_unread = self._state_unread or heard.gap or bool(heard.commands)
        if self._reached:
            self._answer(store)
        return not heard.gap

    def _begin(self, store: SyncStore) -> Hearing:
        seconds, _ = store.execute("TIME")
        link = store.long_read(name="hearing", connect_timeout_s=self._answer_within_s / 2, max_bytes=MAX_BYTES)
        return Hearing(
            link,
            keys=self._services.keys,
            worker=self._worker,
            since=f"{int(seconds) - HEAR_BACK_S}000-0",
            retry_cap_s=self._every_s,
        )

    def _heed(self, note: Note) -> None:
        if note.kind != "cancel":
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._holdings.call_off, note.task_id, note.generation)
        # Then a handler in a thread, or one that holds the loop, can see it: the loop hears of its end afterwards.
        held = self._holdings.find(note.task_id, note.generation)
        # The loop may let go of it meanwhile.
        if held is not None and (context := held.context) is not None:
            context.mark_cancelled()

    def _answer(self, store: SyncStore) -> None:
        """Read the desired state if it may have changed, obey it, and say what there is to say."""
        if self._state_unread:
            reply = store.execute("HGETALL", self._services.keys.desired)
            self._orders.desired = read_desired(reply, self._signer)
            self._state_unread = False
            self._tell_loop()
            self._answers.standing()
        entries, self._unjudged = self._unjudged, []
        if entries:
            try:
                self._answers.hear(store, entries)
            except StoreError:
                self._unjudged = entries
                raise
        # First asked for, then looked at: no end of an attempt falls between.
        self._holdings.dropped = self._waker.wake if self._answers.waiting else None
        self._answers.settle()
        self._answers.send(store)

    def _tell_loop(self) -> None:
        def tell() -> None:
            self._telling = False
            self._ordered()

        if not self._telling:
            self._telling = True
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(tell)
        for held, _ in interrupted(self._orders.desired, self._holdings):
            if (context := held.context) is not None:
                context.mark_cancelled()


class _Waker:
    """Ends a `poll` from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def open(self) -> None:
        """Before the thread that polls starts."""
        ends = socket.socketpair()
        for end in ends:
            end.settimeout(0)
        self._ends = ends

    def fileno(self) -> int:
        """What becomes readable."""
        assert self._ends is not None
        return self._ends[0].fileno()

    def wake(self) -> None:
        """Make it readable; nothing happens before `open` and after `close`."""
        with self._lock:
            if self._ends is not None:
                with contextlib.suppress(BlockingIOError):  # it is readable
                    self._ends[1].send(b"w")

    def drain(self) -> None:
        """Make it unreadable."""
        assert self._ends is not None
        with contextlib.suppress(BlockingIOError):
            while self._ends[0].recv(4096):
                pass

    def close(self) -> None:
        """After the thread has ended."""
        with self._lock:
            if self._ends is not None:
                for end in self._ends:
                    end.close()
                self._ends = None
