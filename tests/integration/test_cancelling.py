"""A cancel of a running task is heard at once, whatever kind of handler runs it, and is a state that everybody sees."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, TaskCancelled, TaskContext
from orchestrator.core.ids import new_task_id
from orchestrator.tasks import queries
from orchestrator.tasks.model import Delivery, TaskState
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.in_flight import MAX_EARLY_CANCELS, InFlight
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

# A heartbeat would tell of a cancel too: none comes while these tests run.
pytestmark = pytest.mark.parametrize("settings", [{"worker__heartbeat_s": 60.0}], indirect=True)


class Held:
    """An agent that notes when its handlers began and ended."""

    def __init__(self) -> None:
        self.agent = Agent("held", lease=300)
        self.begun: set[str] = set()
        self.ended_s: dict[str, float] = {}
        self.may_end = anyio.Event()

        @self.agent.skill
        async def awaits(ctx: TaskContext) -> None:
            self.begun.add(ctx.task_id)
            try:
                await anyio.sleep_forever()
            finally:
                self.ended_s[ctx.task_id] = time.monotonic()

        @self.agent.skill
        def looks(ctx: TaskContext) -> None:
            self.begun.add(ctx.task_id)
            while not ctx.cancelled:
                time.sleep(0.001)
            self.ended_s[ctx.task_id] = time.monotonic()

        @self.agent.skill
        async def takes_its_time(ctx: TaskContext) -> None:
            self.begun.add(ctx.task_id)
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await self.may_end.wait()

    async def has_begun(self, id_: str) -> None:
        """Wait for the handler of a task."""
        await wait_for(lambda: id_ in self.begun, "the handler")


@pytest.mark.parametrize(("skill", "count"), [("awaits", 200), ("looks", 20)])
async def test_it_is_received_within_milliseconds(team: LocalTeam, skill: str, count: int) -> None:
    """Well below a second, also the slowest of 200: the handler stops, and who waits for the task knows."""
    held = Held()
    await team.work(held.agent)
    took_s: list[float] = []
    for _ in range(count):
        handle = await team.orc.submit(skill)
        await held.has_begun(handle.id)
        asked_s = time.monotonic()
        await handle.cancel("enough")
        with pytest.raises(TaskCancelled, match="enough"):
            await handle.result(TIMEOUT_S)
        took_s.append(held.ended_s[handle.id] - asked_s)
    assert statistics.median(took_s) < 0.1
    assert max(took_s) < 1.0


async def test_cancelling_is_a_state(team: LocalTeam) -> None:
    """Until its handler has ended a cancelled task is `cancelling`, for status, info and lists; then `cancelled`."""
    held = Held()
    await team.work(held.agent)
    handle = await team.orc.submit("takes_its_time")
    await held.has_begun(handle.id)
    assert (await handle.status()).state is TaskState.RUNNING
    await handle.cancel("enough")
    status, info = await handle.status(), await handle.info()
    assert (status.state, status.detail.reason) == (TaskState.CANCELLING, "enough")
    assert (info.state, info.agent, info.attempts) == (TaskState.CANCELLING, "held", 1)
    assert not info.state.final
    for states, count in (({TaskState.CANCELLING}, 1), ({TaskState.RUNNING}, 0), (set[TaskState](), 1)):
        assert len(await queries.listing(team.services.store, states=states, limit=10)) == count
    held.may_end.set()
    with pytest.raises(TaskCancelled):
        await handle.result(TIMEOUT_S)
    assert (await handle.status()).state is TaskState.CANCELLED


async def test_the_mark_outlives_the_worker(team: LocalTeam) -> None:
    """Its worker drains before the handler has stopped: the task goes nowhere but to its end."""
    held = Held()
    worker = await team.work(held.agent)
    handle = await team.orc.submit("takes_its_time")
    await held.has_begun(handle.id)
    await handle.cancel("enough")
    held.may_end.set()
    await team.stop(worker)
    await team.work(held.agent)
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.result(TIMEOUT_S)


@pytest.mark.parametrize("garbage", [[("x", "y")], [("k", "dance"), ("t", "t"), ("g", "1")], [("k", "\xff" * 10)]])
async def test_odd_notes_are_passed_over(team: LocalTeam, garbage: list[tuple[str, str]]) -> None:
    """A note that says nothing known harms nobody; the next one is heard."""
    held = Held()
    worker = await team.work(held.agent)
    store = team.services.store
    handle = await team.orc.submit("awaits")
    await held.has_begun(handle.id)
    for _ in range(50):
        await store.execute("XADD", store.keys.notes(worker.id), "*", *[part for pair in garbage for part in pair])
    await store.execute("EXPIRE", store.keys.notes(worker.id), 60)
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled):
        await handle.result(TIMEOUT_S)


async def test_a_cancel_may_arrive_before_its_attempt(settings: object) -> None:
    """A note that overtakes the delivery is remembered for this attempt, and so many of them at most."""
    in_flight = InFlight(grace_s=lambda: 1.0)
    overtaken, other = new_task_id(), new_task_id()
    in_flight.cancel(overtaken, "7")

    def told(id_: str, generation: str) -> bool:
        held = in_flight.add(Delivery("ed", f"{id_}{generation}-1", id_, generation, 1, 0, b""))
        assert held is not None
        return held.stop_requested

    assert (told(overtaken, "7"), told(overtaken, "8"), told(other, "7")) == (True, False, False)
    for n in range(MAX_EARLY_CANCELS):
        in_flight.cancel(f"another-{n}", "1")
    assert not told(overtaken, "7 ")
    assert in_flight.find(overtaken, "7") is not None


async def test_listening_is_cheap(team: LocalTeam) -> None:
    """At rest nothing is asked for again and again: one read that blocks, beside the heartbeats."""
    await team.work(Held().agent)
    reads = 0
    for _ in range(2):
        info = (await team.services.store.execute("INFO", "commandstats")).decode()
        found = [line for line in info.splitlines() if line.startswith("cmdstat_xread:")]
        calls = int(found[0].split("calls=")[1].split(",")[0]) if found else 0
        reads = calls - reads
        await anyio.sleep(1.0)
    # The supervisor reads doorbell and control stream, and the client its replies; other tests may share the server.
    assert reads <= 20
