"""Writes numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 task`, `1,000 tasks`; `several` is the plural of a noun that takes no `s`."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"
