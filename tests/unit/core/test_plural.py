"""Numbers have the right form of their nouns."""

from __future__ import annotations

from orchestrator.core.plural import counted


def test_counted() -> None:
    """One is singular; others, also none, are plural."""
    assert [counted(n, "task") for n in (0, 1, 2000)] == ["0 tasks", "1 task", "2,000 tasks"]
    assert counted(3, "entry", "entries") == "3 entries"
