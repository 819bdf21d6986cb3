"""One walk over the whole main path, and what must have come of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator.core.errors import TaskCancelled, TaskFailed
from orchestrator.store.script_files import all_scripts
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.faultkit.commands import script
from tests.helpers.end_state import counters, find_violations, records

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from tests.helpers.team import Member, Team

MANY = 20
AT_ONCE = 10
CHILDREN = 4
STAMPS = 6


@dataclass(slots=True)
class ExpectedState:
    """What the client did and saw: per task how often it must have run, its final state, and its result or error."""

    runs: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    seen: dict[str, object] = field(default_factory=dict)
    wanted: dict[str, object] = field(default_factory=dict)

    def expect(self, id_: str, *, runs: int, state: str, want: object) -> None:
        """Note what must become of a task."""
        assert id_ not in self.runs, f"the client was given {id_} twice"
        self.runs[id_], self.states[id_], self.wanted[id_] = runs, state, want


async def run_main_path(
    team: Team, orc: Orchestrator, worker: Member, gate: Path, *, timeout_s: float = 20.0
) -> ExpectedState:
    """Submit in every way, let tasks end in every way, move one from a draining worker to another."""
    expected_state = ExpectedState()
    handles: list[TaskHandle[Any]] = []

    def expect(handle: TaskHandle[Any], want: object, *, runs: int = 1, state: str = "succeeded") -> None:
        expected_state.expect(handle.id, runs=runs, state=state, want=want)
        handles.append(handle)

    expect(await orc.submit("echo", {"n": -1}), -1)
    for n, handle in enumerate(await orc.submit_many([Submission("echo", {"n": n}) for n in range(MANY)])):
        expect(handle, n)

    async def submit_concurrently(n: int) -> None:
        expect(await orc.submit("echo", {"n": n}), n)

    async with anyio.create_task_group() as together:
        for n in range(100, 100 + AT_ONCE):
            together.start_soon(submit_concurrently, n)
    keyed = await orc.submit("echo", {"n": 7}, key="the same")
    expect(keyed, 7)
    assert (await orc.submit("echo", {"n": 7}, key="the same")).id == keyed.id
    expect(await orc.submit("echo", {"n": 8}, delay=0.1), 8)
    expect(await orc.submit("flaky", {"fails": 2}), 3, runs=3)
    expect(await orc.submit("nap"), "rested", runs=2)
    expect(await orc.submit("refuse"), "failed: planted", state="dead")
    expect(await orc.submit("broken"), "failed: ValueError: always", runs=2, state="dead")
    family = await orc.submit("family", {"children": CHILDREN})
    expect(family, sum(range(CHILDREN)))
    for _ in range(STAMPS):
        expect(await orc.submit("stamp"), "stamped")
    unwanted = await orc.submit("echo", {"n": 9}, delay=600)
    await unwanted.cancel("not needed")
    expect(unwanted, "was cancelled: not needed", runs=0, state="cancelled")

    held = await orc.submit("hold", {"gate": str(gate)})
    expect(held, "held")
    await wait_for(lambda: team.attempt_log.notes("begun", task=held.id), "the held task to run", timeout_s)
    renewals = worker.proxy.watch(script(all_scripts()["tasks/renew"].sha), lambda _: None)
    await wait_for(lambda: renewals.seen, "its lease to be renewed", timeout_s)
    other = await team.start_worker()
    await worker.drain()
    assert team.attempt_log.notes("cancelled", task=held.id), "the drain gave the held task back"
    await wait_for(lambda: team.attempt_log.runs()[held.id] == 2, "it to run elsewhere", timeout_s)
    await anyio.Path(gate).touch()

    async def wait(handle: TaskHandle[Any]) -> None:
        expected_state.seen[handle.id] = await outcome_of(handle, timeout_s)

    async with anyio.create_task_group() as waiting:
        for handle in handles:
            waiting.start_soon(wait, handle)
    assert family.id in expected_state.runs
    for id_ in records(team.direct, team.keys):  # the children, which the client never saw
        if id_ not in expected_state.runs:
            expected_state.expect(id_, runs=1, state="succeeded", want=None)
            expected_state.seen[id_] = None
    await other.drain()
    return expected_state


async def outcome_of(handle: TaskHandle[Any], timeout_s: float) -> object:
    """The result of a task, or the text of its error after the task's id."""
    try:
        return await handle.result(timeout=timeout_s)
    except (TaskFailed, TaskCancelled) as ended:
        return str(ended).removeprefix(f"task {handle.id} ")


def check(expected_state: ExpectedState, team: Team) -> None:
    """Hold Redis, the handlers' notes and what the client saw against each other."""
    assert expected_state.seen == expected_state.wanted
    stored = {id_: record[b"state"].decode() for id_, record in records(team.direct, team.keys).items()}
    assert stored == expected_state.states
    assert team.attempt_log.attempts_run_twice() == []
    # Who was interrupted by a drain, or by a Redis that did not answer, runs again; nobody else does.
    again = Counter(note.task for what in ("outage", "cancelled") for note in team.attempt_log.notes(what))
    assert team.attempt_log.runs() == Counter(expected_state.runs) + again
    assert find_violations(team.direct, team.keys) == []
    assert team.direct.zcard(team.keys.limit("@clerk")) == STAMPS
    counted = counters(team.direct, team.keys)
    ends = list(expected_state.states.values())
    assert {name: counted[name] for name in ("submitted", "succeeded", "dead", "cancelled")} == {
        "submitted": len(expected_state.states),
        **{state: ends.count(state) for state in ("succeeded", "dead", "cancelled")},
    }
