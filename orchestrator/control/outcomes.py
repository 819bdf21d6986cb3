"""Formats and parses the progress and the outcome of a job in its receipts. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from orchestrator.core.reading import read_whole

NOTHING: Final = "nothing was selected"
COUNT_DIGITS: Final = 15


def in_words(ends: Counter[str]) -> str:
    """Format the detail of the last receipt: `1990 requeued, 10 unknown`."""
    return ", ".join(f"{count} {name}" for name, count in ends.most_common()) or NOTHING


def read_words(detail: str) -> Counter[str]:
    """Parse the detail of the last receipt; other text, as `nothing was selected`, yields zero counts."""
    parts = [one.partition(" ") for one in detail.split(", ")]
    return Counter({name: read_whole(count) for count, _, name in parts if name and _is_count(count)})


def progress(at: int, total: int, ends: Counter[str]) -> str:
    """Format the detail of a progress receipt: `500/2000 500 requeued`."""
    return f"{at}/{total} {in_words(ends)}"


def read_progress(detail: str) -> tuple[int, Counter[str]]:
    """Parse the detail of a progress receipt: processed tasks and their outcomes."""
    at, _, rest = detail.partition("/")
    return read_whole(at) if _is_count(at) else 0, read_words(rest.partition(" ")[2])


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= COUNT_DIGITS
