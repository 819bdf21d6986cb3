"""The suspects of one worker process: few beside each other, never in each other's way for ever."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.tasks.model import Delivery
from orchestrator.workers.runtime import suspects as suspects_module
from orchestrator.workers.runtime.in_flight import InFlight
from orchestrator.workers.runtime.suspects import ALONE_S, Suspects

if TYPE_CHECKING:
    from orchestrator.workers.runtime.attempt import Attempt


class Process:
    """What one worker process runs."""

    def __init__(self) -> None:
        self.in_flight = InFlight(grace_s=lambda: 10)
        self.suspects = Suspects(self.in_flight)
        self.stack = ExitStack()
        self.entries = 0

    def fetch(self, group: int | None = None, *, depth: int = 0, entry: str = "", generation: str = "7") -> Attempt:
        """Hold an attempt."""
        self.entries += 1
        id_ = f"0190f6e5-4d2a-7c3b-9f10-{self.entries:012}"
        delivery = Delivery("ed", entry or f"{self.entries}-0", id_, generation, 2, 1, b"", group=group, depth=depth)
        attempt = self.in_flight.add(delivery)
        assert attempt is not None
        return attempt

    def admit(self, attempt: Attempt) -> bool:
        """Admit an attempt, until it leaves; one that has no room is dropped."""
        admitted = self.stack.enter_context(self.suspects.admit(attempt))
        if not admitted:
            self.in_flight.drop(attempt.delivery)
        return admitted

    def start(self, group: int | None = None, *, depth: int = 0) -> bool:
        """Fetch an attempt and admit it."""
        return self.admit(self.fetch(group, depth=depth))


def leave(attempt: Attempt) -> None:
    """Give the room of a suspect to the next one."""
    assert attempt.leave_group is not None
    attempt.leave_group()


def test_what_never_died_needs_no_room() -> None:
    """An attempt without a group runs beside any suspects, and counts for none of them."""
    process = Process()
    assert [process.start(group) for group in (None, None, 1, None)] == [True] * 4
    assert process.suspects.running == [(0, 1)]
    assert not process.suspects.idle


@pytest.mark.parametrize(
    ("groups", "admitted"),
    [
        ((2, 2, 2), (True, True, False)),
        ((1, 1), (True, False)),
        ((1, 9), (True, False)),
        ((9, 1), (True, False)),
        ((9, 2, 9), (True, True, False)),
        ((3, 3, 2, 3), (True, True, False, True)),
    ],
)
def test_the_smallest_group_decides(groups: tuple[int, ...], admitted: tuple[bool, ...]) -> None:
    """No suspect shares the process with more others than its own group and theirs allow."""
    process = Process()
    assert tuple(process.start(group) for group in groups) == admitted


def test_one_that_leaves_makes_room() -> None:
    """The room of a suspect is free when its block ends, and before that when it is given away."""
    process = Process()
    first = process.fetch(1)
    with process.suspects.admit(first) as admitted:
        assert admitted
        assert not process.start(1)
    second = process.fetch(1)
    assert process.admit(second)
    leave(second)
    assert process.start(1)


def test_a_child_runs_beside_the_parents_that_may_wait_for_it() -> None:
    """Those above a task take none of its room; those below it do, and others of its depth."""
    process = Process()
    assert process.start(1, depth=0)
    assert process.start(1, depth=1)
    assert process.start(1, depth=2)
    assert not any(process.start(9, depth=depth) for depth in (0, 1, 2))
    assert process.suspects.running == [(0, 1), (1, 1), (2, 1)]


@given(
    beside=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=8),
    group=st.integers(1, 3),
)
def test_families_do_not_lock_each_other(beside: list[tuple[int, int]], group: int) -> None:
    """Whatever runs, a task deeper than all of it has room: the child that the deepest parent waits for."""
    process = Process()
    for other, depth in beside:
        process.start(other, depth=depth)
    deepest = max((depth for depth, _ in process.suspects.running), default=-1)
    assert process.start(group, depth=deepest + 1)


def test_alone() -> None:
    """A task that must run alone is admitted to an empty process only, and closes it until it ends."""
    process = Process()
    plain = process.fetch()
    assert process.admit(plain)
    assert not process.start(0), "another attempt runs"
    process.in_flight.drop(plain.delivery)
    assert process.suspects.idle
    assert process.suspects.closed_s == 0
    alone = process.fetch(0)
    assert process.admit(alone)
    assert process.suspects.running == [(0, 0)]
    assert ALONE_S - 1 < process.suspects.closed_s <= ALONE_S
    assert not any(process.start(group, depth=depth) for group in (None, 0, 9) for depth in (0, 1))
    process.in_flight.drop(alone.delivery)
    leave(alone)
    assert process.suspects.closed_s == 0
    assert process.start()


def test_a_process_opens_again_while_a_task_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that runs for long, or waits for its child, does not hold up the rest; suspects of its depth wait."""
    monkeypatch.setattr(suspects_module, "ALONE_S", 0.0)
    process = Process()
    assert process.start(0)
    assert process.suspects.closed_s == 0
    assert [process.start(None), process.start(9), process.start(9, depth=1)] == [True, False, True]


def test_leaving_twice() -> None:
    """An attempt gives its room away once: not that of the next one, under a new generation of the same entry."""
    process = Process()
    abandoned = process.fetch(1, entry="5-0")
    with process.suspects.admit(abandoned):
        leave(abandoned)
        leave(abandoned)
        process.in_flight.drop(abandoned.delivery)
        assert process.admit(process.fetch(1, entry="5-0", generation="8"))
    leave(abandoned)
    assert process.suspects.running == [(0, 1)]
    assert not process.start(1)


def test_leaving_late_does_not_open_a_closed_process() -> None:
    """A handler that ends long after it was abandoned opens the process of no other task."""
    process = Process()
    abandoned = process.fetch(0, entry="5-0")
    with process.suspects.admit(abandoned):
        leave(abandoned)
        process.in_flight.drop(abandoned.delivery)
        assert process.admit(process.fetch(0, entry="5-0", generation="8"))
    assert process.suspects.closed_s > 0


def test_entries_of_two_agents_are_told_apart() -> None:
    """Two agents of one worker count the entries of both."""
    process = Process()
    one = process.fetch(2, entry="5-0")
    other = Delivery("ann", "5-0", one.delivery.task_id, "7", 2, 1, b"", group=2)
    held = process.in_flight.add(other)
    assert held is not None
    assert process.admit(one)
    assert process.admit(held)
    assert not process.start(2)
    leave(one)
    assert process.suspects.running == [(0, 2)]


async def test_whoever_waits_hears_of_each_suspect_that_ends() -> None:
    """The end of a suspect is told; that of another attempt is not, and neither is a second leave."""
    process, heard = Process(), list[str]()
    plain, first, second = process.fetch(), process.fetch(2), process.fetch(2)
    assert process.admit(plain)
    assert process.admit(first)
    assert process.admit(second)

    async def listen() -> None:
        while True:
            await process.suspects.wait_left()
            heard.append("left")

    async def settle() -> list[str]:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        return heard

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        await settle()
        leave(plain)
        assert await settle() == []
        leave(first)
        leave(first)
        assert await settle() == ["left"]
        leave(second)
        assert await settle() == ["left", "left"]
        group.cancel_scope.cancel()
