"""The entries in a worker's hands."""

from __future__ import annotations

import anyio
import pytest

from orchestrator.tasks.model import Delivery
from workers.runtime.holdings import Held, Holdings
from workers.testing import make_context


def delivery(entry: str = "1-0", *, agent: str = "editor", generation: str = "7") -> Delivery:
    """Make an entry."""
    return Delivery(agent, entry, "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55", generation, 1, 0, b"")


def hold(holdings: Holdings, one: Delivery) -> Held:
    """Hold an entry that is not held yet."""
    held = holdings.add(one)
    assert held is not None
    return held


def test_an_entry_is_held_once() -> None:
    """The same entry handed out twice is held by the first, so that it never starts twice."""
    holdings = Holdings(grace_s=10)
    held = hold(holdings, delivery())
    assert holdings.add(delivery()) is None
    assert holdings.get("editor", "1-0") is held
    assert len(holdings) == 1


def test_letting_go_knows_the_generation() -> None:
    """A late end of an older generation does not drop the entry that came back under a new one."""
    holdings = Holdings(grace_s=10)
    old = delivery(generation="7")
    hold(holdings, old)
    holdings.drop(old)
    newer = delivery(generation="8")
    hold(holdings, newer)
    holdings.drop(old)
    assert [held.delivery for held in holdings.all()] == [newer]
    holdings.drop(newer)
    holdings.drop(newer)
    assert len(holdings) == 0


def test_snapshots_are_by_agent() -> None:
    """Each agent's entries are listed apart."""
    holdings = Holdings(grace_s=10)
    hold(holdings, delivery("1-0"))
    hold(holdings, delivery("1-0", agent="other"))
    assert [held.delivery.agent for held in holdings.of("editor")] == ["editor"]
    assert len(holdings.all()) == 2


@pytest.mark.parametrize(
    ("reasons", "stands"),
    [
        (["cancelled", "drain"], "cancelled"),
        (["drain", "lost"], "lost"),
        (["lost", "cancelled"], "lost"),
        (["stopped", "cancelled"], "cancelled"),
        (["cancelled", "stopped"], "cancelled"),
        (["stopped", "drain"], "stopped"),
    ],
)
async def test_the_first_reason_stands_unless_the_entry_is_lost(reasons: list[str], stands: str) -> None:
    """Stopping cancels the handler and tells its context; a lost entry overrides every other reason."""
    held = hold(Holdings(grace_s=10), delivery())
    held.context = make_context()
    held.scope, held.running = anyio.CancelScope(), True
    for why in reasons:
        held.stop(why)
    assert held.why == stands
    assert held.scope.cancel_called
    assert held.context is not None
    assert held.context.cancelled


def test_an_entry_can_be_stopped_before_it_runs() -> None:
    """Without a handler the reason is kept for whoever would start it."""
    held = hold(Holdings(grace_s=10), delivery())
    held.stop("cancelled")
    assert held.why == "cancelled"
