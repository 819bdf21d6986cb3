"""Worker and supervisor processes are killed, or frozen for longer than their leases, at every call that they make."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import pytest
from anyio import to_thread

from orchestrator.client.client import Orchestrator
from orchestrator.core.ids import new_worker_id
from orchestrator.services import open_services, pool_keys
from orchestrator.store.script_files import all_scripts
from orchestrator.supervisor.daemon import supervise
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.worker import Worker
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.attempt_log import AttemptLog
from tests.helpers.forked_actors import ForkedActors
from tests.helpers.guards import keys_of
from tests.helpers.small_workload import LEASE_S, make_agents, submit_all, violations_of
from tests.helpers.subprocesses import alive, workers_of
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.commands import Command, CommandRecord

Kind = Literal["worker", "supervisor", "host"]
Where = Literal["request", "reply"]
WHERES: Final[tuple[Where, ...]] = ("request", "reply")
AT_ONCE: Final = 4 * (os.cpu_count() or 2)
TIMEOUT_S: Final = 25.0
FROZEN_S: Final = 3 * LEASE_S
TIMINGS: Final = {"heartbeat_s": 0.3, "leader_lease_s": 0.9, "sweep_s": 0.4, "drain_s": 2.0}
WORKER_CALLS: Final = {
    "agents/register", "agents/heartbeat", "agents/deregister", "tasks/adopt", "XREADGROUP", "tasks/renew",
    "tasks/emit", "tasks/submit", "tasks/join", "tasks/finish",
}  # fmt: skip
HOST_CALLS: Final = {"tasks/abandon", "agents/deregister"}
"""What a host itself sends when its worker has died: for each agent, and again after the dead one's last read."""
SUPERVISOR_CALLS: Final = {
    "agents/lead", "agents/expire", "agents/resign", "tasks/assign", "tasks/promote", "XREAD",
}  # fmt: skip


@dataclass(slots=True)
class Step:
    """One story: who is hit, at which turn of which of its calls, before or after the server ran it; none: nobody."""

    kind: Kind
    call: str = ""
    turn: int = 0
    where: Where = "request"
    freeze: bool = False
    hit: bool = False
    lost: int = 0
    """How many tasks a frozen worker has found out to be somebody else's."""
    calls: list[str] = field(default_factory=list)
    """All that the actor sent."""
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For files, namespaces and messages."""
        call = self.call.replace("/", "-").lower()
        return f"{self.kind}-{'freeze' if self.freeze else 'kill'}-{self.where}-{call}-{self.turn:02}"


class StepRunner:
    """Where stories are played: the server, the forked_actors, a namespace and a attempt_log for each."""

    def __init__(self, server: RedisServer, prefix: str, folder: Path, forked_actors: ForkedActors) -> None:
        self.server, self.prefix, self.folder, self.forked_actors = server, prefix, folder, forked_actors

    async def run_step(self, step: Step) -> Step:
        """Play one story to its end and judge it."""
        try:
            with anyio.fail_after(TIMEOUT_S):
                await _StepRun(self, step).run()
        except Exception as failure:  # noqa: BLE001 - one step of many: all are reported together
            log = await to_thread.run_sync(self.forked_actors.log, step.name)
            step.faults.append(f"{type(failure).__name__}: {failure}; its log: {log[-1500:]}")
        return step

    async def run_steps(self, steps: list[Step]) -> None:
        """Play stories side by side."""
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def run_step(step: Step) -> None:
            async with limiter:
                await self.run_step(step)

        async with anyio.create_task_group() as group:
            for step in steps:
                group.start_soon(run_step, step)


class _StepRun:
    """One story with its actors."""

    def __init__(self, step_runner: StepRunner, step: Step) -> None:
        self._step_runner, self._step = step_runner, step
        self._prefix = f"{step_runner.prefix.rpartition(':')[0]}:{step.name}"
        self._attempt_log = AttemptLog(step_runner.folder / f"{step.name}.notes")
        self._settings = make_settings(step_runner.server.url, self._prefix, **TIMINGS)
        self._keys: PoolKeys = pool_keys(self._settings)
        self._deaths = Counter[str]()
        self._pid = 0
        self._felt, self._thawed = anyio.Event(), anyio.Event()
        self._dismiss, self._dismissed = anyio.Event(), anyio.Event()
        self._colleague: Worker | None = None

    async def run(self) -> None:
        """Play it; what went wrong is in `step.faults`."""
        step = self._step
        async with AsyncExitStack() as stack:
            direct: redis.Redis = stack.enter_context(self._step_runner.server.client())
            stack.callback(lambda: direct.unlink("-", *keys_of(direct, self._prefix)))
            proxy = await stack.enter_async_context(FaultProxy(self._step_runner.server.url))
            self._plan(proxy)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._work if step.kind == "supervisor" else self._lead)
            self._pid = await self._start_victim(proxy)
            stack.callback(self._end_victim)
            orc = await stack.enter_async_context(Orchestrator(settings=self._settings))
            group.start_soon(self._replace, proxy, direct)
            handles = await submit_all(orc)
            if step.kind == "host":
                await self._kill_child(direct)
            for n, handle in handles.items():
                assert await handle.result(timeout=TIMEOUT_S) == n
            if step.freeze and self._felt.is_set():
                await self._go_on(orc)
            if alive(self._pid):
                os.kill(self._pid, signal.SIGTERM)
            await wait_for(lambda: not alive(self._pid), "the actor to end", 10)
            if step.kind == "host":
                ours = {os.getpid()}
                await wait_for(
                    lambda: set(workers_of(direct, self._keys, "actor").values()) <= ours, "its child to end"
                )
            step.calls = [label(record) for record in proxy.commands() if is_work(record)]
            await self._judge(direct)

    async def _start_victim(self, proxy: FaultProxy) -> int:
        forked_actors, step = self._step_runner.forked_actors, self._step
        start = partial(forked_actors.start, step.kind, step.name, url=proxy.url, prefix=self._prefix)
        return await to_thread.run_sync(partial(start, attempt_log=self._attempt_log.path, timings=TIMINGS))

    async def _judge(self, direct: redis.Redis) -> None:
        step = self._step
        # What dies of a freeze depends on what the others had taken by then; fences are judged there. With a host only
        # one of two ways to take back may count.
        deaths = None if step.freeze or step.kind == "host" else self._deaths
        step.faults += await to_thread.run_sync(
            lambda: violations_of(direct, self._keys, self._attempt_log, deaths=deaths)
        )
        log = await to_thread.run_sync(self._step_runner.forked_actors.log, step.name)
        told = Counter(re.findall(r"(?:lease_lost|finish_rejected|attempt_fenced) task='?([^' ]+)", log))
        step.faults += [f"{task} was said to be lost {times} times" for task, times in told.items() if times > 1]
        step.lost = len(told)

    def _workers(self, direct: redis.Redis) -> set[int]:
        return set(workers_of(direct, self._keys, "actor").values())

    async def _kill_child(self, direct: redis.Redis) -> None:
        await wait_for(lambda: self._attempt_log.notes("begun"), "the child to run something", 10)
        (child,) = self._workers(direct)
        os.kill(child, signal.SIGKILL)

    async def _go_on(self, orc: Orchestrator) -> None:
        """Thawed and without its colleague, the actor must do new work."""
        await self._thawed.wait()
        self._dismiss.set()
        await self._dismissed.wait()
        handles = [await orc.submit("quick", {"n": n}) for n in range(3)]
        assert [await handle.result(timeout=TIMEOUT_S) for handle in handles] == [0, 1, 2]
        if self._step.kind == "worker":
            ran = {note.pid for handle in handles for note in self._attempt_log.notes("begun", task=handle.id)}
            assert ran == {self._pid}, "the thawed worker took no new work"

    # ----------------------------------------------------------------------------------------------------- the fault

    def _plan(self, proxy: FaultProxy) -> None:
        step = self._step
        if not step.call:
            return

        async def hit(command: Command) -> None:
            step.hit = True
            os.kill(self._pid, signal.SIGSTOP if step.freeze else signal.SIGKILL)
            self._felt.set()
            if step.freeze and step.where == "request":
                await anyio.sleep(FROZEN_S / 2)  # the command arrives late, while its sender still stands

        def meant(command: Command) -> bool:
            return label_of(command) == step.call

        proxy.watch(meant, hit, nth=step.turn, where=step.where)
        if step.where == "request" and not step.freeze:
            proxy.fail_command(meant, nth=step.turn)

    async def _replace(self, proxy: FaultProxy, direct: redis.Redis) -> None:
        """Once the fault was felt: note who must die of it, and let another take over."""
        await self._felt.wait()
        step = self._step
        if not step.freeze:
            await wait_for(lambda: not proxy.open_connections, "the connections of the dead to end")
            if step.kind == "worker":
                self._deaths = Counter(await to_thread.run_sync(lambda: list(self._pending(direct))))
        async with anyio.create_task_group() as group:
            group.start_soon(self._lead if step.kind == "supervisor" else self._work)
            if step.freeze:
                await anyio.sleep(FROZEN_S)
                os.kill(self._pid, signal.SIGCONT)
                self._thawed.set()
                await self._dismiss.wait()
                if step.kind == "worker" and self._colleague is not None:
                    self._colleague.stop()
                else:
                    group.cancel_scope.cancel()
        self._dismissed.set()

    def _pending(self, direct: redis.Redis) -> Iterator[str]:
        for agent in ("actor", "metered"):
            inbox = self._keys.inbox(agent)
            if not direct.exists(inbox):
                continue
            rows: Any = direct.xpending_range(inbox, "workers", "-", "+", 100)
            for row in rows:
                entries: Any = direct.xrange(inbox, row["message_id"], row["message_id"])
                yield from (next(iter(fields.values())).decode() for _, fields in entries)

    def _end_victim(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    # --------------------------------------------------------------------------------------- those who are never hit

    async def _lead(self) -> None:
        async with open_services(self._settings, name="supervisor") as services:
            await supervise(services)

    async def _work(self) -> None:
        async with open_services(self._settings, name="worker") as services:
            self._colleague = Worker(services, make_agents(self._attempt_log), worker=new_worker_id())
            await self._colleague.run(listen=False)


def label_of(command: Command) -> str:
    """Call a command by its script, or by its name."""
    return SCRIPTS.get(command.script or "", command.name)


def label(record: CommandRecord) -> str:
    """The same of what the log keeps."""
    return SCRIPTS.get(record.arguments[0].decode(), record.name) if record.name == "EVALSHA" else record.name


def is_work(record: CommandRecord) -> bool:
    """Whether a record counts among the calls that are hit."""
    return record.name not in {"HELLO", "AUTH", "SELECT", "CLIENT", "COMMAND", "INFO", "PING"}


SCRIPTS: Final = {one.sha: name for name, one in all_scripts().items()}


@pytest.fixture(scope="module")
def forked_actors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedActors]:
    """Where actors are forked."""
    with ForkedActors(tmp_path_factory.mktemp("logs")) as running:
        yield running


@pytest.fixture(scope="module")
def tcp_server() -> Iterator[RedisServer]:
    """A Redis on a port: what relays to a socket of the file system may trip over its own end."""
    with RedisServer(port=0) as server:
        yield server


@pytest.fixture
def step_runner(tcp_server: RedisServer, prefix: str, tmp_path: Path, forked_actors: ForkedActors) -> StepRunner:
    """Where stories are played."""
    return StepRunner(tcp_server, prefix, tmp_path, forked_actors)


async def sweep(
    step_runner: StepRunner, kind: Kind, calls: set[str], *, turns: int, freeze: bool = False
) -> list[Step]:
    """Hit an actor before and after the server ran each of its calls, and report every story that went wrong."""
    quiet = await step_runner.run_step(Step(kind))
    assert quiet.faults == []
    assert set(quiet.calls) >= calls, f"the story does not meet {calls - set(quiet.calls)}"
    steps = [
        Step(kind, call, turn, where, freeze)
        for call, times in Counter(quiet.calls).items()
        # What only reads is the same each time.
        for turn in range(1, min(times, turns if call in calls else 1) + 1)
        for where in WHERES
    ]
    await step_runner.run_steps(steps)
    wrong = [f"{step.name}: {fault}" for step in steps for fault in step.faults]
    assert not wrong, "\n".join(wrong)
    for where in WHERES:
        hit = {step.call for step in steps if step.where == where and step.hit}
        assert hit >= calls, f"never hit at the {where} of {calls - hit}"
    return steps


@pytest.mark.slow
async def test_a_worker_is_killed_at_every_call(step_runner: StepRunner) -> None:
    """Each task ends once, has died only if the dead worker had it, and nothing is left; no limit is exceeded."""
    await sweep(step_runner, "worker", WORKER_CALLS, turns=4)


@pytest.mark.slow
async def test_a_supervisor_is_killed_at_every_call(step_runner: StepRunner) -> None:
    """Another one takes over: each task ends once, none has died, and nothing is left; no limit is exceeded."""
    await sweep(step_runner, "supervisor", SUPERVISOR_CALLS, turns=4)


@pytest.mark.slow
async def test_a_worker_is_frozen_at_every_call(step_runner: StepRunner) -> None:
    """For three leases: what was taken from it ends once, elsewhere; thawed, it changes nothing and does new work."""
    steps = await sweep(step_runner, "worker", WORKER_CALLS - {"agents/deregister"}, turns=1, freeze=True)
    assert sum(step.lost for step in steps) >= len(WORKER_CALLS), "hardly anything was taken from the frozen ones"


@pytest.mark.slow
async def test_a_supervisor_is_frozen_at_every_call(step_runner: StepRunner) -> None:
    """Another one leads meanwhile; thawed, it assigns nothing twice, and leads again when the other has gone."""
    await sweep(step_runner, "supervisor", SUPERVISOR_CALLS - {"agents/resign"}, turns=1, freeze=True)


@pytest.mark.slow
async def test_a_host_is_killed_at_every_call(step_runner: StepRunner) -> None:
    """Its worker has died before: whether or not it could give back what that held, each task ends once."""
    steps = [Step("host", call, turn, where) for call in HOST_CALLS for turn in (1, 2) for where in WHERES]
    await step_runner.run_steps(steps)
    wrong = [f"{step.name}: {fault}" for step in steps for fault in step.faults]
    assert not wrong, "\n".join(wrong)
    assert all(step.hit for step in steps), [step.name for step in steps if not step.hit]
