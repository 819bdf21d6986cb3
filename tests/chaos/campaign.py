"""A chaos run: rounds of load and faults; after each everything heals, drains and is judged."""

from __future__ import annotations

import shlex
import shutil
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import anyio
import redis
from anyio import to_thread

from orchestrator.client.client import Orchestrator
from orchestrator.core.log import configure_logging
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.chaos.agents import LEASE_S, LIMIT_RULES, SKILL_RULES, agents
from tests.chaos.deployment import HOSTS, PROCESSES, Deployment
from tests.chaos.faults import Faults
from tests.chaos.load import STEERED_LANES, Load
from tests.chaos.mutations import apply_mutation
from tests.chaos.observer import Observer
from tests.chaos.single_kill import SingleKill
from tests.chaos.timeline import Timeline
from tests.chaos.topology import make_topology
from tests.faultkit.checkers.final_state import read_final_state
from tests.faultkit.checkers.history import FaultsEnded, Recorder, read_history
from tests.faultkit.checkers.keyspace import check_growth
from tests.faultkit.checkers.kills import kill_outcomes
from tests.faultkit.checkers.rules import Bounds, Rules
from tests.faultkit.checkers.run_checks import CheckReport, run_checks

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.embedded.server_binary import ServerBinary
    from orchestrator.store.keys import PoolKeys
    from tests.faultkit.checkers.final_state import FinalState

ROUND_S: Final = 25.0
"""Or four times the longest handler."""
READY_S: Final = 60.0
DRAINED_S: Final = 60.0
"""From healing to the end of the last task: one that died five times waits for up to 8 s, and machines are busy."""
DRAINED_HANDLERS: Final = 12
"""Or so many times the longest handler: suspects wait while two or three poisons are searched for."""
CLEANED_S: Final = 90.0
"""Until a consumer is removed that a late call of a dead worker's host has made again: searched for each minute."""
RESTARTED_S: Final = 45.0
RESTARTED_HANDLERS: Final = 10
RULES: Final = Rules(
    bounds=Bounds(
        drained_ms=int(DRAINED_S * 1000), restarted_ms=int(RESTARTED_S * 1000), machine_ms=int(LEASE_S * 1200)
    ),
    skills=SKILL_RULES,
    limits=LIMIT_RULES,
    ranked=frozenset({"ranked"}),
    live={agent.name: HOSTS * PROCESSES for agent in agents},
    steered_lanes=(STEERED_LANES,),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a person asks for.

    Attributes:
        seconds: of load and faults, in rounds; healing and judging come on top.
        longest_s: handlers take up to so many seconds.
        topology: of the servers.
        mutation: a fault that is planted into the scripts; the run is to find it.
    """

    seconds: float
    seed: int
    binary: ServerBinary
    directory: Path
    redis_line: str
    longest_s: float
    topology: str = "single"
    mutation: str | None = None
    quiet: bool = False
    keep: bool = False

    @property
    def command(self) -> str:
        """What repeats the run."""
        options = f"--minutes {self.seconds / 60:g} --seed {self.seed} --longest {self.longest_s:g}"
        options += f" --redis {self.redis_line}" if self.redis_line else ""
        options += f" --topology {self.topology}" if self.topology != "single" else ""
        options += f" --mutation {self.mutation}" if self.mutation else ""
        return f"make chaos ARGS={shlex.quote(options)}"


class Campaign:
    """One run."""

    def __init__(self, options: Options, deployment: Deployment) -> None:
        self._options, self._deployment = options, deployment
        self._keys: PoolKeys = pool_keys(deployment.settings(deployment.topology.url))
        self._recorder = Recorder(deployment.history, "client")
        self._first: FinalState | None = None
        self._complaints: list[str] = []
        self._drained_s = max(DRAINED_S, DRAINED_HANDLERS * options.longest_s)
        restarted_s = max(RESTARTED_S, RESTARTED_HANDLERS * options.longest_s)
        bounds = replace(RULES.bounds, drained_ms=int(self._drained_s * 1000), restarted_ms=int(restarted_s * 1000))
        self._rules = replace(RULES, bounds=bounds)

    async def run(self) -> list[str]:
        """Run all rounds; stops at the first that is bad.

        Returns:
            What is wrong.
        """
        deployment, left_s, number = self._deployment, self._options.seconds, 0
        deployment.start_all()
        await self._ready()
        with Observer(deployment.topology, self._keys, deployment.history):
            while left_s > 0.5 and not self._complaints:
                number += 1
                full_s = max(ROUND_S, 4 * self._options.longest_s)
                round_s = min(full_s, left_s)
                # No stump at the end: what is left is shared by the last two rounds.
                if round_s < left_s < 1.5 * full_s:
                    round_s = left_s / 2
                left_s -= round_s
                deployment.timeline.note(f"---- round {number}, {round_s:.0f} s of faults")
                await self._round(number, round_s)
        if not self._complaints:
            await self._stop()
        return self._complaints

    async def _round(self, number: int, seconds: float) -> None:
        deployment = self._deployment
        seed = self._options.seed * 1000 + number
        async with (
            Orchestrator(settings=deployment.settings(deployment.client.url)) as orc,
            anyio.create_task_group() as tasks,
        ):
            load = Load(
                orc, self._recorder, seed=seed, tasks=tasks, prefix=f"r{number}", longest_s=self._options.longest_s
            )
            async with anyio.create_task_group() as trouble:
                trouble.start_soon(load.run)
                faults = Faults(deployment, seed=str(seed), admin=orc.admin, recorder=self._recorder)
                trouble.start_soon(faults.run, trouble)
                await anyio.sleep(seconds)
                trouble.cancel_scope.cancel()
            await to_thread.run_sync(deployment.heal)
            await self._ready()
            self._recorder.write(FaultsEnded(await to_thread.run_sync(self._server_ms)))
            deployment.timeline.note("healed")
            drained = await self._drained(load)
            if drained:
                await SingleKill(
                    deployment,
                    load,
                    self._recorder,
                    seed=str(seed),
                    poison=(self._options.seed + number) % 2 == 0,
                    longest_s=self._options.longest_s,
                    server_ms=self._server_ms,
                ).run()
                drained = await self._drained(load)
            tasks.cancel_scope.cancel()
        judgement, final = await to_thread.run_sync(self._run_checks)
        deployment.timeline.note(f"{'drained' if drained else 'NOT drained'}: {len(final.tasks)} tasks\n{judgement}")
        self._complaints += judgement.violations
        self._complaints += [f"nothing was judged of: {name}" for name in judgement.unchecked if not self._short]
        self._complaints += deployment.surprises
        if not drained and not self._complaints:
            self._complaints.append(f"after {self._drained_s:.0f} s the client still waits, or there are leftovers")
        if self._first is None:
            self._first = final
        else:
            self._complaints += check_growth(self._first, final).violations

    @property
    def _short(self) -> bool:
        return self._options.seconds < 10

    async def _ready(self) -> None:
        """Wait until all actors run and are known; one that ended because it came too early is started again."""
        with anyio.move_on_after(READY_S) as waited:
            while not await to_thread.run_sync(self._all_there):
                self._deployment.start_all()
                await anyio.sleep(0.2)
        if waited.cancelled_caught:
            self._complaints.append(f"after {READY_S:.0f} s without faults not all actors were there")

    def _all_there(self) -> bool:
        try:
            with self._deployment.topology.client() as direct:
                return self._deployment.all_registered() and bool(direct.exists(self._keys.leader))
        except redis.RedisError:
            return False

    def _server_ms(self) -> int:
        with self._deployment.topology.client() as direct:
            seconds, micros = direct.time()
            return int(seconds) * 1000 + int(micros) // 1000

    async def _drained(self, load: Load) -> bool:
        with anyio.move_on_after(self._drained_s) as waited:
            while load.waiting or load.submitting or await to_thread.run_sync(self._left):
                self._deployment.start_all()
                await anyio.sleep(0.25)
        if waited.cancelled_caught:
            return False
        with suppress(TimeoutError):
            await wait_for(lambda: to_thread.run_sync(self._clean), "no consumer of a dead worker", CLEANED_S)
        return True

    def _left(self) -> bool:
        """Whether anything waits or runs."""
        with self._deployment.topology.client() as direct:
            keys, run = self._keys, direct
            if run.exists(keys.queues, keys.suspected_queues, keys.scheduled, keys.expiring):
                return True
            return any(run.xlen(keys.inbox(agent)) for agent in RULES.live)

    def _clean(self) -> bool:
        """Whether no inbox has a consumer of a dead worker."""
        with self._deployment.topology.client() as direct:
            for agent, most in RULES.live.items():
                consumers: Any = direct.xinfo_consumers(self._keys.inbox(agent), "workers")
                if len(consumers) > most:
                    return False
        return True

    def _run_checks(self) -> tuple[CheckReport, FinalState]:
        with self._deployment.topology.client() as direct:
            final = read_final_state(direct, self._keys)
        history = read_history(self._deployment.history)
        for outcome in kill_outcomes(history, final)[-1:]:
            self._deployment.timeline.note(str(outcome))
        return run_checks(history, final, self._rules), final

    async def _stop(self) -> None:
        """Tell all to end, and see that they do and leave nothing behind."""
        for actor in self._deployment.actors:
            actor.terminate()
        try:
            await wait_for(lambda: not any(actor.runs for actor in self._deployment.actors), "all actors to end", 30)
            await wait_for(lambda: not self._deployment.processes(), "their processes to end", 30)
        except TimeoutError as late:
            self._complaints.append(f"{late}; processes: {self._deployment.processes()}")


def run_campaign(options: Options) -> int:
    """Run, tell what came of it, keep the evidence of a failure.

    Returns:
        The exit status.
    """
    directory = options.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    timeline = Timeline(directory / "timeline.txt", quiet=options.quiet)
    timeline.note(f"seed {options.seed}, Redis {options.binary.version}, {options.seconds:g} s; {options.command}")
    started_s = time.monotonic()
    with ExitStack() as stack:
        # What the client logs is no part of the timeline.
        configure_logging(stream=stack.enter_context((directory / "client.log").open("w")))
        path = [apply_mutation(options.mutation, directory / "planted")] if options.mutation else []
        topology = make_topology(options.topology, options.binary, directory)
        deployment = stack.enter_context(Deployment(directory, topology=topology, timeline=timeline, path=path))
        complaints = anyio.run(Campaign(options, deployment).run)
    faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(timeline.counts.items()))
    timeline.note(f"{timeline.counts.total()} faults: {faults}")
    timeline.note(f"took {time.monotonic() - started_s:.0f} s")
    if not complaints:
        timeline.note("GOOD: nothing was lost, nothing doubled")
        if not options.keep:
            shutil.rmtree(directory)
        return 0
    for complaint in complaints[:20]:
        timeline.note(f"BAD: {complaint}")
    if len(complaints) > 20:
        timeline.note(f"... and {len(complaints) - 20} more")
    (directory / "complaints.txt").write_text("\n".join(complaints) + "\n")
    timeline.note(f"kept: {directory} (timeline, histories, logs, complaints); again: {options.command}")
    return 1
