"""orchestrator/doctor/findings.py: the worst findings of a check."""

from __future__ import annotations

from orchestrator.doctor.findings import SHOWN, ok, problem, warning, worst


def test_worst_first_and_the_rest_counted() -> None:
    """Problems come before warnings; what is left out is counted, with a fix."""
    found = [warning("skills", f"queue {number}", "start one") for number in range(15_000)]
    kept = worst([*found, problem("skills", "the worst", "do it")])
    assert [each.found for each in kept[:2]] == ["the worst", "queue 0"]
    assert len(kept) == SHOWN + 1
    assert kept[-1].found == f"and {15_001 - SHOWN} more like these"


def test_few_stay_as_they_are() -> None:
    """The twin: few findings keep their order and no line is added."""
    few = [ok("skills", "one"), ok("skills", "two")]
    assert worst(few) == few
