"""The heartbeat thread: renews leases, sends heartbeats to the registry, and reads commands and notes.

It runs beside the event loop, so that a handler that blocks the loop loses neither the worker's leases nor a STOP; but
when the loop has not turned for `worker.stuck_after_s`, the heartbeat stops renewing, because then nobody would notice
the end. Whatever it hears it tells the loop, which acts when it turns.
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
from workers.runtime.active_commands import interrupted
from workers.runtime.listener import MAX_BYTES, NOTHING, CommandListener
from workers.runtime.receipts import CommandReceipts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from orchestrator.locks.renewal import LockRenewer
    from orchestrator.services import Services
    from workers.agent import Agent
    from workers.runtime.active_commands import WorkerCommands
    from workers.runtime.in_flight import InFlight
    from workers.runtime.listener import Note
    from workers.runtime.throughput import Throughput
    from workers.runtime.watchdog import LoopWatchdog

LISTEN_BACK_S: Final = 1
"""Listening begins so much before its first read: nothing falls between the state that was read and the stream."""

_log = get_logger(__name__)


class Heartbeat:
    """Keeps a worker alive in the eyes of Redis, and its ears open."""

    def __init__(
        self,
        *,
        services: Services,
        agents: Sequence[Agent],
        in_flight: InFlight,
        renewer: LockRenewer,
        throughputs: dict[str, Throughput],
        worker: str,
        alive_s: int,
        loop: asyncio.AbstractEventLoop,
        forgotten: Callable[[], None],
        lost_entries: Callable[[str], None],
        commands: WorkerCommands,
        commands_changed: Callable[[], None],
        watchdog: LoopWatchdog | None,
    ) -> None:
        self._services, self._agents, self._in_flight, self._throughputs = services, agents, in_flight, throughputs
        self._worker, self._alive_s, self._loop = worker, alive_s, loop
        self._renewer = renewer
        renewer.trigger = lambda _: self.poll()
        self._locks_s = 0.0
        self._forgotten, self._lost_entries, self._watchdog = forgotten, lost_entries, watchdog
        self._commands, self._commands_changed = commands, commands_changed
        self._signer = signer_of(services.settings, place=services.keys.root)
        self._receipts = CommandReceipts(
            keys=services.keys, worker=worker, in_flight=in_flight, commands=commands, signer=self._signer
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
        self._listener: CommandListener | None = None
        self._unchecked: list[tuple[str, Sequence[bytes]]] = []
        self._state_outdated = True
        self._notifying = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start sending heartbeats."""
        self._waker.open()
        self._thread.start()

    def trigger(self) -> None:
        """Send a heartbeat now: what the registry should know has changed."""
        self._triggered.set()
        self._waker.wake()

    def stop(self) -> None:
        """Stop; blocks until a heartbeat under way has ended."""
        self._stopping.set()
        self._waker.wake()
        self._thread.join()
        self._waker.close()
        if self._watchdog is not None:
            self._watchdog.disarm()

    def read_state(self) -> None:
        """Read the desired state now: what is known of it may be old."""
        self._state_outdated = True
        self._waker.wake()

    def poll(self) -> None:
        """See now whether there is something to answer."""
        self._waker.wake()

    def _run(self) -> None:
        endpoint = replace(
            self._services.endpoint,
            connect_timeout_s=min(self._services.endpoint.connect_timeout_s, self._answer_within_s),
            command_timeout_s=self._answer_within_s,
        )
        store = SyncStore(endpoint, self._services.keys, name="heartbeat")
        due_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                if self._triggered.is_set() or time.monotonic() >= due_s:
                    self._triggered.clear()
                    pause_s = self._every_s if self._stuck() else self._guarded(self._send_heartbeat, store)
                    due_s = time.monotonic() + pause_s
                self._keep_due_locks(store)
                pause_s = self._guarded(self._listen, store)
                due_s = min(due_s, time.monotonic() + pause_s)
                self._renewer.wakes_s = min(due_s, self._next_lock_s())
                self._wait(self._renewer.wakes_s)
            self._guarded(self._process_commands, store)
        finally:
            self._in_flight.dropped = None
            if self._listener is not None:
                self._listener.close()
            store.close()

    def _guarded(self, work: Callable[[SyncStore], object], store: SyncStore) -> float:
        """Do something that asks Redis; answer how long the next heartbeat may wait."""
        try:
            return 0.0 if work(store) is False else self._every_s
        except StoreError as failure:
            self._reached = False
            _log.warning("heartbeat_missed", worker=self._worker, error=str(failure))
            return self._pauses.next_s()
        except Exception as broken:  # noqa: BLE001 - see below
            # Without a heartbeat the worker would lose its tasks one by one and never know.
            _log.exception("heartbeat_failed", worker=self._worker, error=f"{type(broken).__name__}: {broken}")
        return self._every_s

    def _next_lock_s(self) -> float:
        """When a lock that lives shorter than three heartbeats must be renewed."""
        in_s = self._renewer.due_in_s()
        return math.inf if in_s is None else max(self._locks_s, time.monotonic() + in_s)

    def _keep_due_locks(self, store: SyncStore) -> None:
        now_s = time.monotonic()
        if self._next_lock_s() <= now_s and not self._stuck():
            # After a failure not at once again.
            self._locks_s = now_s + self._guarded(self._keep_locks, store)

    def _keep_locks(self, store: SyncStore, early_s: float = 0.01, *, lapsed: bool = False) -> bool:
        batches = self._renewer.batches(early_s=early_s, lapsed=lapsed)
        asked_s = time.monotonic()
        for (_, locks), answers in zip(batches, store.call_all([call for call, _ in batches]), strict=True):
            self._renewer.settle(locks, answers, asked_s)
        return False

    def _wait(self, due_s: float) -> None:
        """Sleep until something is received, somebody wakes us, or the next heartbeat is due."""
        wait_s = due_s - time.monotonic()
        # By poll: select cannot watch what has a number above 1023.
        poller = select.poll()
        poller.register(self._waker.fileno(), select.POLLIN)
        if self._listener is not None and (self._listener.listening or self._reached):
            wait_s = min(wait_s, self._listener.wait_s())
        if self._listener is not None and self._listener.listening:
            poller.register(self._listener.fileno(), select.POLLIN)
        poller.poll(math.ceil(max(0.0, wait_s) * 1000))
        self._waker.drain()

    def _stuck(self) -> bool:
        stuck_s = time.monotonic() - self._ask_loop_to_turn()
        if stuck_s <= self._stuck_after_s:
            return False
        _log.error("loop_stuck", worker=self._worker, seconds=round(stuck_s))
        return True

    def _ask_loop_to_turn(self) -> float:
        """Ask the loop for a sign, unless it still owes one; answer when it was asked."""

        def turned() -> None:
            self._asked_s = None
            if self._watchdog is not None and not self._stopping.is_set():
                self._watchdog.record_turn()

        asked_s = self._asked_s
        if asked_s is None:
            asked_s = self._asked_s = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(turned)
        return asked_s

    # ----------------------------------------------------------------------------------------------------- heartbeats

    def _send_heartbeat(self, store: SyncStore) -> None:
        # Before the leases: no lock may outlive the lease of its attempt (protocol rule 18).
        self._keep_locks(store, early_s=math.inf)
        for agent in self._agents:
            self._renew(store, agent.name)
        # After the leases: only an attempt that still owns its task gets a lock back whose time is over.
        self._keep_locks(store, lapsed=True)
        backlogs = [(agent.name, self._throughputs[agent.name].backlog) for agent in self._agents]
        call = registry.heartbeat(self._services.keys, worker=self._worker, backlogs=backlogs, alive_s=self._alive_s)
        answer = store.call(call)
        if not answer.known:
            self._loop.call_soon_threadsafe(self._forgotten)
        if answer.seq != str(self._commands.desired.seq):
            self._state_outdated = True
        self._reached = True
        self._pauses.reset()

    def _renew(self, store: SyncStore, agent: str) -> None:
        held = self._in_flight.of(agent)
        if not held and not self._surplus.get(agent):
            # Nothing to renew; entries lost on the way are asked for by the fetcher's own look.
            return
        rows = [(one.delivery.entry, one.delivery.task_id, one.delivery.generation) for one in held]
        pending, statuses = store.call(scripts.renew(self._services.keys, worker=self._worker, agent=agent, rows=rows))
        for one, status in zip(held, statuses, strict=True):
            if status is LeaseStatus.LOST and self._in_flight.get(agent, one.delivery.entry) is one:
                one.lease_lost = True
                self._loop.call_soon_threadsafe(one.stop, "lost")
            elif status is LeaseStatus.CANCELLED:
                self._loop.call_soon_threadsafe(one.stop, "cancelled")
        # More pending than held, twice running: a read was swallowed (protocol rule 9). Once may be a read under way.
        self._surplus[agent] = self._surplus.get(agent, 0) + 1 if pending > len(held) else 0
        if self._surplus[agent] >= 2:
            self._loop.call_soon_threadsafe(self._lost_entries, agent)

    # --------------------------------------------------------------------------------------------------- listener

    def _listen(self, store: SyncStore) -> bool:
        """Hear what has come and answer it; False: something was missed, so the next heartbeat is due."""
        received = NOTHING
        if self._listener is None and self._reached:
            self._listener = self._open_listener(store)
        # A worker whose heartbeats fail does not spend the time of one on connecting.
        if self._listener is not None and (self._listener.listening or self._reached):
            received = self._listener.turn()
        for note in received.notes:
            self._handle_note(note)
        self._unchecked += received.commands
        self._state_outdated = self._state_outdated or received.gap or bool(received.commands)
        if self._reached:
            self._process_commands(store)
        return not received.gap

    def _open_listener(self, store: SyncStore) -> CommandListener:
        seconds, _ = store.execute("TIME")
        link = store.long_read(name="listener", connect_timeout_s=self._answer_within_s / 2, max_bytes=MAX_BYTES)
        return CommandListener(
            link,
            keys=self._services.keys,
            worker=self._worker,
            since=f"{int(seconds) - LISTEN_BACK_S}000-0",
            retry_cap_s=self._every_s,
        )

    def _handle_note(self, note: Note) -> None:
        if note.kind != "cancel":
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self._in_flight.cancel, note.task_id, note.generation)
        # Then a handler in a thread, or one that holds the loop, can see it: the loop hears of its end afterwards.
        held = self._in_flight.find(note.task_id, note.generation)
        # The loop may let go of it meanwhile.
        if held is not None and (context := held.context) is not None:
            context.mark_cancelled()

    def _process_commands(self, store: SyncStore) -> None:
        """Read the desired state if it may have changed, obey it, and say what there is to say."""
        if self._state_outdated:
            reply = store.execute("HGETALL", self._services.keys.desired)
            self._commands.desired = read_desired(reply, self._signer)
            self._state_outdated = False
            self._notify_loop()
            self._receipts.acknowledge_active()
        entries, self._unchecked = self._unchecked, []
        if entries:
            try:
                self._receipts.receive(store, entries)
            except StoreError:
                self._unchecked = entries
                raise
        # First asked for, then looked at: no end of an attempt falls between.
        self._in_flight.dropped = self._waker.wake if self._receipts.waiting else None
        self._receipts.settle()
        self._receipts.send(store)

    def _notify_loop(self) -> None:
        def tell() -> None:
            self._notifying = False
            self._commands_changed()

        if not self._notifying:
            self._notifying = True
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(tell)
        for held, _ in interrupted(self._commands.desired, self._in_flight):
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
