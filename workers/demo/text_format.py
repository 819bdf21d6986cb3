"""Formats numbers and foreign text for reports, each on one line."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape line breaks, invisible and direction-changing characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def count(number: int, singular: str, plural: str = "") -> str:
    """Format a number with its noun: `1 file`, `1,200 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def seconds(value: float) -> str:
    """Format a duration: `850 ms`, `4.2 s`."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def percent(part: int, whole: int) -> str:
    """Format a share, never rounded to all or to nothing."""
    if not whole:
        return "none"
    share = 100 * part / whole
    if 99.5 <= share < 100 or 0 < share < 0.5:
        return f"{share:.1f} %" if 0.05 <= share <= 99.9 else ("> 99.9 %" if share > 50 else "< 0.1 %")
    return f"{share:.0f} %"


def shortened(name: str, length: int) -> str:
    """Shorten a name in the middle, because its ends identify it."""
    if len(name) <= length:
        return name
    tail = length * 2 // 3
    return f"{name[: length - tail - 1]}…{name[-tail:]}"


def code(text: str) -> str:
    """Wrap any text in a Markdown code span."""
    shown = printable(text)
    runs = [len(run) for run in "".join(c if c == "`" else " " for c in shown).split()]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
