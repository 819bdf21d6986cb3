"""What is said of a task in moments that are too short, or too long, to be waited for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator import Cause
from orchestrator.core.rates import Rate
from orchestrator.tasks.model import TaskState
from orchestrator.why.explanation import explain
from orchestrator.why.facts import AgentFacts, Findings, LimitFacts, SkillOffers, WorkerFacts
from tests.helpers.cases import each_case

NOW_MS = 1_800_000_000_000
NOON_MS = NOW_MS - NOW_MS % 86_400_000 + 43_200_000
"""Noon of that day."""

AGENT = AgentFacts(
    name="editor",
    seen_ms=NOW_MS - 100,
    slots=2,
    backlog=0,
    lease_ms=15_000,
    grace_ms=0,
    skilled=True,
    workers=2,
    inbox=0,
    max_attempts=3,
    max_deaths=3,
    limits=(),
    offers=SkillOffers(),
)
WORKER = WorkerFacts("w1", idle_ms=1000, seen_ms=NOW_MS - 100, host="h", pid=7, registered=True)
FOUND = Findings(
    id="t",
    now_us=NOW_MS * 1000,
    supervisor="s",
    state=TaskState.READY,
    version=(),
    generation=NOW_MS - 5000,
    skill="sum",
    queue="skill:sum",
    fails=0,
    deaths=0,
    cancel=None,
    left="",
    reason="",
    death="",
    ended_ms=None,
    progress=None,
    rank=0,
    agents=(AGENT,),
)


@each_case(
    ("away_s", "words"),
    [
        (0.04, "12:00:00 UTC (in 0.0 s)"),
        (9.94, "12:00:09 UTC (in 9.9 s)"),
        (14, "12:00:14 UTC (in 14 s)"),
        (119, "12:01:59 UTC (in 119 s)"),
        (150, "12:02:30 UTC (in 2 min)"),
        (7199, "13:59:59 UTC (in 120 min)"),
        (3 * 3600, "15:00:00 UTC (in 3 h)"),
        (13 * 3600, "-16 01:00:00 UTC (in 13 h)"),
        (40 * 86_400, "UTC (in 40 d)"),
    ],
)
def test_times(away_s: float, words: str) -> None:
    """A time is told as of the day, with the date if that is another one, and its distance in a unit that fits."""
    found = replace(FOUND, now_us=NOON_MS * 1000, state=TaskState.SCHEDULED, due_ms=NOON_MS + int(away_s * 1000))
    why = explain(found)
    assert why.cause is Cause.SCHEDULED
    assert why.text.endswith(words)
    assert why.until == datetime.fromtimestamp(NOON_MS / 1000, UTC) + timedelta(milliseconds=int(away_s * 1000))


@pytest.mark.parametrize(("slots", "workers", "words"), [(0, 0, "it has no live worker"), (0, 1, "its workers drain")])
def test_unread_by_workers_that_leave(slots: int, workers: int, words: str) -> None:
    """What lies unread in the inbox of an agent that nobody serves any more goes back by itself."""
    agent = replace(AGENT, slots=slots, workers=workers)
    found = replace(FOUND, state=TaskState.ASSIGNED, in_inbox=True, entry_ms=NOW_MS - 400, agents=(agent,))
    why = explain(found)
    assert why.cause is Cause.UNREAD
    assert why.text == (
        f"put into the inbox of agent 'editor' 0.4 s ago, no worker has read it yet: {words}, "
        "the task goes back to its queue"
    )


def test_forgotten_worker() -> None:
    """A worker that the registry has forgotten is silent, wherever its process may be."""
    worker = replace(WORKER, seen_ms=None, host="", pid=None, registered=False)
    found = replace(FOUND, state=TaskState.RUNNING, in_inbox=True, entry_ms=NOW_MS - 6000, worker=worker)
    why = explain(found)
    assert (why.cause, why.host, why.seen) == (Cause.WORKER_SILENT, None, None)
    assert why.text.startswith("worker w1 on an unknown host has it and is forgotten; its lease runs out at ")
    assert why.text.endswith(" (in 14 s), then another worker of agent 'editor' takes it")


def test_grace_after_an_outage() -> None:
    """While everybody gets time to come back, a lease that has run out is not what counts."""
    agent, worker = replace(AGENT, grace_ms=NOW_MS + 9000), replace(WORKER, idle_ms=16_000, seen_ms=NOW_MS - 16_000)
    why = explain(replace(FOUND, state=TaskState.RUNNING, in_inbox=True, worker=worker, agents=(agent,)))
    assert why.until == datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(seconds=9)


def test_an_attempt_that_was_taken_over_runs_since_then() -> None:
    """The entry is older than the attempt that took it over; the attempt counts."""
    found = replace(FOUND, state=TaskState.RUNNING, in_inbox=True, entry_ms=NOW_MS - 60_000, worker=WORKER, deaths=1)
    why = explain(found)
    assert (why.attempt, why.since) == (2, datetime.fromtimestamp(NOW_MS / 1000 - 5, UTC))


@each_case(
    ("agents", "cause"),
    [
        ([{"limits": (LimitFacts("x", None),)}], Cause.LIMIT_UNDEFINED),
        ([{"limits": (LimitFacts("x", None),)}, {"inbox": 2}], Cause.NO_ROOM),
        ([{"limits": (LimitFacts("x", Rate(1, 1000), 1, NOW_MS * 1000 + 5),)}, {"inbox": 2}], Cause.LIMIT),
        ([{"limits": (LimitFacts("x", Rate(1, 1000), 1, NOW_MS * 1000 + 5),), "inbox": 2}], Cause.NO_ROOM),
        ([{"limits": (LimitFacts("x", Rate(1, 1000), 1, NOW_MS * 1000 + 5),)}, {}], Cause.TURN),
        ([{"limits": (LimitFacts("x", None),)}, {"inbox": 2}, {}], Cause.TURN),
        ([{"inbox": 2, "backlog": 1}], Cause.TURN),
        ([{"skilled": False}, {"inbox": 2}], Cause.NO_ROOM),
        ([], Cause.NO_AGENT),
    ],
)
def test_of_several_agents_the_one_that_can_take_it_first_decides(agents: list[dict[str, Any]], cause: Cause) -> None:
    """One agent without obstacle leaves nothing but its turn; a limit that opens counts before slots that are taken."""
    found = replace(FOUND, agents=tuple(replace(AGENT, name=f"a{i}", **one) for i, one in enumerate(agents)))
    assert explain(found).cause is cause


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"supervisor": None, "rank": None, "agents": ()}, Cause.NO_SUPERVISOR),
        ({"rank": None, "agents": ()}, Cause.LOST),
        ({"queue": "agent:editor", "agents": (replace(AGENT, slots=0, skilled=False),)}, Cause.AGENT_DRAINING),
        ({"queue": "agent:editor", "parked": True, "rank": None}, Cause.TURN),
    ],
)
def test_what_must_go_first_is_named(changed: dict[str, Any], cause: Cause) -> None:
    """Of several obstacles the one that holds most is named: while it lasts, the others do not matter."""
    assert explain(replace(FOUND, **changed)).cause is cause
