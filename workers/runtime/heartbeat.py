"""The heartbeat thread: renews leases, locks and the registration, and runs the command listener.

It runs beside the event loop, so that a handler that blocks the loop costs the worker neither its leases nor a stop
command. When the loop has not turned for `worker.stuck_after_s`, it stops renewing, so that other workers take over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from orchestrator.agents import scripts as registry
from orchestrator.agents.descriptions import encode_description
from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import bind_context, get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.model import LeaseStatus
from orchestrator.workers.runtime.attempt import StopCause
from orchestrator.workers.runtime.heartbeat_store import HeartbeatStore
from orchestrator.workers.runtime.listener import CommandListener
from orchestrator.workers.runtime.timings import MAX_ROWS
from orchestrator.workers.runtime.watchdog import LoopProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.services import SyncStore
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.loop_watcher import LoopWatcher
    from orchestrator.workers.runtime.parts import WorkerParts
    from orchestrator.workers.runtime.throughput import Throughput
    from orchestrator.workers.runtime.watchdog import LoopWatchdog

END_TIMEOUT_S: Final = 1.0
"""Time for the last heartbeat of a stopping worker. Without an answer the thread ends later, or with the process."""
UNSEEN_SHARE: Final = 0.55
"""Share of a lease after which entries that the event loop has not seen are returned. It is far enough from
`FRESH_SHARE` of the fetcher, within which the loop starts them, and from the end of the lease, at which a peer would
count a death: heartbeats are at most a third of a lease apart."""
RETURN_LIMIT: Final = 500
DESCRIBE_EVERY_S: Final = 86_400.0
"""Seconds between two stores of the descriptions of skills, which Redis keeps for 8 days."""
DESCRIBE_AGAIN_S: Final = 60.0
DESCRIBED_AT_ONCE: Final = 50
"""Skills in one call, which has at most 16 KiB of each."""
CHECKED_AT_ONCE: Final = 50
"""Agents in one call of a heartbeat that checks their registrations in full, which takes Redis some 20 µs for each."""
AGENTS_AT_ONCE: Final = 1000
"""Further agents in such a call, which take Redis 1.5 ms together."""
CHANGES_EVERY_S: Final = 0.1
"""Shortest time between two calls for changed backlogs."""
CHECK_ALL_S: Final = 7200.0
"""Time in which the heartbeats of a worker with many agents check each registration in full, and prolong its keys,
which live for a day."""
CHECK_ONE_BEATS: Final = 6
"""Heartbeats after which a worker with few agents checks one registration in full, which takes Redis as long as four
heartbeats. Lost keys show at each heartbeat."""
BATCHES_AT_ONCE: Final = 8
"""Batches of counts in one heartbeat: more pairs of agent and skill than a pool counts by name."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HeartbeatCallbacks:
    """Functions that the heartbeat thread calls in the event loop.

    Attributes:
        forgotten: the registry has no record of this worker.
        entries_lost: Redis delivered entries of this agent that never arrived.
        commands_changed: the desired state has changed.
        shut_out: the pool no longer admits this version of the program.
        refused: the leader refuses the registration of this worker.
        suspects_wait: suspects of an agent wait for a worker process with room.
        expect_awaited: awaited tasks may arrive in the inbox of this agent, for slots that parents lend.
    """

    forgotten: Callable[[], None]
    entries_lost: Callable[[str], None]
    commands_changed: Callable[[], None]
    shut_out: Callable[[], None]
    refused: Callable[[], None]
    suspects_wait: Callable[[], None]
    expect_awaited: Callable[[str], None]


class Heartbeat:
    """Keeps the leases, the locks and the registration of one worker alive.

    Args:
        parts: of the worker.
        agents: the agents that it hosts.
        throughputs: by agent; the registry gets their backlogs.
        loop_watcher: notes how the event loop was blocked; the registry gets that too.
        alive_s: lifetime of the registration without a heartbeat.
        callbacks: see `HeartbeatCallbacks`.
        watchdog: records the turns of the event loop for the host.
    """

    def __init__(
        self,
        parts: WorkerParts,
        agents: Sequence[Agent],
        throughputs: dict[str, Throughput],
        *,
        loop_watcher: LoopWatcher,
        alive_s: int,
        callbacks: HeartbeatCallbacks,
        watchdog: LoopWatchdog | None,
    ) -> None:
        settings = parts.services.settings
        self._parts, self._agents, self._throughputs = parts, agents, throughputs
        self._alive_s, self._callbacks, self._watchdog = alive_s, callbacks, watchdog
        self._loop = asyncio.get_running_loop()
        self._probe = LoopProbe(
            self._loop,
            watchdog,
            parts.services.turns,
            silent_after_s=settings.worker.stuck_after_s + settings.worker.heartbeat_s,
        )
        self._renewer = parts.locking.renewer
        self._renewer.trigger = lambda _: self.poll()
        self._locks_s = 0.0
        shortest_lease_s = min(agent.lease_ms for agent in agents) / 1000
        self._every_s = min(settings.worker.heartbeat_s, shortest_lease_s / 3)
        # Short enough to ask again before the lease ends, so that one lost answer does not cost it.
        self._answer_within_s = min(settings.redis.command_timeout_s, shortest_lease_s / 4)
        self._stopping = threading.Event()
        self._changed = threading.Event()
        """A backlog has changed."""
        self._changes_s = 0.0
        """Earliest time of the next call for changed backlogs."""
        self._waker = _Waker()
        self.listener = CommandListener(
            parts,
            loop=self._loop,
            on_changed=callbacks.commands_changed,
            on_suspects=callbacks.suspects_wait,
            on_awaited=callbacks.expect_awaited,
            wake=self._waker.wake,
            connect_timeout_s=self._answer_within_s / 2,
            retry_cap_s=self._every_s,
        )
        self._surplus: dict[str, int] = {}
        self._limits = {agent.name: agent.spec({}).limit_names for agent in agents}
        self._loop_watcher, self._blocked_stored = loop_watcher, ""
        self._recorded: dict[str, int] = {}
        """Backlogs that Redis has."""
        self._to_check = deque(agent.name for agent in agents)
        """Agents in the order of their next full checks."""
        self._due_checks = 0.0
        self._registered: deque[str] = deque()
        """Agents that the event loop has registered again since the last heartbeat."""
        self._describe_s = -math.inf
        self._pauses = Pauses(cap_s=self._every_s)
        self._reachable = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._waker.open()
        self._thread.start()

    def note_backlog(self) -> None:
        """Send changed backlogs soon."""
        self._changed.set()
        self._waker.wake()

    def poll(self) -> None:
        """Check now for due locks and receipts."""
        self._waker.wake()

    def stop(self) -> None:
        """Stop the thread; blocks until a heartbeat under way has ended, but not long."""
        self._stopping.set()
        self._probe.close()
        self._waker.wake()
        self._thread.join(END_TIMEOUT_S)
        if self._watchdog is not None:
            self._watchdog.disarm()

    # ---------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        bind_context(worker=self._parts.worker)
        endpoint = self._parts.services.endpoint
        endpoint = replace(
            endpoint,
            connect_timeout_s=min(endpoint.connect_timeout_s, self._answer_within_s),
            command_timeout_s=self._answer_within_s,
        )
        store = HeartbeatStore(endpoint, self._parts.services, loop=self._loop, patience_s=self._loop_within_s)
        due_s = time.monotonic()
        turn = self._parts.services.watch_loop("heartbeat", waits_s=self._every_s)
        try:
            while not self._stopping.is_set():
                turn.record()
                if time.monotonic() >= due_s:
                    pause_s = self._every_s if self._stuck() else self._guarded(self._send_heartbeat, store)
                    due_s = time.monotonic() + pause_s
                elif self._changed.is_set() and time.monotonic() >= self._changes_s and not self._stuck():
                    self._changed.clear()
                    due_s = min(due_s, time.monotonic() + self._guarded(self._send_backlogs, store))
                    self._changes_s = time.monotonic() + CHANGES_EVERY_S
                self._keep_due_locks(store)
                pause_s = self._guarded(self._listen, store)
                due_s = min(due_s, time.monotonic() + pause_s)
                self._renewer.wakes_s = min(due_s, self._next_lock_s())
                if self._watchdog is not None:
                    self._watchdog.share_load(len(self._parts.in_flight), reachable=self._reachable)
                self._wait(min(self._renewer.wakes_s, self._changes_s if self._changed.is_set() else math.inf))
            if self._reachable:
                self._guarded(self.listener.process, store)
                self._guarded(self._send_timings, store)
        finally:
            turn.close()
            self.listener.close()
            store.close()
            self._waker.close()

    def _loop_within_s(self) -> float:
        """Return how long a heartbeat may wait for the event loop, which may be blocked, without the loss of a lock."""
        return min(self._answer_within_s / 4, self._renewer.shortest_s() / 8)

    def _listen(self, store: SyncStore) -> bool:
        return self.listener.turn(store, reachable=self._reachable)

    def _guarded(self, work: Callable[[SyncStore], object], store: HeartbeatStore) -> float:
        """Run work that calls Redis and return the seconds until the next heartbeat is due."""
        store.begin()
        try:
            return 0.0 if work(store) is False else self._every_s
        except StoreError as failure:
            self._reachable = False
            _log.failure("heartbeat_missed", error=failure)
            return self._pauses.next_s(failure)
        except Exception as failure:  # noqa: BLE001 - see below
            if self._stopping.is_set():
                return self._every_s  # the event loop may have closed
            # Without this thread the worker would lose its tasks one by one and not notice.
            _log.exception("heartbeat_failed", error=f"{type(failure).__name__}: {failure}")
        return self._every_s

    def _wait(self, due_s: float) -> None:
        """Sleep until something arrives, a wake-up, or the next heartbeat."""
        wait_s = min(due_s - time.monotonic(), self.listener.wait_s(reachable=self._reachable))
        # `select` cannot watch file descriptors above 1023; `poll` can.
        poller = select.poll()
        poller.register(self._waker.fileno(), select.POLLIN)
        if (number := self.listener.fileno()) is not None:
            poller.register(number, select.POLLIN)
        poller.poll(math.ceil(max(0.0, wait_s) * 1000))
        self._waker.drain()

    def _stuck(self) -> bool:
        stuck_s = self._probe.unanswered_s()
        if stuck_s <= self._parts.services.settings.worker.stuck_after_s:
            return False
        _log.error("event_loop_stuck", silent_s=round(stuck_s))
        return True

    # ---------------------------------------------------------------------------------------------------- heartbeats

    def _send_heartbeat(self, store: SyncStore) -> None:
        # Before the leases: no lock may outlive the lease of its attempt (protocol rule 18).
        self._keep_locks(store, early_s=math.inf)
        for agent in self._agents:
            try:
                self._renew(store, agent.name, agent.lease_ms / 1000)
            except ServerRefused as refusal:
                # Damaged data of one agent costs the others no lease.
                _log.warning("renewal_refused", agent=agent.name, error=str(refusal))
        # After the leases: only an attempt that still owns its task may take back a lapsed lock.
        self._keep_locks(store, lapsed=True)
        sent_s = time.monotonic()
        answers = self._record(store)
        answer = answers[-1]
        complete, known = all(one.complete for one in answers), all(one.known for one in answers)
        if not complete:
            self._loop.call_soon_threadsafe(self._callbacks.forgotten)
        floor = self._parts.services.store.floor
        floor.note(answer.floor)
        if floor.shuts_out:
            self._loop.call_soon_threadsafe(self._callbacks.shut_out)
        if any(one.refused for one in answers):
            self._loop.call_soon_threadsafe(self._callbacks.refused)
        self.listener.check_sequence(answer.seq, known_until_s=sent_s + self._alive_s if known else 0.0)
        self._reachable = True
        self._pauses.reset()
        _log.debug("heartbeat_sent", running=len(self._parts.in_flight))
        self._send_timings(store)
        if not known:
            self._describe_s = -math.inf  # Redis may have lost the descriptions too
        elif time.monotonic() >= self._describe_s:
            self._describe(store)

    def note_registered(self, agent: str) -> None:
        """Check an agent in full at the next heartbeat, because its registration has just changed its backlog."""
        self._registered.append(agent)

    def _record(self, store: SyncStore) -> list[registry.HeartbeatReply]:
        """Record the heartbeat for all agents; Redis works much less for agents whose registrations it glances at."""
        backlogs = {agent.name: self._throughputs[agent.name].backlog for agent in self._agents}
        checked = {name for name, backlog in backlogs.items() if self._recorded.get(name) != backlog}
        while self._registered:
            checked.add(self._registered.popleft())
        self._due_checks += max(1 / CHECK_ONE_BEATS, len(backlogs) * self._every_s / CHECK_ALL_S)
        while self._due_checks >= 1:
            self._due_checks -= 1
            checked.add(self._to_check[0])
            self._to_check.rotate(-1)
        self._recorded = {}
        rows = [(name, backlog) for name, backlog in backlogs.items() if name in checked]
        others = [name for name in backlogs if name not in checked]
        answers = []
        # In several calls, because other clients wait while a script runs.
        while rows or others:
            few, many = rows[:CHECKED_AT_ONCE], others[:AGENTS_AT_ONCE]
            answer = self._call(store, few, many)
            others = others[len(many) :]
            if answer.again:
                rows += [(name, backlogs[name]) for name in many]
            else:
                rows = rows[len(few) :]
                answers.append(answer)
        if all(answer.complete for answer in answers):
            self._recorded = backlogs
        return answers

    def _call(
        self, store: SyncStore, backlogs: Sequence[tuple[str, int]], others: Sequence[str] = ()
    ) -> registry.HeartbeatReply:
        limits = dict.fromkeys(limit for name in others for limit in self._limits[name])
        blocked = self._loop_watcher.note
        answer = store.call(
            registry.heartbeat(
                self._parts.services.keys,
                worker=self._parts.worker,
                backlogs=backlogs,
                others=others,
                limits=list(limits),
                alive_s=self._alive_s,
                blocked="" if blocked == self._blocked_stored else blocked,
            )
        )
        if answer.known and not answer.again:
            self._blocked_stored = blocked
        return answer

    def _send_backlogs(self, store: SyncStore) -> bool:
        """Record the backlogs that changed since the last heartbeat; return whether that needs no whole heartbeat."""
        found = self._throughputs.items()
        rows = [(name, one.backlog) for name, one in found if self._recorded.get(name) != one.backlog]
        if not self._recorded or len(rows) > CHECKED_AT_ONCE:
            return False
        if rows and not self._call(store, rows).complete:
            return False
        self._recorded.update(rows)
        return True

    def _describe(self, store: SyncStore) -> None:
        """Store the descriptions of all skills; a failure costs the worker nothing."""
        self._describe_s = time.monotonic() + DESCRIBE_EVERY_S
        # Many agents may share a skill, and to make its JSON schemas takes about 1 ms.
        skills = {(name, skill.version.digest): skill for agent in self._agents for name, skill in agent.skills.items()}
        shown = {name for agent in self._agents if agent.display is not None for name in agent.skills}
        rows = [
            (*version, encode_description(skill.description), skill.options.redact or version[0] in shown)
            for version, skill in skills.items()
        ]
        try:
            for first in range(0, len(rows), DESCRIBED_AT_ONCE):
                store.call(registry.describe(self._parts.services.keys, rows=rows[first : first + DESCRIBED_AT_ONCE]))
        except StoreError as failure:
            self._describe_s = time.monotonic() + DESCRIBE_AGAIN_S
            _log.debug("descriptions_refused", error=str(failure))

    def _send_timings(self, store: SyncStore) -> None:
        """Send the counts of attempts. A failure costs the worker nothing, because the next heartbeat sends them."""
        for _ in range(BATCHES_AT_ONCE):
            if not self._send_batch(store):
                return

    def _send_batch(self, store: SyncStore) -> bool:
        """Send one batch of counts, and return whether another one may follow."""
        timings = self._parts.timings
        number, rows = timings.next_batch()
        if not rows and timings.knows_clock:
            return False
        call = registry.count(self._parts.services.keys, worker=self._parts.worker, batch=number, rows=rows)
        asked_s = time.monotonic()
        try:
            answer = store.call(call)
        except StoreError as failure:
            _log.debug("timings_refused", error=str(failure))
            return False
        timings.set_clock(answer.now_ms, asked_s, time.monotonic())
        if answer.known:
            timings.batch_stored()
        return answer.known and len(rows) == MAX_ROWS

    def _renew(self, store: SyncStore, agent: str, lease_s: float) -> None:
        in_flight = self._parts.in_flight
        attempts = in_flight.of(agent)
        # `_run` has asked the loop at every heartbeat.
        blocked = self._probe.unanswered_s() > self._every_s / 2
        if not attempts and not self._surplus.get(agent) and not blocked:
            # There is no lease to renew. The fetcher itself asks for entries that were lost on the way.
            return
        rows = [(one.delivery.entry, one.delivery.task_id, one.delivery.generation) for one in attempts]
        call = scripts.renew(self._parts.services.keys, worker=self._parts.worker, agent=agent, rows=rows)
        sent_s = time.monotonic()
        pending, statuses = store.call(call)
        for attempt, status in zip(attempts, statuses, strict=True):
            if status is not LeaseStatus.LOST:
                attempt.leased_until_s = sent_s + lease_s
            if status is LeaseStatus.LOST and in_flight.get(agent, attempt.delivery.entry) is attempt:
                self._lose(attempt)
            elif status is LeaseStatus.CANCELLED:
                self._loop.call_soon_threadsafe(attempt.stop, StopCause.CANCELLED)
        # More pending than held: a read is under way, or, the second time in a row, a reply was lost (protocol rule 9).
        self._surplus[agent] = self._surplus.get(agent, 0) + 1 if pending > len(attempts) else 0
        if self._surplus[agent] >= 2:
            self._loop.call_soon_threadsafe(self._callbacks.entries_lost, agent)
        if self._surplus[agent] >= (1 if blocked else 2):
            self._return_unseen(store, agent, lease_s)

    def _return_unseen(self, store: SyncStore, agent: str, lease_s: float) -> None:
        """Requeue entries that the event loop, blocked or too busy, has not seen, so that no peer counts a death."""
        in_flight = self._parts.in_flight
        call = scripts.return_unseen(
            self._parts.services.keys,
            worker=self._parts.worker,
            agent=agent,
            held=[one.delivery.entry for one in in_flight.of(agent)],
            idle_ms=int(lease_s * UNSEEN_SHARE * 1000),
            limit=RETURN_LIMIT,
        )
        returned = store.call(call)
        if returned:
            _log.warning("unseen_entries_returned", agent=agent, count=len(returned))
        for entry in returned:
            if (attempt := in_flight.get(agent, entry)) is not None:
                self._lose(attempt)

    def _lose(self, attempt: Attempt) -> None:
        attempt.mark_lease_lost()
        self._loop.call_soon_threadsafe(attempt.stop, StopCause.LEASE_LOST)

    # --------------------------------------------------------------------------------------------------------- locks

    def _next_lock_s(self) -> float:
        """Return when a lock must be renewed that lives shorter than three heartbeats."""
        in_s = self._renewer.due_in_s()
        return math.inf if in_s is None else max(self._locks_s, time.monotonic() + in_s)

    def _keep_due_locks(self, store: HeartbeatStore) -> None:
        now_s = time.monotonic()
        if self._next_lock_s() <= now_s and not self._stuck():
            # A failure sets a pause, so that the next attempt does not follow at once.
            self._locks_s = now_s + self._guarded(self._keep_locks, store)

    def _keep_locks(self, store: SyncStore, early_s: float = 0.01, *, lapsed: bool = False) -> bool:
        batches = self._renewer.batches(early_s=early_s, lapsed=lapsed)
        asked_s = time.monotonic()
        for (_, locks), answers in zip(batches, store.call_all([call for call, _ in batches]), strict=True):
            self._renewer.settle(locks, answers, asked_s)
        return False


class _Waker:
    """Ends a `poll` from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def open(self) -> None:
        """Open before the polling thread starts."""
        ends = socket.socketpair()
        for end in ends:
            end.settimeout(0)
        self._ends = ends

    def fileno(self) -> int:
        """Return the file descriptor to poll."""
        assert self._ends is not None
        return self._ends[0].fileno()

    def wake(self) -> None:
        """End the poll; does nothing before `open` and after `close`."""
        with self._lock:
            if self._ends is not None:
                with contextlib.suppress(BlockingIOError):  # a wake-up is pending
                    self._ends[1].send(b"w")

    def drain(self) -> None:
        """Clear the wake-ups."""
        assert self._ends is not None
        with contextlib.suppress(BlockingIOError):
            while self._ends[0].recv(4096):
                pass

    def close(self) -> None:
        """Close after the polling thread has ended."""
        with self._lock:
            if self._ends is not None:
                for end in self._ends:
                    end.close()
                self._ends = None
