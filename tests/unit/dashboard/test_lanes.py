"""The lanes of a session: what is drawn, and that nothing an agent wrote changes the drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

from orchestrator.dashboard.lanes import MOST_BARS, MOST_ROWS, Bar, bars_of, draw
from orchestrator.tasks.history import AttemptOutcome, TaskAttempt
from orchestrator.tasks.model import TaskState
from orchestrator.views.session_summary import SessionTask

START = datetime(2026, 11, 24, 4, 0, tzinfo=UTC)


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def _task(*attempts: TaskAttempt, ended: float | None = None) -> SessionTask:
    return SessionTask(
        "t", TaskState.RUNNING, "greet", "ada", _at(0), None if ended is None else _at(ended), attempts, None, ""
    )


def _attempt(number: int, agent: str, begin: float, end: float | None, outcome: AttemptOutcome | None) -> TaskAttempt:
    return TaskAttempt(number, number, outcome, agent, None, _at(begin), None, None if end is None else _at(end))


def test_bars() -> None:
    """A task has a bar for its wait and one for each attempt; what lasts ends now."""
    task = _task(
        _attempt(1, "ada", 10, 20, AttemptOutcome.FAILED),
        _attempt(2, "bob", 30, None, None),
    )
    bars = bars_of([task, _task()], _at(60))
    assert [(bar.agent, bar.start, bar.end, bar.outcome) for bar in bars] == [
        ("", _at(0), _at(10), "waiting"),
        ("ada", _at(10), _at(20), "failed"),
        ("bob", _at(30), _at(60), None),
        ("", _at(0), _at(60), "waiting"),
    ]
    assert bars[0].text == "greet waited"


def test_the_drawing() -> None:
    """It has one lane per agent, bars at their times, and says in words what it shows."""
    bars = [
        Bar("ada", _at(0), _at(50), "succeeded", "one"),
        Bar("ada", _at(20), _at(100), "failed", "two"),
        Bar("bob", _at(50), _at(100), None, "three"),
    ]
    drawn = draw(bars)
    root = ET.fromstring(str(drawn.svg))
    rects = [(float(rect.get("x", 0)), float(rect.get("width", 0)), rect.get("y")) for rect in root.iter("rect")]
    assert [(x, width) for x, width, _ in rects] == [(170, 395), (328, 632), (565, 395)]
    assert len({y for _, _, y in rects}) == 3
    assert root.get("role") == "img"
    assert root.get("aria-label") == drawn.summary
    assert "3 attempts of 2 agents; some agent worked in 1 min of 1 min" in drawn.summary
    assert drawn.left_out == 0
    assert not draw(bars, since=_at(200)).svg
    later = ET.fromstring(str(draw(bars, since=_at(60)).svg))
    assert len(list(later.iter("rect"))) == 2


def test_hostile_names() -> None:
    """Names are text in it, without invisible characters, and too many bars are counted in place of drawn."""
    name = "<script>\"'\u202e\x1b\0" + "x" * 10_000
    drawn = draw([Bar(name, _at(0), _at(1), "failed", name)])
    root = ET.fromstring(str(drawn.svg))
    assert {element.tag for element in root.iter()} == {"svg", "g", "title", "rect", "text", "line"}
    assert not set("\u202e\x1b\0") & set(str(drawn.svg))
    assert len(drawn.svg) < 4000
    many = [Bar("ada", _at(n), _at(n + 500), None, name) for n in range(MOST_BARS + 50)]
    drawn = draw(many)
    assert len(drawn.svg) < 120_000
    assert drawn.left_out == 50
    rows = {rect.get("y") for rect in ET.fromstring(str(drawn.svg)).iter("rect")}
    assert len(rows) == MOST_ROWS
