"""Filters: what they mean, and how they say it; groups of dead letters that failed alike."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator.control.outcomes import in_words, progress, read_progress, read_words
from orchestrator.core.durations import instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.tasks.model import Envelope, encode_envelope
from orchestrator.tasks.records import TaskRecord
from orchestrator.tasks.selecting import TaskFilter, error_class, group_by_error
from tests.helpers.cases import each_case

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


def make_task(number: int = 0, **fields: str) -> TaskRecord:
    """A dead letter as it is stored, with other fields."""
    submitted_ms = instant_ms("at", NOW - timedelta(hours=2))
    digits = f"{submitted_ms:012x}"
    stored = {
        "state": "dead",
        "at": "mailer 1-1",
        "reason": "TimeoutError: no answer",
        "fails": "2",
        "ended": str(instant_ms("at", NOW - timedelta(hours=1))),
        "error:1": "Traceback: in connect",
    } | fields
    stored = {name: value for name, value in stored.items() if value}
    packed = encode_envelope(Envelope(stored.pop("skill", "send"), b"{}", session="s1", tags=("a", "b")))
    return TaskRecord(
        f"{digits[:8]}-{digits[8:]}-7c3b-9f10-{number:012x}",
        {"env": packed} | {name: value.encode() for name, value in stored.items()},
    )


TASK = make_task()


@each_case(
    ("said", "meant"),
    [
        ({}, True),
        ({"skill": "send", "agent": "mailer", "session": "s1", "tag": "b", "queue": "skill:send"}, True),
        ({"skill": "sen"}, False),
        ({"agent": "other"}, False),
        ({"session": "s2"}, False),
        ({"tag": "c"}, False),
        ({"queue": "agent:mailer"}, False),
        ({"states": ["dead", "expired"]}, True),
        ({"states": ["expired"]}, False),
        ({"reason": "NO ANSWER"}, True),
        ({"reason": "refused"}, False),
        ({"error": "in connect"}, True),
        ({"error": "in CONNECT"}, False),
        ({"since": NOW - timedelta(hours=1)}, True),
        ({"since": NOW - timedelta(minutes=59)}, False),
        ({"until": NOW - timedelta(hours=1)}, False),
        ({"until": NOW - timedelta(minutes=59)}, True),
        ({"older_than": 3599}, True),
        ({"older_than": timedelta(hours=1)}, False),
        ({"older_than": 10, "until": NOW - timedelta(hours=3)}, False),
        ({"skill": "send", "tag": "c"}, False),
    ],
)
def test_matches(*, said: dict[str, Any], meant: bool) -> None:
    """All that is said must hold; the times are those of the end."""
    assert TaskFilter(**said).at(NOW).matches(TASK) is meant


def test_times_of_what_has_not_ended() -> None:
    """A task that has not ended is as old as its submission."""
    waiting = make_task(state="ready", ended="")
    assert TaskFilter(older_than=7000).at(NOW).matches(waiting)
    assert not TaskFilter(older_than=7300).at(NOW).matches(waiting)


@pytest.mark.parametrize(
    "said",
    [{"states": ["lost"]}, {"since": datetime(2030, 1, 1)}, {"older_than": -1}],  # noqa: DTZ001
)
def test_refused(said: dict[str, Any]) -> None:
    """States that there are none, times without a zone and negative durations are refused."""
    with pytest.raises(InvalidInput):
        TaskFilter(**said)


def test_words() -> None:
    """A filter says for people what it means, at most so much."""
    said = TaskFilter(skill="send", tag="a", states=["dead"], reason="no", error="in x", since=NOW, older_than=60)
    assert said.words == (
        "skill=send, tag=a, state=dead, reason contains 'no', error contains 'in x', since 2030-01-31T12:00:00+00:00, "
        "older than 60 s"
    )
    assert (TaskFilter().words, TaskFilter().empty, said.empty) == ("all", True, False)
    assert len(TaskFilter(reason="x" * 5000).words) == 2000


def test_error_classes() -> None:
    """An exception is known by its name, another reason by its words without numbers and ids."""
    assert error_class("TimeoutError: after 5 s") == "TimeoutError"
    assert error_class("my.module.Broken: x") == "my.module.Broken"
    assert error_class("deaths") == "deaths"
    assert error_class("page 12 of 0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55 is gone") == "page # of # is gone"
    assert error_class("") == "(no reason)"


def test_groups() -> None:
    """Alike is what has the same kind of trouble and skill; the largest group comes first, with its newest task."""
    later = make_task(1, reason="TimeoutError: again", ended=str(instant_ms("at", NOW)))
    other = make_task(2, skill="sort")
    first, second = group_by_error([other, TASK, later])
    assert (first.error, first.skill, first.tasks, first.example) == ("TimeoutError", "send", 2, later.id)
    assert (first.oldest, first.newest) == (TASK.at, NOW)
    assert (second.skill, second.tasks) == ("sort", 1)


def test_outcomes_are_read_as_they_were_said() -> None:
    """What a job notes while it goes on, and in the end, is read again."""
    ends = Counter({"requeued": 1990, "told-to-stop": 3})
    assert in_words(ends) == "1990 requeued, 3 told-to-stop"
    assert read_words(in_words(ends)) == ends
    assert read_progress(progress(1993, 2000, ends)) == (1993, ends)
    assert read_words(in_words(Counter())) == Counter()
    assert read_progress(progress(0, 5, Counter())) == (0, Counter())
