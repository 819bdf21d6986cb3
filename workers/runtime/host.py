"""The worker host: imports the agents once, forks worker processes, restarts them, and abandons a dead one's entries.

A worker process works for one pool; a host of several pools runs as many workers for each.

It has a single thread and opens no connection: a process that it forks asks Redis to abandon entries, so that the host
obeys signals and restarts workers while Redis does not answer. A worker leads its own process group, so that Ctrl-C
reaches the host alone and the host can kill everything that a dead worker had started (protocol rule 12).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from orchestrator.core.backoff import ExponentialBackoff
from orchestrator.core.errors import ConfigError, OrchestratorError, StoreError
from orchestrator.core.event_loop import run_loop
from orchestrator.core.hangup import Terminal, ignore_hangup
from orchestrator.core.ids import new_worker_id
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import bind_context, get_logger
from orchestrator.core.notify import WAITS_FOR_REDIS, Notifier
from orchestrator.core.parent_process import end_with_parent
from orchestrator.core.settings_reload import SettingsReloader
from orchestrator.services import SyncStore, pool_keys, reach_server
from orchestrator.tracing.environment import exported_spans
from orchestrator.workers.runtime.dead_worker import abandon_entries
from orchestrator.workers.runtime.fetcher import POLLS_PER_LEASE
from orchestrator.workers.runtime.health_process import HEALTHY_AFTER_S, HealthProcess, flush_output
from orchestrator.workers.runtime.host_health import TURN_EVERY_S
from orchestrator.workers.runtime.host_memory import HostMemory
from orchestrator.workers.runtime.host_signals import HostSignals
from orchestrator.workers.runtime.process_groups import ProcessGroups, kill_group
from orchestrator.workers.runtime.settings_feed import SettingsFeed
from orchestrator.workers.runtime.verdicts import describe
from orchestrator.workers.runtime.watchdog import DUMP_SIGNAL, LoopWatchdog
from orchestrator.workers.runtime.worker import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.core.hangup import EarlyHangup
    from orchestrator.core.log import Logger
    from orchestrator.core.settings import Settings
    from orchestrator.core.settings_sources import SettingsSources
    from orchestrator.workers.agent import Agent

MUST_NOT_RESTART: Final = frozenset({ConfigError.exit_code})
"""Exit statuses of a configuration error, which the next child would meet too."""
ASK_AGAIN_S: Final = 1.0
ANSWER_WITHIN_S: Final = 5.0
"""Longest time for one answer to the process that abandons entries, before it asks again over a new connection."""
DEAD_WORKERS: Final = 1000
"""Most dead workers whose entries the host abandons; those of older ones wait for the end of their leases."""
LAST_TRY_S: Final = 1.0
"""Time to abandon the last entries when all workers of a stopping host have ended."""
STUCK_MARGIN_S: Final = 5.0
SILENT_POLLS: Final = 4
"""Polls without a turn of the host after which it does not trust the times of its workers."""
NOTIFY_EVERY_S: Final = 0.5
"""Interval of the messages to the service manager while workers start or drain."""
EXTEND_S: Final = 30.0
"""Time that the host asks for while a worker waits for Redis at its start, or drains."""
GRACE_S: Final = 15.0
"""Time after the end of the drain before the host kills a child."""

_log = get_logger(__name__)


@dataclass(slots=True)
class WorkerProcess:
    """One worker process."""

    pid: int
    worker: str
    pool: str
    started_s: float
    failures: int
    watchdog: LoopWatchdog
    groups: ProcessGroups
    feed: SettingsFeed
    dumped: bool = False
    killed: bool = False


@dataclass(slots=True)
class DeadWorker:
    """A worker that died. The host abandons its entries at once, and again after its last read has ended.

    Attributes:
        pool: in which it worked.
        due_s: time of the next call.
        answered: whether Redis has answered the first call.
    """

    worker: str
    pool: str
    how: str
    due_s: float
    answered: bool = False


@dataclass(slots=True)
class DueWorker:
    """A worker to start later, because one died."""

    pool: str
    due_s: float
    failures: int


@dataclass(slots=True)
class Abandoning:
    """The process that abandons entries of dead workers of one pool."""

    pid: int
    dead_workers: Sequence[DeadWorker]
    started_s: float


class Host:
    """Keeps `processes` workers of each pool running until SIGTERM or SIGINT.

    Args:
        settings: all settings.
        agents: the agents of each worker.
        processes: number of workers of a pool.
        pools: for which it runs workers; by default that of the settings.
        group: name of the worker group, if it runs one.
        sources: of the settings; without them, SIGHUP is not handled.
        notifier: tells the service manager what the workers do.
    """

    def __init__(
        self,
        settings: Settings,
        agents: Sequence[Agent],
        *,
        processes: int,
        pools: Sequence[str] = (),
        group: str | None = None,
        sources: SettingsSources | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._live, self._agents, self._processes = LiveSettings(settings), agents, processes
        self._pools = {pool: self._live.of_pool(pool) for pool in pools or (settings.pool,)}
        self._ended_pools = set[str]()
        self._notifier = notifier or Notifier()
        self._ready = False
        self._reloader = (
            SettingsReloader(sources, self._live, self._notifier, program="worker", group=group)
            if sources is not None
            else None
        )
        self._terminal = Terminal()
        handled = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
        self._received = HostSignals(handled if sources is None else handled | {signal.SIGHUP})
        self._memories = {pool: HostMemory(processes) for pool in self._pools}
        self._health = None if settings.worker.health is None else HealthProcess(settings, self._memories)
        self._children: dict[int, WorkerProcess] = {}
        self._due: list[DueWorker] = []
        self._dead_workers: list[DeadWorker] = []
        self._abandoning: Abandoning | None = None
        # Redis may serve the blocking read of a dead child for this long.
        self._last_read_s = max(agent.lease_ms for agent in agents) / 1000 / POLLS_PER_LEASE + 1
        # The heartbeat thread asks the loop once per heartbeat, so the record may be one heartbeat old.
        self._stuck_after_s = settings.worker.stuck_after_s + settings.worker.heartbeat_s
        self._poll_every_s = max(0.5, settings.worker.stuck_after_s / 10)
        self._checked_s, self._check_stuck_from_s = time.monotonic(), 0.0
        self._signals = 0
        self._kill_at_s: float | None = None
        self._status = 0
        self._backoff = ExponentialBackoff(base_s=0.05, cap_s=30.0)

    def run(self, early: EarlyHangup | None = None) -> int:
        """Run until all workers have ended.

        Args:
            early: has noted SIGHUP since the start; if it came, the host reloads the settings first.

        Returns:
            The exit status: 0 after an orderly stop.
        """
        self._received.open()
        if early:
            self._reload()
        for _ in range(self._processes):
            for pool in self._pools:
                self._fork(pool, failures=0)
        self._turn()
        while self._children or (self._due and not self._signals):
            for received in self._received.wait(self._until_due_s()):
                if self._terminal.asks_reload(received):
                    self._reload()
                elif received != signal.SIGCHLD:
                    self._stop_children(received)
            for child in self._children.values():
                child.feed.flush()
            self._reap()
            self._abandon_due()
            self._fork_due()
            self._kill_stuck()
            self._kill_overdue()
            self._notify()
            self._turn()
        self._abandon_last()
        if self._health is not None:
            self._health.end()
        self._received.close()
        return self._status

    def _turn(self) -> None:
        """Record a turn for the process that serves the health, and start that process if it does not run."""
        for pool, memory in self._memories.items():
            memory.host.turned_s = time.monotonic()
            memory.host.stopping = self._signals > 0 or pool in self._ended_pools
        if self._health is not None:
            self._health.start_if_due(self._received, [child.feed for child in self._children.values()])

    def _until_due_s(self) -> float:
        dues = [due.due_s for due in self._due]
        if self._abandoning is None:
            dues += [dead.due_s for dead in self._dead_workers]
        if self._kill_at_s is not None:
            dues.append(self._kill_at_s)
        if self._children:
            dues.append(time.monotonic() + self._poll_every_s)
        if self._notifier.active and (self._signals or not self._ready):
            dues.append(time.monotonic() + NOTIFY_EVERY_S)
        if self._health is not None:
            dues.append(min(time.monotonic() + TURN_EVERY_S, self._health.due_s))
        if (ping_s := self._notifier.until_ping_s()) is not None:
            dues.append(time.monotonic() + ping_s)
        return max(0.0, min(dues) - time.monotonic()) if dues else 3600.0

    def _fork(self, pool: str, *, failures: int) -> None:
        worker = new_worker_id()
        flush_output()
        request_end = end_with_parent(signal.SIGTERM)
        live, cell = self._pools[pool], self._memories[pool].take()
        watchdog, groups, feed = LoopWatchdog(self._stuck_after_s, cell), ProcessGroups(), SettingsFeed()
        pid = self._received.fork()
        if pid == 0:
            for child in self._children.values():
                child.feed.close()
            feed.keep_reader()
            watchdog.obey_host()
            bind_context(**self._context(pool), worker=worker)
            run = partial(
                run_worker, worker=worker, watchdog=watchdog, groups=groups, workers=self._processes, feed=feed
            )

            def work() -> None:
                # After the fork, which no exporter with threads or channels survives.
                with exported_spans("orc-worker", worker):
                    run_loop(run, live, self._agents)

            _become_worker(request_end, work)
        feed.keep_writer()
        self._children[pid] = WorkerProcess(pid, worker, pool, time.monotonic(), failures, watchdog, groups, feed)

    def _context(self, pool: str) -> dict[str, str]:
        """Return the keys of log lines about one pool; a host of one pool does not name it."""
        return {"pool": pool} if len(self._pools) > 1 else {}

    def _log_of(self, pool: str) -> Logger:
        return _log.bind(**self._context(pool))

    def _fork_due(self) -> None:
        now_s = time.monotonic()
        ready = [due for due in self._due if due.due_s <= now_s]
        self._due = [due for due in self._due if due.due_s > now_s]
        if not self._signals:
            for due in ready:
                self._fork(due.pool, failures=due.failures)

    def _reload(self) -> None:
        """Reload the settings, and send them to the workers; those that are forked later have them."""
        generation = self._live.generation
        if self._reloader is not None and self._reloader.reload() and self._live.generation != generation:
            for child in self._children.values():
                child.feed.send(self._pools[child.pool])

    def _stop_children(self, number: int) -> None:
        self._signals += 1
        _log.info(
            "host_stop_requested",
            signal=signal.Signals(number).name,
            workers=len(self._children),
            immediately=self._signals > 1,
        )
        timeout_s = GRACE_S + (self._live.current.worker.drain_s if self._signals == 1 else 0.0)
        self._kill_at_s = time.monotonic() + timeout_s
        self._notifier.stopping(self._describe())
        # The second time another signal, because two pending signals of one kind arrive as one.
        forwarded = signal.SIGTERM if self._signals == 1 else signal.SIGINT
        for pid in self._children:
            os.kill(pid, forwarded)

    def _notify(self) -> None:
        """Tell the service manager what the workers do. Only this loop feeds the watchdog."""
        if not self._notifier.active:
            return
        watchdogs = [child.watchdog for child in self._children.values()]
        if self._signals:
            self._notifier.status(self._describe())
            if self._kill_at_s is not None:
                # The drain time of the settings decides, not that of the unit.
                left_s = max(0.0, self._kill_at_s - time.monotonic())
                self._notifier.extend_timeout(min(left_s, EXTEND_S) + LAST_TRY_S + 1.0)
        elif self._ready:
            self._notifier.status(self._describe())
        elif any(watchdog.registered for watchdog in watchdogs):
            self._ready = True
            self._notifier.ready(self._describe())
        elif any(watchdog.waits_for_redis() for watchdog in watchdogs):
            self._notifier.status(WAITS_FOR_REDIS)
            self._notifier.extend_timeout(EXTEND_S)
        else:
            self._notifier.status(self._describe())
        self._notifier.ping()

    def _describe(self) -> str:
        """Describe what the workers do, in words."""
        children = self._children.values()
        workers, held = _count(len(children), "worker"), sum(child.watchdog.held for child in children)
        if self._signals:
            return f"drains {_count(held, 'task')} in {workers}"
        registered = [child for child in children if child.watchdog.registered]
        wanted = self._processes * len(self._pools)
        if not registered:
            return f"starts {_count(wanted, 'worker')}"
        if not any(child.watchdog.reachable for child in registered):
            return WAITS_FOR_REDIS
        if len(registered) < wanted:
            return f"runs {_count(held, 'task')} in {len(registered)} of {_count(wanted, 'worker')}{self._missing()}"
        return f"runs {_count(held, 'task')} in {workers}"

    def _missing(self) -> str:
        """Name the pools without a registered worker, unless there is but one pool."""
        served = {child.pool for child in self._children.values() if child.watchdog.registered}
        missing = [pool for pool in self._pools if pool not in served]
        return f"; none of {', '.join(missing)}" if missing and len(self._pools) > 1 else ""

    def _kill_stuck(self) -> None:
        # A stuck worker ends at the first signal (protocol rule 13), unless it is frozen.
        now_s, limit_s = time.monotonic(), self._stuck_after_s + STUCK_MARGIN_S
        if now_s - self._checked_s > SILENT_POLLS * self._poll_every_s:
            # The host was frozen itself, and its workers probably too: their times are old until they turn again.
            self._check_stuck_from_s = now_s + limit_s
        self._checked_s = now_s
        if now_s < self._check_stuck_from_s:
            return
        for child in self._children.values():
            silent_s = child.watchdog.silent_s()
            if not child.dumped and silent_s > self._stuck_after_s:
                os.kill(child.pid, DUMP_SIGNAL)
                child.dumped = True
            if not child.killed and silent_s > limit_s:
                log = self._log_of(child.pool)
                log.error("worker_stuck", worker=child.worker, pid=child.pid)
                os.kill(child.pid, signal.SIGKILL)
                child.killed = True

    def _kill_overdue(self) -> None:
        if self._kill_at_s is None or time.monotonic() < self._kill_at_s:
            return
        self._kill_at_s = None
        for child in self._children.values():
            log = self._log_of(child.pool)
            log.error("worker_shutdown_timed_out", worker=child.worker, pid=child.pid)
            os.kill(child.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, raw_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._health is not None and self._health.ended(pid):
                continue
            if self._abandoning is not None and pid == self._abandoning.pid:
                self._settle_abandoned(os.waitstatus_to_exitcode(raw_status))
            child = self._children.pop(pid, None)
            if child is not None:
                silent_s, retired = child.watchdog.silent_s(), child.watchdog.retired
                registered = child.watchdog.registered
                self._memories[child.pool].release(child.watchdog.cell)
                child.groups.kill_all()
                child.groups.close()
                child.feed.close()
                self._handle_end(
                    child,
                    os.waitstatus_to_exitcode(raw_status),
                    silent_s=silent_s,
                    retired=retired,
                    registered=registered,
                )

    def _handle_end(self, child: WorkerProcess, code: int, *, silent_s: float, retired: bool, registered: bool) -> None:
        log = self._log_of(child.pool)
        is_stopping = self._signals > 0 or child.pool in self._ended_pools
        if code == 0 and is_stopping:
            return
        if code in {0, *MUST_NOT_RESTART} and retired:
            if code == 0:
                left = sum(other.pool == child.pool for other in self._children.values())
                log.info("worker_stopped_by_operator", worker=child.worker, pid=child.pid, workers_left=left)
            # Else the pool does not admit this version. The other workers find that out and drain by themselves.
            self._status = self._status or code
            return
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        if silent_s > self._stuck_after_s:
            cause = f"stuck: its event loop had not turned for {silent_s:.0f} s"
        # Settings and agents are those of the first workers, so a replacement meets lost data, which may be restored.
        if code in MUST_NOT_RESTART and child.failures == 0:
            self._status = self._status or code
            if not self._signals:
                self._end_pool(child.pool, code)
            return
        kill_group(child.pid)
        # Before it registers it reads no inbox.
        self._dead_workers += [DeadWorker(child.worker, child.pool, cause, due_s=0.0)] if registered else []
        del self._dead_workers[:-DEAD_WORKERS]
        if is_stopping and code in {-signal.SIGTERM, -signal.SIGINT}:
            return  # stopped before it handled signals, or after its work had ended
        log.error("worker_died", worker=child.worker, pid=child.pid, cause=cause)
        if self._signals:
            self._status = self._status or 1
        elif not retired and not is_stopping:
            self._replace(child)

    def _end_pool(self, pool: str, code: int) -> None:
        """End the workers of a pool whose workers cannot start; those of other pools go on."""
        if pool in self._ended_pools:
            return
        self._ended_pools.add(pool)
        if len(self._ended_pools) == len(self._pools):
            self._stop_children(signal.SIGTERM)
            return
        _log.error("host_pool_ended", pool=pool, cause=f"exit status {code}")
        self._due = [due for due in self._due if due.pool != pool]
        for child in self._children.values():
            if child.pool == pool:
                os.kill(child.pid, signal.SIGTERM)

    def _replace(self, child: WorkerProcess) -> None:
        """Plan the start of another worker."""
        self._memories[child.pool].host.restarts += 1
        failures = 1 if time.monotonic() - child.started_s > HEALTHY_AFTER_S else child.failures + 1
        # The first replacement starts at once, because most deaths do not repeat.
        delay_s = 0.0 if failures == 1 else self._backoff.delay_s(failures)
        self._due.append(DueWorker(child.pool, time.monotonic() + delay_s, failures))

    # ------------------------------------------------------------------------------------------------- dead workers

    def _abandon_due(self) -> None:
        """Start to abandon the entries of dead workers, unless that is under way."""
        due = [dead for dead in self._dead_workers if dead.due_s <= time.monotonic()]
        if due and self._abandoning is None:
            self._start_abandoning(due)

    def _start_abandoning(self, dead_workers: Sequence[DeadWorker]) -> None:
        # One pool at a time, because its server may not answer; another process asks for the next one.
        pool = min(dead_workers, key=lambda dead: dead.due_s).pool
        dead_workers = [dead for dead in dead_workers if dead.pool == pool]
        flush_output()
        end_with_host = end_with_parent(signal.SIGKILL)
        pid = self._received.fork()
        if pid == 0:
            end_with_host()
            for child in self._children.values():
                child.feed.close()
            bind_context(**self._context(pool))
            _abandon_and_exit(self._pools[pool].current, self._agents, dead_workers)
        self._abandoning = Abandoning(pid, dead_workers, time.monotonic())

    def _settle_abandoned(self, code: int) -> None:
        """Note the end of the process that abandons entries."""
        assert self._abandoning is not None
        dead_workers, self._abandoning = self._abandoning.dead_workers, None
        for dead in dead_workers:
            if code != 0:
                dead.due_s = time.monotonic() + ASK_AGAIN_S
            elif dead.answered:
                with suppress(ValueError):  # too many died since
                    self._dead_workers.remove(dead)
            else:
                dead.answered = True
                dead.due_s = time.monotonic() + self._last_read_s

    def _poll_abandoning(self) -> bool:
        """Return whether the process that abandons entries still runs."""
        if self._abandoning is None:
            return False
        pid, raw_status = os.waitpid(self._abandoning.pid, os.WNOHANG)
        if pid != 0:
            self._settle_abandoned(os.waitstatus_to_exitcode(raw_status))
        return pid == 0

    def _abandon_last(self) -> None:
        started_s = time.monotonic() if self._abandoning is None else self._abandoning.started_s
        until_s = started_s + LAST_TRY_S
        while time.monotonic() < until_s and (left := [dead for dead in self._dead_workers if not dead.answered]):
            if self._abandoning is None:
                self._start_abandoning(left)
            time.sleep(0.01)
            self._poll_abandoning()
        if self._abandoning is not None:
            os.kill(self._abandoning.pid, signal.SIGKILL)
            os.waitpid(self._abandoning.pid, 0)
            self._abandoning = None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _abandon_and_exit(settings: Settings, agents: Sequence[Agent], dead_workers: Sequence[DeadWorker]) -> NoReturn:
    """In the process that abandons entries: do that, and never return; the exit status is 0 if Redis answered."""
    code = 1
    try:
        abandon(settings, agents, dead_workers)
        code = 0
    except StoreError as failure:
        _log.warning("entries_abandon_failed", dead_workers=[dead.worker for dead in dead_workers], error=str(failure))
    except BaseException as broken:  # noqa: BLE001 - a child must not return into its parent's frames
        _log.error("abandon_exception", pid=os.getpid(), error=describe(broken), exc_info=True)
    finally:
        flush_output()
        os._exit(code)


def abandon(settings: Settings, agents: Sequence[Agent], dead_workers: Sequence[DeadWorker]) -> None:
    """Abandon the entries of dead workers. Blocks.

    Raises:
        StoreError: Redis did not answer; some entries may be left.
    """
    with reach_server(settings) as where:
        endpoint = replace(
            where,
            connect_timeout_s=min(where.connect_timeout_s, ANSWER_WITHIN_S),
            command_timeout_s=min(where.command_timeout_s, ANSWER_WITHIN_S),
        )
        with closing(SyncStore(endpoint, pool_keys(settings), name="host")) as store:
            for dead in dead_workers:
                count = abandon_entries(
                    store, agents=agents, worker=dead.worker, how=dead.how, dead_ttl_s=settings.results.dead_ttl_s
                )
                if count or not dead.answered:
                    _log.info("entries_abandoned", worker=dead.worker, count=count)


def _become_worker(request_end: Callable[[], None], work: Callable[[], None]) -> NoReturn:
    """In the child: run the worker in a process group of its own, and never return."""
    code = 1
    try:
        os.setpgid(0, 0)
        # The kernel sends SIGTERM when the host dies, so that the worker drains.
        request_end()
        # The worker holds no task before it handles signals itself, so until then a signal may end it at once.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
        # The host sends the settings. A SIGHUP to all processes of the unit must not end a worker.
        ignore_hangup()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
        work()
        code = 0
    except KeyboardInterrupt:
        code = 0  # a signal that arrived after the work
    except OrchestratorError as refused:
        sys.stderr.write(f"error: {refused}\n")
        code = refused.exit_code
    except BaseException as broken:  # noqa: BLE001 - a child must not return into its parent's frames
        _log.error("worker_exception", pid=os.getpid(), error=describe(broken), exc_info=True)
    finally:
        flush_output()
        os._exit(code)
