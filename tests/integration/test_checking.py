"""The checkers judge real runs: a sound one is good, faults planted into a server or a script are found."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.store import script_files
from orchestrator.tasks import scripts
from orchestrator.tasks.model import Delivery, Verdict, VerdictKind
from orchestrator.testing.waiting import wait_for
from tests.chaos.mutations import MUTATIONS, apply_mutation
from tests.faultkit.checkers.final_state import read_final_state
from tests.faultkit.checkers.history import (
    EndSeen,
    Recorder,
    RunEnded,
    RunStarted,
    SubmitAccepted,
    SubmitStarted,
    read_history,
)
from tests.faultkit.checkers.rules import Bounds, Rules
from tests.faultkit.checkers.run_checks import run_checks
from tests.helpers.local_team import run_local_team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.workers.agent import CallNext
    from tests.helpers.local_team import LocalTeam

RULES = Rules(bounds=Bounds(drained_ms=60_000, restarted_ms=60_000))


class RecordedRun:
    """Clients and handlers that write their history, and the judgement over it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._recorder = Recorder(directory, "story")
        self.begun: list[RunStarted] = []
        self.gates: dict[str, anyio.Event] = {}

    async def write(self, ctx: TaskContext, call_next: CallNext) -> Any:
        """As middleware: write down each attempt, and name it in its result."""
        begun = RunStarted(
            ctx.task_id,
            ctx._delivery.generation,
            ctx.attempt,
            ctx._delivery.entry,
            ctx.agent,
            ctx.worker,
            run=secrets.token_hex(4),
        )
        self._recorder.write(begun)
        gate = self.gates[begun.run] = anyio.Event()
        self.begun.append(begun)
        await gate.wait()
        value = await call_next(ctx)
        self._recorder.write(RunEnded(ctx.task_id, ctx._delivery.generation, begun.run, "returned"))
        return {"run": begun.run, "value": value}

    def agent(self, *, concurrency: int = 10) -> Agent:
        """An agent whose attempts all wait for their gate."""
        agent = Agent("scribe", concurrency=concurrency, middleware=[self.write])

        @agent.skill
        async def work(op: str) -> Any:
            return op

        return agent

    def open(self) -> None:
        """Let all go on that have begun."""
        for gate in self.gates.values():
            gate.set()

    async def submit(self, team: LocalTeam, op: str) -> TaskHandle[Any]:
        """Submit one task."""
        self._recorder.write(SubmitStarted(op))
        handle: TaskHandle[Any] = await team.orc.submit("work", {"op": op})
        self._recorder.write(SubmitAccepted(op, handle.id))
        return handle

    async def see(self, handle: TaskHandle[Any]) -> None:
        """Wait for a result."""
        await handle.result(timeout=5)
        assert handle.outcome is not None
        assert handle.outcome.result is not None
        self._recorder.write(EndSeen(handle.id, "succeeded", handle.outcome.result.decode()))

    def violations(self, team: LocalTeam, direct: redis.Redis) -> list[str]:
        """What the checkers find."""
        final = read_final_state(direct, team.services.keys)
        return run_checks(read_history(self._directory), final, RULES).violations


@pytest.fixture
def recorded_run(tmp_path: Path) -> RecordedRun:
    """A story that nobody has told yet."""
    return RecordedRun(tmp_path / "history")


@pytest.fixture
def inject_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Give what plants a fault into the scripts of this test."""

    def put(name: str) -> None:
        place = apply_mutation(name, tmp_path)
        monkeypatch.setattr(script_files, "files", lambda _: place / "orchestrator")
        script_files.all_scripts.cache_clear()

    yield put
    monkeypatch.undo()
    script_files.all_scripts.cache_clear()


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "not fenced"])
async def test_a_result_of_somebody_else_is_found(
    recorded_run: RecordedRun,
    settings: Settings,
    redis_client: redis.Redis,
    inject_fault: Callable[[str], None],
    *,
    fenced: bool,
) -> None:
    """A task is taken away and runs elsewhere; the first attempt ends first. Only without the fence is it stored."""
    if not fenced:
        inject_fault("no-fence")
    async with run_local_team(settings) as team:
        await team.work(recorded_run.agent())
        handle = await recorded_run.submit(team, "one")
        await wait_for(lambda: recorded_run.begun, "it to run")
        await team.work(recorded_run.agent())
        first = recorded_run.begun[0]
        await team.services.store.call(
            scripts.abandon(
                team.services.keys, worker=first.worker, agent="scribe", limit=10, max_deaths={"work": 3},
                reason="planted", dead_ttl_s=1000,
            )
        )  # fmt: skip
        await wait_for(lambda: len(recorded_run.begun) == 2, "it to run again")
        recorded_run.gates[first.run].set()
        if fenced:
            await wait_for(lambda: redis_client.xinfo_groups(team.services.keys.inbox("scribe")), "the inbox")
            recorded_run.gates[recorded_run.begun[1].run].set()
        await recorded_run.see(handle)
        found = recorded_run.violations(team, redis_client)
        if fenced:
            assert found == []
        else:
            assert any(one.startswith("I4") and f"the result of generation {first.generation}" in one for one in found)
        recorded_run.open()


@pytest.mark.parametrize("lost", [False, True], ids=["sound", "lost"])
async def test_a_lost_task_is_found(
    recorded_run: RecordedRun, settings: Settings, redis_client: redis.Redis, *, lost: bool
) -> None:
    """Its place in the queue is deleted, behind everybody's back."""
    async with run_local_team(settings, supervised=False) as team:
        scope = await team.start_supervisor()
        await team.work(recorded_run.agent(concurrency=1))
        first, second = await recorded_run.submit(team, "one"), await recorded_run.submit(team, "two")
        inbox = team.services.keys.inbox("scribe")
        # A new agent has no backlog, so the second one waits in its queue; what a torn script could do, by hand.
        await wait_for(lambda: redis_client.xlen(inbox) == 1 and recorded_run.begun, "one to run")
        if lost:
            assert redis_client.zrem(team.services.keys.queue("skill:work"), second.id) == 1
            scope.cancel()  # nobody is to repair it
        recorded_run.open()
        await recorded_run.see(first)
        if not lost:
            await wait_for(lambda: len(recorded_run.begun) == 2, "the other one to run")
            recorded_run.open()
            await recorded_run.see(second)
        found = recorded_run.violations(team, redis_client)
    lost_one = f"I1 every accepted task ends once: task {second.id} (two) has not ended: ready"
    assert (lost_one in found) == lost
    assert bool(found) == lost


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "doubled"])
async def test_an_end_that_counts_twice_is_found(
    recorded_run: RecordedRun,
    settings: Settings,
    redis_client: redis.Redis,
    inject_fault: Callable[[str], None],
    *,
    sound: bool,
) -> None:
    """The same verdict is sent again, as after a lost reply; only a script without memory ends the task twice."""
    if not sound:
        inject_fault("no-memory")
    async with run_local_team(settings) as team:
        await team.work(recorded_run.agent())
        handle = await recorded_run.submit(team, "one")
        await wait_for(lambda: recorded_run.begun, "it to run")
        recorded_run.open()
        await recorded_run.see(handle)
        (begun,) = recorded_run.begun
        assert handle.outcome is not None
        assert handle.outcome.result is not None
        delivery = Delivery("scribe", begun.entry, handle.id, begun.generation, 1, 0, b"")
        verdict = Verdict(VerdictKind.SUCCEEDED, handle.outcome.result)
        await team.services.store.call(
            scripts.finish(team.services.keys, rows=[(delivery, verdict)], worker="w", dead_ttl_s=1000, max_wait_s=1000)
        )
        found = recorded_run.violations(team, redis_client)
    assert any("ended 2 times" in one for one in found) != sound
    assert bool(found) != sound


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_plant_fits_its_script(name: str, tmp_path: Path) -> None:
    """What a plant replaces is still there, once, and the script can still be read."""
    place = apply_mutation(name, tmp_path)
    scripts = place / "orchestrator" / "lua"
    for path in scripts.glob("[at]*/*.lua"):
        script_files.load_script(scripts, f"{path.parent.name}/{path.stem}")
