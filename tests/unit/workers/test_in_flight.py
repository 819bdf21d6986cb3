"""The entries in a worker's hands."""

from __future__ import annotations

import anyio
import pytest

from orchestrator.tasks.model import Delivery
from orchestrator.workers.runtime.attempt import Attempt, StopCause
from orchestrator.workers.runtime.in_flight import InFlight
from orchestrator.workers.testing import make_context


def delivery(entry: str = "1-0", *, agent: str = "editor", generation: str = "7") -> Delivery:
    """Make an entry."""
    return Delivery(agent, entry, "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55", generation, 1, 0, b"")


def hold(in_flight: InFlight, one: Delivery) -> Attempt:
    """Hold an entry that is not held yet."""
    held = in_flight.add(one)
    assert held is not None
    return held


def test_an_entry_is_held_once() -> None:
    """The same entry handed out twice is held by the first, so that it never starts twice."""
    in_flight = InFlight(grace_s=lambda: 10)
    held = hold(in_flight, delivery())
    assert in_flight.add(delivery()) is None
    assert in_flight.get("editor", "1-0") is held
    assert len(in_flight) == 1


def test_letting_go_knows_the_generation() -> None:
    """A late end of an older generation does not drop the entry that came back under a new one."""
    in_flight = InFlight(grace_s=lambda: 10)
    old = delivery(generation="7")
    hold(in_flight, old)
    in_flight.drop(old)
    newer = delivery(generation="8")
    hold(in_flight, newer)
    in_flight.drop(old)
    assert [held.delivery for held in in_flight.all()] == [newer]
    in_flight.drop(newer)
    in_flight.drop(newer)
    assert len(in_flight) == 0


def test_snapshots_are_by_agent() -> None:
    """Each agent's entries are listed apart."""
    in_flight = InFlight(grace_s=lambda: 10)
    hold(in_flight, delivery("1-0"))
    hold(in_flight, delivery("1-0", agent="other"))
    assert [held.delivery.agent for held in in_flight.of("editor")] == ["editor"]
    assert len(in_flight.all()) == 2


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ([StopCause.CANCELLED, StopCause.DRAIN], StopCause.CANCELLED),
        ([StopCause.DRAIN, StopCause.LEASE_LOST], StopCause.LEASE_LOST),
        ([StopCause.LEASE_LOST, StopCause.CANCELLED], StopCause.LEASE_LOST),
        ([StopCause.COMMAND, StopCause.CANCELLED], StopCause.CANCELLED),
        ([StopCause.CANCELLED, StopCause.COMMAND], StopCause.CANCELLED),
        ([StopCause.COMMAND, StopCause.DRAIN], StopCause.COMMAND),
    ],
)
async def test_the_first_reason_stands_unless_the_entry_is_lost(causes: list[StopCause], expected: StopCause) -> None:
    """Stopping cancels the handler and tells its context; a lost entry overrides every other reason."""
    held = hold(InFlight(grace_s=lambda: 10), delivery())
    context = make_context()
    held.resources = context._resources
    held.scope, held.running = anyio.CancelScope(), True
    for cause in causes:
        held.stop(cause)
    assert held.stop_cause is expected
    assert held.scope.cancel_called
    assert context.cancelled


def test_an_entry_can_be_stopped_before_it_runs() -> None:
    """Without a handler the reason is kept for whoever would start it."""
    held = hold(InFlight(grace_s=lambda: 10), delivery())
    held.stop(StopCause.CANCELLED)
    assert held.stop_cause is StopCause.CANCELLED
