"""How numbers and foreign text are written in reports: whatever comes in, what leaves here is one line."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text on one line, with invisible and direction-changing characters spelled out as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def count(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun: `1 file`, `1,200 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def seconds(value: float) -> str:
    """A duration for people: `850 ms`, `4.2 s`."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def percent(part: int, whole: int) -> str:
    """A share, never rounded up to all or down to nothing."""
    if not whole:
        return "none"
    share = 100 * part / whole
    if 99.5 <= share < 100 or 0 < share < 0.5:
        return f"{share:.1f} %" if 0.05 <= share <= 99.9 else ("> 99.9 %" if share > 50 else "< 0.1 %")
    return f"{share:.0f} %"


def shortened(name: str, length: int) -> str:
    """A name of at most `length` characters; the middle gives way, for the ends tell names apart."""
    if len(name) <= length:
        return name
    tail = length * 2 // 3
    return f"{name[: length - tail - 1]}…{name[-tail:]}"


def code(text: str) -> str:
    """A Markdown code span that holds any text."""
    shown = printable(text)
    runs = [len(run) for run in "".join(c if c == "`" else " " for c in shown).split()]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
