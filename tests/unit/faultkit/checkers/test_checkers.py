"""Each checker calls a sound history good, and finds every kind of fault that is planted into it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.faultkit.checkers.final_state import FinalState, StoredChunk, StoredInbox, StoredKey, StoredTask
from tests.faultkit.checkers.history import (
    AllStopped,
    CancelAnswered,
    CancelStarted,
    EmitConfirmed,
    EmitStarted,
    EndNoted,
    EndSeen,
    Event,
    FaultsEnded,
    History,
    Killed,
    LeaderSeen,
    Line,
    RunEnded,
    RunStarted,
    SubmitAccepted,
    SubmitRejected,
    SubmitStarted,
    SubmitUnanswered,
)
from tests.faultkit.checkers.keyspace import check_growth
from tests.faultkit.checkers.rules import Bounds, LimitRule, Rules, SkillRule
from tests.faultkit.checkers.run_checks import run_checks
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Callable

RULES = Rules(
    bounds=Bounds(drained_ms=1000, restarted_ms=500),
    skills={"tell": SkillRule(chunks=2), "fail": SkillRule(ends=frozenset({"dead"}), max_attempts=2)},
    limits={"shared": LimitRule(2, 1000)},
    ranked=frozenset({"work"}),
    live={"a": 1},
)


def begun(task: str, generation: int, at_ms: int, **more: Any) -> RunStarted:
    """An attempt of a run that is called after task and generation."""
    values: dict[str, Any] = {
        "attempt": 1, "entry": f"{at_ms}-0", "agent": "a", "worker": "w", "run": f"{task}{generation}", "limits": (),
    }  # fmt: skip
    return RunStarted(task, str(generation), **values | more)


def stored(task: str, generation: int, **more: Any) -> StoredTask:
    """A task that succeeded in this generation, at 3000."""
    values: dict[str, Any] = {
        "state": "succeeded", "skill": "work", "op": f"op {task}", "ended_ms": 3000,
        "result": f'{{"run": "{task}{generation}"}}',
    }  # fmt: skip
    return StoredTask(id=task, generation=generation, **values | more)


SOUND: list[Event] = [
    SubmitStarted("op t1", key="k"),
    SubmitStarted("op t1", key="k"),
    SubmitAccepted("op t1", "t1"),
    SubmitAccepted("op t1", "t1"),
    begun("t1", 1000, 1010, limits=("shared",)),
    RunEnded("t1", "1000", "t11000", "returned"),
    EndSeen("t1", "succeeded", '{"run": "t11000"}'),
    EndNoted("t1", "succeeded", "3000-0"),
    SubmitStarted("op t2"),
    SubmitUnanswered("op t2", ("t2",)),
    begun("t2", 1100, 1120, limits=("shared",), worker="v", pid=7),
    begun("t2", 2200, 1120, limits=("shared",), attempt=2),
    EmitStarted("t2", "1100", 1),
    EmitStarted("t2", "2200", 1),
    EmitConfirmed("t2", "2200", 1),
    EmitStarted("t2", "2200", 2),
    SubmitStarted("op t3"),
    SubmitAccepted("op t3", "t3"),
    CancelStarted("t3"),
    CancelAnswered("t3", "ended"),
    SubmitStarted("op t4"),
    SubmitAccepted("op t4", "t4"),
    begun("t4", 1300, 1310),
    begun("t4", 1400, 1410, attempt=2, run="t41400"),
    SubmitStarted("op t5"),
    SubmitRejected("op t5", "the queue is full"),
    LeaderSeen(1000, "s1", 900),
    LeaderSeen(2000, "s2", 900),
    LeaderSeen(2897, "s1", 900),
    AllStopped("c", 500, 900),
    FaultsEnded(2500),
    Killed(111, "worker", (7,), handler_ms=400, until_ms=200),
]
FINAL = FinalState(
    tasks={
        "t1": stored("t1", 1000, key="k"),
        "t2": stored("t2", 2200, skill="tell", deaths=1, death_notes={1: "1 w lease ran out"}),
        "t3": stored("t3", 1200, state="cancelled", result=None),
        "t4": stored(
            "t4", 1400, skill="fail", state="dead", result=None, reason="ValueError", fails=2,
            errors={1: "ValueError: run=t41300", 2: "ValueError: run=t41400"}, lane="x",
        ),
    },
    outputs={
        "t2": [
            StoredChunk("2300-0", "output", 2200, 1),
            StoredChunk("2310-0", "progress", 2200, 0),
            StoredChunk("2320-0", "output", 2200, 2),
            StoredChunk("3000-0", "succeeded", 2200, 0),
        ]
    },
    dead=frozenset({"t4"}),
    keys={
        "task:t1": StoredKey("hash", 8, has_ttl=True, permanent=False),
        "events": StoredKey("stream", 4, has_ttl=False, permanent=True),
        "agents": StoredKey("zset", 1, has_ttl=False, permanent=True),
        "out:t2": StoredKey("stream", 4, has_ttl=True, permanent=False),
    },
    inboxes={"a": StoredInbox(0, 0, ("w",))},
)  # fmt: skip


def told(*events: Event) -> History:
    """A history; its lines have the wall clock of the numbers in it."""
    return History(Line(100 + number, "test", event) for number, event in enumerate(events))


def faults(events: list[Event], final: FinalState, rules: Rules = RULES) -> list[str]:
    """What is found, with the short name of the promise first."""
    return run_checks(told(*events), final, rules).violations


def with_task(id_: str, **changed: Any) -> FinalState:
    """The sound state with one task changed."""
    return replace(FINAL, tasks={**FINAL.tasks, id_: replace(FINAL.tasks[id_], **changed)})


def test_a_sound_history_is_good() -> None:
    """With keys sent twice, an unknown outcome, an adoption, a cancel, a dead letter, a change of leaders."""
    judgement = run_checks(told(*SOUND), FINAL, RULES)
    assert judgement.violations == []
    assert judgement.unchecked == []
    assert judgement.passed
    promises = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I9", "I10", "I11", "I12", "I13", "I14", "I15", "I16")
    assert all(name in str(judgement) for name in promises)


def test_a_history_of_nothing_is_not_good() -> None:
    """A run in which nothing happened shows nothing, so it does not pass."""
    judgement = run_checks(told(), FinalState(), RULES)
    assert judgement.violations == []
    assert len(judgement.unchecked) == len(judgement.findings)
    assert not judgement.passed


def without(id_: str) -> FinalState:
    """The sound state without one task."""
    return replace(
        FINAL,
        tasks={known: task for known, task in FINAL.tasks.items() if known != id_},
        outputs={known: chunks for known, chunks in FINAL.outputs.items() if known != id_},
    )


def with_chunks(*chunks: StoredChunk) -> FinalState:
    """The sound state with another output of t2."""
    return replace(FINAL, outputs={"t2": chunks})


def with_key(name: str, key: StoredKey) -> FinalState:
    """The sound state with one key more."""
    return replace(FINAL, keys={**FINAL.keys, name: key})


CHUNK = StoredChunk("2300-0", "output", 2200, 1)
STATES: dict[str, tuple[FinalState, str]] = {
    "a task is lost": (without("t1"), "I1.*t1.*is lost"),
    "a task does not end": (with_task("t1", state="assigned"), "I1.*t1.*has not ended: assigned"),
    "a task comes from nowhere": (
        replace(FINAL, tasks={**FINAL.tasks, "x": stored("x", 1, state="cancelled", op="nobody's")}),
        "I1.*x.*never submitted",
    ),
    "a refused task is stored": (
        replace(FINAL, tasks={**FINAL.tasks, "t5": stored("t5", 1, state="cancelled")}),
        "I1.*t5.*although its submit was refused",
    ),
    "one key is two tasks": (
        replace(FINAL, tasks={**FINAL.tasks, "y": stored("y", 1000, key="k", op="op t1")}),
        "I1.*key 'k' has tasks t1, y",
    ),
    "an intention is two tasks": (
        replace(FINAL, tasks={**FINAL.tasks, "y": stored("y", 1000, op="op t3")}),
        "I1.*op t3 was meant once and became tasks t3, y",
    ),
    "a task ends as nobody asked": (with_task("t1", state="cancelled"), "I1.*t1.*ended as cancelled"),
    "a task is given up too early": (
        with_task("t1", state="dead", reason="deaths", deaths=1, death_notes={1: "x"}),
        "I1.*t1.*ended as dead",
    ),
    "a client was told something else": (with_task("t1", result='{"run": "other"}'), "I2.*was seen with the result"),
    "a client saw another end": (with_task("t1", state="dead", reason="x"), "I2.*was seen to end as succeeded"),
    "what a client saw is gone": (without("t1"), "I2.*was seen to end as succeeded and is gone"),
    "a cancelled task goes on": (with_task("t3", state="succeeded"), "I2.*t3 was cancelled for good and is succeeded"),
    "an attempt begins after the end": (with_task("t2", ended_ms=2000), "I2.*t2 ended at 2000.*granted at 2200"),
    "a confirmed chunk is lost": (with_chunks(), "I3.*chunks .1. were confirmed and are lost"),
    "a chunk is doubled": (with_chunks(CHUNK, CHUNK), r"I3.*numbered \[1, 1\]"),
    "a chunk is missing": (with_chunks(CHUNK), "I3.*succeeded with 1 chunks of 2"),
    "a stale attempt writes": (
        with_chunks(CHUNK, StoredChunk("2301-0", "output", 2200, 2), StoredChunk("2302-0", "progress", 1100, 0)),
        "I3.*generation 1100 was lost at 2200 and wrote 2302-0",
    ),
    "a chunk of nobody": (
        with_chunks(CHUNK, StoredChunk("2301-0", "output", 2200, 2), StoredChunk("2302-0", "output", 2200, 3)),
        "I3.*chunks .3. were never emitted",
    ),
    "a stale result is stored": (with_task("t2", result='{"run": "t21100"}'), "I4.*has the result of generation 1100"),
    "a result of nobody": (with_task("t2", result='{"run": "strange"}'), "I4.*another task"),
    "a success without an attempt": (with_task("t2", generation=5000), "I4.*generation 5000, which no worker executed"),
    "an attempt from the future": (with_task("t4", generation=1300), "I4.*of generation 1300, but 1400 was executed"),
    "a failure is counted twice": (
        with_task("t4", errors={1: "run=t41300", 2: "run=t41300"}),
        "I4.*failure of run t41300 more than once",
    ),
    "a failure of another task": (with_task("t4", errors={1: "run=t11000", 2: "run=t41400"}), "I4.*another task"),
    "a failure of another attempt": (
        with_task("t4", errors={1: "run=t41400", 2: "run=t41300"}),
        "I4.*failure of attempt 2 as that of attempt 1",
    ),
    "a failure without its text": (with_task("t4", errors={1: "run=t41300"}), "I4.*counts 2 failures and has the"),
    "the end comes late": (with_task("t1", ended_ms=4000), "I9.*t1.*ended only 1500 ms"),
    "an orphan waits": (with_task("t4", ended_ms=3200), "I9.*t4.*began again only 700 ms"),
    "a key stays for ever": (
        with_key("task:t1", StoredKey("hash", 8, has_ttl=False, permanent=False)),
        "I10.*without a lifetime: task:t1",
    ),
    "a task is left in a queue": (
        with_key("queue:skill:work", StoredKey("zset", 3, has_ttl=False, permanent=True)),
        "I10.*3 tasks still wait in queue:skill:work",
    ),
    "a stream grows": (
        with_key("doorbell", StoredKey("stream", 5000, has_ttl=False, permanent=True)),
        "I10.*doorbell has 5000 entries",
    ),
    "a registry grows": (
        with_key("agents", StoredKey("zset", 900, has_ttl=False, permanent=True)),
        "I10.*permanent key agents has grown to 900",
    ),
    "an output is orphaned": (
        with_key("out:gone", StoredKey("stream", 1, has_ttl=True, permanent=False)),
        "I10.*out:gone is of a task that is not there",
    ),
    "an entry is left": (replace(FINAL, inboxes={"a": StoredInbox(1, 0, ("w",))}), "I10.*a: 1 entries, 0 pending"),
    "a pending entry is left": (replace(FINAL, inboxes={"a": StoredInbox(0, 2, ())}), "I10.*a: 0 entries, 2 pending"),
    "a consumer is left": (replace(FINAL, inboxes={"a": StoredInbox(0, 0, ("v", "w"))}), "I10.*2 consumers of 1"),
    "a dead letter is not listed": (replace(FINAL, dead=frozenset()), "I10.*t4 is dead and not among"),
    "a dead letter is none": (replace(FINAL, dead=frozenset({"t1", "t4"})), "I10.*t1 is among the dead letters"),
    "a dead letter has no reason": (with_task("t4", reason=""), "I11.*t4 lacks its reason"),
    "a dead letter has no payload": (with_task("t4", skill=""), "I11.*t4 lacks its payload"),
    "a dead letter has no attempts": (with_task("t4", errors={}, fails=0), "I11.*t4 lacks its attempts"),
    "a dead letter has an empty attempt": (with_task("t4", errors={1: "", 2: "x"}), "I11.*lacks the text"),
    "too many failures": (with_task("t4", fails=3), "I11.*t4 failed 3 times of 2"),
    "too many deaths": (with_task("t2", blamed=4), "I11.*t2 died 4 times as the only suspect, of 3"),
    "two of a lane at once": (
        with_task("t1", lane="x"),
        "I12.*lane x: task t4 was assigned at 1310, t1 ended at 3000",
    ),
    "a lost task ends late": (with_task("t2", ended_ms=4000), "I14.*t2.*ended only 3889 ms after a worker was killed"),
    "an innocent is given up": (
        with_task("t1", state="dead", reason="deaths", deaths=3, death_notes={1: "x", 2: "x", 3: "x"}),
        "I16.*t1.*kills no process and is a dead letter after 3 deaths",
    ),
    "a death leaves no evidence": (with_task("t2", death_notes={}), "I11.*counts 1 deaths and has evidence of 0"),
}


@each_case("fault", STATES)
def test_a_fault_of_the_final_state_is_found(fault: str, matches: Callable[[str, list[str]], None]) -> None:
    """Everything that may be wrong with what is stored."""
    final, found = STATES[fault]
    matches(found, faults(SOUND, final))


HISTORIES: dict[str, tuple[list[Event], str]] = {
    "two ids for one key": ([SubmitAccepted("op t1", "t3")], "I1.*key 'k' has tasks t1, t3"),
    "an end is noted twice": ([EndNoted("t1", "succeeded", "3001-0")], "I2.*t1 ended 2 times"),
    "another end is noted": ([EndNoted("t2", "dead", "3001-0")], "I2.*t2 ended as dead and is succeeded"),
    "an attempt is executed twice": ([begun("t1", 1000, 1010, run="again")], "I4.*t1.*1000 was executed 2 times"),
    "a limit is exceeded": ([begun("t6", 1500, 1500, limits=("shared",))], "I5.*limit shared: 3 starts from 1010 to"),
    "a limit is exceeded by an adoption": (
        [begun("t6", 2950, 700, limits=("shared",)), begun("t7", 2960, 700, limits=("shared",))],
        "I5.*limit shared: 3 starts from 2200 to 2960",
    ),
    "a lease is taken early": ([LeaderSeen(3700, "s2", 900)], "I7.*s2 led at 3700.*lease of s1 ran until 3797"),
    "an attempt begins while all is stopped": (
        [AllStopped("c", -200, 900), begun("t2", 1100, 1120, run="more")],
        "I13.*task t2 began on w .* ms after all had acknowledged command c",
    ),
    "a generation comes again": ([begun("t2", 1100, 2900, run="again")], "I7.*t2 was granted in the generations"),
}


@each_case("fault", HISTORIES)
def test_a_fault_of_the_history_is_found(fault: str, matches: Callable[[str, list[str]], None]) -> None:
    """Everything that may be wrong with what was done."""
    events, found = HISTORIES[fault]
    matches(found, faults(SOUND + events, FINAL))


OVERTAKEN = "task l of priority 5 was assigned at 1210, while u of priority 2 waited from 1000 to 1300"


@pytest.mark.parametrize(
    ("ready_ms", "overtaken"), [(1000, True), (1208, False)], ids=["waited", "came just before the other was assigned"]
)
def test_overtaking_is_found(ready_ms: int, *, overtaken: bool) -> None:
    """A less urgent task was assigned while a more urgent one had been waiting."""
    tasks = {"u": stored("u", ready_ms, priority=2), "l": stored("l", 1100, priority=5)}
    events = [*SOUND, SubmitUnanswered("x", ("u", "l")), begun("u", ready_ms, 1300), begun("l", 1100, 1210)]
    found = faults(events, replace(FINAL, tasks={**FINAL.tasks, **tasks}))
    assert found == (["I6 no overtaking: " + OVERTAKEN] if overtaken else [])


@pytest.mark.parametrize(("lane", "faulty"), [("y", True), ("steered by people", False)])
def test_a_lane_out_of_order_is_found(lane: str, *, faulty: bool) -> None:
    """A task ran before one that was submitted earlier; in lanes in which people interrupt that is no fault."""
    tasks = {id_: stored(id_, 1000, lane=lane, ended_ms=ended_ms) for id_, ended_ms in (("l1", 1400), ("l2", 1200))}
    events = [*SOUND, SubmitUnanswered("x", ("l1", "l2")), begun("l1", 1000, 1210), begun("l2", 1000, 1010)]
    rules = replace(RULES, steered_lanes=("steered",))
    found = faults(events, replace(FINAL, tasks={**FINAL.tasks, **tasks}), rules)
    wrong = [one for one in found if one.startswith("I12")]
    assert wrong == ["I12 lanes keep their order: lane y: task l2 ran before l1, which was submitted earlier"] * faulty


def after_a_kill(how: str, waited_ms: int, lag_ms: int = 0) -> tuple[History, FinalState]:
    """A kill at 1000 that takes t1, which began at 900 and ends at 5000; t2 is submitted at 1100."""
    lines: list[tuple[int, Event]] = [
        (900, begun("t1", 900, 900, pid=7)),
        (1100, SubmitAccepted("op t2", "t2")),
        (1100 + waited_ms, begun("t2", 1100, 1100, pid=8, run="fresh")),
        (1100 + waited_ms, RunEnded("t2", "1100", "fresh", "returned")),
        (4000, begun("t1", 1300, 4000, pid=8, attempt=2)),
        (9000, Killed(1000, how, () if how == "poison" else (7,), handler_ms=400, until_ms=2000, lag_ms=lag_ms)),
    ]
    final = FinalState(tasks={"t1": stored("t1", 1300, ended_ms=5000), "t2": stored("t2", 1100)})
    return History(Line(at_ms, "test", event) for at_ms, event in lines), final


@pytest.mark.parametrize(("waited_ms", "lag_ms", "starved"), [(2400, 0, False), (2401, 0, True), (2401, 1, False)])
def test_a_fresh_task_that_starves_is_found(waited_ms: int, lag_ms: int, *, starved: bool) -> None:
    """It waits for longer than one handler, the margin, and what the machine kept from the load."""
    found = run_checks(*after_a_kill("worker", waited_ms, lag_ms), RULES).violations
    text = f"I15 fresh tasks do not starve: task t2 was submitted after a worker was killed and waited {waited_ms} ms"
    assert any(one.startswith(text) for one in found) == starved


@pytest.mark.parametrize(
    ("how", "bounds", "late"),
    [
        ("worker", {}, True),
        ("worker", {"ended_handlers": 5}, False),
        ("machine", {}, True),
        ("machine", {"machine_ms": 1000}, False),
        ("poison", {}, False),
        ("poison", {"poison_handlers": 1, "poison_margin_ms": 0}, True),
    ],
)
def test_ends_after_a_kill_are_judged_by_its_kind(how: str, bounds: dict[str, Any], *, late: bool) -> None:
    """A machine is noticed late, and the tasks that died with a poison may die again while it is searched for."""
    history, final = after_a_kill(how, 0)
    rules = replace(RULES, bounds=replace(RULES.bounds, **bounds))
    assert any(one.startswith("I14") for one in run_checks(history, final, rules).violations) == late


def test_growth_of_permanent_keys_is_found() -> None:
    """A new one, or one that holds more and more."""
    assert check_growth(FINAL, FINAL).violations == ()
    grown = with_key("agents", StoredKey("zset", 900, has_ttl=False, permanent=True))
    assert "agents grew from 1 to 900" in check_growth(FINAL, grown).violations[0]
    more = with_key("parked:a", StoredKey("zset", 1, has_ttl=False, permanent=True))
    assert check_growth(FINAL, more).violations == ("a new permanent key: parked:a",)


@pytest.fixture
def matches() -> Callable[[str, list[str]], None]:
    """See that what was found is told in one of the sentences."""
    import re

    def check(pattern: str, found: list[str]) -> None:
        assert any(re.search(pattern, one) for one in found), found

    return check
