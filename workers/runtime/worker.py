"""One worker process: wires the parts for its agents, registers, runs, drains.

A drain begins no further handler and releases the attempts that wait for their start. It registers 0 slots, stops
reading, waits for the running handlers, requeues the rest without counting an attempt, stores every verdict and
deregisters. A second signal skips the wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import traceback
from contextlib import AsyncExitStack, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.agents import scripts as registry
from orchestrator.agents.failed_starts import forget_failed_starts, record_failed_start
from orchestrator.agents.registrations import SIGNATURE
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import ConfigError, FormatMismatch, ServerUnavailable, StoreError
from orchestrator.core.formats import FORMAT, Feature, program_version
from orchestrator.core.hangup import Terminal
from orchestrator.core.ids import new_worker_id
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import bind_context, get_logger, hide_texts_of, level_in_use, override_level
from orchestrator.core.notify import Notifier
from orchestrator.core.settings import starts_of
from orchestrator.core.settings_reload import SettingsReloader, settings_digest
from orchestrator.monitoring.loop_lag import measure_lag
from orchestrator.services import ServerWait, wait_for_services
from orchestrator.tracing.active import no_current_span
from orchestrator.workers.runtime.active_commands import interrupt
from orchestrator.workers.runtime.attempt import StopCause
from orchestrator.workers.runtime.executor import Executor
from orchestrator.workers.runtime.fetcher import Fetcher
from orchestrator.workers.runtime.heartbeat import Heartbeat, HeartbeatCallbacks
from orchestrator.workers.runtime.inbox_reader import InboxReader
from orchestrator.workers.runtime.loop_watcher import LoopWatcher
from orchestrator.workers.runtime.parts import make_parts
from orchestrator.workers.runtime.suspect_taker import SuspectTaker
from orchestrator.workers.runtime.throughput import Throughput
from orchestrator.workers.runtime.verdicts import describe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import FrameType

    from orchestrator.core.hangup import EarlyHangup
    from orchestrator.core.log import Level
    from orchestrator.core.settings import Settings
    from orchestrator.core.settings_sources import SettingsSources
    from orchestrator.services import Services
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.parts import WorkerParts
    from orchestrator.workers.runtime.process_groups import ProcessGroups
    from orchestrator.workers.runtime.settings_feed import SettingsFeed
    from orchestrator.workers.runtime.watchdog import LoopWatchdog

FLUSH_TIMEOUT_S: Final = 4.0
"""Time to store the last verdicts before a stopping worker gives up."""

ANNOUNCE_TIMEOUT_S: Final = 2.0
"""Time for each registry call of a drain. With `FLUSH_TIMEOUT_S` it must fit into `host.GRACE_S`."""

DRAIN_SHARED_EVERY_S: Final = 1.0
"""Interval at which a draining worker tells its host how many attempts it holds."""

RELEASE_WITHIN_S: Final = 0.2
"""Longest time that attempts that wait for their start are held, so that the supervisor does not assign them again to
this worker. Redis answers in a millisecond, or not at all."""

_NO_ANSWER: Final = f"no answer from Redis for {ANNOUNCE_TIMEOUT_S:g} s"

_log = get_logger(__name__)


async def run_worker(
    settings: Settings | LiveSettings,
    agents: Sequence[Agent],
    *,
    worker: str | None = None,
    watchdog: LoopWatchdog | None = None,
    groups: ProcessGroups | None = None,
    workers: int = 1,
    feed: SettingsFeed | None = None,
    sources: SettingsSources | None = None,
    early: EarlyHangup | None = None,
) -> None:
    """Run a worker until SIGTERM or SIGINT. It waits for Redis when it starts.

    Args:
        settings: all settings.
        agents: the agents that it hosts.
        worker: its id; a new one by default.
        watchdog: records the turns of the event loop for the host.
        groups: records the process groups of handlers for the host.
        workers: number of workers of the host.
        feed: brings the settings that the host has reloaded.
        sources: of the settings, in a process without a host; SIGHUP reloads them.
        early: has noted SIGHUP since the start of such a process.

    Raises:
        ConfigError: the registry refused an agent.
        FormatMismatch: the pool does not admit this version, or no longer.
        StoreError: Redis refused the connection.
    """
    live = LiveSettings.of(settings)
    if feed is not None:
        feed.follow(live)
    if sources is not None:
        _reload_on_hangup(SettingsReloader(sources, live, Notifier(), program="worker"), early)
    try:
        report = partial(_report_wait, watchdog)
        async with wait_for_services(live, name="worker", report=report) as services:
            id_ = worker or new_worker_id()
            parts = make_parts(services, worker=id_, groups=groups, workers=workers)
            await Worker(services, agents, worker=id_, watchdog=watchdog, parts=parts).run()
    except FormatMismatch:
        if watchdog is not None:
            watchdog.retire()  # the host's next worker would have the same version
        raise
    finally:
        if early is not None:
            # The loop would restore the default action when it closes.
            early.resume(partial(asyncio.get_running_loop().remove_signal_handler, signal.SIGHUP))


def _reload_on_hangup(reloader: SettingsReloader, early: EarlyHangup | None) -> None:
    terminal = Terminal()

    def reload() -> None:
        if terminal.is_gone:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            reloader.reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    if early:
        reload()


def _report_wait(watchdog: LoopWatchdog | None, failure: ServerUnavailable) -> None:
    _log.warning("worker_waits_for_redis", error=str(failure))
    if watchdog is not None:
        watchdog.note_wait()


class Worker:
    """Starts and stops the parts of one worker in order."""

    def __init__(
        self,
        services: Services,
        agents: Sequence[Agent],
        *,
        worker: str,
        watchdog: LoopWatchdog | None = None,
        parts: WorkerParts | None = None,
    ) -> None:
        self.id = worker
        self._parts = parts = parts or make_parts(services, worker=worker)
        self._services, self._agents, self._watchdog = services, agents, watchdog
        self._in_flight, self._commands = parts.in_flight, parts.commands
        self._alive_s = max(1, round(services.settings.worker.heartbeat_s * 4))
        self._log_level: Level | None = None
        self._in_registry = self._shut_down_begun = False
        self._starting = anyio.CancelScope()
        self._stop, self._stop_now = anyio.Event(), anyio.Event()
        self._forgotten, self._announced = anyio.Event(), anyio.Event()
        self._refusal: FormatMismatch | ConfigError | None = None
        self._refused: set[str] = set()
        """Agents that the registry has refused since the start."""
        self._throughputs = {
            agent.name: Throughput(limited=agent.limited, changed=self._backlog_changed) for agent in agents
        }
        self._executors = {agent.name: Executor(agent, parts, self._throughputs[agent.name]) for agent in agents}
        self._fetchers = {
            agent.name: Fetcher(
                agent, parts, self._executors[agent.name].slots, register=partial(self._register_again, agent)
            )
            for agent in agents
        }
        self._reader = InboxReader(parts, list(self._fetchers.values()))
        self._takers = [
            SuspectTaker(agent, parts, self._executors[agent.name].slots, self._fetchers[agent.name])
            for agent in agents
        ]
        self._loop_watcher = LoopWatcher(worker=worker)
        self._heartbeat = Heartbeat(
            parts,
            agents,
            self._throughputs,
            loop_watcher=self._loop_watcher,
            alive_s=self._alive_s,
            callbacks=HeartbeatCallbacks(
                forgotten=self._register_soon,
                entries_lost=lambda agent: self._fetchers[agent].check_for_lost(),
                commands_changed=self._apply_commands,
                shut_out=self._leave_pool,
                refused=self._leave_refused,
                suspects_wait=self._take_suspects,
                expect_awaited=parts.waiting.expect,
            ),
            watchdog=watchdog,
        )
        parts.commands.refresh = self._heartbeat.listener.refresh
        services.live.on_change(self._settings_changed)

    async def run(self, *, listen: bool = True) -> None:
        """Run until a stop is requested.

        Args:
            listen: handle SIGTERM and SIGINT; False in a process that handles its signals itself, such as a test.

        Raises:
            FormatMismatch: the pool no longer admits this version.
        """
        bind_context(worker=self.id)
        if any(skill.options.redact for agent in self._agents for skill in agent.skills.values()):
            # It logs exceptions of tasks that a handler started and did not await, outside of the handler's context.
            hide_texts_of("asyncio")
        # The tasks of the worker outlive the span of the program that runs it, if any.
        with no_current_span():
            await self._run_listening(listen=listen)

    async def _run_listening(self, *, listen: bool) -> None:
        failure: Exception | None = None
        # The receiver outlives all else, so that no signal of the whole run falls to the default handler.
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) if listen else nullcontext() as received:
            async with anyio.create_task_group() as listening:
                if received is not None:
                    self._close_at_signal()
                    listening.start_soon(self._watch_signals, received)
                self._loop_watcher.start()
                try:
                    await self._live()
                except Exception as raised:  # noqa: BLE001 - the group would wrap it
                    failure = raised
                finally:
                    self._loop_watcher.stop()
                listening.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _live(self) -> None:
        """Run inside the lifespans of all agents. A stop while they start leaves those that it had entered."""
        async with AsyncExitStack() as entered:
            entered.push_async_callback(self._parts.starter.close)
            with self._starting:
                for agent in self._agents:
                    executor = self._executors[agent.name]
                    entered.push_async_callback(executor.caller.close)
                    if agent.lifespan is not None:
                        try:
                            executor.state = await entered.enter_async_context(agent.lifespan(agent))
                        except Exception as broken:
                            await self._report_failed_start(agent, broken)
                            raise
                await self._enter_registry()
            if not self._in_registry:
                _log.info("worker_stopped", unfinished=0)
            else:
                await self._run()
        if self._refusal is not None:
            raise self._refusal

    async def _report_failed_start(self, agent: Agent, broken: Exception) -> None:
        """Let `orc doctor` and `orc tasks why` tell why the worker does not start; the caller logs the exception."""
        frames = traceback.extract_tb(broken.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        with suppress(StoreError), anyio.move_on_after(ANNOUNCE_TIMEOUT_S):
            error = f"{describe(broken)}{where}"
            await record_failed_start(self._services.store, agent.name, list(agent.skills), error)

    async def _enter_registry(self) -> None:
        """Read the desired state and register, when Redis answers."""
        outage, begun = ServerWait(partial(_report_wait, self._watchdog)), False
        try:
            while not self._in_registry:
                try:
                    # Before the first read of an inbox, so that a worker that starts during a stop starts no task.
                    await self._commands.read(self._services)
                    self._apply_commands()
                    begun = True
                    await self._register()
                    if started := [agent.name for agent in self._agents if agent.lifespan is not None]:
                        with suppress(StoreError):  # the record expires
                            await forget_failed_starts(self._services.store, started)
                    self._in_registry = True
                    if self._watchdog is not None:
                        self._watchdog.mark_registered(sum(agent.concurrency for agent in self._agents))
                except ServerUnavailable as failure:
                    await outage.wait(failure)
        except BaseException:
            if begun:
                # The first of several agents may be registered already, and the supervisor would assign tasks to it.
                with anyio.CancelScope(shield=True):
                    await self._deregister()
            raise

    async def _run(self) -> None:
        self._heartbeat.start()
        _log.info("worker_started", agents=[agent.name for agent in self._agents])
        try:
            await self._work()
        finally:
            if self._watchdog is not None:
                self._watchdog.cancel_force_exit()
            with anyio.CancelScope(shield=True):
                await self._shut_down()

    async def _work(self) -> None:
        async with anyio.create_task_group() as whole:
            whole.start_soon(self._parts.completer.run)
            whole.start_soon(self._parts.emitter.run)
            whole.start_soon(self._parts.accounts.run)
            whole.start_soon(self._parts.waiting.run)
            whole.start_soon(self._parts.providers.run)
            whole.start_soon(self._parts.starter.run)
            whole.start_soon(self._register_when_forgotten)
            if self._watchdog is not None and self._services.settings.worker.health is not None:
                whole.start_soon(measure_lag, self._watchdog.record_lag)
            for executor in self._executors.values():
                whole.start_soon(executor.slots.run)
            await self._fetch_until_stopped()
            await self._drain()
            # Before the slots end, so that a handler that ignores its cancellation does not delay it.
            await self._shut_down()
            if self._watchdog is not None:
                self._watchdog.force_exit_later()
            whole.cancel_scope.cancel()

    async def _fetch_until_stopped(self) -> None:
        """Run the fetchers until a stop is requested, except while an operator drains the worker."""
        while not self._stop.is_set():
            if self._is_drained():
                await self._stay_drained()
                continue
            async with anyio.create_task_group() as fetchers:
                fetchers.start_soon(self._reader.run)
                for taker in self._takers:
                    fetchers.start_soon(taker.run)
                await self._commands.until(lambda: self._stop.is_set() or self._is_drained())
                fetchers.cancel_scope.cancel()

    def stop(self) -> None:
        """Drain and stop; a second call skips the wait for running handlers."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()
        self._starting.cancel()
        self._in_flight.closed = True
        self._commands.notify_changed()

    def _close_at_signal(self) -> None:
        # Python runs this handler between two instructions, so also while a handler blocks the event loop.
        for number in (signal.SIGTERM, signal.SIGINT):
            wake_loop = signal.getsignal(number)

            def close(number: int, frame: FrameType | None, wake_loop: Any = wake_loop) -> None:
                self._in_flight.closed = True
                if callable(wake_loop):
                    wake_loop(number, frame)

            signal.signal(number, close)
            signal.siginterrupt(number, False)  # noqa: FBT003 - it takes no keywords

    async def _watch_signals(self, received: AsyncIterator[signal.Signals]) -> None:
        async for _ in received:
            _log.info("worker_stop_requested", running=len(self._in_flight), immediately=self._stop.is_set())
            self.stop()

    def _settings_changed(self) -> None:
        # The registration has the limits; the secret decides which commands are valid.
        self._register_soon()
        self._commands.refresh()

    def _take_suspects(self) -> None:
        for taker in self._takers:
            taker.tell()

    # -------------------------------------------------------------------------------------------------- commands

    def _apply_commands(self) -> None:
        """Apply the desired state to what runs; executors and fetchers check it before each start."""
        desired = self._commands.desired
        self._commands.notify_changed()
        interrupt(desired, self._in_flight)
        if desired.log_level != self._log_level:
            self._log_level = desired.log_level
            override_level(desired.log_level)
            _log.info("log_level_changed", new_level=level_in_use())
        drain = desired.drain_of(self.id)
        if drain is not None and drain.ends_process and not self._stop.is_set():
            _log.info("worker_stop_requested", running=len(self._in_flight), immediately=False, command=drain.issued.id)
            if self._watchdog is not None:
                self._watchdog.retire()
            self.stop()

    def _leave_pool(self) -> None:
        """Drain because the pool no longer admits this version."""
        if not self._stop.is_set():
            floor = self._services.store.floor
            self._refusal = floor.refusal()
            _log.error("program_shut_out", floor=floor.value, error=str(self._refusal))
            self.stop()

    def _leave_refused(self) -> None:
        """Drain because the leader refuses the registration of this worker."""
        if not self._stop.is_set():
            signer = signer_of(self._services.live.current, place=self._services.keys.root)
            signed = f"signed with the secret {signer.key}" if signer.wanted else "not signed"
            self._refusal = ConfigError(
                f"the supervisor refuses worker {self.id}, because its registration is {signed}: set control.secret "
                "here to that of the supervisor"
            )
            _log.error("worker_refused", error=str(self._refusal))
            self.stop()

    def _is_drained(self) -> bool:
        return self._commands.desired.drain_of(self.id) is not None

    async def _stay_drained(self) -> None:
        """Stay registered without slots until an operator resumes or stops the worker."""
        _log.info("worker_drain_started", running=len(self._in_flight))
        self._commands.draining = self._in_flight.closed = True
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._announce_drain)
            await self._release_waiting()
        self._heartbeat.poll()
        await self._commands.until(lambda: self._stop.is_set() or not self._is_drained())
        if not self._stop.is_set():
            self._commands.draining = False
            self._announced = anyio.Event()
            self._in_flight.reopen()
            self._register_soon()
            _log.info("worker_resumed")

    # ------------------------------------------------------------------------------------------------ registry

    async def _register(self) -> None:
        for agent in self._agents:
            await self._register_agent(agent)

    async def _register_agent(self, agent: Agent) -> None:
        about: dict[str, str | int] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": program_version(),
            "format": FORMAT,
        }
        live = self._services.live
        about |= {"settings": f"{live.generation} {settings_digest(live.current)}"}
        slots = 0 if self._commands.draining else agent.concurrency
        signer = signer_of(live.current, place=self._services.keys.root)
        if signer.wanted:
            about["key"] = signer.key
            about[f"{SIGNATURE}{agent.name}"] = signer.sign_registration(self.id, agent.name, slots)
        known_limits = {name: starts_of(entry) for name, entry in live.current.limits.items()}
        spec = agent.spec(known_limits)
        if spec.funds:
            await self._services.store.require(Feature.BUDGETS)
        call = registry.register(
            self._services.keys,
            worker=self.id,
            spec=spec,
            slots=slots,
            backlog=self._throughputs[agent.name].backlog,
            about=about,
            alive_s=self._alive_s,
        )
        await self._services.store.call(call, retry_for_s=self._services.settings.redis.command_timeout_s)

    def _backlog_changed(self) -> None:
        self._heartbeat.note_backlog()

    def _register_soon(self) -> None:
        self._forgotten.set()

    async def _register_when_forgotten(self) -> None:
        while True:
            await self._forgotten.wait()
            self._forgotten = anyio.Event()
            if all([await self._register_again(agent) for agent in self._agents]):
                _log.info("worker_reregistered")

    async def _register_again(self, agent: Agent) -> bool:
        """Register an agent after the start of the worker; a failure stops neither the worker nor its other agents."""
        try:
            await self._register_agent(agent)
        except ConfigError as refusal:
            # Redis has lost a limit. The next heartbeat finds that it is unknown, and the worker tries again.
            if agent.name not in self._refused:
                _log.error("registration_refused", agent=agent.name, error=str(refusal))
            self._refused.add(agent.name)
            return False
        except StoreError as failure:
            _log.failure("registration_failed", agent=agent.name, error=failure)
            return False
        self._refused.discard(agent.name)
        self._heartbeat.note_registered(agent.name)
        return True

    # -------------------------------------------------------------------------------------------------- drain

    async def _drain(self) -> None:
        self._commands.draining = True
        if self._watchdog is not None:
            self._watchdog.mark_draining()
        async with anyio.create_task_group() as beside:
            # Redis may be silent, so the handlers and the verdicts do not wait for the announcement.
            beside.start_soon(self._announce_drain)
            await self._release_waiting()
            await self._unless_stopped_again(self._wait_for_running)
            for attempt in self._in_flight.all():
                attempt.stop(StopCause.DRAIN)
            flush_until_s = anyio.current_time() + FLUSH_TIMEOUT_S
            with anyio.CancelScope(deadline=flush_until_s):
                await self._in_flight.wait_empty()
        # The announcement may have found entries of a lost read.
        with anyio.CancelScope(deadline=flush_until_s):
            await self._in_flight.wait_empty()
        # A handler that ignores its cancellation, above all one in a thread, ends with this process. Without Redis the
        # verdicts stay here and other workers adopt the entries, so waiting longer helps nothing.
        if running := [attempt for attempt in self._in_flight.all() if attempt.running]:
            for attempt in running:
                attempt.abandon_handler()
            with anyio.move_on_after(FLUSH_TIMEOUT_S):
                await self._in_flight.wait_empty()

    async def _release_waiting(self) -> None:
        """Release the attempts that wait for their start, when the supervisor knows that this worker takes no more."""
        with anyio.move_on_after(RELEASE_WITHIN_S):
            await self._announced.wait()
        self._in_flight.close()

    async def _announce_drain(self) -> None:
        deadline_s = anyio.current_time() + ANNOUNCE_TIMEOUT_S
        with anyio.CancelScope(deadline=deadline_s) as limit:
            for agent in self._agents:
                await self._register_again(agent)
            self._announced.set()
        if limit.cancelled_caught:
            _log.warning("drain_announcement_failed", error=_NO_ANSWER)
        async with anyio.create_task_group() as group:
            for fetcher in self._fetchers.values():
                group.start_soon(fetcher.release_lost, deadline_s)

    async def _wait_for_running(self) -> None:
        with anyio.move_on_after(self._services.settings.worker.drain_s):
            async with anyio.create_task_group() as group:
                group.start_soon(self._trigger_heartbeat_thread)
                await self._in_flight.wait_handlers()
                group.cancel_scope.cancel()

    async def _trigger_heartbeat_thread(self) -> None:
        """Let the host see soon how many attempts are left."""
        while True:
            await anyio.sleep(DRAIN_SHARED_EVERY_S)
            self._heartbeat.poll()

    async def _unless_stopped_again(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step of the drain; a second signal ends it."""

        async def until_stopped() -> None:
            await self._stop_now.wait()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(until_stopped)
            await step()
            group.cancel_scope.cancel()

    async def _shut_down(self) -> None:
        if self._shut_down_begun:
            return
        self._shut_down_begun = True
        await anyio.to_thread.run_sync(self._heartbeat.stop)
        self._parts.task_log.close()
        await self._parts.client.close()
        await self._deregister()
        _log.info("worker_stopped", unfinished=len(self._in_flight))

    async def _deregister(self) -> None:
        try:
            with anyio.move_on_after(ANNOUNCE_TIMEOUT_S) as limit:
                call = registry.deregister(self._services.keys, worker=self.id)
                await self._services.store.call(call, retry_for_s=self._services.settings.redis.command_timeout_s)
            if limit.cancelled_caught:
                _log.warning("deregister_failed", error=_NO_ANSWER)
        except StoreError as failure:
            _log.warning("deregister_failed", error=str(failure))
