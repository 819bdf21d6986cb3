"""The life of a task as spans, and their picture."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from orchestrator.dashboard.timeline import TimelineSpan, draw, lasted, spans_of
from orchestrator.tasks.history import AttemptOutcome, TaskAttempt
from orchestrator.tasks.model import Question, TaskState
from orchestrator.views.task_values import TaskDetails
from orchestrator.why.model import Cause, TaskInfo, Why

T0 = datetime(2026, 1, 1, tzinfo=UTC)
OF_AGENTS = {Cause.UNREAD, Cause.RUNNING, Cause.WORKER_SILENT, Cause.CANCELLING, Cause.ENDED}
"""Causes of tasks that an agent has, or that have ended."""
NOW = T0 + timedelta(seconds=100)


def _at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def _task(state: TaskState, why: Why, *history: TaskAttempt, ended: float | None = None) -> TaskDetails:
    info = TaskInfo(
        id="01a20b3c-8edb-710f-8780-7ca34f674ff4", state=state, why=why.text, skill="s", agent=None, worker=None,
        priority=2, session=None, tags=(), key=None, parent=None, attempts=1, submitted_at=T0,
        ended_at=None if ended is None else _at(ended), history=history,
    )  # fmt: skip
    return TaskDetails(info, why, None, None, redacted=False, effects=())


def _attempt(number: int, outcome: AttemptOutcome | None, *at: float) -> TaskAttempt:
    assigned, began, *ended = at
    return TaskAttempt(
        number, number, outcome, "a", "w", _at(assigned), _at(began), _at(ended[0]) if ended else None, "boom"
    )


def _words(task: TaskDetails) -> list[tuple[str, float]]:
    return [(span.what, span.seconds(NOW)) for span in spans_of(task)]


def test_attempts_and_pauses() -> None:
    """Waiting, the inbox, each attempt by its outcome, and the pause behind each by its cause."""
    task = _task(
        TaskState.SUCCEEDED,
        Why(cause=Cause.ENDED, text=""),
        _attempt(1, AttemptOutcome.FAILED, 10, 12, 20),
        _attempt(2, AttemptOutcome.DIED, 30, 30, 40),
        _attempt(3, AttemptOutcome.SNOOZED, 50, 50, 55),
        _attempt(4, AttemptOutcome.ASKED, 60, 60, 61),
        _attempt(5, AttemptOutcome.SUCCEEDED, 70, 70, 75),
        ended=75,
    )
    asked = Question(1, "Publish?", _at(61), answered=True, answered_by="web:ada", answered_at=_at(69))
    task = replace(task, info=replace(task.info, questions=(asked,)))
    assert _words(task) == [
        ("waits", 10),
        ("in the inbox of its agent", 2),
        ("attempt 1: failed", 8),
        ("waits for the retry", 10),
        ("attempt 2: died", 10),
        ("waits after the death of its worker", 10),
        ("attempt 3: snoozed", 5),
        ("snoozed", 5),
        ("attempt 4: asked", 1),
        ("waits for an answer", 9),
        ("attempt 5: succeeded", 5),
    ]
    assert spans_of(task)[9].detail == "answered by web:ada"


def test_what_lasts() -> None:
    """The last span of an open task says what it waits for."""
    lane = Why(cause=Cause.LANE, text="", lane="x", task="t1")
    for why, state, what, detail in (
        (lane, TaskState.READY, "waits for its turn in the lane", "lane x, behind task t1"),
        (Why(cause=Cause.LIMIT, text="", limit="gpu"), TaskState.READY, "waits for a limit", "limit gpu"),
        (Why(cause=Cause.BUDGET, text="", budget="run"), TaskState.READY, "waits for its budget", "budget run"),
        (Why(cause=Cause.PROVIDER, text="", limit="model"), TaskState.READY, "waits for a provider", "provider model"),
        (Why(cause=Cause.SHARE, text="", key="ada"), TaskState.READY, "waits for its share", "key ada"),
        (Why(cause=Cause.AWAITING_INPUT, text=""), TaskState.AWAITING_INPUT, "waits for an answer", ""),
        (Why(cause=Cause.UNREAD, text="", since=_at(40)), TaskState.ASSIGNED, "in the inbox of its agent", ""),
    ):
        (span,) = spans_of(_task(state, why))
        assert (span.what, span.end, span.detail) == (what, None, detail)
    running = _task(TaskState.RUNNING, Why(cause=Cause.RUNNING, text=""), _attempt(1, None, 10, 10))
    assert _words(running) == [("waits", 10), ("attempt 1: runs", 90)]
    cancelled = _task(TaskState.CANCELLED, Why(cause=Cause.ENDED, text=""), ended=30)
    assert _words(cancelled) == [("waits", 30)]
    later = _task(TaskState.RUNNING, Why(cause=Cause.RUNNING, text=""), _attempt(8, None, 10, 10))
    assert _words(later)[0] == ("7 earlier attempts, no longer recorded", 10)


@pytest.mark.parametrize("cause", sorted(set(Cause) - OF_AGENTS))
def test_words_for_each_cause(cause: Cause) -> None:
    """No task that waits has only the word `waits`."""
    (span,) = spans_of(_task(TaskState.READY, Why(cause=cause, text="", reason="")))
    assert span.what != "waits"


def test_the_picture() -> None:
    """It is XML with a bar and a title per span, inside its frame, whatever texts and times say."""
    hostile = "<script>alert(1)</script>\u202e\x00" + "x" * 10_000
    spans = [
        TimelineSpan("waits", "wait", T0, _at(50), hostile),
        TimelineSpan(hostile, "run", _at(50), None),
        TimelineSpan("too early", "bad", _at(-50), _at(-60)),
    ]
    root = ET.fromstring(str(draw(spans, NOW)))
    bars = [{name: float(bar.attrib[name]) for name in ("x", "width")} for bar in root.iter() if bar.tag == "rect"]
    assert len(bars) == 3
    assert all(bar["x"] >= 190 and bar["x"] + bar["width"] <= 1000.1 and bar["width"] >= 2 for bar in bars)
    titles = ["".join(title.itertext()) for title in root.iter("title")]
    assert titles[1].startswith("waits, 50.0 s: <script>alert(1)</script>\\u202e\\x00xxx")
    assert len(titles[1]) < 400
    assert draw([], NOW) == ""


def test_durations() -> None:
    """In the unit that fits, and said to last."""
    for seconds, said in ((0.0123, "12 ms"), (1.25, "1.2 s"), (90, "1 min")):
        assert lasted(TimelineSpan("x", "run", T0, _at(seconds)), NOW) == said
    assert lasted(TimelineSpan("x", "run", _at(95), None), NOW) == "5.0 s so far"
